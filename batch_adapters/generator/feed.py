"""The events of a log module: its log followed, its parser fed."""

from collections.abc import Iterator
from pathlib import Path

from batch_adapters.generator.follow import Follower
from batch_adapters.generator.module import FeedSettings, LogModule
from batch_adapters.generator.source import DatedFiles, RotatedFile, Source


class LogFeed:
    """A scheduler's log, read from the wanted time on."""

    def __init__(self, module: LogModule, settings: FeedSettings) -> None:
        """Open the log, where it is already there.

        :raises OSError: it is there and cannot be read.
        :raises LogNotKnown: the module cannot tell where it is.
        """
        self._source = find_source(module, settings.log or module.find_log(settings.environment))
        self._follower = Follower(self._source, module.record_ends)
        self._parser = module.new_parser()
        # The records just before the start tell a parser with a memory what it would remember.
        self._parser.read_events(self._follower.start(settings.since, module.new_parser().read_time))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where the log's files are."""
        return self._source.folders

    def read_events(self, look_for_files: bool) -> Iterator[bytes]:
        """Every event that the log has now and that was not read before; see `Feed`."""
        for block in self._follower.read_blocks(look_for_files):
            yield self._parser.read_events(block)

    def render_warnings(self) -> tuple[str, ...]:
        """Records that were too long, a file that cannot be read."""
        warnings = []
        if self._follower.skipped:
            warnings.append(f"{self._follower.skipped} records of more than 1 MiB were skipped")
        if self._follower.unreadable:
            warnings.append(f"{self._follower.unreadable}: permission denied, waiting until it can be read")
        return tuple(warnings)


def find_source(module: LogModule, log: Path) -> Source:
    """What makes up the log that a path names: its file, its folder, or one day's file of a log of dated files."""
    if module.dated_files and not log.is_file():
        return DatedFiles(log)
    if module.file_name and log.is_dir():
        return RotatedFile(log / module.file_name)
    return RotatedFile(log)
