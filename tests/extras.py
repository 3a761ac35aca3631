"""Packages of extras: where one is not installed, tests that need it are skipped.

None is loaded before it is used: each process of the tests collects all of them, and each of its forks would cost more.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


def need(name: str) -> None:
    """Skip the test where the package, which another process is to load, is not installed."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


class Later:
    """A module that is loaded when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # pytest asks whatever lies in a module for private names of its own.
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
