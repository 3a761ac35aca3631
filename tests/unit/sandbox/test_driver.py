"""The driver, run from end to end by the shells that sites have."""

import contextlib
import ctypes
import os
import re
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batch_adapters.condor import CONDOR
from sandbox.driver import (
    LINES_PER_FILE,
    OWN_VARIABLES,
    DriverPlan,
    GrownLimits,
    LocalJobEntry,
    render_driver,
    render_table,
    write_submission_table,
)
from sandbox.files import SandboxError, TarLimits
from sandbox.pack import write_report, write_sandbox
from sandbox.status import DriverStatus, PhaseStatus, fetch_status
from tests.waiting import SECONDS, is_gone, wait_until

SHELLS = {"sh": ["/bin/sh"], "bash as sh": ["bash", "--posix"]}
"""What /bin/sh is at sites: batch adapters start the driver by no other name."""
EVERY_BYTE = bytes(range(1, 256)).decode("utf-8", "surrogateescape")
AWKWARD = (
    *("", "a b", "it's", '"quoted"', "$HOME `id` \\", "two\nlines\n", "\n", "Zürich ☃", "*", "-n", EVERY_BYTE),
    "'\n'\"$NL\"",
)


class Bench:
    """One grid job on one host: packs, renders and runs its driver as a batch system would."""

    def __init__(self, folder: Path, shell: list[str]) -> None:
        self.shell = shell
        self.submissions = 0
        self.work_area = folder / "work area"
        self.sandbox = folder / "sand'box"
        self.results = folder / "results $x"
        self.scratch = folder / "scratch"
        for path in (self.work_area, self.sandbox, self.results, self.scratch):
            path.mkdir(mode=0o700)
        (self.results / "reports").mkdir(mode=0o700)

    def prepare(self, entries: Iterable[LocalJobEntry], **changes: Any) -> list[str]:
        entries = list(entries)
        indexes = list(changes.pop("indexes", range(1, len(entries) + 1)))
        site_files = changes.pop("site_files", ())
        digest = write_sandbox(self.work_area, self.sandbox / "sandbox.tar", TarLimits(100, 10**7), site_files)
        is_empty = not any(self.work_area.iterdir()) and not site_files
        is_bare = changes.pop("is_bare", is_empty and not changes.get("carried"))
        table = self.sandbox / "local-jobs"
        table.write_bytes(render_table(entries))
        # A submission of its own: in the same one it would end as before.
        self.submissions += 1
        write_submission_table(table, self.token, indexes)
        if is_bare:
            write_report(self.sandbox)
        plan = DriverPlan(
            grid_job="k3f9zq2m",
            sandbox=self.sandbox,
            results=self.results,
            scratch_base=self.scratch,
            sandbox_sha256=digest,
            is_bare=is_bare,
            local_jobs=len(entries),
            local_id_words="$JOB_ID",
            index_words="$JOB_INDEX",
            has_site_files=bool(site_files),
        )
        driver = self.sandbox / "driver.sh"
        driver.write_bytes(os.fsencode(render_driver(replace(plan, **changes))))
        return [*self.shell, str(driver), self.token]

    @property
    def token(self) -> str:
        """The last submission."""
        return f"k3f9zq2m-{self.submissions}"

    def environment(self, index: int = 1) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "JOB_ID": "t-1.1", "JOB_INDEX": str(index)}

    def run(self, *command: str, **changes: Any) -> int:
        return self.run_prepared(self.prepare([LocalJobEntry(command)], **changes))

    def run_prepared(self, argv: list[str], **environment: str) -> int:
        done = subprocess.run(
            argv, env=self.environment() | environment, check=False, stderr=subprocess.PIPE, timeout=SECONDS, cwd="/"
        )
        self.said = done.stderr
        return done.returncode

    def start(self, *command: str, **changes: Any) -> "subprocess.Popen[bytes]":
        argv = self.prepare([LocalJobEntry(command)], **changes)
        return subprocess.Popen(argv, env=self.environment(), start_new_session=True)

    def wait_until_up(self) -> None:
        """Wait until the program has printed that it is up."""
        wait_until(lambda: any(path.read_text() == "up\n" for path in self.scratch.glob("*/.samgrid/stdout")))

    def read(self, what: str) -> bytes:
        return (self.results / f"k3f9zq2m.t-1.1.{what}").read_bytes()

    @property
    def status(self) -> DriverStatus:
        return fetch_status(self.results / "k3f9zq2m.t-1.1.status")

    def leftovers(self) -> list[str]:
        aside = [path.name for path in self.results.iterdir() if path.name.startswith(".")]
        return aside + [path.name for path in self.scratch.iterdir()]


@pytest.fixture(params=list(SHELLS.values()), ids=list(SHELLS))
def bench(request: pytest.FixtureRequest, room: Path) -> Bench:
    return Bench(room, request.param)


@pytest.fixture
def plain_bench(room: Path) -> Bench:
    return Bench(room, ["/bin/sh"])


def test_a_program_runs_and_everything_it_leaves_comes_back(bench: Bench) -> None:
    (bench.work_area / "greet").write_text(
        "#!/bin/sh\necho hello $1; echo oops >&2; mkdir output/deep; echo x >output/deep/file; exit 3\n"
    )
    (bench.work_area / "greet").chmod(0o755)
    before = int(time.time())
    assert bench.run("./greet", "world") == 3
    assert bench.read("stdout") == b"hello world\n"
    assert bench.read("stderr") == b"oops\n"
    assert bench.read("output/deep/file") == b"x\n"
    status = bench.status
    assert (status.exit_code, status.signal, status.problem) == (3, None, None)
    assert status.host == os.uname().nodename
    assert status.start is not None
    assert status.end is not None
    assert before <= status.start <= status.end <= time.time()
    assert bench.leftovers() == []


@pytest.mark.parametrize(("said", "is_believed"), [("1700000000", True), ("", False), ("yesterday", False)])
def test_a_batch_system_may_say_when_it_started_the_driver(plain_bench: Bench, said: str, is_believed: bool) -> None:
    before = int(time.time())
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sleep", "1"))], started_words="$JOB_STARTED")
    assert plain_bench.run_prepared(argv, JOB_STARTED=said) == 0
    start, end = plain_bench.status.start, plain_bench.status.end
    assert start is not None
    assert end is not None
    assert (start == int(said)) if is_believed else (before <= start <= time.time())
    assert 1 <= end - start < SECONDS


@pytest.mark.parametrize(("said", "host"), [("node7", "node7"), ("", os.uname().nodename)])
def test_a_host_has_the_name_by_which_the_batch_system_can_be_kept_from_it(
    plain_bench: Bench, said: str, host: str
) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/true",))], host_words="${NODE_NAME:-}")
    assert plain_bench.run_prepared(argv, NODE_NAME=said) == 0
    assert plain_bench.status.host == host


def test_the_status_file_is_ours_alone_and_its_lines_stand_in_order(plain_bench: Bench) -> None:
    plain_bench.run("/bin/true")
    status = plain_bench.results / "k3f9zq2m.t-1.1.status"
    assert status.stat().st_mode & 0o777 == 0o600
    keys = [line.split()[0] for line in status.read_text().splitlines() if line]
    assert keys == ["start", "host", "pid", "process", "index", "token", "scratch", "cpu", "exit", "end"]


@pytest.mark.parametrize("umask", ["022", "077"])
def test_the_program_has_the_plans_umask_and_the_driver_its_own(bench: Bench, room: Path, umask: str) -> None:
    code = bench.run("/bin/sh", "-c", 'umask; echo x >"$1"; echo x >output/file', "name", str(room / "f"), umask=umask)
    assert (code, bench.read("stdout")) == (0, f"0{umask}\n".encode())
    assert (room / "f").stat().st_mode & 0o777 == 0o666 & ~int(umask, 8)
    assert [path for path in bench.results.rglob("*") if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize(
    ("command", "code", "name"),
    [
        pytest.param(("/bin/true",), 0, None, id="success"),
        pytest.param(("/bin/sh", "-c", "exit 42"), 42, None, id="failure"),
        pytest.param(("/bin/sh", "-c", "exit 125"), 125, None, id="the program's own 125"),
        pytest.param(("/bin/sh", "-c", "exit 255"), 255, None, id="no signal's number"),
        pytest.param(("/nonexistent/program",), 127, None, id="missing program"),
        pytest.param(("no-such-program-anywhere",), 127, None, id="missing on PATH"),
        pytest.param(("/etc/passwd",), 126, None, id="not executable"),
        pytest.param(("/bin/sh", "-c", "kill -KILL $$"), 137, "KILL", id="SIGKILL"),
        pytest.param(("/bin/sh", "-c", "kill -SEGV $$"), 139, "SEGV", id="SIGSEGV"),
    ],
)
def test_the_driver_ends_with_the_programs_code(bench: Bench, command: tuple[str, ...], code: int, name: str) -> None:
    assert bench.run(*command) == code
    status = bench.status
    assert (status.exit_code, status.signal, status.problem) == (code, name, None)
    assert status.end is not None


def test_arguments_arrive_byte_by_byte(bench: Bench) -> None:
    bench.run("/bin/sh", "-c", "printf '%s\\0' \"$@\"", "name", *AWKWARD)
    assert bench.read("stdout") == b"".join(os.fsencode(word) + b"\0" for word in AWKWARD)


def test_the_environment_arrives_byte_by_byte(bench: Bench) -> None:
    awkward = {f"V{number}": word for number, word in enumerate(AWKWARD)}
    pairs = (*awkward.items(), ("IFS", "x"), ("PATH", "/usr/bin"))
    bench.run("/usr/bin/env", "-0", environment=pairs)
    seen = dict(word.split(b"=", 1) for word in bench.read("stdout").split(b"\0") if word)
    assert {name: seen[name.encode()] for name in awkward} == {
        name: os.fsencode(word) for name, word in awkward.items()
    }
    assert seen[b"PATH"].endswith(b"/.samgrid:/usr/bin")


def test_variables_of_one_local_job_arrive_byte_by_byte_and_reach_the_program_alone(bench: Bench) -> None:
    value = "it's {x}\n$HOME\udcff "
    entry = LocalJobEntry(
        ("sh", "-c", 'printf "%s." "$COLOUR" "$SHADE"'), environment=(("COLOUR", value), ("SHADE", ""))
    )
    changes = {"environment": (("COLOUR", "{x}"),)}
    assert bench.run_prepared(bench.prepare([entry], **changes)) == 0
    assert bench.read("stdout") == os.fsencode(value) + b".."
    # A program in the driver's own PATH would run in place of its tools.
    assert bench.run_prepared(bench.prepare([LocalJobEntry(("/bin/true",), environment=(("PATH", "/nowhere"),))])) == 0


def test_variables_that_are_called_as_the_drivers_own_change_none_of_ours(bench: Bench) -> None:
    names = (
        "tools",
        "index",
        "scratch",
        "status",
        "local_id",
        "grid_job",
        *("first_event", "events", "seed", "plain", "job"),
    )
    entry = LocalJobEntry(("/usr/bin/env", "-0"), environment=tuple((name, "1 mine") for name in names[:6]))
    argv = bench.prepare([entry], environment=tuple((name, "1 mine") for name in names[6:]))
    assert bench.run_prepared(argv) == 0
    seen = dict(word.split(b"=", 1) for word in bench.read("stdout").split(b"\0") if word)
    assert [seen[name.encode()] for name in names] == [b"1 mine"] * len(names)
    ours = {name: seen[f"SAMGRID_{name}".encode()] for name in ("INDEX", "LOCAL_ID", "GRID_JOB")}
    assert ours == {"INDEX": b"1", "LOCAL_ID": b"t-1.1", "GRID_JOB": b"k3f9zq2m"}
    assert seen[b"SAMGRID_OUTPUT"] == seen[b"SAMGRID_SCRATCH"] + b"/output"
    assert seen[b"SAMGRID_SCRATCH"].startswith(os.fsencode(bench.scratch))
    assert seen[b"SAMGRID_STATUS"] == os.fsencode(bench.results / "k3f9zq2m.t-1.1.status")
    assert not {b"SAMGRID_SEED", b"SAMGRID_EVENTS", b"SAMGRID_FIRST_EVENT"} & seen.keys()
    assert b"/.samgrid:" in seen[b"PATH"]


@pytest.mark.parametrize("given", [{}, {"LC_ALL": ""}, {"LC_ALL": "C.UTF-8", "LANG": "de_DE.UTF-8"}], ids=str)
def test_the_program_has_the_language_that_the_driver_was_given(bench: Bench, given: dict[str, str]) -> None:
    assert bench.run_prepared(bench.prepare([LocalJobEntry(("/usr/bin/env",))]), **given) == 0
    lines = bench.read("stdout").decode().splitlines()
    told = dict(line.split("=", 1) for line in lines if line.startswith(("LC_", "LANG=")))
    assert told == {name: value for name, value in given.items() if value}


def test_a_language_that_the_host_does_not_have_adds_nothing_to_stderr(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("/usr/bin/printenv", "LC_ALL"))])
    assert bench.run_prepared(argv, LC_ALL="xx_YY.UTF-8") == 0
    assert (bench.read("stdout"), bench.read("stderr")) == (b"xx_YY.UTF-8\n", b"")


def test_a_local_job_knows_its_place_and_its_slice(bench: Bench) -> None:
    command = ("/bin/sh", "-c", "env | grep ^SAMGRID_ | sort")
    entries = [LocalJobEntry(command), LocalJobEntry(command, 251, 250, 7)]
    assert bench.run_prepared(bench.prepare(entries, cores=4), JOB_INDEX="2") == 0
    seen = dict(line.split("=", 1) for line in bench.read("stdout").decode().splitlines())
    scratch = seen.pop("SAMGRID_SCRATCH")
    assert Path(scratch).parent == bench.scratch
    assert seen == {
        "SAMGRID_GRID_JOB": "k3f9zq2m",
        "SAMGRID_INDEX": "2",
        "SAMGRID_LOCAL_JOBS": "2",
        "SAMGRID_CORES": "4",
        "SAMGRID_LOCAL_ID": "t-1.1",
        "SAMGRID_FIRST_EVENT": "251",
        "SAMGRID_EVENTS": "250",
        "SAMGRID_SEED": "7",
        "SAMGRID_OUTPUT": f"{scratch}/output",
        "SAMGRID_STATUS": str(bench.results / "k3f9zq2m.t-1.1.status"),
    }


def test_a_local_job_is_the_one_that_the_table_has_at_its_position(bench: Bench) -> None:
    entries = [LocalJobEntry(("/bin/echo", str(index))) for index in range(1, 10)]
    argv = bench.prepare(entries, indexes=[2, 3, 7])
    for position, index in ((1, 2), (3, 7)):
        assert bench.run_prepared(argv, JOB_INDEX=str(position)) == 0
        assert bench.read("stdout") == f"{index}\n".encode()
        assert (bench.status.index, bench.status.token) == (index, bench.token)
    assert bench.run_prepared(argv, JOB_INDEX="4") == 125


def test_a_large_table_lies_in_files_of_which_a_driver_reads_one(plain_bench: Bench) -> None:
    argv = plain_bench.prepare((LocalJobEntry(("/bin/echo", str(line))) for line in range(1, 30)), indexes=range(3, 30))
    names = sorted(path.name for path in plain_bench.sandbox.glob(f"{plain_bench.token}.*"))
    assert names == [f"{plain_bench.token}.0", f"{plain_bench.token}.1", f"{plain_bench.token}.2"]
    plain_bench.sandbox.joinpath("local-jobs").unlink()
    for position in (1, 10, 11, 27):
        others = [name for name in names if not name.endswith(str((position - 1) // LINES_PER_FILE))]
        for name in others:
            plain_bench.sandbox.joinpath(name).rename(plain_bench.sandbox / f"away{name}")
        assert plain_bench.run_prepared(argv, JOB_INDEX=str(position)) == 0
        assert plain_bench.read("stdout") == f"{position + 2}\n".encode()
        for name in others:
            plain_bench.sandbox.joinpath(f"away{name}").rename(plain_bench.sandbox / name)


class CarriedBench(Bench):
    """A host without our file system: the batch system starts the driver among copies of what it has brought."""

    def prepare(self, entries: Iterable[LocalJobEntry], **changes: Any) -> list[str]:
        nowhere = Path("/nonexistent")
        super().prepare(entries, carried=True, sandbox=nowhere, results=nowhere, scratch_base=nowhere, **changes)
        self.started_in = self.sandbox.parent / "start'ed $here"
        self.sandbox.rename(self.started_in)
        self.results = self.started_in / "results"
        return [*self.shell, "driver.sh", self.token]

    def run_prepared(self, argv: list[str], **environment: str) -> int:
        environment = self.environment() | environment
        done = subprocess.run(
            argv, env=environment, check=False, capture_output=True, timeout=SECONDS, cwd=self.started_in
        )
        self.said = done.stderr
        assert not [*self.results.glob("*.status")], "it would say that outputs are back which are not carried yet"
        shutil.copytree(self.started_in / "last", self.results, dirs_exist_ok=True)
        return done.returncode


@pytest.fixture(params=list(SHELLS.values()), ids=list(SHELLS))
def carried_bench(request: pytest.FixtureRequest, room: Path) -> CarriedBench:
    return CarriedBench(room, request.param)


def test_where_files_are_carried_all_happens_where_the_driver_is_started(carried_bench: CarriedBench) -> None:
    assert carried_bench.run("/bin/sh", "-c", "pwd; echo oops >&2; echo x >output/file; exit 3") == 3
    assert carried_bench.read("stdout").decode().startswith(f"{carried_bench.started_in}/samgrid.k3f9zq2m.")
    assert (carried_bench.read("stderr"), carried_bench.read("output/file")) == (b"oops\n", b"x\n")
    assert (carried_bench.status.exit_code, carried_bench.status.token) == (3, carried_bench.token)
    left = ["driver.sh", f"{carried_bench.token}.0", "last", "local-jobs", "results", "sandbox.tar"]
    assert sorted(path.name for path in carried_bench.started_in.iterdir()) == left
    assert carried_bench.said == b""


@pytest.mark.parametrize("script", ["exit 3", "kill -KILL $$"], ids=["ended by itself", "ended by a signal"])
def test_a_run_that_was_carried_back_is_found_where_it_is_started_again(
    carried_bench: CarriedBench, tmp_path: Path, script: str
) -> None:
    here = f"echo run >>{tmp_path}/runs; {script}"
    fetch = f'cp {tmp_path}/back/"$1" "$2"'
    argv = carried_bench.prepare([LocalJobEntry(("/bin/sh", "-c", here))], fetch_words=fetch)
    code = carried_bench.run_prepared(argv)
    (carried_bench.started_in / "last").rename(tmp_path / "back")
    shutil.rmtree(carried_bench.results)
    assert carried_bench.run_prepared(argv) == code
    is_run_again = script.startswith("kill")
    assert (tmp_path / "runs").read_text() == "run\n" * (1 + is_run_again)
    assert (carried_bench.status.again is None) is is_run_again
    assert carried_bench.status.end is not None
    assert (carried_bench.results / "k3f9zq2m.t-1.1.stdout").exists() is is_run_again


def test_programs_find_the_sites_files_and_only_read_them(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "clients" / "bin").mkdir(parents=True)
    (tmp_path / "clients" / "bin" / "sam").write_text("#!/bin/sh\necho sam\n")
    (tmp_path / "clients" / "bin" / "sam").chmod(0o755)
    script = '"$SAMGRID_SITE_FILES/clients/bin/sam"; find "$SAMGRID_SITE_FILES" -perm /222'
    assert bench.run("/bin/sh", "-c", script, site_files=[tmp_path / "clients"]) == 0
    assert bench.read("stdout") == b"sam\n"
    assert list(bench.scratch.iterdir()) == []


def test_credentials_that_were_carried_are_the_accounts_alone_and_stay_behind(carried_bench: CarriedBench) -> None:
    script = 'cat "$BEARER_TOKEN_FILE"; find "$BEARER_TOKEN_FILE" -perm 600'
    entries = [LocalJobEntry(("/bin/sh", "-c", script))]
    argv = carried_bench.prepare(entries, carried_credentials=(("BEARER_TOKEN_FILE", "bearer_token_file"),))
    token = carried_bench.started_in / "bearer_token_file"
    token.write_text("secret\n")
    token.chmod(0o644)
    assert carried_bench.run_prepared(argv) == 0
    assert carried_bench.read("stdout").decode() == f"secret\n{token}\n"
    assert not list(carried_bench.results.rglob("bearer*"))


def test_a_damaged_sandbox_that_was_carried_is_a_problem_that_comes_back(carried_bench: CarriedBench) -> None:
    argv = carried_bench.prepare([LocalJobEntry(("/bin/true",))])
    (carried_bench.started_in / "sandbox.tar").write_bytes(b"x")
    assert carried_bench.run_prepared(argv) == 125
    assert carried_bench.status.problem is not None
    assert "sandbox is damaged" in carried_bench.status.problem


def test_what_cannot_be_carried_is_left_behind_and_named(carried_bench: CarriedBench) -> None:
    script = """cd output; mkdir deep 'a b'; echo x >deep/file; ln -s file deep/link; ln -s deep to-folder
    ln -s nowhere 'a b/dangling'; mkfifo pipe; echo secret >closed; chmod 0 closed; chmod 500 'a b'"""
    assert carried_bench.run("/bin/sh", "-c", script) == 0
    output = carried_bench.results / "k3f9zq2m.t-1.1.output"
    left = sorted(str(path.relative_to(output)) for path in output.rglob("*"))
    assert left == ["a b", "closed", "deep", "deep/file", "deep/link"]
    assert (output / "closed").stat().st_mode & 0o400
    named = sorted(line.split("output/")[1] for line in carried_bench.said.decode().splitlines())
    left_behind = " cannot be carried and was left behind"
    assert named == [f"a b/dangling{left_behind}", f"pipe{left_behind}", f"to-folder{left_behind}"]


def test_what_its_own_account_may_not_read_comes_back_with_the_rest(plain_bench: Bench) -> None:
    script = "cd output; mkdir shut; echo x >shut/file; echo y >closed; chmod 0 closed shut"
    assert plain_bench.run("/bin/sh", "-c", script) == 0
    assert (plain_bench.read("output/closed"), plain_bench.read("output/shut/file")) == (b"y\n", b"x\n")
    output = plain_bench.results / "k3f9zq2m.t-1.1.output"
    assert stat.S_IMODE((output / "closed").stat().st_mode) == 0o400


def test_what_a_link_in_place_of_the_output_leads_to_keeps_its_mode(plain_bench: Bench) -> None:
    elsewhere = plain_bench.results / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch(0o200)
    assert plain_bench.run("/bin/sh", "-c", f"rmdir output; ln -s {shlex.quote(str(elsewhere))} output") == 0
    assert stat.S_IMODE((elsewhere / "file").stat().st_mode) == 0o200
    assert (plain_bench.results / "k3f9zq2m.t-1.1.output").is_symlink()


def test_a_slash_in_the_local_id_makes_no_folder(plain_bench: Bench) -> None:
    plain_bench.run_prepared(plain_bench.prepare([LocalJobEntry(("/bin/true",))]), JOB_ID="a/b/c")
    assert (plain_bench.results / "k3f9zq2m.a_b_c.status").exists()


def test_stdin_comes_from_the_work_area_from_a_path_or_from_nowhere(plain_bench: Bench) -> None:
    (plain_bench.work_area / "in put").write_text("travelled\n")
    elsewhere = plain_bench.results / "elsewhere"
    elsewhere.write_text("stayed\n")
    for stdin, text in (("in put", b"travelled\n"), (str(elsewhere), b"stayed\n"), ("", b"")):
        assert plain_bench.run("/bin/cat", stdin=stdin) == 0
        assert plain_bench.read("stdout") == text


def test_the_program_runs_in_the_directory_that_the_request_names(plain_bench: Bench) -> None:
    place = plain_bench.results / "it's here"
    place.mkdir()
    plain_bench.run("/bin/pwd", directory=str(place))
    assert plain_bench.read("stdout").decode() == f"{place}\n"


def test_limits_reach_the_program_and_not_the_driver(bench: Bench) -> None:
    bench.run("/bin/sh", "-c", "ulimit -S -t; ulimit -v", max_cpu_minutes=2, max_memory_mb=512)
    assert bench.read("stdout") == b"120\n524288\n"


@pytest.mark.parametrize(
    ("hard", "soft"),
    [
        pytest.param(120, 119, id="the same limit, as PBS sets it: a signal that can be told comes before KILL"),
        pytest.param(60, 60, id="a lower limit"),
    ],
)
def test_a_limit_of_the_batch_system_stays(plain_bench: Bench, hard: int, soft: int) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sh", "-c", "ulimit -S -t; ulimit -H -t"))], max_cpu_minutes=2)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        # Root could raise it again (PR_CAPBSET_DROP, CAP_SYS_RESOURCE); nobody else may do this.
        ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)

    subprocess.run(argv, env=plain_bench.environment(), preexec_fn=limit, check=True)
    assert plain_bench.read("stdout") == f"{soft}\n{hard}\n".encode()


def test_a_later_attempt_may_take_more_than_the_first(bench: Bench) -> None:
    entry = LocalJobEntry(("/bin/sh", "-c", 'ulimit -S -t; ulimit -v; echo "$cpu_minutes$memory_mb"'))
    argv = bench.prepare([entry], max_cpu_minutes=2, max_memory_mb=512)
    write_submission_table(bench.sandbox / "local-jobs", bench.token, [1], limits=GrownLimits(3, 1024))
    assert bench.run_prepared(argv) == 0
    assert bench.read("stdout") == b"180\n1048576\n\n", "and the program sees no variable of ours"


@pytest.mark.skipif(shutil.which("ksh93") is None, reason="ksh93 is not installed")
def test_a_signal_reaches_the_program_and_is_recorded_under_ksh93_too(plain_bench: Bench) -> None:
    plain_bench.shell = ["ksh93"]
    driver = plain_bench.start("/bin/sh", "-c", "echo up; exec sleep 600")
    plain_bench.wait_until_up()
    os.kill(driver.pid, signal.SIGTERM)
    assert driver.wait(SECONDS) == 128 + signal.SIGTERM
    assert (plain_bench.status.exit_code, plain_bench.status.signal) == (128 + signal.SIGTERM, "TERM")
    assert plain_bench.read("stderr") == b""


def test_cpu_time_of_the_program_is_written_down(bench: Bench) -> None:
    bench.run("/bin/sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    assert bench.status.cpu_seconds is not None
    assert 0.02 <= bench.status.cpu_seconds < 20


@pytest.mark.parametrize("to", ["driver", "group"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU], ids=lambda number: number.name)
def test_a_signal_ends_the_program_once_and_its_outputs_come_back(
    bench: Bench, to: str, number: signal.Signals
) -> None:
    script = """trap 'told=1' TERM; trap '' HUP XCPU; echo kept >output/file; echo up
    while [ -z "$told" ]; do sleep 0.02; done; echo told; exit 9"""
    driver = bench.start("/bin/sh", "-c", script)
    bench.wait_until_up()
    send = os.kill if to == "driver" else os.killpg
    send(driver.pid, number)
    code = driver.wait(SECONDS)
    # bash 5 may lose the code of a program that ends in the very moment of the signal (its waitpid is cut short).
    assert code == 9 or (bench.shell[0] == "bash" and to == "group" and code == 128 + number)
    assert bench.read("stdout").startswith(b"up\ntold\n")
    assert bench.read("output/file") == b"kept\n"
    assert (bench.status.exit_code, bench.status.problem) == (code, None)
    assert bench.leftovers() == []


def test_while_somebody_looks_on_elsewhere_the_end_of_what_is_printed_is_copied(bench: Bench) -> None:
    wish = bench.results / ".k3f9zq2m.t-1.1.live"
    wish.touch()
    driver = bench.start("/bin/sh", "-c", "head -c 70000 /dev/zero | tr '\\0' x; echo up >&2; sleep 60")
    copies = {kind: wish.with_name(f"{wish.name}.{kind}") for kind in ("stdout", "stderr")}
    wait_until(lambda: all(path.exists() for path in copies.values()) and copies["stderr"].read_text() == "0\nup\n")
    wait_until(lambda: copies["stdout"].read_text() == "4464\n" + "x" * 65536)
    driver.send_signal(signal.SIGTERM)
    driver.wait(SECONDS)
    assert len(bench.read("stdout")) == 70000


def test_a_program_that_dies_of_the_signal_is_recorded_so(bench: Bench) -> None:
    driver = bench.start("/bin/sh", "-c", "echo up; exec sleep 60")
    bench.wait_until_up()
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(SECONDS) == 143
    assert (bench.status.exit_code, bench.status.signal) == (143, "TERM")


@pytest.mark.parametrize(
    ("number", "to"),
    [
        *((number, to) for number in ("TERM", "XCPU", "USR2") for to in ("driver", "group", "program")),
        ("KILL", "program"),
    ],
)
def test_what_a_program_has_made_until_a_signal_kills_it_comes_back(bench: Bench, number: str, to: str) -> None:
    # Its child goes on where the signal is not for all.
    driver = bench.start("/bin/sh", "-c", "echo half >output/file; echo up; sleep 60")
    bench.wait_until_up()
    (pid,) = (int(path.read_text().split()[0]) for path in bench.scratch.glob("*/.samgrid/pid"))
    try:
        send = os.killpg if to == "group" else os.kill
        send(pid if to == "program" else driver.pid, signal.Signals[f"SIG{number}"])
        assert driver.wait(SECONDS) > 128
        assert (bench.read("stdout"), bench.read("output/file")) == (b"up\n", b"half\n")
        assert (bench.status.end is not None, bench.status.problem) == (True, None)
        assert bench.leftovers() == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)


def test_a_stubborn_program_may_end_in_its_own_time(bench: Bench) -> None:
    # It counts what reaches it.
    script = "n=5; trap 'n=$((n + 1))' TERM; trap '' USR1; echo up; until [ -e output/go ]; do sleep 0.02; done; "
    driver = bench.start("/bin/sh", "-c", script + "exit $n")
    bench.wait_until_up()
    # So many that some come while the shell is between two waits, or still has to do with the one before.
    for _ in range(100):
        for number in (signal.SIGUSR1, signal.SIGTERM):
            driver.send_signal(number)
            time.sleep(0.0005)
    wait_until(lambda: re.search(r"^ShdPnd:\t0+$", Path(f"/proc/{driver.pid}/status").read_text(), re.M) is not None)
    assert driver.poll() is None
    next(bench.scratch.glob("*/output")).joinpath("go").touch()
    assert driver.wait(SECONDS) == 6
    assert {caught.signal for caught in bench.status.caught} == {"TERM", "USR1"}


@pytest.mark.parametrize("to", ["driver", "group"])
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
def test_a_warning_reaches_the_program_and_ends_nothing(bench: Bench, to: str, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo warned' {name}; echo up; until [ -e output/go ]; do sleep 0.02; done; exit 3"
    driver = bench.start("/bin/sh", "-c", script)
    bench.wait_until_up()
    send = os.kill if to == "driver" else os.killpg
    before = int(time.time())
    (stdout,) = bench.scratch.glob("*/.samgrid/stdout")

    def is_passed_on(times: int) -> bool:
        return len(bench.status.caught) == times and stdout.read_text().count("warned") >= times

    for times in (1, 2):
        send(driver.pid, number)
        wait_until(partial(is_passed_on, times))
    next(bench.scratch.glob("*/output")).joinpath("go").touch()
    assert driver.wait(SECONDS) == 3
    assert set(bench.read("stdout").splitlines()) == {b"up", b"warned"}
    for caught in bench.status.caught:
        assert caught.signal == name
        assert caught.after_end is None or caught.after_end <= 1
        # It counts from the second in which it started.
        assert before - 1 <= caught.time <= time.time()
    assert bench.status.interruption is None


def test_a_signal_before_the_programs_start_keeps_it_from_starting(bench: Bench) -> None:
    program = ("/bin/sh", "-c", "echo ran")
    (bench.work_area / "a").write_text("x")
    argv = bench.prepare([LocalJobEntry(program)])
    Path(argv[-2]).write_text(
        Path(argv[-2])
        .read_text()
        .replace("for pid in ", 'kill -s TERM $$; until [ -e "$job/caught" ]; do sleep 0.02; done; for pid in ')
    )
    assert bench.run_prepared(argv) == 143
    assert bench.read("stdout") == b""
    assert (bench.status.exit_code, bench.status.interruption) == (143, "TERM")


def test_a_process_that_a_signal_ends_just_after_it_was_forked_removes_nothing(bench: Bench) -> None:
    # A bash that ends so runs the trap for the driver's own exit.
    program = ("/bin/sh", "-c", "trap '' USR1; echo up; until [ -e output/go ]; do sleep 0.02; done")
    argv = bench.prepare([LocalJobEntry(program)])
    script = Path(argv[-2])
    begin = "    (\n        trap '' $ENDING"
    assert begin in script.read_text()
    script.write_text(script.read_text().replace(begin, begin.replace("trap", "clean; trap")))
    driver = subprocess.Popen(argv, env=bench.environment(), start_new_session=True)
    bench.wait_until_up()
    driver.send_signal(signal.SIGUSR1)
    wait_until(lambda: len(bench.status.caught) == 1)
    next(bench.scratch.glob("*/output")).joinpath("go").touch()
    assert driver.wait(SECONDS) == 0
    assert bench.read("output/go") == b""
    assert bench.leftovers() == []


def test_a_signal_that_ends_mktemp_when_it_has_made_the_scratch_folder_spoils_nothing(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("true",))], is_bare=False)
    path = stand_in(bench, "mktemp", '/bin/mktemp "$@"; kill -s USR1 $$')
    assert bench.run_prepared(argv, PATH=path) == 0
    assert bench.leftovers() == []


def test_a_process_that_a_signal_ends_before_it_ignores_signals_copies_outputs_again(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("echo", "hello"))])
    script = Path(argv[-2])
    ignoring = "            # The batch system's grace time is for this.\n"
    assert ignoring in script.read_text()
    script.write_text(script.read_text().replace(ignoring, '[ "$silent" -gt 0 ] || exit 143\n'))
    assert bench.run_prepared(argv) == 0
    assert bench.read("stdout") == b"hello\n"


def test_a_signal_while_the_sandbox_is_unpacked_keeps_the_program_from_starting(bench: Bench) -> None:
    (bench.work_area / "a").write_text("x")
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo ran"))])
    script = Path(argv[-2])
    script.write_text(script.read_text().replace("\ntools=", "\nkill -s TERM $$\ntools=", 1))
    assert bench.run_prepared(argv) == 125
    assert bench.status.problem == "a signal ended the local job before its program was started"
    assert [caught.signal for caught in bench.status.caught] == ["TERM"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_adds_nothing_to_what_the_program_printed(bench: Bench, number: signal.Signals) -> None:
    assert bench.run("/bin/sh", "-c", f"echo out; echo err >&2; kill -{number:d} $$") == 128 + number
    assert (bench.read("stdout"), bench.read("stderr")) == (b"out\n", b"err\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=lambda number: number.name)
def test_a_program_can_be_ended_by_the_signals_that_shells_ignore(bench: Bench, number: signal.Signals) -> None:
    assert bench.run("/bin/sh", "-c", f"kill -{number:d} $$; echo lives") == 128 + number
    assert bench.read("stdout") == b""


OTHER_ENV = """case $1 in -*) echo "env: unrecognized option '$1'" >&2; exit %d ;; esac; exec /usr/bin/env "$@\""""


@pytest.mark.parametrize("code", [0, 1, 125])
@pytest.mark.parametrize("refusal", [None, 125, 1], ids=["env of today", "env of old", "env of busybox"])
def test_a_program_runs_once_whatever_env_can_do_for_it(
    bench: Bench, room: Path, refusal: int | None, code: int
) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", f"echo ran >>{room}/ran; echo err >&2; exit {code}"))])
    path = stand_in(bench, "env", OTHER_ENV % refusal if refusal else 'exec /usr/bin/env "$@"')
    assert bench.run_prepared(argv, PATH=path) == code
    assert (room / "ran").read_text() == "ran\n"
    assert (bench.read("stderr"), bench.status.exit_code) == (b"err\n", code)


def test_a_program_whose_name_is_an_assignment_is_run(plain_bench: Bench) -> None:
    (plain_bench.work_area / "a=b").write_text("#!/bin/sh\necho ran\n")
    (plain_bench.work_area / "a=b").chmod(0o755)
    assert plain_bench.run("./a=b") == 0
    assert plain_bench.read("stdout") == b"ran\n"


def test_a_signal_after_the_programs_end_is_noted_with_its_age_and_disturbs_no_copy(bench: Bench) -> None:
    path = stand_in(bench, "cp", 'echo >"$0.begun"; until [ -e "$0.go" ]; do sleep 0.02; done; exec /bin/cp "$@"')
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo kept >output/file"))])
    driver = subprocess.Popen(argv, env=bench.environment() | {"PATH": path}, start_new_session=True)
    wait_until((bench.sandbox / "tools" / "cp.begun").exists)
    os.killpg(driver.pid, signal.SIGTERM)
    (bench.sandbox / "tools" / "cp.go").touch()
    assert driver.wait(SECONDS) == 0
    assert bench.read("output/file") == b"kept\n"
    (caught,) = bench.status.caught
    assert (caught.signal, caught.after_end is not None) == ("TERM", True)


def test_a_warning_that_ends_the_drivers_own_programs_is_noted_all_the_same(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo kept >output/file"))])
    path = stand_in(
        bench, "cp", '[ -e "$0.begun" ] || { >"$0.begun"; kill -s USR1 "$PPID" "$DRIVER"; }; exec /bin/cp "$@"'
    )
    script = f'DRIVER=$$; export DRIVER; exec {" ".join(bench.shell)} "$@"'
    assert bench.run_prepared(["/bin/sh", "-c", script, "sh", *argv[len(bench.shell) :]], PATH=path) == 0
    assert bench.read("output/file") == b"kept\n"
    assert {(caught.signal, caught.after_end is not None) for caught in bench.status.caught} == {("USR1", True)}


def test_a_requeued_local_job_replaces_what_its_first_run_left(bench: Bench) -> None:
    assert bench.run("/bin/sh", "-c", "rmdir output; echo 0 >output; exit 1") == 1
    closed = "mkdir output/b; echo 1 >output/b/a; chmod a-w output/b"
    assert bench.run("/bin/sh", "-c", f"echo one; echo one >&2; echo 1 >output/a; {closed}; exit 1") == 1
    assert bench.run("/bin/sh", "-c", "echo two; echo 2 >output/b") == 0
    assert (bench.read("stdout"), bench.read("stderr"), bench.read("output/b")) == (b"two\n", b"", b"2\n")
    assert not (bench.results / "k3f9zq2m.t-1.1.output" / "a").exists()
    assert bench.status.exit_code == 0
    assert bench.run("/bin/true") == 0
    assert not (bench.results / "k3f9zq2m.t-1.1.output").exists()
    assert bench.leftovers() == []


def test_a_run_that_came_to_its_end_is_not_repeated(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo ran; echo x >output/file; exit 3"))])
    assert bench.run_prepared(argv) == 3
    before = bench.status
    (bench.results / "k3f9zq2m.t-1.1.stdout").write_text("kept\n")
    status = bench.results / "k3f9zq2m.t-1.1.status"
    # A disk was full after a part of the exit code; HTCondor started it again, and held it at once.
    status.write_text(status.read_text().replace("exit 3", "exit 13\nexit 3") + "caught TERM 9\n")
    assert bench.run_prepared(argv) == 3
    assert bench.read("stdout") == b"kept\n"
    assert bench.status.again is not None
    assert replace(bench.status, again=None) == before
    assert bench.leftovers() == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("token k3f9zq2m-1", "token k3f9zq2m-2"), id="another submission"),
        pytest.param(lambda text: text.replace("index 1", "index 2"), id="another index"),
        pytest.param(lambda text: text.replace("\nend ", "\ncaught TERM 1\nend "), id="told to end"),
        pytest.param(lambda text: text.replace("\nexit 0\n", "\nsignal TERM\nexit 143\n"), id="ended by a signal"),
        pytest.param(lambda text: text[: text.index("end ")], id="no end"),
        pytest.param(lambda text: text[: text.index("exit ")], id="no code"),
        pytest.param(lambda text: text + "\nstart 5\nhost n1\n", id="begun again since"),
        pytest.param(None, id="without its outputs"),
    ],
)
def test_a_run_that_did_not_come_to_its_end_is_repeated(
    plain_bench: Bench, change: Callable[[str], str] | None
) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo ran"))])
    assert plain_bench.run_prepared(argv) == 0
    status, stdout = (plain_bench.results / f"k3f9zq2m.t-1.1.{what}" for what in ("status", "stdout"))
    if change:
        status.write_text(change(status.read_text()))
        stdout.write_text("kept\n")
    else:
        stdout.unlink()
    assert plain_bench.run_prepared(argv) == 0
    assert plain_bench.read("stdout") == b"ran\n"
    assert plain_bench.status.end is not None


GOES_ON_ONCE = '[ -e "$0" ] || { touch "$0"; echo up; sleep 600; }'


@pytest.mark.parametrize("is_lost", [True, False], ids=["without its scratch folder", "below a shell, elsewhere"])
def test_a_run_that_goes_on_is_killed_where_it_is_started_again(bench: Bench, room: Path, is_lost: bool) -> None:
    entries = [LocalJobEntry(("/bin/sh", "-c", GOES_ON_ONCE, str(room / "begun")))]
    argv = bench.prepare(entries, directory="" if is_lost else "/")
    # As Grid Engine starts it: not as the leader of its process group.
    whole = argv if is_lost else ["/bin/sh", "-c", '"$@"; exit "$?"', "sh", *argv]
    first = subprocess.Popen(whole, env=bench.environment(), start_new_session=True)
    bench.wait_until_up()
    if is_lost:
        shutil.rmtree(next(bench.scratch.iterdir()))
    assert bench.run_prepared(argv) == 0
    assert first.wait(SECONDS) == (-signal.SIGKILL if is_lost else 128 + signal.SIGKILL)
    wait_until(lambda: not commands_in_session(first.pid))
    assert bench.status.exit_code == 0


def test_a_program_whose_driver_alone_was_killed_is_killed_where_it_is_started_again(bench: Bench, room: Path) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", GOES_ON_ONCE, str(room / "begun")))])
    first = subprocess.Popen(argv, env=bench.environment(), start_new_session=True)
    bench.wait_until_up()
    first.kill()
    first.wait(SECONDS)
    assert bench.run_prepared(argv) == 0
    # Who looks at what it prints ends at its next look.
    wait_until(lambda: not any(b"sleep 600" in command for command in commands_in_session(first.pid)))
    assert bench.status.exit_code == 0


@pytest.mark.parametrize(
    "change", [(r"(^process .*\.)\d+$", r"\g<1>5"), (r"^process \w+", "process 00000000")], ids=["by time", "by table"]
)
def test_who_has_the_number_of_an_earlier_runs_driver_is_not_killed(
    plain_bench: Bench, room: Path, change: tuple[str, str]
) -> None:
    """That driver began at another time, or in another process table, as of another host."""
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sh", "-c", GOES_ON_ONCE, str(room / "begun")))])
    other = subprocess.Popen(argv, env=plain_bench.environment(), start_new_session=True)
    plain_bench.wait_until_up()
    status = plain_bench.results / "k3f9zq2m.t-1.1.status"
    status.write_text(re.sub(*change, status.read_text(), count=1, flags=re.MULTILINE))
    (named,) = re.findall(r"(?m)^process \S+\.(\d+)\.\d+$", status.read_text())
    # In the place of its scratch folder is a link of another account's to that of the other.
    link = room / "link"
    link.symlink_to(next(plain_bench.scratch.iterdir()))
    status.write_text(re.sub(r"(?m)^scratch .*$", f"scratch {link}", status.read_text()))
    code, end = plain_bench.run_prepared(argv), other.poll()
    assert (named, code, end) == (str(other.pid), 0, None)


@pytest.mark.parametrize("ends", ["by itself", "killed by a signal"])
def test_a_run_counts_no_more_when_another_has_begun_elsewhere(bench: Bench, room: Path, ends: str) -> None:
    """A batch system that lost its host runs it again elsewhere, and kills it when the host is back."""
    begin = 'if mkdir "$0/begun"; then n=one; else n=two; fi; echo >output/$n'
    script = f'{begin}; until [ -e "$0/$n" ]; do sleep 0.02; done; echo $n'
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", script, str(room)))])
    status = bench.results / "k3f9zq2m.t-1.1.status"
    first = subprocess.Popen(argv, env=bench.environment(), start_new_session=True)
    wait_until(lambda: any(bench.scratch.glob("*/output/one")))
    status.write_text(status.read_text().replace("process ", "process elsewhere-").replace("pid ", "pid 1"))
    second = subprocess.Popen(argv, env=bench.environment(), start_new_session=True)
    wait_until(lambda: any(bench.scratch.glob("*/output/two")))
    before = status.read_bytes()
    if ends == "by itself":
        (room / "one").touch()
    else:
        first.terminate()
    assert (first.wait(SECONDS), status.read_bytes()) == (125, before)
    (room / "two").touch()
    assert second.wait(SECONDS) == 0
    assert (bench.read("stdout"), bench.read("output/two"), bench.leftovers()) == (b"two\n", b"\n", [])
    assert (bench.status.exit_code, bench.status.caught) == (0, ())


def test_a_run_torn_off_in_mid_line_does_not_spoil_the_next(plain_bench: Bench) -> None:
    (plain_bench.results / "k3f9zq2m.t-1.1.status").write_text("start 5\nproblem old\nexi")
    plain_bench.run("/bin/true")
    assert (plain_bench.status.exit_code, plain_bench.status.problem) == (0, None)
    assert plain_bench.status.start != 5


def spoil(name: str) -> Callable[[Bench], None]:
    """Damage a file of the sandbox."""

    def damage(bench: Bench) -> None:
        (bench.sandbox / name).write_bytes(b"x")

    return damage


def lose_report(bench: Bench) -> None:
    (bench.sandbox / ".samgrid" / "samgrid-report").unlink()


def change_table(change: Callable[[bytes], bytes]) -> Callable[[Bench], None]:
    """Damage the table of the submission."""

    def damage(bench: Bench) -> None:
        table = bench.sandbox / f"{bench.token}.0"
        table.write_bytes(change(table.read_bytes()))

    return damage


def change_once(lines: bytes) -> bytes:
    return lines.replace(b"/bin/echo", b"/bin/date", 1)


def lose_table(bench: Bench) -> None:
    (bench.sandbox / f"{bench.token}.0").unlink()


def lose_scratch(bench: Bench) -> None:
    bench.scratch.rmdir()


@pytest.mark.parametrize(
    ("damage", "changes", "words"),
    [
        pytest.param(spoil("sandbox.tar"), {"is_bare": False}, "sandbox is damaged", id="sandbox.tar changed"),
        pytest.param(lose_report, {}, "sandbox is damaged: samgrid-report is gone", id="samgrid-report gone"),
        pytest.param(change_table(change_once), {"is_bare": False}, "sandbox is damaged", id="table of files changed"),
        pytest.param(lose_scratch, {"is_bare": False}, "no scratch folder", id="no scratch for files"),
        pytest.param(change_table(change_once), {}, "sandbox is damaged", id="table changed"),
        pytest.param(change_table(lambda lines: lines[:-3]), {}, "sandbox is damaged", id="torn table"),
        pytest.param(change_table(lambda lines: bytes(len(lines))), {}, "sandbox is damaged", id="table of zeros"),
        pytest.param(lose_table, {}, "sandbox is damaged: k3f9zq2m-1.0 has no line", id="table gone"),
        pytest.param(lose_scratch, {}, "no scratch folder", id="no scratch"),
        pytest.param(None, {"directory": "/nonexistent"}, "the directory /nonexistent", id="no directory"),
        pytest.param(None, {"stdin": "absent"}, "input", id="no stdin"),
        pytest.param(None, {"index_words": "$NOTHING"}, "no position in its array", id="no position"),
        pytest.param(None, {"index_words": "08"}, 'position in its array but "08"', id="no number"),
        pytest.param(None, {"index_words": "7x"}, 'position in its array but "7x"', id="half a number"),
        pytest.param(None, {"index_words": "7"}, "has no line for position 7", id="position too high"),
        pytest.param(None, {"local_id_words": "$NOTHING"}, "no id", id="no local id"),
    ],
)
def test_a_failed_step_is_a_problem_and_no_exit_code(
    plain_bench: Bench, damage: Callable[[Bench], None] | None, changes: dict[str, str], words: str
) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/echo", "ran"))], **changes)
    if damage:
        damage(plain_bench)
    assert plain_bench.run_prepared(argv) == 125
    (file,) = plain_bench.results.glob("*.status")
    status = fetch_status(file)
    assert status.problem is not None
    assert words in status.problem
    assert (status.exit_code, status.end) == (None, None)
    assert not list(plain_bench.scratch.glob("*"))


def test_a_file_damaged_while_unpacking_is_noticed(plain_bench: Bench) -> None:
    path = stand_in(plain_bench, "tar", '/bin/tar "$@" && echo spoilt >"$4/data"')
    (plain_bench.work_area / "data").write_text("good\n")
    argv = plain_bench.prepare([LocalJobEntry(("/bin/true",))])
    assert plain_bench.run_prepared(argv, PATH=path) == 125
    assert plain_bench.status.problem == "the unpacked sandbox is damaged: a file has another sha256"


def test_the_variables_that_a_handler_must_not_set_are_those_that_the_driver_sets(plain_bench: Bench) -> None:
    plain_bench.prepare([LocalJobEntry(("/bin/true",))], has_site_files=True)
    exported = re.findall(r"(?m)^    .*export .*", (plain_bench.sandbox / "driver.sh").read_text())
    assert set(re.findall(r"\b(SAMGRID_\w+)=", "".join(exported))) == OWN_VARIABLES


def stand_in(bench: Bench, name: str, script: str) -> str:
    """The PATH on which the program of that name is a script; ``$0`` lies in a folder of its own."""
    tools = bench.sandbox / "tools"
    tools.mkdir(exist_ok=True)
    (tools / name).write_text(f"#!/bin/sh\n{script}\n")
    (tools / name).chmod(0o755)
    return f"{tools}:{os.environ['PATH']}"


def test_what_does_not_fit_is_told_and_the_rest_comes_back(bench: Bench) -> None:
    (bench.work_area / "big").write_bytes(b"x" * 300_000)
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "cp big output/big; echo x >output/small"))])
    path = stand_in(bench, "cp", 'case $1 in -RP) ulimit -f 100 ;; esac\nexec /bin/cp "$@"')
    assert bench.run_prepared(argv, PATH=path) == 0
    assert bench.status.lost == ("output/big: File too large",)
    assert (bench.status.problem, bench.status.exit_code, bench.status.end is None) == (None, 0, False)
    assert bench.read("output/small") == b"x\n"
    assert not (bench.results / "k3f9zq2m.t-1.1.output" / "big").exists(), "half a file is none"
    assert bench.leftovers() == []


# As a bad disk would: cp says so, and leaves half of the file.
BAD_DISK = r"""/bin/cp "$@"
    for file in "$4" "$4"/* "$4"/*/*; do
        [ -f "$file" ] || continue
        case $file in */bad*) echo half >"$file"; bad="cp: error reading '$file': Input/output error" ;; esac
    done
    [ -z "$bad" ] || { echo "$bad" >&2; exit 1; }"""


def test_what_cannot_be_read_is_told_and_the_rest_comes_back(bench: Bench) -> None:
    script = """cd output; mkdir a; echo 1 >a/bad; echo 2 >a/good; echo 3 >'bad
it'; echo 4 >.hidden; ln -s a/good link; ln -s a link-to-folder; mkdir empty"""
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", script))])
    assert bench.run_prepared(argv, PATH=stand_in(bench, "cp", BAD_DISK)) == 0
    assert sorted(bench.status.lost) == ["output/a/bad: Input/output error", "output/bad?it: Input/output error"]
    output = bench.results / "k3f9zq2m.t-1.1.output"
    left = sorted(str(path.relative_to(output)) for path in output.rglob("*"))
    assert left == [".hidden", "a", "a/good", "empty", "link", "link-to-folder"]
    assert [(output / name).readlink() for name in ("link", "link-to-folder")] == [Path("a/good"), Path("a")]
    assert bench.leftovers() == []


def test_of_much_that_cannot_be_read_twenty_are_named(plain_bench: Bench) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sh", "-c", "for i in $(seq 23); do echo >output/bad$i; done"))])
    assert plain_bench.run_prepared(argv, PATH=stand_in(plain_bench, "cp", BAD_DISK)) == 0
    assert len(plain_bench.status.lost) == 21
    assert plain_bench.status.lost[-1] == "and 3 more"
    assert plain_bench.read("stdout") == b""


def test_a_text_that_cannot_be_read_keeps_no_output_away(plain_bench: Bench) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo out; echo x >output/file"))])
    path = stand_in(
        plain_bench,
        "cp",
        'case $3 in */stdout) echo "cp: it: Input/output error" >&2; exit 1 ;; esac; exec /bin/cp "$@"',
    )
    assert plain_bench.run_prepared(argv, PATH=path) == 0
    (lost,) = plain_bench.status.lost
    assert lost.endswith("/.samgrid/stdout: Input/output error")
    assert plain_bench.read("output/file") == b"x\n"
    assert not (plain_bench.results / "k3f9zq2m.t-1.1.stdout").exists()


def test_nobody_waits_for_folders_that_lie_deeper_than_any_that_are_gathered(bench: Bench) -> None:
    script = """import os
os.chdir('output')
open('file', 'w').write('x\\n')
for _ in range(90):
    os.mkdir('folder' * 8)
    os.chdir('folder' * 8)"""
    assert bench.run(sys.executable, "-c", script) == 0
    assert bench.read("output/file") == b"x\n"
    assert bench.status.lost == ()
    assert bench.leftovers() == []


def test_a_path_that_is_too_long_where_it_comes_back_keeps_nothing_else_away(bench: Bench) -> None:
    # From "output" it is just short enough; any folder in front of it makes it too long.
    script = """cd output; echo x >file; name=$(printf %0203d 1)
    for i in $(seq 20); do mkdir $name; cd $name; done; echo >deep"""
    assert bench.run("/bin/sh", "-c", script) == 0
    assert bench.read("output/file") == b"x\n"
    assert bench.status.lost
    assert all(re.fullmatch(r"output/000.*: File name too long", line) for line in bench.status.lost)
    assert all(len(line) <= 300 for line in bench.status.lost)
    assert bench.leftovers() == []


def test_outputs_that_cannot_be_put_in_their_place_are_a_problem(plain_bench: Bench) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo x >output/file"))])
    path = stand_in(plain_bench, "mv", 'echo "mv: no: Permission denied" >&2; exit 1')
    assert plain_bench.run_prepared(argv, PATH=path) == 125
    assert plain_bench.status.problem == "output could not be brought back: mv: no: Permission denied"
    assert (plain_bench.status.exit_code, plain_bench.leftovers()) == (None, [])


def test_a_full_disk_is_waited_for(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo x >output/file"))])
    stand_in(bench, "sleep", '[ "$1" = 10 ] || exec /bin/sleep "$1"; echo room >"${0%/*}/room"')
    full = """[ -e "${0%/*}/room" ] || { echo "cp: error writing 'x': No space left on device" >&2; exit 1; }"""
    assert bench.run_prepared(argv, PATH=stand_in(bench, "cp", f'{full}\nexec /bin/cp "$@"')) == 0
    assert (bench.sandbox / "tools" / "room").exists()
    assert (bench.read("output/file"), bench.status.lost) == (b"x\n", ())
    assert bench.said == b"samgrid: output waits for room: No space left on device\n"
    # The empty line ends one that a full disk may have cut.
    assert b"problem output waits for room: No space left on device\n\n" in bench.read("status")
    assert bench.status.problem is None


@pytest.mark.parametrize("unit", ["k", "i"])
def test_a_disk_that_is_too_small_for_the_outputs_is_filled_once_and_not_again_and_again(
    bench: Bench, unit: str
) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "head -c 5000 /dev/zero >output/file"))])
    naps = 'echo nap >>"${0%/*}/naps"; [ "$(wc -l <"${0%/*}/naps")" != 3 ] || echo room >"${0%/*}/room"'
    stand_in(bench, "sleep", f'[ "$1" = 10 ] || exec /bin/sleep "$1"; {naps}')
    free = f'[ -e "${{0%/*}}/room" ] || [ "$1" != -P{unit} ] || set -- 1'
    stand_in(
        bench,
        "df",
        f"""{free}
[ "$1" != 1 ] || {{ printf '%s\\n' head 'a b 10 9 1 90% /'; exit; }}
exec /bin/df "$@\"""",
    )
    full = 'echo copy >>"${0%/*}/copies"; [ -e "${0%/*}/room" ] || { echo "no: No space left on device" >&2; exit 1; }'
    assert bench.run_prepared(argv, PATH=stand_in(bench, "cp", f'{full}\nexec /bin/cp "$@"')) == 0
    assert (bench.sandbox / "tools" / "naps").read_text() == "nap\n" * 3
    assert (bench.sandbox / "tools" / "copies").read_text() == "copy\n" * 2
    assert len(bench.read("output/file")) == 5000


@pytest.mark.parametrize(("command", "is_bare"), [("mktemp", False), ("tar", False), ("mkdir", True)])
def test_room_for_the_scratch_folder_is_waited_for(bench: Bench, command: str, is_bare: bool) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo x >output/file"))], is_bare=is_bare)
    stand_in(bench, "sleep", '[ "$1" = 10 ] || exec /bin/sleep "$1"; echo room >"${0%/*}/room"')
    full = """[ -e "${0%/*}/room" ] || { echo "no: No space left on device" >&2; exit 1; }"""
    assert bench.run_prepared(argv, PATH=stand_in(bench, command, f'{full}\nexec /bin/{command} "$@"')) == 0
    assert (bench.sandbox / "tools" / "room").exists()
    assert bench.said.endswith(b" waits for room: No space left on device\n")
    assert (bench.read("output/file"), bench.status.problem) == (b"x\n", None)


def test_a_stale_file_among_the_outputs_is_lost_and_not_waited_for(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", "mkdir output/a; echo x | tee output/a/file >output/stale"))])
    stand_in(bench, "sleep", '[ "$1" = 10 ] && kill -s KILL "$PPID"; exec /bin/sleep "$1"')
    stale = """case $* in *" output "* | *stale*)
        echo "cp: error reading 'output/stale': Stale file handle" >&2; exit 1 ;; esac"""
    assert bench.run_prepared(argv, PATH=stand_in(bench, "cp", f'{stale}\nexec /bin/cp "$@"')) == 0
    assert (bench.read("output/a/file"), bench.status.lost) == (b"x\n", ("output/stale: Stale file handle",))


@pytest.fixture
def small_disk(bench: Bench) -> Iterator[Path]:
    """The folder of results is a disk of its own; the file on it that takes all room."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", bench.results], check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    (bench.results / "reports").mkdir()
    yield bench.results / "filler"
    subprocess.run(["umount", "--lazy", bench.results], check=True)


def fill(filler: Path) -> None:
    with contextlib.suppress(OSError), filler.open("wb", 0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("is_full", ["at the start", "at the end"])
def test_a_disk_without_room_for_the_status_file_is_waited_for(bench: Bench, small_disk: Path, is_full: str) -> None:
    # What fits into the last block would still be written.
    script = f"""import os, sys
status = os.environ["SAMGRID_STATUS"]
with open(status, "a") as file:
    file.write("\\n" * (4096 - os.stat(status).st_size % 4096))
try:
    with open({str(small_disk)!r}, "wb", 0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    sys.exit(1)"""
    command = ("/bin/true",) if is_full == "at the start" else (sys.executable, "-c", script)
    argv = bench.prepare([LocalJobEntry(command)])
    make_room = f'[ "$1" = 10 ] || exec /bin/sleep "$1"; rm -f {shlex.quote(str(small_disk))}'
    if is_full == "at the start":
        fill(small_disk)
    assert bench.run_prepared(argv, PATH=stand_in(bench, "sleep", make_room)) == int(is_full == "at the end")
    assert not small_disk.exists()
    assert bench.status.end is not None
    assert bench.status.problem is None
    assert bench.said.startswith(b"samgrid: waits until %s/k3f9zq2m.t-1.1.status can be written" % bytes(bench.results))
    assert bench.said.count(b"\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_signal_that_a_full_disk_takes_in_part_is_noted_at_the_end(bench: Bench, small_disk: Path) -> None:
    script = "trap : TERM; echo up; until [ -e output/go ]; do sleep 0.02; done"
    driver = bench.start("/bin/sh", "-c", script)
    bench.wait_until_up()
    status = bench.results / "k3f9zq2m.t-1.1.status"
    with status.open("ab") as file:
        file.write(b"\n" * (4096 - len("caught TE") - status.stat().st_size % 4096))
    fill(small_disk)
    driver.send_signal(signal.SIGTERM)
    wait_until(lambda: any(bench.scratch.glob("*/.samgrid/late")))
    assert status.read_bytes().endswith(b"\ncaught TE")
    small_disk.unlink()
    next(bench.scratch.glob("*/output")).joinpath("go").touch()
    assert driver.wait(SECONDS) == 0
    assert (bench.status.exit_code, bench.status.interruption) == (0, "TERM")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_who_waits_for_room_before_the_program_was_started_may_be_told_to_end(bench: Bench, small_disk: Path) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/true",))])
    fill(small_disk)
    path = stand_in(bench, "sleep", 'echo >>"$0.naps"; kill -s TERM "$PPID"')
    assert bench.run_prepared(argv, PATH=path) == 125
    assert (bench.sandbox / "tools" / "sleep.naps").read_text() == "\n"


def test_a_warning_to_what_notes_the_start_keeps_it_not_from_being_noted(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/true",))])
    (bench.results / "k3f9zq2m.t-1.1.status").symlink_to("nowhere")  # to remove it takes a process
    script = '[ -e "$0.begun" ] || { >"$0.begun"; kill -s USR1 "$PPID"; }; exec /bin/rm "$@"'
    assert bench.run_prepared(argv, PATH=stand_in(bench, "rm", script)) == 0
    assert bench.status.exit_code == 0


@pytest.mark.parametrize("language", ["C", "de_DE.UTF-8"])
def test_a_hole_in_a_file_stays_one(plain_bench: Bench, language: str) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sh", "-c", "truncate -s 8G output/sparse"))])
    assert plain_bench.run_prepared(argv, LANG=language) == 0
    status = (plain_bench.results / "k3f9zq2m.t-1.1.output" / "sparse").stat()
    assert (status.st_size, status.st_blocks * 512 < 10**6) == (8 << 30, True)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("rm $0", id="nothing"),
        pytest.param("rm $0; mkfifo $0", id="named pipe"),
        pytest.param("rm $0; mkdir -p $0/in", id="folder"),
        pytest.param("rm $0; ln -s nowhere $0", id="link to nothing"),
        pytest.param("mv $0 $0.moved; ln -s $0.moved $0", id="link"),
    ],
)
def test_a_status_file_that_the_program_replaced_is_made_anew(bench: Bench, script: str) -> None:
    before = int(time.time())
    status = bench.results / "k3f9zq2m.t-1.1.status"
    code = bench.run("/bin/sh", "-c", script.replace("$0", '"$SAMGRID_STATUS"') + "; echo samgrid-phase a 1/2; exit 3")
    assert code == 3
    assert stat.S_ISREG(status.lstat().st_mode)
    told = fetch_status(status)
    assert (told.exit_code, told.problem, told.index, told.host) == (3, None, 1, os.uname().nodename)
    assert before <= (told.start or 0) <= (told.end or 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="to root no folder is closed")
def test_a_folder_of_results_that_the_program_closed_is_opened_again(bench: Bench) -> None:
    script = 'echo x >output/file; echo out; chmod 0 "${SAMGRID_STATUS%/*}"'
    assert bench.run("/bin/sh", "-c", script) == 0
    assert (bench.read("stdout"), bench.read("output/file"), bench.status.exit_code) == (b"out\n", b"x\n", 0)
    assert bench.status.end is not None


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["named pipe", "folder"])
def test_what_lies_in_the_place_of_an_empty_stdout_makes_way(bench: Bench, make: Callable[[Path], None]) -> None:
    make(bench.results / "k3f9zq2m.t-1.1.stdout")
    assert bench.run("/bin/true") == 0
    assert bench.read("stdout") == b""


def test_a_file_size_limit_on_all_of_it_is_a_problem_too(plain_bench: Bench) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/bin/sh", "-c", "echo x"))], is_bare=False)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))

    done = subprocess.run(argv, env=plain_bench.environment(), preexec_fn=limit, check=False, capture_output=True)
    assert done.returncode == 125
    assert plain_bench.status.problem is not None
    assert plain_bench.leftovers() == []


def test_a_status_file_that_cannot_be_written_ends_the_local_job_before_it_starts(plain_bench: Bench) -> None:
    argv = plain_bench.prepare([LocalJobEntry(("/usr/bin/touch", str(plain_bench.work_area / "ran")))])
    shutil.rmtree(plain_bench.results)
    assert plain_bench.run_prepared(argv) == 125
    assert not (plain_bench.work_area / "ran").exists()


def test_a_read_only_folder_in_the_scratch_folder_is_removed_as_well(plain_bench: Bench) -> None:
    plain_bench.run("/bin/sh", "-c", "mkdir -p locked/in; touch locked/in/file; chmod 500 locked/in locked")
    assert plain_bench.leftovers() == []


def kill_a_driver(bench: Bench) -> Path:
    """The scratch folder that a driver leaves which is killed with all its processes."""
    script = "mkdir -p locked/in; touch locked/in/file; chmod 500 locked/in locked; echo up; exec sleep 600"
    driver = bench.start("/bin/sh", "-c", script)
    bench.wait_until_up()
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(SECONDS)
    (folder,) = bench.scratch.iterdir()
    return folder


def test_what_a_killed_driver_left_is_swept_by_the_next(bench: Bench) -> None:
    kill_a_driver(bench)
    assert bench.run("/bin/true") == 0
    assert bench.leftovers() == []


def test_what_a_driver_needs_that_lives_is_not_swept(bench: Bench) -> None:
    driver = bench.start("/bin/sh", "-c", "echo up; until [ -e output/go ]; do sleep 0.02; done")
    bench.wait_until_up()
    (folder,) = bench.scratch.iterdir()
    argv = bench.prepare([LocalJobEntry(("/bin/true",))])
    assert bench.run_prepared(argv, JOB_ID="t-1.2") == 0
    assert list(bench.scratch.iterdir()) == [folder]
    (folder / "output" / "go").touch()
    assert driver.wait(SECONDS) == 0
    assert bench.leftovers() == []


def change_name(old: str, new: str) -> Callable[[Path], Path]:
    return lambda folder: folder.rename(folder.with_name(re.sub(old, new, folder.name)))


def become_link(folder: Path) -> Path:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    return folder


def become_file(folder: Path) -> Path:
    folder.rename(folder.with_name("elsewhere"))
    folder.touch(0o700)
    return folder


def open_up(folder: Path) -> Path:
    folder.chmod(0o750)
    return folder


def give_away(folder: Path) -> Path:
    os.chown(folder, 12345, -1)
    return folder


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change_name(r"m\.\w{8}-", "m.00000000-"), id="another host, or before its boot"),
        pytest.param(change_name(r"-\d+\.", "-77777777."), id="another container"),
        pytest.param(change_name(r"(-\d+\.)\d+\.", r"\1x."), id="no process in its name"),
        pytest.param(change_name(r"(-\d+\.)", r"\g<1>7."), id="too much in its name"),
        pytest.param(change_name("samgrid", "other"), id="somebody else's name"),
        pytest.param(become_link, id="a link"),
        pytest.param(become_file, id="a file"),
        pytest.param(open_up, id="open to others"),
        pytest.param(give_away, id="another account's", marks=pytest.mark.skipif(os.geteuid() != 0, reason="not root")),
    ],
)
def test_what_may_not_be_a_killed_drivers_stays(plain_bench: Bench, change: Callable[[Path], Path]) -> None:
    folder = change(kill_a_driver(plain_bench))
    assert plain_bench.run("/bin/true") == 0
    assert os.path.lexists(folder)
    assert (folder / "locked").exists() or folder.is_file()


def test_scratch_folders_that_are_there_already_are_not_used(bench: Bench) -> None:
    argv = bench.prepare([LocalJobEntry(("/bin/pwd",))])
    script = Path(argv[-2])
    # As the folder of another driver with its number, of the same second; whoever wants to can make more of them.
    take = 'for taken in "" 1 12; do mkdir "$folder$taken"; touch "$folder$taken/theirs"; done'
    script.write_text(
        re.sub(r"^folder=.*", lambda found: f"{found[0]}\n{take}", script.read_text(), flags=re.MULTILINE)
    )
    assert bench.run_prepared(argv) == 0
    theirs = list(bench.scratch.iterdir())
    assert [path.name for folder in theirs for path in folder.glob("the*")] == ["theirs"] * 3
    assert Path(bench.read("stdout").decode().strip()).parent == bench.scratch
    assert Path(bench.read("stdout").decode().strip()) not in theirs


def test_a_batch_systems_own_job_folder_is_where_the_scratch_folder_lies(bench: Bench, room: Path) -> None:
    (room / "job's folder").mkdir(mode=0o700)
    argv = bench.prepare([LocalJobEntry(("/bin/pwd",))], job_folder_words="$JOB_FOLDER")
    assert bench.run_prepared(argv, JOB_FOLDER=str(room / "job's folder")) == 0
    assert bench.read("stdout").decode().startswith(f"{room}/job's folder/samgrid.k3f9zq2m.")
    assert list((room / "job's folder").iterdir()) == []


@pytest.mark.parametrize(
    "folder",
    [
        *("", "{relative}", "{room}/absent", "{room}/file", "{room}/link"),
        pytest.param("{room}/theirs", marks=pytest.mark.skipif(os.geteuid() != 0, reason="not root")),
    ],
)
def test_a_job_folder_that_is_none_of_ours_is_not_used(plain_bench: Bench, room: Path, folder: str) -> None:
    # From where the driver is started.
    relative = (room / "work area").relative_to("/")
    (room / "file").touch()
    (room / "link").symlink_to(plain_bench.results)
    (room / "theirs").mkdir()
    with contextlib.suppress(PermissionError):
        os.chown(room / "theirs", 12345, -1)
    argv = plain_bench.prepare([LocalJobEntry(("/bin/pwd",))], job_folder_words="$JOB_FOLDER")
    assert plain_bench.run_prepared(argv, JOB_FOLDER=folder.format(room=room, relative=relative)) == 0
    assert plain_bench.read("stdout").decode().startswith(f"{plain_bench.scratch}/samgrid.")


def test_a_link_that_an_earlier_run_left_for_its_stdout_is_not_written_through(bench: Bench, room: Path) -> None:
    (room / "precious").write_text("mine")
    assert bench.run("/bin/sh", "-c", f"ln -sf {room}/precious .samgrid/stdout") == 0
    assert (bench.results / "k3f9zq2m.t-1.1.stdout").is_symlink()
    assert bench.run("/bin/true") == 0
    assert bench.read("stdout") == b""
    assert (room / "precious").read_text() == "mine"


def test_phases_reach_the_status_file(bench: Bench) -> None:
    report = "samgrid-report phase generate"
    bench.run("/bin/sh", "-c", f"{report} 10/250 events; {report} 250/250 events")
    assert bench.read("stderr") == b""
    assert bench.status.phases == (PhaseStatus("generate", 250, 250, "events"),)


def test_phases_are_read_from_lines_on_stdout(bench: Bench) -> None:
    script = """printf 'Starting\\nsamgrid-phase generate 10/250 events\\nsamgrid-phase d0reco 1/2\\n'
    printf '\\0\\377 samgrid-phase no 1/2\\n'
    printf 'samgrid-phase generate 250/250 events\\nsamgrid-phase d0reco 2/2'"""
    assert bench.run("/bin/sh", "-c", script) == 0
    assert bench.status.phases == (PhaseStatus("generate", 250, 250, "events"), PhaseStatus("d0reco", 1, 2))
    assert bench.read("stdout") == (
        b"Starting\nsamgrid-phase generate 10/250 events\nsamgrid-phase d0reco 1/2\n\0\377 samgrid-phase no 1/2\n"
        b"samgrid-phase generate 250/250 events\nsamgrid-phase d0reco 2/2"
    )
    assert bench.read("stderr") == b""


@pytest.mark.parametrize(
    "line",
    [
        "samgrid-phase", "samgrid-phase a", "samgrid-phase a 1", "samgrid-phase a 1/2 u v", "samgrid-phase a b 1/2",
        "samgrid-phase 'a 1/2", "samgrid-phase $(id) 1/2", "samgrid-phase * 1/2", "samgrid-phase a -1/2",
        " samgrid-phase a 1/2", "samgrid-phase\ta 1/2", f"samgrid-phase {'a' * 41} 1/2", "samgrid-phase a\\tb 1/2",
        f"samgrid-phase a 1/{'9' * 200}", "samgrid-phase \udcff 1/2",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_line_that_is_no_phase_is_none(plain_bench: Bench, line: str) -> None:
    assert plain_bench.run("/bin/echo", f"{line}\nsamgrid-phase good 1/2") == 0
    assert plain_bench.status.phases == (PhaseStatus("good", 1, 2),)


def test_of_a_program_that_prints_much_the_newest_lines_count(plain_bench: Bench) -> None:
    script = "echo samgrid-phase old 1/2; seq 100000; for i in $(seq 200); do echo samgrid-phase p$i 1/2; done; seq 9"
    assert plain_bench.run("/bin/sh", "-c", script) == 0
    assert [phase.name for phase in plain_bench.status.phases] == [f"p{number}" for number in range(1, 101)]


def hurry(bench: Bench) -> dict[str, str]:
    """The environment in which the driver looks at stdout all the time."""
    tools = bench.sandbox / "tools"
    tools.mkdir()
    (tools / "sleep").write_text(f"""#!/bin/sh
        echo $$ >>'{bench.scratch}.sleeps'
        [ ! -e '{bench.scratch}.slow' ] || exec /bin/sleep 600
        exec /bin/sleep 0.05
    """)
    (tools / "sleep").chmod(0o755)
    return bench.environment() | {"PATH": f"{tools}:{os.environ['PATH']}"}


def start_in_a_hurry(bench: Bench, script: str, **changes: Any) -> "subprocess.Popen[bytes]":
    argv = bench.prepare([LocalJobEntry(("/bin/sh", "-c", script))], **changes)
    return subprocess.Popen(argv, env=hurry(bench), start_new_session=True, stdout=subprocess.PIPE)


def test_lines_are_read_while_the_program_runs_and_only_when_they_are_whole(bench: Bench) -> None:
    script = """printf 'samgrid-phase a 1/200\nsamgrid-phase a 2/20'; until [ -e output/go ]; do sleep 0.02; done
    printf '0\n'; until [ -e output/end ]; do sleep 0.02; done"""
    driver = start_in_a_hurry(bench, script)
    wait_until(lambda: bench.status.phases == (PhaseStatus("a", 1, 200),))
    next(bench.scratch.glob("*/output")).joinpath("go").touch()
    wait_until(lambda: bench.status.phases == (PhaseStatus("a", 2, 200),))
    next(bench.scratch.glob("*/output")).joinpath("end").touch()
    assert driver.wait(SECONDS) == 0
    told = [line for line in (bench.results / "k3f9zq2m.t-1.1.status").read_text().split("\n") if "phase" in line]
    assert told == ["phase a 1 200", "phase a 2 200", "phase a 2 200"], "what was told before is not told at each look"


@pytest.mark.parametrize(
    ("number", "rest"), [(signal.SIGTERM, []), (signal.SIGKILL, [b"/bin/sleep 600"])], ids=["SIGTERM", "SIGKILL"]
)
def test_who_looks_at_stdout_ends_with_the_driver(bench: Bench, number: signal.Signals, rest: list[bytes]) -> None:
    driver = start_in_a_hurry(bench, "echo samgrid-phase a 1/2; exec /bin/sleep 600")
    wait_until(lambda: bench.status.phases == (PhaseStatus("a", 1, 2),))
    driver.send_signal(number)
    driver.wait(SECONDS)
    try:
        # Only the program is left, and who notes its code, of whom a driver that was killed could tell nobody.
        itself = os.fsencode(" ".join([*bench.shell, str(bench.sandbox / "driver.sh"), bench.token]))
        wait_until(lambda: sorted(commands_in_session(driver.pid)) == sorted([*rest, *[itself] * len(rest)]))
    finally:
        if commands_in_session(driver.pid):
            os.killpg(driver.pid, signal.SIGKILL)


def test_a_sleep_of_who_looks_at_stdout_does_not_outlive_the_driver(bench: Bench) -> None:
    driver = start_in_a_hurry(bench, "echo samgrid-phase a 1/2; until [ -e output/go ]; do /bin/sleep 0.02; done")
    wait_until(lambda: bench.status.phases == (PhaseStatus("a", 1, 2),))
    Path(f"{bench.scratch}.slow").touch()
    sleeps = Path(f"{bench.scratch}.sleeps")
    wait_until(lambda: b"600" in command_of(int(sleeps.read_text().split()[-1])))
    next(bench.scratch.glob("*/output")).joinpath("go").touch()
    assert driver.wait(SECONDS) == 0
    last = int(sleeps.read_text().split()[-1])
    wait_until(lambda: b"600" not in command_of(last))


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def commands_in_session(leader: int) -> list[bytes]:
    """The command lines of all that the leader of a session has started and that still runs."""
    commands = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(entry.name)) == leader and not is_gone(int(entry.name)):
                commands.append(command_of(int(entry.name)).rstrip(b"\0").replace(b"\0", b" "))
    return commands


def test_nobody_waits_for_who_looks_at_stdout(bench: Bench) -> None:
    Path(f"{bench.scratch}.slow").touch()
    driver = start_in_a_hurry(bench, "echo samgrid-phase a 1/2")
    assert driver.communicate(timeout=SECONDS)[0] == b""
    assert driver.returncode == 0


def lines_of(bench: Bench) -> Path:
    return bench.results / "reports" / "k3f9zq2m.t-1.1.lines"


def test_lines_for_the_handler_come_whole_and_once(bench: Bench) -> None:
    script = """printf 'one\n\udcfftwo\nthr'; until [ -e output/go ]; do sleep 0.02; done
    printf 'ee\nfour\nfive'"""
    driver = start_in_a_hurry(bench, script, copies_lines=True)
    wait_until(lambda: lines_of(bench).exists())
    assert lines_of(bench).read_bytes() == b"one\n\377two\n"
    lines_of(bench).unlink()
    next(bench.scratch.glob("*/output")).joinpath("go").touch()
    assert driver.wait(SECONDS) == 0
    assert lines_of(bench).read_bytes() == b"three\nfour\n"


def test_lines_that_are_being_copied_when_the_program_ends_come_once(bench: Bench) -> None:
    environment = hurry(bench)
    # The program ends right after its first line is where the handler finds it, before that is noted.
    (bench.sandbox / "tools" / "mv").write_text(f"""#!/bin/sh
        /bin/mv "$@"
        case $* in *.lines) ;; *) exit ;; esac
        for output in '{bench.scratch}'/*/output; do touch "$output/go"; done
        until [ -e '{bench.scratch}'/*/.samgrid/over ]; do /bin/sleep 0.02; done
        # Until the driver has told who looks at stdout; where it has not yet, there is nothing to see.
        exec /bin/sleep 0.1
    """)
    (bench.sandbox / "tools" / "mv").chmod(0o755)
    argv = bench.prepare(
        [LocalJobEntry(("/bin/sh", "-c", "echo one; until [ -e output/go ]; do /bin/sleep 0.02; done; echo two"))],
        copies_lines=True,
    )
    assert subprocess.run(argv, env=environment, timeout=SECONDS, check=False).returncode == 0
    assert lines_of(bench).read_bytes() == b"one\ntwo\n"


def test_lines_that_nobody_has_fetched_stay_until_they_are_too_many(bench: Bench) -> None:
    script = """for part in 1 2 3; do
        seq -f "$part %g" 10; until [ -e output/$part ]; do sleep 0.02; done
    done; seq -f "4 %g" 100000"""
    driver = start_in_a_hurry(bench, script, copies_lines=True)
    for part in (b"1", b"2", b"3"):
        wait_until(lambda part=part: lines_of(bench).exists() and part + b" 10\n" in lines_of(bench).read_bytes())  # type: ignore[misc]
        assert lines_of(bench).read_bytes().startswith(b"1 1\n")
        next(bench.scratch.glob("*/output")).joinpath(part.decode()).touch()
    assert driver.wait(SECONDS) == 0
    lines = lines_of(bench).read_bytes().splitlines()
    assert lines[:30] == [b"%d %d" % (part, number) for part in (1, 2, 3) for number in range(1, 11)]
    newest = [int(line.split()[1]) for line in lines[30:]]
    # A look in the middle of them takes what was the newest then.
    assert newest == sorted(set(newest))
    assert newest[-8000:] == list(range(92_001, 100_001))
    assert len(lines_of(bench).read_bytes()) < 300_000 < len(b"4 12345\n") * 100_000


def test_signals_do_not_stop_who_copies_many_lines(bench: Bench) -> None:
    script = "for part in 1 2 3 4 5 6 7 8 9; do seq 20000; until [ -e output/$part ]; do sleep 0.02; done; done"
    driver = start_in_a_hurry(bench, script, copies_lines=True)
    wait_until(lambda: lines_of(bench).exists())
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    *_, watcher = (int(pid) for pid in children if b"driver.sh" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def is_copied() -> bool:
        # Between the processes of a pipeline, too; a shell that so many of them end is no hindrance.
        for _ in range(1000):
            try:
                os.kill(watcher, signal.SIGUSR1)
            except ProcessLookupError:
                return True
        return lines_of(bench).exists()

    for part in range(1, 9):
        lines_of(bench).unlink(missing_ok=True)
        next(bench.scratch.glob("*/output")).joinpath(str(part)).touch()
        wait_until(is_copied)
    next(bench.scratch.glob("*/output")).joinpath("9").touch()
    assert driver.wait(SECONDS) == 0


def test_lines_are_copied_for_no_other_job_type(plain_bench: Bench) -> None:
    assert plain_bench.run("/bin/echo", "line") == 0
    assert list((plain_bench.results / "reports").iterdir()) == []


def test_lines_of_an_earlier_run_are_forgotten(plain_bench: Bench) -> None:
    assert plain_bench.run("/bin/echo", "line", copies_lines=True) == 0
    assert lines_of(plain_bench).read_bytes() == b"line\n"
    assert plain_bench.run("/bin/true", copies_lines=True) == 0
    assert not lines_of(plain_bench).exists()


@pytest.mark.parametrize(
    ("is_bare", "makers"),
    [(True, ["mkdir"]), (False, ["mktemp", "tar", "sha256sum"])],
    ids=["nothing to unpack", "files"],
)
def test_an_empty_local_job_starts_few_programs(
    plain_bench: Bench, room: Path, is_bare: bool, makers: list[str]
) -> None:
    tools = room / "tools"
    tools.mkdir()
    programs = (
        "date",
        "env",
        "mktemp",
        "sha256sum",
        "sed",
        "tar",
        "mkdir",
        "rmdir",
        "cp",
        "mv",
        "rm",
        "chmod",
        "uname",
    )
    for name in programs:
        (tools / name).write_text(f'#!/bin/sh\necho {name} >>{room}/log\nexec {shutil.which(name)} "$@"\n')
        (tools / name).chmod(0o755)
    argv = plain_bench.prepare([LocalJobEntry(("/bin/true",))], is_bare=is_bare)
    assert plain_bench.run_prepared(argv, PATH=str(tools)) == 0
    started = (room / "log").read_text().split()
    assert started == ["date", *makers, "env", "rm"]


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS.keys())
def test_the_driver_is_clean_shell(plain_bench: Bench, shell: list[str]) -> None:
    plain_bench.shell = [*shell, "-n"]
    awkward = tuple((f"V{number}", word) for number, word in enumerate(AWKWARD))
    argv = plain_bench.prepare([LocalJobEntry(("x",))], environment=awkward, max_cpu_minutes=1, directory="it's")
    done = subprocess.run(argv, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("carried", [False, True], ids=["shared", "carried"])
def test_shellcheck_finds_nothing(plain_bench: Bench, carried: bool) -> None:
    assert SHELLCHECK is not None
    limits = {"max_cpu_minutes": 1, "max_memory_mb": 1}
    driver = plain_bench.prepare(
        [LocalJobEntry(("x",))],
        **limits,
        carried=carried,
        copies_lines=carried,
        fetch_words=CONDOR.fetch_words if carried else "",
    )[-2]
    report = Path(__file__).parents[3] / "sandbox" / "samgrid-report.sh"
    done = subprocess.run([SHELLCHECK, "-S", "warning", driver, report], capture_output=True, check=False, text=True)
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["", "A-B", "1A", "A B", "A=B", "Ä", "A\n"])
def test_an_environment_name_that_no_shell_takes_is_refused(plain_bench: Bench, name: str) -> None:
    with pytest.raises(SandboxError, match="environment name"):
        plain_bench.prepare([LocalJobEntry(("x",))], environment=((name, "x"),))
