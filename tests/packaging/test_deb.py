"""The Debian package says what setup.cfg says."""

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OF_DEBIAN = {"lxml", "jinja2", "tenacity", "lark", "rich"}
"""What Debian 12 has new enough."""


def read_names(requirements: str) -> set[str]:
    return set(re.findall(r"^([A-Za-z][\w.-]*)", requirements, re.MULTILINE))


def test_the_package_has_the_version_of_setup_cfg() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert (
        (ROOT / "debian" / "changelog").read_text().startswith(f"jobmanager-samgrid ({setup['metadata']['version']})")
    )


def test_whatever_the_product_needs_comes_from_debian_or_is_brought_along() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    needed = read_names(
        "\n".join([setup["options"]["install_requires"], *(extras[name] for name in ("completion", "python", "web"))])
    )
    assert needed - OF_DEBIAN <= read_names((ROOT / "debian" / "bundled.txt").read_text())
    depends = (ROOT / "debian" / "control").read_text().partition("\nDepends:")[2]
    assert set(re.findall(r"^ python3-([a-z0-9]+),$", depends, re.MULTILINE)) >= OF_DEBIAN
