"""The monitor's socket: wakes the account's monitor, or starts it if none runs, for submit, status and the shims."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from jobmanager.database.database import LAYOUT
from jobmanager.site.account import Account
from jobmanager.site.configuration import Configuration
from jobmanager.site.host import check_host
from sandbox.files import check_replaceable, kept_open, open_own, read_text_if_there, take_lock

OF_ALL, OF_EVENTS = "monitor: ", "events: "
"""How those lines of the monitor's answer begin that are about all grid jobs; after the second, all still go on."""
_ANSWER_TIME = 5.0
_MAX_ANSWER = 65536
_LAYOUT_LINE = f"layout {LAYOUT}\n"


@contextmanager
def socket_address(account: Account) -> Iterator[str]:
    """The address of the monitor's socket, however long the state folder's path is (the kernel takes 107 bytes)."""
    with kept_open(os.open(account.places.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
        yield f"/proc/self/fd/{folder}/{account.places.monitor_socket.name}"


def wake_monitor(account: Account) -> None:
    """Make the monitor read the database soon, without waiting for it.

    :raises OSError: none runs, and none can be started. OtherHost: it would not work on this host.
    """
    check_host(account.places)
    try:
        with _connection(account) as connection:
            _end_other_version(account, connection)
            return  # connecting wakes it
    except (FileNotFoundError, ConnectionError):
        start_monitor(account)
    except (TimeoutError, BlockingIOError):  # many others are waking it
        return


def is_listening(account: Account) -> bool:
    try:
        with _connection(account):
            return True
    except OSError:
        return False


def end_other_monitor(account: Account) -> None:
    """End a monitor that has another configuration than ours, so that new grid jobs are run with ours.

    It can be ended at any moment, because all of its tasks can be repeated.
    """
    with contextlib.suppress(OSError), _connection(account) as connection:
        if read_text_if_there(account.places.monitor_configuration) == render_fingerprint(account.configuration):
            return
        _end_peer(connection)


def _find_peer(connection: socket.socket) -> int:
    """The pid of the process that listens."""
    # Imported here because it is rarely needed, and acceptance must be fast.
    import struct

    pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _end_peer(connection: socket.socket) -> None:
    import select
    import signal

    with kept_open(os.pidfd_open(_find_peer(connection))) as process:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        select.select([process], [], [], _ANSWER_TIME)


def _end_other_version(account: Account, connection: socket.socket) -> None:
    """End a monitor of another version: it cannot use the upgraded job database.

    :raises ConnectionError: it was of another version.
    """
    written = read_text_if_there(account.places.monitor_configuration)
    if written and not written.startswith(_LAYOUT_LINE):
        _end_peer(connection)
        raise ConnectionAbortedError("the monitor was of another version")


def render_fingerprint(configuration: Configuration) -> str:
    """All values of a configuration, wherever they came from; differs for different configurations."""
    return f"{_LAYOUT_LINE}{replace(configuration, origins={})!a}"


def ask_monitor(account: Account) -> str:
    """Wake the monitor and get its problems, a line each; if there is no monitor, start one.

    Each line starts with a grid job's id, or with `OF_ALL` or `OF_EVENTS` if the problem concerns all of them.

    :raises OSError: there is no monitor, and none can be started. OtherHost: it would not work on this host.
    """
    check_host(account.places)
    answer = ask_running_monitor(account)
    if answer is None:
        start_monitor(account)
    return answer or ""


def ask_running_monitor(account: Account) -> str | None:
    """As `ask_monitor`; None if there is no monitor."""
    answer = b""
    try:
        with _connection(account) as connection:
            _end_other_version(account, connection)
            while len(answer) < _MAX_ANSWER and (part := connection.recv(_MAX_ANSWER)):
                answer += part
        return answer.decode(errors="replace")
    except (FileNotFoundError, ConnectionError):  # there is none, or it was killed meanwhile
        return None
    except (TimeoutError, BlockingIOError):  # the latter: its queue of connections is full
        return f"{OF_ALL}no answer within {_ANSWER_TIME:g} s, {_find_remedy(account)}\n"


def _find_remedy(account: Account) -> str:
    """What to do about a monitor that does not answer."""
    from batch_adapters.fork.processes import is_stopped, read_process

    with contextlib.suppress(OSError), _connection(account) as connection:
        process = read_process(_find_peer(connection))
        if process is not None and is_stopped(process):
            return f"a signal has stopped it: kill -CONT {process.pid} lets it go on"
    return f"see {account.places.monitor_log}"


def start_monitor(account: Account) -> None:
    """Start a monitor, unless one is just starting, fully detached: it inherits none of the caller's descriptors."""
    import subprocess  # most callers find one

    # Without these it ends, and nobody reads why.
    check_replaceable(account.places.monitor_configuration)
    check_replaceable(account.places.monitor_lock)
    socket_file = account.places.monitor_socket
    if socket_file.is_dir() and not socket_file.is_symlink():
        raise IsADirectoryError(errno.EISDIR, "is a folder in the place of the monitor's socket", str(socket_file))
    with kept_open(open_own(account.places.monitor_log, os.O_APPEND)) as log:
        # The new process inherits the lock with the descriptor, until it listens (`listening`) or dies.
        if take_lock(log):
            subprocess.Popen(
                account.program("samgrid-monitor"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )


@contextmanager
def listening(account: Account) -> Iterator[socket.socket]:
    """The socket of a monitor, which callers can find from now on."""
    path = account.places.monitor_socket
    path.unlink(missing_ok=True)
    with socket_address(account) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        made = path.lstat()
        listener.listen(64)
        listener.setblocking(False)
        with contextlib.suppress(OSError):  # a person's terminal, a journal's socket
            fcntl.flock(2, fcntl.LOCK_UN)
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                # In a new state folder it is another monitor's.
                if os.path.samestat(path.lstat(), made):
                    path.unlink()


@contextmanager
def _connection(account: Account) -> Iterator[socket.socket]:
    with socket_address(account) as address, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_TIME)
        connection.connect(address)
        yield connection
