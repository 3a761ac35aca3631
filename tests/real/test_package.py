"""Our Debian package: built, installed, used, upgraded, removed and purged on machines that debootstrap makes."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("package.sh")
SECONDS = 900
"""How much of the continuous integration's hour it may take, beside others."""
TIMED_OUT = 124


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a machine")
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="this is no Debian: apt knows its mirror")
def test_the_package_is_built_installed_used_upgraded_removed_and_purged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # Told to end, the script ends what it has started and removes its folder.
    with open(log, "wb") as sink:
        done = subprocess.run(
            ["timeout", str(SECONDS), SCRIPT],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, check=False,
        )  # fmt: skip
    text = log.read_text(errors="replace")
    skipped = re.search(r"^the package's life is skipped: (.*)$", text, re.MULTILINE)
    if skipped or done.returncode == TIMED_OUT:
        pytest.skip(skipped[1] if skipped else f"not within {SECONDS} s on this machine")
    assert done.returncode == 0, text[-4000:]
    assert "removed and purged in" in text
