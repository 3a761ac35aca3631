"""The names of local jobs; those of each batch system are in test_every_adapter.py."""

import pytest

from batch_adapters.adapter import Naming


@pytest.mark.parametrize("element", ["{id}_{n}", "{id}[{n}]"])
@pytest.mark.parametrize("local_id", ["17_x", "17[2", "17", "x"])
def test_an_id_of_another_form_is_its_own_array_and_first_in_it(element: str, local_id: str) -> None:
    naming = Naming(r"(?P<id>\d+)", single="{id}", element=element, array="{id}")
    assert (naming.position_of(local_id), naming.array_of(local_id)) == (1, local_id)


def test_a_number_that_the_answer_names_must_be_that_of_the_last_local_job() -> None:
    naming = Naming(r"(?P<id>\d+)\.0-(?P<last>\d+)", single="{id}.{n}", element="{id}.{n}", array="{id}", first=0)
    assert naming.read_submitted("7.0-1\n", 2) == {1: "7.0", 2: "7.1"}
    assert naming.read_submitted("7.0-0\n", 1) == {1: "7.0"}
    assert [naming.read_submitted("7.0-1\n", count) for count in (1, 3)] == [None, None]
