"""Takes this machine's settings of pip to another root folder: ``pip_settings.py ROOT``.

All of pip's configuration files become ROOT/etc/pip.conf. Printed, one a line: the folders and files of this machine
that the settings name, as that root has to have them.
"""

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

INDEXES = {"index-url", "extra-index-url"}
PATHS = {"find-links", "constraint", "requirement", "cert", "client-cert"}
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def find_files(environment: Mapping[str, str]) -> list[Path]:
    """Pip's configuration files, in the order in which one overrides another."""
    home = Path(environment.get("HOME", "/root"))
    folders = environment.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    found = [Path(folder) / "pip/pip.conf" for folder in folders.split(":")]
    found += [Path("/etc/pip.conf"), home / ".pip/pip.conf", own / "pip/pip.conf"]
    return [*found, Path(environment.get("PIP_CONFIG_FILE", os.devnull))]


def find_paths(settings: configparser.RawConfigParser, environment: Mapping[str, str]) -> Iterator[Path]:
    """This machine's certificates, and what else of its files the settings name."""
    if BUNDLE.exists():
        yield BUNDLE
    pairs = [pair for section in settings.sections() for pair in settings.items(section)]
    for name, value in environment.items():
        if name.startswith("PIP_"):
            pairs.append((name.removeprefix("PIP_").lower().replace("_", "-"), value))
        elif name in CERTIFICATES:
            pairs.append(("cert", value))
    for option, value in pairs:
        for word in value.split() if option in INDEXES | PATHS else ():
            path = Path(unquote(word.removeprefix("file://")) if word.startswith("file://") else word)
            if path.is_absolute() and path.exists():
                # The pages of an index link to files that lie beside it.
                yield path.parent if option in INDEXES else path


def main(root: Path) -> None:
    """Write the file and print the paths."""
    settings = configparser.RawConfigParser(strict=False)
    settings.read(find_files(os.environ))
    with (root / "etc/pip.conf").open("w") as file:
        settings.write(file)
    for path in dict.fromkeys(find_paths(settings, os.environ)):
        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
