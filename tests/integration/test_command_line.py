"""What the command line promises beside running jobs: help, clear errors, tidy files, and the fixed words."""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from batch_adapters.states import State
from jobmanager import read_version
from jobmanager.commands import cli
from jobmanager.database.database import Database
from tests.conftest import end_processes_of, find_monitor, processes_of
from tests.samgrid import LAUNCH, Samgrid
from tests.unit.grid_jobs import make_grid_job, put
from tests.waiting import SECONDS, wait_until

HELP = {
    "submit": ["FILE", "--name NAME", "RSL", "standard input", "nothing behind"],
    "run": ["FILE", "Exit status"],
    "watch": ["ID", "unique", "Exit status", "cannot go on"],
    "status": ["ID", "--format", "table", "json", "xml", "--type", "--state", "stage-out", "--user", "--name PATTERN"],
    "output": ["ID", "--extract DIR", "missing"],
    "cancel": ["ID", "gathered", "ends as cancelled"],
    "explain": ["LOCALID", "ID/NUMBER", "--no-ask", "verdict"],
    "orphans": ["TOKEN", "--reap", "Exit status"],
    "doctor": ["BATCH_SYSTEM", "--all", "--probe", "--probe-time SECONDS", "Exit status"],
    "query": [
        "EXPRESSION",
        "--job ID",
        "--xquery",
        "--format",
        "--timeout SECONDS",
        "count(//local-job",
        "@index",
        "Exit status",
    ],
    "resubmit": ["ID", "--failed", "seeds"],
    "recover": ["--request ID", "own id", "nothing is missing"],
    "usage": ["--since TIME", "--until TIME", "--by", "--format"],
    "accounting": ["--format", "--again TIME", "FOLDER"],
    "remove": ["--ended-before TIME", "--dry-run", "--yes", "ID"],
    "check-handler": ["MODULE", "--request FILE", "--no-run", "--run-time SECONDS", "Exit status"],
    "log": ["ID/NUMBER", "ID/FIRST-LAST", "--failed", "--follow", "--lines N", "standard error"],
    "export": ["DIR", "index.html", "xmllint", "refused"],
    "types": ["TYPE", "attributes"],
    "config": ["SAMGRID_CONFIG", "where it came from"],
    "web": ["--listen ADDRESS:PORT", "--token-file FILE", "127.0.0.1:8642", "changes nothing"],
    "notify": ["ID", "docs/notification.md", "Exit status"],
    "backup": ["FILE", "whole or not at all", "docs/administration.md"],
    "restore": ["FILE", "--leave-out", "--follow", "samgrid orphans"],
    "take-over": ["--fenced", "One host at a time"],
    "repair": ["copied first", "columns", "Exit status"],
    "monitor": ["--stay", "foreground"],
    "advertise": ["--pool HOST", "--output FILE", "--lifetime SECONDS", "docs/advertise.md"],
    "metrics": ["--textfile FILE", "docs/metrics.md"],
}
"""Every command, with words that its help must have."""

HELLO = """&(samgrid_type = command)(executable = /bin/sh)(count = 3)
 (arguments = -c "echo hello $SAMGRID_INDEX; echo result >output/result; chmod 777 output/result")"""


@pytest.fixture(scope="module")
def finished(module_samgrid: Samgrid) -> tuple[Samgrid, str]:
    """An account whose one grid job, of three local jobs, is done; for tests that only look."""
    umask = os.umask(0)  # nothing may depend on the caller's
    job_id = module_samgrid.submit(HELLO)
    done = module_samgrid("watch", job_id)
    os.umask(umask)
    assert done.returncode == 0, done.stderr
    return module_samgrid, job_id


def add_grid_jobs(samgrid: Samgrid, *job_ids: str, have_ended: bool = True) -> None:
    """Grid jobs that have failed long ago, so that nobody starts anything for them; or that nobody has begun."""
    samgrid.state.mkdir(mode=0o700)
    database = Database(samgrid.state / "jobs.db")
    for job_id in job_ids:
        job = make_grid_job(job_id)
        if have_ended:
            job.end(State.FAILED, 2000)
        put(database, job)
    database.close()


def check_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """A command failed as it should: one line on stderr with these words, and nothing on stdout."""
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("samgrid ")
    assert all(word in line for word in words), line


# --- help and usage


@pytest.mark.parametrize("command", HELP)
def test_help_says_what_there_is_to_know_and_makes_nothing(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SAMGRID_STATE", str(tmp_path / "state"))
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert all(word in printed for word in [*HELP[command], "--state-dir DIR", "$SAMGRID_STATE"]), printed
    assert not (tmp_path / "state").exists()


def test_the_manual_page_is_made_of_all_that_the_help_has() -> None:
    parser = cli.make_whole_parser()
    assert parser.parse_args(["status", "a", "--format", "json"]).format == "json"
    assert parser.parse_args(["cancel", "--name", "b*"]).name == "b*"
    _, commands = cli._make_parser(["gram"])
    assert "samgrid gram install|uninstall|status" in commands["gram"].format_usage()


def test_a_python_that_tries_each_commands_help_at_once_can_make_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python 3.14 does, in add_parser."""
    add = argparse._SubParsersAction.add_parser

    def add_and_check(self: Any, name: str, **rules: Any) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = add(self, name, **rules)
        parser._get_formatter()
        return parser

    monkeypatch.setattr(argparse._SubParsersAction, "add_parser", add_and_check)
    assert cli.main(["types"]) == 0


def test_help_fills_paragraphs_and_leaves_commands_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    with pytest.raises(SystemExit):
        cli.main(["query", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert """  samgrid query --format table '//local-job[re:test(@host, "^wn1[0-9]")]'""" in lines
    assert "The root element is <jobs>, with a <grid-job>" in lines
    assert any(line.startswith("Exit status: ") for line in lines)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert set(re.findall(r"^    ([\w-]+)(?: |$)", printed, re.MULTILINE)) == {*HELP, "gram"}
    assert "examples/drell-yan.rsl" in printed


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param([], "COMMAND", id="no command"),
        pytest.param(["sumbit", "x"], "there is no command 'sumbit' (did you mean submit?)", id="unknown command"),
        pytest.param(["zzz"], "there is no command 'zzz': samgrid --help lists", id="unknown command like none"),
        pytest.param([], "say a command: samgrid --help lists them", id="no command"),
        pytest.param(
            ["--state-dir", "/x", "status"],
            "the command comes before its options: samgrid COMMAND --state-dir\n",
            id="option first",
        ),
        pytest.param(["--zzz", "status"], "the command comes before its options", id="unknown option of the whole"),
        pytest.param(["status", "--fromat=json"], "--fromat=json (did you mean --format?)", id="unknown option"),
        pytest.param(
            ["status", "a", "--type", "b", "c", "--fromat=json"], "did you mean --format?", id="ids around it"
        ),
        pytest.param(["submit"], "FILE", id="no file"),
        pytest.param(["watch"], "ID", id="no id"),
        pytest.param(["status", "--format", "yaml"], "yaml", id="unknown format"),
        pytest.param(["run", "a", "b"], "b", id="too many words"),
        pytest.param(["web", "--listen", "nonsense"], "no address with a port, like 127.0.0.1:8642", id="no address"),
        pytest.param(["metrics", "--textfile", "metrics.txt"], "files named *.prom only", id="no name of metrics"),
    ],
)
def test_wrong_usage_is_exit_status_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert complaint in printed.err
    assert not (tmp_path / "xdg").exists()


def test_the_version_is_that_of_the_tree(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    setup = (LAUNCH.parents[1] / "setup.cfg").read_text()
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"samgrid {re.findall('(?m)^version = (.+)$', setup)[0]}\n"


def test_without_a_tree_the_version_is_the_installed_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"samgrid-jobmanager": "7.8"}.__getitem__)
    assert read_version(tmp_path / "setup.cfg") == "7.8"


# --- nothing is left with who calls


def test_who_reads_our_output_to_its_end_gets_the_end_while_everything_works_on(
    samgrid: Samgrid, tmp_path: Path
) -> None:
    request = tmp_path / "request.rsl"
    request.write_text("&(samgrid_type=command)(executable=/bin/sleep)(arguments=300)")
    ours, theirs = os.pipe()
    submitting = subprocess.Popen(
        [sys.executable, "-P", str(LAUNCH), "samgrid", "submit", str(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=samgrid.environment(),
        pass_fds=[theirs],
    )
    os.close(theirs)
    stdout, stderr = submitting.communicate(timeout=SECONDS)
    assert (submitting.returncode, stderr) == (0, "")
    wait_until(lambda: samgrid("query", "count(//local-job[@state='active'])").stdout == "1\n")
    assert os.read(ours, 1) == b"", "a descriptor that we passed on is closed everywhere"
    os.close(ours)
    for word in ("samgrid-monitor", "samgrid-scheduler-event-generator", "serve"):
        assert processes_of(samgrid.state, word), f"{word} lives"
    monitor = find_monitor(samgrid.state)
    assert os.getsid(monitor) == monitor, "it is not in its caller's session"
    assert Path(f"/proc/{monitor}/cwd").readlink() == Path("/")
    assert samgrid("cancel", stdout.strip()).returncode == 0


# --- files


def expected_mode(path: Path) -> int:
    """0700 for folders, for sockets, which have no other, and for what is executable; else 0600."""
    return 0o700 if path.is_dir() or path.is_socket() or path.name in ("result", "samgrid-report") else 0o600


def test_nobody_else_can_read_anything_after_a_whole_run(finished: tuple[Samgrid, str]) -> None:
    state = finished[0].state
    modes = {path: path.lstat().st_mode & 0o7777 for path in [state, *state.rglob("*")]}
    assert len(modes) > 20
    assert {path: oct(mode) for path, mode in modes.items() if mode != expected_mode(path)} == {}
    assert not [path for path in modes if path.is_symlink()]


def test_no_scratch_folder_and_no_half_made_file_is_left_after_a_whole_run(finished: tuple[Samgrid, str]) -> None:
    samgrid, job_id = finished
    wait_until(lambda: not list(samgrid.scratch.iterdir()))
    assert {path.name for path in (samgrid.state / "jobs" / job_id).iterdir()} == {
        *("sandbox", "results", "log", "worker.lock", "reports.lock", f"{job_id}.tar")
    }


COMMANDS = [
    *(["submit", "-"], ["run", "-"], ["watch", "a"], ["status"], ["output", "a"], ["cancel", "a"]),
    *(["query", "1"], ["log", "a"], ["export", "x"], ["monitor"], ["explain", "a"], ["usage"], ["remove", "a"]),
    *(["resubmit", "a"], ["recover", "--request", "1"], ["orphans"], ["doctor"], ["repair"], ["web"]),
    *(["backup", "x"], ["restore", "x"], ["take-over"]),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_state_folder_that_is_a_link_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("real")
    check_refused([words[0], "--state-dir", str(link), *words[1:]], capsys, [str(link), "symbolic link"])
    assert list((tmp_path / "real").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702], ids=oct)
def test_a_state_folder_that_others_can_write_is_refused(
    mode: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    check_refused(["status", "--state-dir", str(shared)], capsys, [str(shared), "chmod go-w"])
    assert list(shared.iterdir()) == []


def test_a_state_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    check_refused(["submit", "--state-dir", str(tmp_path / "file" / "state"), "-"], capsys, ["file/state", "director"])
    check_refused(["status", "--state-dir", str(tmp_path / "file")], capsys, ["not a folder"])


def check_refused(words: list[str], capsys: pytest.CaptureFixture[str], complaint: list[str]) -> None:
    assert cli.main(words) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"samgrid {words[0]}: ")
    assert all(word in line for word in complaint), line


def test_a_grid_job_runs_below_a_long_path_where_the_locale_is_not_of_utf_8(tmp_path: Path) -> None:
    # As with LANG=de_DE (ISO 8859-1), which not every machine has.
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    request = '&(samgrid_type = command)(executable = /bin/sh)(arguments = -c ": >output/ö")(name = "für ö")'
    ascii_only = Samgrid(tmp_path.joinpath(*["folder " + "x" * 80] * 3), tmp_path, settings)
    done = ascii_only("run", "-", stdin=request)
    end_processes_of(ascii_only.state)
    assert (done.returncode, done.stderr) == (0, "")
    assert "output/?" in done.stdout
    told = replace(ascii_only, settings={**settings, "PYTHONIOENCODING": "utf-8"})("output", "für ö").stdout
    assert "output/ö" in told
    with tarfile.open(told.splitlines()[0]) as tar:
        assert any(name.endswith("output/ö") for name in tar.getnames())


# --- requests that cannot be read


def test_a_request_file_that_cannot_be_read_is_named(samgrid: Samgrid, tmp_path: Path) -> None:
    (tmp_path / "latin.rsl").write_bytes("&(samgrid_type=command)(executable=/bin/écho)".encode("latin-1"))
    (tmp_path / "long.rsl").write_text("&(samgrid_type=command)" + " " * 100_000)
    (tmp_path / "nul.rsl").write_text("&(samgrid_type=command)(executable=\0)")
    for name in ("missing.rsl", "latin.rsl", "long.rsl", "nul.rsl", "."):
        check_error(
            samgrid("submit", str(tmp_path / name)), "samgrid submit: ", str(tmp_path / name).removesuffix("/.")
        )
    assert not (samgrid.state / "jobs").exists()


@pytest.mark.parametrize(
    "words",
    [["submit", "{}"], ["status", "{}"], ["types", "{}"], ["log", "{}/1"], ["export", "{}/x"], ["remove", "{}"]],
    ids=lambda words: words[0],
)
def test_an_error_about_a_hostile_name_obeys_no_terminal(samgrid: Samgrid, tmp_path: Path, words: list[str]) -> None:
    name = str(tmp_path / "\x1b[31m\u202e\udcff")
    done = samgrid(*(word.format(name) for word in words))
    assert done.returncode == 1
    assert "[31m" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_request_file_of_somebody_else_is_named(samgrid: Samgrid, tmp_path: Path) -> None:
    (tmp_path / "secret.rsl").touch(mode=0)
    check_error(samgrid("submit", str(tmp_path / "secret.rsl")), "Permission denied", "secret.rsl")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param(
            "&(samgrid_type=command)\n  (executable = /bin/true)\n  (count 3)", "line 3, column 10", id="no ="
        ),
        pytest.param('&(samgrid_type=command)\n(executable="/bin/true)', "line 2, column 13", id="quote not closed"),
        pytest.param("&(samgrid_type=command)\n(executable=$(NOWHERE))", "line 2, column 13", id="unknown variable"),
    ],
)
def test_an_error_in_the_rsl_has_line_and_column(samgrid: Samgrid, tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "request.rsl").write_text(text)
    check_error(samgrid("submit", str(tmp_path / "request.rsl")), "request.rsl", place)


# --- the fixed words


def test_status_as_json_has_the_fixed_words(finished: tuple[Samgrid, str]) -> None:
    samgrid, job_id = finished
    for words in ([], [job_id], [job_id[:3]]):
        (row,) = json.loads(samgrid("status", "--format", "json", *words).stdout)
        assert {name: row[name] for name in ("id", "type", "state", "counts")} == {
            "id": job_id,
            "type": "command",
            "state": "done",
            "counts": {"done": 3},
        }
        assert row["owner"]
        assert (row["batch"], row["outcome"], row["reason"], row["name"]) == ("fork", "done", None, None)
        assert row["ended"] >= row["submitted"]
        assert ("summary" in row) == bool(words), "details where one is asked for"
        submitted = datetime.strptime(row["submitted"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        assert abs((datetime.now(UTC) - submitted).total_seconds()) < 3600


def test_status_as_a_table_has_a_line_per_grid_job(finished: tuple[Samgrid, str]) -> None:
    samgrid, job_id = finished
    done = samgrid("status")
    heading, line = done.stdout.splitlines()
    assert re.split(r"  +", heading) == ["ID", "TYPE", "STATE", "OWNER", "SUBMITTED", "LOCAL JOBS"]
    cells = re.split(r"  +", line)
    assert (cells[:3], cells[5]) == ([job_id, "command", "done"], "3 done")
    assert heading.index("LOCAL JOBS") == line.index("3 done"), "columns line up"


def test_status_of_one_grid_job_tells_more(finished: tuple[Samgrid, str]) -> None:
    samgrid, job_id = finished
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in samgrid("status", job_id[:4]).stdout.splitlines())
    assert facts["grid job"] == job_id
    assert (facts["state"], facts["batch system"], facts["local jobs"]) == ("done", "fork", "3: 3 done")


def test_without_grid_jobs_status_says_how_to_make_one(samgrid: Samgrid) -> None:
    assert "samgrid submit FILE" in samgrid("status").stdout
    assert samgrid("status", "--format", "json").stdout == "[]\n"


@pytest.mark.parametrize(
    ("xpath", "printed"),
    [
        pytest.param("count(//local-job)", "3\n", id="number"),
        pytest.param("count(//local-job) div 2", "1.5\n", id="fraction"),
        pytest.param("count(/jobs/grid-job/local-job[@state='done' and @exit-code=0])", "3\n", id="fixed words"),
        pytest.param("string(//grid-job/@type)", "command\n", id="string"),
        pytest.param("//local-job[2]/@index > 1", "true\n", id="boolean"),
        pytest.param("//local-job/@index", "1\n2\n3\n", id="attributes"),
        pytest.param("//local-job[@index=9]/@index", "", id="nothing"),
    ],
)
def test_a_query_prints_what_it_finds(finished: tuple[Samgrid, str], xpath: str, printed: str) -> None:
    samgrid, job_id = finished
    for scope in ([], ["--job", job_id[:3]]):
        done = samgrid("query", *scope, xpath)
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_a_query_prints_elements_as_xml_with_the_fixed_words(finished: tuple[Samgrid, str]) -> None:
    samgrid, job_id = finished
    lines = samgrid("query", "//local-job").stdout.splitlines()
    assert len(lines) == 3
    for index, line in enumerate(lines, 1):
        assert line.startswith("<local-job ")
        for attribute in (
            *(f'index="{index}"', f'id="{job_id}-1.{index}"', f'token="{job_id}-1"', 'batch="fork"'),
            *('state="done"', 'exit-code="0"'),
        ):
            assert f" {attribute}" in line
        for name in ("submitted", "started", "ended"):
            assert re.search(rf' {name}="\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ"', line)
    assert samgrid("query", "name(/*)").stdout == "jobs\n"
    assert samgrid("query", "count(/jobs/grid-job/request) + count(/jobs/grid-job/slices)").stdout == "2\n"


@pytest.mark.parametrize("xpath", ["//[", "nonsense()", "$variable", "//x:local-job", ""])
def test_a_wrong_query_is_one_clear_error(finished: tuple[Samgrid, str], xpath: str) -> None:
    check_error(finished[0]("query", xpath), "samgrid query: XPath", repr(xpath))


# --- ids


def test_an_id_may_be_shortened_while_it_fits_one_grid_job(samgrid: Samgrid) -> None:
    add_grid_jobs(samgrid, "aaaaaaaa", "aaaaaaab", "b2345678")
    assert "b2345678" in samgrid("status", "b").stdout
    assert "aaaaaaab" in samgrid("status", "aaaaaaab").stdout
    for command in ("status", "watch", "output", "cancel"):
        check_error(samgrid(command, "aaaa"), f"samgrid {command}:", "aaaaaaaa", "aaaaaaab", "more of the id")
    for unknown in ("c", "aaaaaaaaa", "%", "_"):
        check_error(samgrid("status", unknown), "samgrid status:", '"samgrid status" lists them')
    check_error(samgrid("query", "--job", "c", "1"), "samgrid query:")


@pytest.mark.parametrize(
    "words", [["status", ""], ["watch", ""], ["output", ""], ["cancel", ""], ["query", "--job", "", "1"]], ids=str
)
def test_an_empty_id_as_of_a_variable_that_is_not_set_is_no_id(samgrid: Samgrid, words: list[str]) -> None:
    add_grid_jobs(samgrid, "aaaaaaaa")
    check_error(samgrid(*words), "no grid job")


def test_names_and_options_choose_several_grid_jobs(samgrid: Samgrid, tmp_path: Path) -> None:
    request = tmp_path / "request.rsl"
    request.write_text('&(samgrid_type = command)(executable = /bin/sleep)(arguments = 300)(name = "tune 7")')
    for words in ([], ["--dry-run"]):
        check_error(samgrid("submit", str(request), "--name", "tune\t8", *words), "name must be at most 200 printable")
    jobs = [samgrid("submit", str(request), *words).stdout.strip() for words in ([], ["--name", "tune 8"])]
    other = samgrid.submit("&(samgrid_type = command)(executable = /bin/sleep)(arguments = 300)")
    rows = json.loads(samgrid("status", "--format", "json").stdout)
    names = {jobs[0]: "tune 7", jobs[1]: "tune 8"}
    assert {row["id"]: row["name"] for row in rows} == {**names, other: None}
    # Those of one second come in the order of their ids.
    heading, *lines = samgrid("status", "--name", "tune*").stdout.splitlines()
    assert re.split(r"  +", heading)[:3] == ["ID", "NAME", "TYPE"]
    assert {tuple(re.split(r"  +", line)[:3]) for line in lines} == {(*item, "command") for item in names.items()}
    done = samgrid("cancel", "--name", "tune*")
    assert set(done.stdout.splitlines()) == {f"grid job {job} is being cancelled" for job in jobs}
    done = samgrid("watch", "tune 7", jobs[1])
    assert (done.returncode, done.stderr) == (1, "")
    assert f"grid job {jobs[0]} (tune 7) cancelled" in done.stdout
    assert f"grid job {jobs[1]} (tune 8) cancelled" in done.stdout
    done = samgrid("resubmit", "tune 7", other, jobs[1])
    assert (done.returncode, len(done.stdout.split())) == (1, 2)
    assert done.stderr.startswith(f"samgrid resubmit: grid job {other} is ")
    check_error(samgrid("cancel", "tune 7"), "samgrid cancel:", 'use an id; "--name" means all of that name')
    folder = tmp_path / "outputs"
    assert samgrid("output", "--state", "cancelled", "--extract", str(folder)).returncode == 0
    manifests = [json.loads((folder / job / job / "manifest.json").read_text()) for job in jobs]
    assert [manifest["name"] for manifest in manifests] == ["tune 7", "tune 8"]
    assert samgrid("cancel", "--type", "command").returncode == 0


@pytest.mark.parametrize("command", ["watch", "output", "cancel", "resubmit"])
def test_a_command_that_is_told_no_grid_job_does_nothing(samgrid: Samgrid, command: str) -> None:
    add_grid_jobs(samgrid, "aaaaaaaa")
    done = samgrid(command)
    assert (done.returncode, f"samgrid {command}: error: say which grid jobs" in done.stderr) == (2, True)
    check_error(samgrid(command, "--name", "x"), f"samgrid {command}: no grid job fits these options")


# --- output


def test_output_shows_the_tar_and_unpacks_it(finished: tuple[Samgrid, str], tmp_path: Path) -> None:
    samgrid, job_id = finished
    folder = tmp_path / "unpacked"
    done = samgrid("output", job_id[:5], "--extract", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == str(samgrid.state / "jobs" / job_id / f"{job_id}.tar")
    assert lines[-1] == f"unpacked into {folder}"
    assert f"grid job {job_id}: done" in lines
    stem = f"{job_id}.{job_id}-1.2"
    assert (folder / job_id / f"{stem}.stdout").read_text() == "hello 2\n"
    assert (folder / job_id / f"{stem}.output" / "result").read_text() == "result\n"
    assert json.loads((folder / job_id / "manifest.json").read_text())["missing"] == []


def test_output_is_never_unpacked_over_what_is_there(finished: tuple[Samgrid, str], tmp_path: Path) -> None:
    samgrid, job_id = finished
    (tmp_path / "precious").write_text("precious")
    done = samgrid("output", job_id, "--extract", str(tmp_path))
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / job_id).exists()
    nameless = samgrid("output", job_id, "--extract", "")
    assert (nameless.returncode, "unpacked" in nameless.stdout) == (1, False), "a shell's variable that is not set"


def test_output_that_is_not_there_yet_is_a_clear_error(samgrid: Samgrid) -> None:
    add_grid_jobs(samgrid, "aaaaaaaa", have_ended=False)
    check_error(samgrid("output", "aaaaaaaa"), "aaaaaaaa", "its output is there when it has ended")


# --- types and configuration


def test_types_lists_job_types_and_their_attributes(samgrid: Samgrid) -> None:
    lines = samgrid("types").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("cdf_concatenate", "cdf_monte_carlo", "command"),
        *("dzero_merge", "dzero_monte_carlo", "dzero_reconstruction", "pythia", "structured"),
    ]
    attributes = samgrid("types", "command").stdout
    for word in ("executable", "required", "count", "DEFAULT", "max_wall_time", "minutes", "min_success"):
        assert word in attributes
    assert re.search(r"^fail_fast +yes or no +no ", attributes, re.MULTILINE), "a default in the request's words"
    assert re.search(r"^count .* 1 +How many", attributes, re.MULTILINE)
    pythia = samgrid("types", "pythia").stdout
    assert "one of ppbar, pp " in pythia
    assert ' "23:onMode = off" "23:onIfAny = 13" ' in pythia, "words that a request may repeat"
    check_error(samgrid("types", "reco"), "reco", "command, ", "pythia", "structured")


def test_config_shows_every_value_and_who_set_it(samgrid: Samgrid, tmp_path: Path) -> None:
    file = tmp_path / "samgrid.toml"
    file.write_text('[site]\nname = "tier-two"\n[fork]\nslots = 3\n')
    settings = {"SAMGRID_CONFIG": str(file), "SAMGRID_FORK_SLOTS": "5"}
    done = replace(samgrid, settings=settings)("config")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf'^name = "tier-two" +# {file}$', done.stdout, re.MULTILINE)
    assert re.search(r"^slots = 5 +# environment SAMGRID_FORK_SLOTS", done.stdout, re.MULTILINE)
    assert re.search(r"^idle_time = 60 +# default; seconds$", done.stdout, re.MULTILINE)
    assert not samgrid.state.exists()


def test_a_wrong_configuration_stops_every_command_with_every_fault(samgrid: Samgrid) -> None:
    wrong = replace(samgrid, settings={"SAMGRID_FORK_SLOTS": "many", "SAMGRID_MONITOR_IDEL_TIME": "1"})
    for words in (["status"], ["config"], ["types"], ["submit", "-"], ["query", "1"]):
        done = wrong(*words, stdin=HELLO)
        assert (done.returncode, done.stdout) == (1, "")
        first, second = done.stderr.splitlines()
        assert "SAMGRID_FORK_SLOTS" in first
        assert "SAMGRID_MONITOR_IDEL_TIME" in second
        assert "SAMGRID_MONITOR_IDLE_TIME" in second
    assert not samgrid.state.exists()


# --- readers that go away


def test_a_closed_standard_output_is_written_to_nobody(samgrid: Samgrid) -> None:
    command = [sys.executable, "-P", str(LAUNCH), "samgrid", "status"]
    script = 'exec "$@" >&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *command], stderr=subprocess.PIPE, text=True, env=samgrid.environment(), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_traceback(finished: tuple[Samgrid, str]) -> None:
    samgrid, _ = finished
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-P", str(LAUNCH), "samgrid", "query", "//local-job"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        env=samgrid.environment(),
        check=False,
    )
    os.close(theirs)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def buffering(samgrid: Samgrid) -> dict[str, str]:
    """With the buffers that Python has by default: what is in them is tried once more at the interpreter's end."""
    return {**samgrid.environment(), "PYTHONUNBUFFERED": ""}


@pytest.mark.parametrize(
    ("words", "name"), [("status", "samgrid status"), ("--help", "samgrid"), ("status --help", "samgrid status")]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_what_is_printed_is_a_sentence(
    samgrid: Samgrid, words: str, name: str, unbuffered: str
) -> None:
    command = [sys.executable, "-P", str(LAUNCH), "samgrid", *words.split()]
    environment = buffering(samgrid) | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr.decode()) == (1, f"{name}: No space left on device\n")


def test_an_id_that_cannot_be_printed_is_told_with_the_error(samgrid: Samgrid) -> None:
    command = [sys.executable, "-P", str(LAUNCH), "samgrid", "submit", "-"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, input=HELLO.encode(), env=buffering(samgrid), stdout=full, stderr=subprocess.PIPE, check=False
        )
    (job,) = json.loads(samgrid("status", "--format", "json").stdout)
    why = "its id could not be printed: No space left on device"
    assert (done.returncode, done.stderr.decode()) == (1, f"samgrid submit: {job['id']} is accepted, but {why}\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["backup", "/nosuch/x"], "/nosuch/x could not be written: No such file or directory"),
        (["backup", "/"], "/: is there, and is no regular file"),
        (["export", "/proc/x"], "/proc/x cannot be made: No such file or directory"),
        (["output", "ID", "--extract", "/nosuch/x"], "/nosuch/x could not be made: No such file or directory"),
        (["metrics", "--textfile", "/nosuch/x.prom"], "/nosuch/x.prom: No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_called_as_it_was_typed(
    finished: tuple[Samgrid, str], words: list[str], complaint: str
) -> None:
    samgrid, job_id = finished
    done = samgrid(*(job_id if word == "ID" else word for word in words))
    assert (done.returncode, done.stderr) == (1, f"samgrid {words[0]}: {complaint}\n")


def test_people_read_thousands_with_separators(finished: tuple[Samgrid, str], tmp_path: Path) -> None:
    done = finished[0]("backup", str(tmp_path / "b.tar"))
    assert done.stdout == f"written: {tmp_path / 'b.tar'}, {(tmp_path / 'b.tar').stat().st_size:,} bytes\n"
