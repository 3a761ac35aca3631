"""Seals standard output: nothing but the answer gets through, whatever a handler, a library or a child prints."""

import os
import sys
from typing import BinaryIO


def seal() -> tuple[BinaryIO, BinaryIO]:
    """Where the questions come from, and where the answers go.

    From now on file descriptor 0 is empty and 1 is standard error, for us and our children. What GRAM's job manager
    leaks, the descriptors from 3 on, is not ours to keep.
    """
    sys.stdout.flush()
    # dup takes the lowest free descriptor: the second is above the first.
    questions, answers = os.dup(0), os.dup(1)
    for low, high in ((3, questions), (questions + 1, answers), (answers + 1, 65536)):
        os.closerange(low, high)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(questions, "rb"), os.fdopen(answers, "wb")
