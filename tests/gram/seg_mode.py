"""The real GRAM in SEG mode: it reads our events, which a collector writes, or the monitor of the one account."""

import contextlib
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.gram.gram_site import GramSite, configured
from tests.real.site import ACCOUNT
from tests.waiting import wait_until

EVENTS = Path("/var/lib/globus/globus-seg-samgrid")


@contextlib.contextmanager
def in_seg_mode(gram: GramSite, text: str) -> Iterator[GramSite]:
    """The same site, which is configured by this text; GRAM's job managers keep the mode that they started with."""
    gram.end_job_managers()
    gram.register("install", "--seg")
    try:
        with configured(gram, text):
            yield gram
    finally:
        gram.end_job_managers()
        gram.register("install", "--poll")
        give_events_to("root")


def give_events_to(account: str) -> None:
    """Let an account write the events; of earlier ones, too, since today's file may be theirs."""
    for path in (EVENTS, *EVENTS.iterdir()):
        shutil.chown(path, account, account)


@contextlib.contextmanager
def collecting(folder: Path) -> Iterator[str]:
    """A collector under an account that is nobody's; yields the configuration that names it."""
    nobody = pwd.getpwnam("daemon")
    for name in ("", "open"):
        (folder / name).mkdir(mode=0o755, exist_ok=True)
        shutil.chown(folder / name, "daemon", "daemon")
    EVENTS.mkdir(exist_ok=True)
    give_events_to("daemon")
    settings = dict(re.findall(r'^(python|launch)="(.*)"$', Path("/etc/globus/globus-samgrid.conf").read_text(), re.M))
    socket = folder / "open" / "socket"
    command = (settings["python"], "-P", settings["launch"], "samgrid-event-collector")
    with open(folder / "log", "ab") as log:
        collector = subprocess.Popen(
            (*command, "-d", str(EVENTS), "-s", str(socket)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd="/", umask=0o022, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[],
        )  # fmt: skip
    try:
        wait_until(socket.exists, "the collector listens")
        yield f'[gram]\nevent_collector = "{socket}"\n'
    finally:
        collector.send_signal(signal.SIGTERM)
        collector.wait(30)


def read_events() -> str:
    """All events that were written for GRAM, with the grid jobs' ids for GRAM's."""
    text = "".join(file.read_text() for file in sorted(EVENTS.iterdir()) if file.name.isdigit())
    return text.replace(f";{pwd.getpwnam(ACCOUNT).pw_uid}.", ";")
