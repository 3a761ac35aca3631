"""Which version of this software this is."""

from pathlib import Path

SETUP = Path(__file__).parents[2] / "setup.cfg"
"""There in a clone only."""


def read_version(setup: Path = SETUP) -> str:
    """The version of this tree, where ``setup`` is its setup.cfg, else of the installed package."""
    from configparser import ConfigParser
    from importlib.metadata import version

    config = ConfigParser()
    if config.read(setup, encoding="utf-8"):
        return config["metadata"]["version"]
    return version("samgrid-jobmanager")
