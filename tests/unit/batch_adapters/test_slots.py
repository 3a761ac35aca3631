"""How many slots a batch system has, in its own words."""

import shlex

import pytest

from batch_adapters.adapter import BatchAdapter, Garbled
from batch_adapters.condor import CONDOR
from batch_adapters.running.batch_system import read_slots
from batch_adapters.sge import SGE
from batch_adapters.slurm import SLURM
from tests.unit.batch_adapters.recordings import by_scene, read_recordings

SYSTEMS = [
    pytest.param(SLURM, (80, 79), "slurm", id="slurm"),
    pytest.param(SGE, (100, 99), "sge", id="sge"),
    pytest.param(CONDOR, (100, 99), "condor", id="condor"),
]


@pytest.mark.parametrize(("adapter", "slots", "system"), SYSTEMS)
def test_slots_are_read_of_what_the_command_printed(adapter: BatchAdapter, slots: tuple[int, int], system: str) -> None:
    recording = by_scene(read_recordings(system, "slots.txt"))["slots"]
    assert adapter.slots is not None
    assert list(adapter.slots.argv) == shlex.split(recording.command)
    assert read_slots(adapter, recording.stdout) == slots
    # Several queues, or hosts, count together; Slurm adds them up by itself.
    line = recording.stdout.splitlines()[-1]
    assert read_slots(adapter, f"{recording.stdout}{line}\n") == (2 * slots[0], 2 * slots[1])


@pytest.mark.parametrize(("adapter", "slots", "system"), SYSTEMS)
@pytest.mark.parametrize("printed", ["", "no such pool\n", "undefined undefined\n"])
def test_an_answer_without_slots_is_not_zero_slots(
    adapter: BatchAdapter, slots: tuple[int, int], system: str, printed: str
) -> None:
    with pytest.raises(Garbled, match=f"{system}: no slots in"):
        read_slots(adapter, printed)
