"""The names of local jobs; those of each batch system are in test_every_adapter.py."""

from dataclasses import replace

import pytest

from batch_adapters.naming import Naming, find_token


@pytest.mark.parametrize(
    ("output", "token"),
    [
        pytest.param("/results/k3f9zq2m-1.0.driver", "k3f9zq2m-1", id="Slurm"),
        pytest.param("/results/k3f9zq2m-1.%a.driver|nightly", "k3f9zq2m-1", id="Slurm, array"),
        pytest.param("vm:/results/k3f9zq2m-1.^array_index^.driver", "k3f9zq2m-1", id="PBS, array"),
        pytest.param("vm:/results/k3f9zq2m-1.driver-7", "k3f9zq2m-1", id="Torque, array"),
        pytest.param("/home/ann/k3f9zq2m-1.out|driver", "", id="another file"),
        pytest.param("/results/k3f9zq2m.0.driver", "", id="no token"),
    ],
)
def test_a_token_is_found_in_the_path_of_what_the_batch_system_prints(output: str, token: str) -> None:
    assert find_token(output) == token


@pytest.mark.parametrize("element", ["{id}_{n}", "{id}[{n}]"])
@pytest.mark.parametrize("local_id", ["17_x", "17[2", "17", "x"])
def test_an_id_of_another_form_is_its_own_array_and_first_in_it(element: str, local_id: str) -> None:
    naming = Naming(r"(?P<id>\d+)", single="{id}", element=element, array="{id}")
    assert (naming.position_of(local_id), naming.array_of(local_id)) == (1, local_id)


SPANS = Naming(
    submitted=r"(?P<id>\d+)\[\]\.(?P<server>\w+)",
    single="{id}.{server}",
    element="{id}[{n}].{server}",
    array="{id}[].{server}",
    span="{id}[{n}-{last}].{server}",
)


@pytest.mark.parametrize(
    ("ids", "folded"),
    [
        pytest.param("", "", id="none"),
        pytest.param("4[1].a", "4[1].a", id="one"),
        pytest.param("4[1].a 4[2].a", "4[1-2].a", id="two"),
        pytest.param("4[9].a 4[10].a 4[8].a 4[8].a", "4[8-10].a", id="in no order, and twice"),
        pytest.param("4[1].a 4[3].a 4[4].a 4[6].a", "4[1].a 4[3-4].a 4[6].a", id="with gaps"),
        pytest.param("4[1].a 5[2].a 4[2].b 6.a 7[].a", "6.a 7[].a 4[1].a 5[2].a 4[2].b", id="of several arrays"),
    ],
)
def test_consecutive_elements_have_one_id(ids: str, folded: str) -> None:
    assert SPANS.fold(ids.split()) == folded.split()
    assert replace(SPANS, span="").fold(ids.split()) == ids.split()


def test_a_number_that_the_answer_names_must_be_that_of_the_last_local_job() -> None:
    naming = Naming(r"(?P<id>\d+)\.0-(?P<last>\d+)", single="{id}.{n}", element="{id}.{n}", array="{id}", first=0)
    assert naming.read_submitted("7.0-1\n", 2) == {1: "7.0", 2: "7.1"}
    assert naming.read_submitted("7.0-0\n", 1) == {1: "7.0"}
    assert [naming.read_submitted("7.0-1\n", count) for count in (1, 3)] == [None, None]
