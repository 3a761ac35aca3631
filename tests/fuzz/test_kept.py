"""What a fuzzer found once is found no more, and each parser does with its seeds what it should."""

from pathlib import Path

import pytest

from tests.fuzz.targets import NONSENSE, RECORDED, TARGETS

KEPT = RECORDED / "fuzz"
"""Inputs, each named TARGET.WORDS."""


@pytest.mark.parametrize("file", sorted(KEPT.iterdir()), ids=lambda file: file.name)
def test_what_was_found_is_mended(file: Path) -> None:
    TARGETS[file.name.partition(".")[0]].check(file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_takes_its_seeds_and_nonsense(name: str) -> None:
    target = TARGETS[name]
    assert target.seeds
    for data in (*target.seeds, *NONSENSE.values()):
        target.check(data)
