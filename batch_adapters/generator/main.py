"""The scheduler event generator's command line, which is that of Globus' program, and its loop."""

import argparse
import contextlib
import enum
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from batch_adapters.generator.emit import EventFolder, LineFilter, StandardOutput, read_end
from batch_adapters.generator.module import Feed, FeedSettings, LogNotKnown
from batch_adapters.generator.process import (
    InputEnded,
    Watch,
    hold_folder,
    leave_on_signals,
    remove_pid_file,
    run_in_background,
    spare_time_on_memory,
    write_pid_file,
)
from batch_adapters.registry import EVENT_MODULES, UnknownEventModule, find_event_module
from sandbox.files import fill_closed_descriptors

logger = logging.getLogger("samgrid-scheduler-event-generator")

_DAY = 86_400
_WARNING_INTERVAL = 60.0
_CONTROL = re.compile(rb"200[ \t]+([0-9]{1,10})(?![0-9])")
_LONGEST_CONTROL = 256


class ExitStatus(enum.IntEnum):
    """How the generator ended; 128 + N: by signal N."""

    INPUT_ENDED = 0
    BAD_ARGUMENTS = 2
    LOG_UNREADABLE = 3
    OUTPUT_BROKEN = 4
    OUTPUT_FAILED = 5


_EPILOG = """\
modules, and where each looks for its log if -l does not name it; more may come from packages that are installed:
{modules}

Events are lines 001;SECONDS;JOB_ID;STATE;EXIT_CODE with GRAM's states: 1 pending, 2 active, 4 failed, 8 done,
16 suspended. The log is followed through its rotations until standard input ends (a terminal: Ctrl-D) or nobody reads
standard output any more. As a service: -d DIRECTORY without -b, with standard input open, or -d DIRECTORY -b.
A line "200 SECONDS" on standard input is a start time that is told later: events of before are left out from then on;
where there was no -t, events from that second on are read again. It never goes back.

exit status: 0 standard input ended (or: gone to the background), 2 bad arguments, 3 the log cannot be read,
4 nobody reads standard output any more, 5 events cannot be written (disk full, -d folder), 143 SIGTERM, 130 SIGINT
"""


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(ExitStatus.BAD_ARGUMENTS, f"{self.prog}: {message} (-h shows the options)\n")


def _read_seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds since 1970")
    return int(text)


def _read_path(text: str) -> Path:
    # In the background the working directory is another.
    return Path(text).absolute()


def _read_interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.01 to 3600")
    return seconds


def make_arguments() -> argparse.ArgumentParser:
    """The command line's options."""
    parser = _Arguments(
        prog=logger.name,
        description="Turns a batch system's log into a stream of job state changes.",
        epilog=_EPILOG.format(
            modules="\n".join(f"  {name:<7} {EVENT_MODULES[name].log}" for name in sorted(EVENT_MODULES))
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-s", dest="name", metavar="NAME", required=True, help="the module, see below")
    parser.add_argument(
        *("-t", "--timestamp"),
        dest="since",
        metavar="SECONDS",
        type=_read_seconds,
        help="events from that second since 1970 on, inclusive; 0, the default: from now on (-d: from its files' end)",
    )
    parser.add_argument(
        "-d", dest="folder", metavar="DIRECTORY", type=_read_path, help="write events there, one file for each UTC day"
    )
    parser.add_argument("-b", dest="background", action="store_true", help="go to the background; ignore stdin")
    parser.add_argument("-p", dest="pid_file", metavar="PIDFILE", type=_read_path, help="write the process id there")
    parser.add_argument("-l", "--log", metavar="PATH", type=_read_path, help="the log, a file or folder")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_read_interval,
        default=1.0,
        help="look at least that often: inotify does not see what other machines write (default: 1)",
    )
    return parser


class StartTime:
    """The second from which events are wanted; lines ``200 SECONDS`` on stdin move it, as in Globus' program."""

    def __init__(self, since: int | None) -> None:
        """``since``: that of the command line; None: from now on."""
        self.since = since
        self._torn = b""

    def take_input(self, data: bytes) -> None:
        """Obey the complete lines; other lines are ignored."""
        *lines, self._torn = (self._torn[-_LONGEST_CONTROL:] + data).split(b"\n")
        for line in lines:
            if found := _CONTROL.match(line):
                self.since = max(self.since or 0, int(found[1])) or None


class _Warnings:
    """Logs what was skipped: at once, then at most once a minute."""

    def __init__(self) -> None:
        self._logged: tuple[str, ...] = ()
        self._next = 0.0

    def log(self, warnings: tuple[str, ...]) -> None:
        if warnings == self._logged or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _WARNING_INTERVAL
        for warning in warnings:
            if warning not in self._logged:
                logger.warning("%s", warning)
        self._logged = warnings


def main(argv: Sequence[str]) -> int:
    """Run the generator until it is no longer needed; returns an `ExitStatus`."""
    logging.basicConfig(format="%(name)s: %(message)s")
    options = make_arguments().parse_args(argv)
    fill_closed_descriptors()
    leave_on_signals()
    spare_time_on_memory()
    try:
        _run(options)
    except InputEnded:
        return ExitStatus.INPUT_ENDED
    except BrokenPipeError:
        return ExitStatus.OUTPUT_BROKEN
    except (UnknownEventModule, LogNotKnown) as error:
        logger.error("%s", error)
        return ExitStatus.BAD_ARGUMENTS
    except _OutputFailed as error:
        logger.error("events cannot be written: %s", error)
        return ExitStatus.OUTPUT_FAILED
    except OSError as error:
        logger.error("the log cannot be read: %s", error)
        return ExitStatus.LOG_UNREADABLE
    finally:
        if options.pid_file is not None:
            remove_pid_file(options.pid_file)


class _OutputFailed(Exception):
    pass


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Marks failures of writing, which have another exit status than those of reading."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _OutputFailed(str(error)) from error


def _run(options: argparse.Namespace) -> NoReturn:
    module = find_event_module(options.name)
    with _writing():
        end = read_end(options.folder, time.time()) if options.folder and not options.since else None
    since = end.second if end is not None else options.since or None
    settings = FeedSettings(options.log, since, os.environ, options.interval, may_ask=bool(options.folder))
    feed = module.open_feed(settings)
    with _writing():
        folder = EventFolder(options.folder, end) if options.folder else None
        if options.folder:
            hold_folder(options.folder)
        if options.background:
            run_in_background(options.pid_file, keep_output=folder is None)
        elif options.pid_file is not None:
            write_pid_file(options.pid_file, os.getpid())
    start = StartTime(settings.since)
    watch = Watch(feed.folders, None if options.background else 0, 1 if folder is None else None, start.take_input)
    output = folder or StandardOutput(1, watch)
    lines = LineFilter(settings.since)
    while True:
        _follow(feed, lines, output, watch, start, options.interval)
        if settings.since is None:
            feed = module.open_feed(replace(settings, since=start.since))
        settings = replace(settings, since=start.since)
        lines.start_from(start.since)


def _follow(
    feed: Feed, lines: LineFilter, output: EventFolder | StandardOutput, watch: Watch, start: StartTime, interval: float
) -> None:
    """Write events until standard input sets another start time."""
    since, warnings = start.since, _Warnings()
    look_for_files = True
    while start.since == since:
        for block in feed.read_events(look_for_files):
            watch.check()
            with _writing():
                output.write(lines.read_good(block))
        with _writing():
            output.write_empty_days(time.time())
        skipped = (f"{lines.malformed} malformed events were skipped",) if lines.malformed else ()
        warnings.log(feed.render_warnings() + skipped)
        look_for_files = watch.wait(min(interval, _DAY - time.time() % _DAY))
