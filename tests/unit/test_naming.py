"""What submit commands print becomes the ids of local jobs, and the ids become positions and arrays again."""

import pytest

from batch_adapters.naming import Naming

SLURM = Naming(r"(?P<id>\d+)(;\S+)?", single="{id}", element="{id}_{n}", array="{id}")
SGE = Naming(
    r'Your job(?:-array)? (?P<id>\d+)(?:\.1-(?P<last>\d+):1)? \(".*"\) has been submitted',
    single="{id}.1",
    element="{id}.{n}",
    array="{id}",
)
CONDOR = Naming(r"(?P<id>\d+)\.0 - \d+\.(?P<last>\d+)", single="{id}.0", element="{id}.{n}", array="{id}", first=0)
PBS = Naming(
    r"(?P<number>\d+)(?:\[\])?(?P<server>\.\S+)",
    single="{number}{server}",
    element="{number}[{n}]{server}",
    array="{number}[]{server}",
)
LSF = Naming(r"Job <(?P<id>\d+)> is submitted to .+", single="{id}", element="{id}[{n}]", array="{id}")
FORK = Naming(r"(?P<id>\S+) 1-(?P<last>\d+)", single="{id}.1", element="{id}.{n}", array="")

SYSTEMS = [
    pytest.param(SLURM, "17\n", ["17_1", "17_2", "17_3"], "17", id="slurm"),
    pytest.param(SGE, 'Your job-array 17.1-3:1 ("t-1") has been submitted\n', ["17.1", "17.2", "17.3"], "17", id="sge"),
    pytest.param(CONDOR, "17.0 - 17.2\n", ["17.0", "17.1", "17.2"], "17", id="condor"),
    pytest.param(PBS, "17[].host\n", ["17[1].host", "17[2].host", "17[3].host"], "17[].host", id="pbs"),
    pytest.param(LSF, "Job <17> is submitted to queue <normal>.\n", ["17[1]", "17[2]", "17[3]"], "17", id="lsf"),
    pytest.param(FORK, "t-1 1-3\n", ["t-1.1", "t-1.2", "t-1.3"], "", id="fork"),
]


@pytest.mark.parametrize(("naming", "printed", "ids", "array"), SYSTEMS)
def test_one_answer_names_all_elements_of_an_array(naming: Naming, printed: str, ids: list[str], array: str) -> None:
    assert naming.read_submitted(printed, 3) == dict(enumerate(ids, 1))


@pytest.mark.parametrize(("naming", "printed", "ids", "array"), SYSTEMS)
def test_an_id_tells_its_position_and_its_array(naming: Naming, printed: str, ids: list[str], array: str) -> None:
    assert [naming.position_of(local_id) for local_id in ids] == [1, 2, 3]
    assert {naming.array_of(local_id) for local_id in ids} == {array}


@pytest.mark.parametrize(
    ("naming", "printed", "local_id", "array"),
    [
        pytest.param(SLURM, "17;cluster\n", "17", "17", id="slurm"),
        pytest.param(SGE, 'Your job 17 ("t-1") has been submitted\n', "17.1", "17", id="sge"),
        pytest.param(CONDOR, "17.0 - 17.0\n", "17.0", "17", id="condor"),
        pytest.param(PBS, "17.host.example.org\n", "17.host.example.org", "17.host.example.org", id="pbs"),
        pytest.param(LSF, "Job <17> is submitted to default queue <normal>.\n", "17", "17", id="lsf"),
        pytest.param(FORK, "t-1 1-1\n", "t-1.1", "", id="fork"),
    ],
)
def test_a_job_that_is_submitted_alone_has_its_own_form(
    naming: Naming, printed: str, local_id: str, array: str
) -> None:
    assert naming.read_submitted(printed, 1) == {1: local_id}
    assert (naming.position_of(local_id), naming.array_of(local_id)) == (1, array)


@pytest.mark.parametrize(
    ("naming", "printed", "count"),
    [
        pytest.param(SGE, 'Your job-array 17.1-2:1 ("t-1") has been submitted\n', 3, id="half of it is accepted"),
        pytest.param(SGE, 'Your job-array 17.1-4:1 ("t-1") has been submitted\n', 3, id="more than was asked for"),
        pytest.param(CONDOR, "17.0 - 17.1\n", 3, id="half of it is accepted, from 0"),
        pytest.param(CONDOR, "17.0 - 17.1\n", 1, id="two instead of one"),
        pytest.param(SLURM, "", 3, id="nothing"),
        pytest.param(SLURM, "Maintenance on Monday!\n17\n", 3, id="a banner before"),
        pytest.param(SLURM, "17\nbye\n", 3, id="a banner after"),
        pytest.param(SLURM, "1 7\n", 3, id="other words"),
        pytest.param(FORK, "t-1 1-\n", 3, id="torn"),
        pytest.param(SLURM, "12", 3, id="an id that is torn, or not"),
    ],
)
def test_an_answer_that_is_not_what_it_should_be_names_nothing(naming: Naming, printed: str, count: int) -> None:
    assert naming.read_submitted(printed, count) is None


def test_an_id_of_another_form_is_its_own_array_and_first_in_it() -> None:
    assert (SLURM.position_of("17_x"), SLURM.array_of("17_x")) == (1, "17_x")
    assert (LSF.position_of("17[2"), LSF.array_of("17[2")) == (1, "17[2")
