"""The test process' own descriptors, to see that none of them is lost."""

import gc
import os


def open_descriptors() -> set[str]:
    """Those that are open now, without what earlier tests have left to the garbage collector."""
    gc.collect()
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 names, which an iterator's own descriptor would spoil
