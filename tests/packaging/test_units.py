"""The units for systemd, by what systemd itself says of them."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "gram_shims" / "installation" / "templates"
WORDS = {
    "{python} -P {launch}": "/bin/true",
    "/usr/bin/samgrid-scheduler-event-generator": "/bin/true",
    "/usr/bin/samgrid advertise": "/bin/true",
    "{folder}": "/tmp",
    "{account}": "root",
}
"""What stands in for what installing a unit, or the product, puts there."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize(
    "unit",
    [
        "samgrid-scheduler-event-generator@slurm.service",
        "samgrid-scheduler-event-generator@slurm.socket",
        "samgrid-event-collector.service",
        "samgrid-monitor@root.service",
        "samgrid-advertise.service",
        "samgrid-advertise.timer",
    ],
)
def test_systemd_has_nothing_to_say_of_a_unit(unit: str, tmp_path: Path) -> None:
    units = [*(ROOT / "docs" / "systemd").iterdir(), *TEMPLATES.glob("*.service")]
    for file in units:
        text = file.read_text()
        for word, stand_in in WORDS.items():
            text = text.replace(word, stand_in)
        (tmp_path / file.name).write_text(text)
    # The units beside it, then systemd's own.
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
