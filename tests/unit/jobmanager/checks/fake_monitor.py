"""Somebody in the place of an account's monitor."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jobmanager.monitor.client import socket_address
from jobmanager.site.account import Account


@contextmanager
def monitor_that_says(account: Account, *answers: str) -> Iterator[None]:
    """Somebody who answers at the monitor's socket, one caller after another."""
    with socket_address(account) as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()

        def answer() -> None:
            for text in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(text.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()
