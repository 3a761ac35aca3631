"""What a hostile account puts where a file is to be read."""

import os

import pytest

TRAPS = [
    pytest.param(lambda path: path.symlink_to("/etc/passwd"), id="link"),
    pytest.param(lambda path: path.mkdir(), id="folder"),
    pytest.param(os.mkfifo, id="fifo"),
]
"""Functions that make something at a path that is no file of its own."""
