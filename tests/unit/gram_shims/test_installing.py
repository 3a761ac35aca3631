"""``samgrid gram``: whole or nothing, twice is once, nothing of others is touched, nothing is left behind."""

import json
import os
import pwd
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from batch_adapters.launch import LAUNCH
from gram_shims.installation import checks
from gram_shims.installation.install import main
from gram_shims.installation.table import COLLECTOR_UNIT, MODULE_SOURCE, Registration, Root, make_table
from tests.samgrid import Samgrid
from tests.unit.gram_shims.test_rvf import read_records

SERVICE = "etc/grid-services/available/jobmanager-samgrid"
LINK = "etc/grid-services/jobmanager-samgrid"
MODULE = "usr/share/perl5/Globus/GRAM/JobManager/samgrid.pm"
RVF = "usr/share/globus/globus_gram_job_manager/samgrid.rvf"
CONFIGURATION = "etc/globus/globus-samgrid.conf"
EVENTS = "var/lib/globus/globus-seg-samgrid"
MANIFEST = "var/lib/samgrid/gram-installed.json"
LINE = (
    "stderr_log,local_cred - /usr/sbin/globus-job-manager globus-job-manager "
    "-conf /etc/globus/globus-gram-job-manager.conf -type samgrid"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The file system of a machine with a gatekeeper that serves somebody else, too."""
    root = tmp_path / "root"
    (root / "etc/grid-services/available").mkdir(parents=True)
    (root / "etc/grid-services/available/jobmanager-fork").write_text("theirs\n")
    (root / "etc/grid-services/jobmanager-fork").symlink_to("available/jobmanager-fork")
    for name in ("Core/Config", "GRAM/Error", "GRAM/JobManager"):
        file = root / f"usr/share/perl5/Globus/{name}.pm"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1;\n")
    return root


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program of Globus first on the PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def machine(root: Path, tools: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root as if it were this machine's, and who runs this its, with a gatekeeper's administrator's program."""
    monkeypatch.setattr(Root, "is_machine", property(lambda self: True))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    services = root / "etc/grid-services"
    tools(
        "globus-gatekeeper-admin",
        f"""echo "$@" >> {root.parent}/admin.log
        case $1 in -e) ln -sf "available/$2" {services}/"$2" ;; -d) rm {services}/"$2" ;; esac""",
    )
    return root


def run(command: str, root: Path, *options: str) -> int:
    return main([command, "--root", str(root), *options])


def run_status(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status of ``status``, and all that it prints."""
    capsys.readouterr()
    code = run("status", root)
    return code, capsys.readouterr().out


@pytest.fixture(autouse=True)
def _collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site where somebody writes events."""
    monkeypatch.setenv("SAMGRID_GRAM_EVENT_COLLECTOR", "/run/collector.sock")


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder, so that whatever is written, even the same again, is seen."""
    return {str(path.relative_to(folder)): _describe(path) for path in sorted(folder.rglob("*"))}


def _describe(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    content = path.read_bytes() if path.is_file() else os.fspath(path.readlink()) if path.is_symlink() else None
    times = (status.st_mtime_ns, status.st_ino) if not path.is_dir() else ()
    return stat.S_IFMT(status.st_mode), content, *times


# --- what is installed


@pytest.mark.parametrize(("mode", "end"), [("--poll", ""), ("--seg", " -seg-module samgrid")])
def test_the_service_file_is_the_one_line_that_the_gatekeeper_reads(root: Path, mode: str, end: str) -> None:
    assert run("install", root, mode) == 0
    assert (root / SERVICE).read_text() == f"{LINE}{end}\n"
    assert os.fspath((root / LINK).readlink()) == "available/jobmanager-samgrid"


def test_grams_event_folder_is_made_for_events_only(root: Path) -> None:
    run("install", root)
    assert not (root / EVENTS).exists()
    run("install", root, "--seg")
    assert stat.S_IMODE((root / EVENTS).stat().st_mode) == 0o755


@pytest.mark.parametrize(("mode", "has_default"), [("--poll", False), ("--seg", True)])
def test_gram_has_something_to_stage_out_of_every_job_where_it_reads_events(
    root: Path, mode: str, has_default: bool
) -> None:
    run("install", root, mode)
    default = read_records((root / RVF).read_text()).get("filestageout", {}).get("Default", "")
    assert (default != "") is has_default


def test_every_account_can_read_what_is_installed_whatever_the_umask(root: Path) -> None:
    before = set(root.rglob("*"))
    umask = os.umask(0o077)
    try:
        run("install", root, "--seg")
    finally:
        os.umask(umask)
    made = set(root.rglob("*")) - before
    assert {stat.S_IMODE(path.lstat().st_mode) for path in made if path.is_dir()} == {0o755}
    assert {stat.S_IMODE(path.lstat().st_mode) for path in made if path.is_file() and not path.is_symlink()} == {0o644}


def test_paths_inside_the_files_are_as_without_the_root(root: Path) -> None:
    run("install", root, "--state", "/var/samgrid/$(LOGNAME)")
    text = (root / CONFIGURATION).read_text()
    assert f'launch="{LAUNCH}"\n' in text
    assert 'state="/var/samgrid/$(LOGNAME)"\n' in text
    assert all(str(root) not in path.read_text() for path in root.rglob("*") if path.is_file())


def test_a_program_inside_the_root_is_named_as_the_package_will_have_it(tmp_path: Path) -> None:
    place = tmp_path / "usr/lib/samgrid/launch.py"
    assert Root(tmp_path).seen(place) == "/usr/lib/samgrid/launch.py"
    assert Root(Path("/")).seen(place) == str(place)


def test_what_was_said_before_holds_until_something_else_is_said(root: Path) -> None:
    run("install", root, "--seg", "--state", "/s/$(LOGNAME)")
    assert run("install", root, "--service", "second") == 0
    for service in ("samgrid", "second"):
        file = root / f"etc/grid-services/available/jobmanager-{service}"
        assert file.read_text() == f"{LINE} -seg-module samgrid\n"
        assert (root / f"etc/grid-services/jobmanager-{service}").exists()
    assert 'state="/s/$(LOGNAME)"' in (root / CONFIGURATION).read_text()
    run("install", root, "--poll")
    assert (root / SERVICE).read_text() == f"{LINE}\n"


@pytest.mark.parametrize("service", ["", "a/b", "../x", "a b", ".hidden", "é", "a\n"])
def test_a_name_that_is_no_services_is_refused(root: Path, service: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(root)
    assert run("install", root, "--service", service) == 1
    assert "is no service's name" in capsys.readouterr().err
    assert snapshot(root) == before


@pytest.mark.parametrize("state", ["", "relative", "/a b", '/a"', "/a\n", "$(PWD)/x", "$HOME/x", "/a/../b", "$(HOME)"])
def test_a_state_folder_that_is_no_absolute_path_is_refused(root: Path, state: str) -> None:
    before = snapshot(root)
    assert run("install", root, "--state", state) == 1
    assert snapshot(root) == before


# --- twice, and not at all


def test_to_install_twice_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("install", root, "--seg")
    before = snapshot(root)
    capsys.readouterr()
    assert run("install", root, "--seg") == 0
    assert snapshot(root) == before
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 7
    assert all(line.startswith("unchanged  ") for line in said)


@pytest.mark.parametrize("options", [(), ("--seg",), ("--service", "other")], ids=" ".join)
def test_uninstall_leaves_nothing_behind(root: Path, options: tuple[str, ...]) -> None:
    before = snapshot(root)
    run("install", root, *options)
    run("install", root)
    assert run("uninstall", root) == 0
    assert snapshot(root) == before


def test_uninstall_says_what_it_removes_before_it_does(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("install", root, "--seg")
    (root / EVENTS / "20260101").touch()
    (root / EVENTS / "20260102").write_text("001;1;a;1;0\n")
    there = set(root.rglob("*"))
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("gram_shims.installation.install.remove", Killed.now)
        with pytest.raises(Killed):
            run("uninstall", root)
    said = capsys.readouterr().out.splitlines()
    assert f"keeping  {root / EVENTS}/20260102: it has events" in said
    assert set(root.rglob("*")) == there
    assert run("uninstall", root) == 0
    gone = there - set(root.rglob("*"))
    assert sorted(line for line in said if "keeping" not in line) == sorted(f"removing  {place}" for place in gone)
    assert [path.name for path in (root / EVENTS).iterdir()] == ["20260102"]


def test_a_dry_uninstallation_says_the_same_and_removes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("install", root, "--seg")
    before = snapshot(root)
    capsys.readouterr()
    assert run("uninstall", root, "--dry-run") == 0
    assert snapshot(root) == before
    said = capsys.readouterr().out
    run("uninstall", root)
    assert capsys.readouterr().out == f"{said}uninstalled\n"


def test_a_root_that_was_not_there_is_gone_after_uninstall(tmp_path: Path) -> None:
    run("install", tmp_path / "new", "--seg")
    run("uninstall", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_uninstall_takes_days_without_events_along_but_nothing_else_of_the_folder(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("install", root, "--seg")
    (root / EVENTS / "20260101").touch()
    (root / EVENTS / "notes").write_text("theirs\n")
    assert run("uninstall", root) == 1
    assert [path.name for path in (root / EVENTS).iterdir()] == ["notes"]
    assert f"{root / EVENTS}/notes" in capsys.readouterr().err


def test_an_event_folder_that_was_there_before_stays_with_its_events(root: Path) -> None:
    (root / EVENTS).mkdir(parents=True)
    (root / EVENTS / "20260101").write_text("001;1;a;1;0\n")
    before = snapshot(root)
    run("install", root, "--seg")
    assert run("uninstall", root) == 0
    assert snapshot(root) == before


def test_a_dry_run_prints_every_byte_and_writes_nothing(root: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    before = snapshot(root)
    assert run("install", root, "--seg", "--dry-run") == 0
    assert snapshot(root) == before
    printed = capfdbinary.readouterr().out
    run("install", root, "--seg")
    for name in (SERVICE, MODULE, RVF, CONFIGURATION, MANIFEST):
        content = (root / name).read_bytes()
        head = f"file {root / name} (mode 0644, {len(content)} bytes)\n".encode()
        assert head + content in printed
    assert f"link {root / LINK} -> available/jobmanager-samgrid\n".encode() in printed
    assert f"folder {root / EVENTS} (mode 0755)\n".encode() in printed


def test_a_dry_run_after_the_installation_has_nothing_to_write(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("install", root)
    capsys.readouterr()
    run("install", root, "--dry-run")
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 6
    assert all(line.endswith("(unchanged)") for line in said)


# --- what is not ours


def put_file(place: Path) -> None:
    place.write_text("theirs\n")


def put_link(place: Path) -> None:
    place.symlink_to("/etc/passwd")


def put_folder(place: Path) -> None:
    place.mkdir()


OBSTACLES = [
    (name, put)
    for name in (SERVICE, LINK, MODULE, RVF, CONFIGURATION, EVENTS)
    for put in (put_file, put_link, put_folder)
    if (name, put) != (EVENTS, put_folder)
]


@pytest.mark.parametrize(("name", "put"), OBSTACLES)
def test_what_is_not_ours_is_never_overwritten(
    root: Path, name: str, put: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    put(root / name)
    before = snapshot(root)
    assert run("install", root, "--seg") == 1
    assert f"{root / name} is not ours" in capsys.readouterr().err
    assert snapshot(root) == before


@pytest.mark.parametrize("name", [SERVICE, MODULE, RVF, CONFIGURATION])
def test_a_changed_file_is_named_and_neither_overwritten_nor_removed(
    root: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("install", root)
    with (root / name).open("a") as file:
        file.write("# changed\n")
    before = snapshot(root)
    assert run("install", root) == 1
    assert f"{root / name} is not ours, or was changed" in capsys.readouterr().err
    assert run("status", root) == 1
    assert f"changed  {root / name}: move it away, then install again" in capsys.readouterr().out
    assert snapshot(root) == before
    assert run("uninstall", root) == 1
    assert f"left, because it was changed: {root / name}" in capsys.readouterr().err
    assert (root / name).read_text().endswith("# changed\n")
    assert not (root / MANIFEST).exists()


@pytest.mark.parametrize("name", [LINK, MODULE], ids=["a link to another service", "a file's place, to its bytes"])
def test_a_link_that_somebody_has_made_since_stays(root: Path, tmp_path: Path, name: str) -> None:
    run("install", root)
    target = Path("available/jobmanager-fork") if name == LINK else tmp_path / "theirs.pm"
    if name == LINK:
        (root / name).unlink()
    else:
        shutil.move(root / name, target)
    (root / name).symlink_to(target)
    assert run("install", root) == 1
    assert run("uninstall", root) == 1
    assert (root / name).readlink() == target


def test_nothing_is_written_through_a_link_out_of_the_root(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outside").mkdir()
    (root / "etc/globus").symlink_to(tmp_path / "outside")
    assert run("install", root) == 1
    assert "leads out of" in capsys.readouterr().err
    assert not list((tmp_path / "outside").iterdir())


def test_a_missing_file_is_put_back(root: Path) -> None:
    run("install", root)
    (root / MODULE).unlink()
    assert run("status", root) == 1
    run("install", root)
    assert (root / MODULE).exists()
    assert run("status", root) == 0


def test_a_newer_version_takes_the_place_of_an_older(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(root)
    run("install", root)
    newer = tmp_path / "newer.pm"
    newer.write_bytes(MODULE_SOURCE.read_bytes() + b"# newer\n")
    monkeypatch.setattr("gram_shims.installation.install.MODULE_SOURCE", newer)
    run("status", root)
    assert f"outdated  {root / MODULE}: install again" in capsys.readouterr().out
    assert run("install", root) == 0
    assert (root / MODULE).read_bytes() == newer.read_bytes()
    run("uninstall", root)
    assert snapshot(root) == before


# --- what breaks in the middle


class Killed(BaseException):
    """The process is gone: nobody catches this."""

    @classmethod
    def now(cls, *_: object) -> NoReturn:
        """Be killed."""
        raise cls


def break_rename(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Have the rename of this number (from 1) fail; each file and each manifest is renamed into its place.

    Who is killed there does not remove the file either.
    """
    count = 0
    rename = Path.replace

    def replace(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == number:
            if isinstance(error, Killed):
                monkeypatch.setattr(Path, "unlink", Killed.now)
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", replace)


@pytest.mark.parametrize("number", range(1, 7))
def test_an_installation_that_fails_leaves_nothing(
    root: Path, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(root)
    break_rename(monkeypatch, number, OSError(28, "No space left on device"))
    assert run("install", root, "--seg") == 1
    assert ": No space left on device" in capsys.readouterr().err
    assert snapshot(root) == before


@pytest.mark.parametrize("number", range(1, 8))
def test_after_a_kill_the_next_installation_goes_on(root: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(root)
    with monkeypatch.context() as patch:
        break_rename(patch, number, Killed())
        with pytest.raises(Killed):
            run("install", root, "--seg")
    if number > 1:
        # Before that the manifest, which knows of the folders, was not yet written.
        assert run("install", root, "--seg") == 0
        assert run("status", root) == 0
        assert run("uninstall", root) == 0
        assert snapshot(root) == before


@pytest.mark.parametrize("number", range(2, 4))
@pytest.mark.parametrize("next_command", ["install", "uninstall"])
def test_after_a_change_that_was_killed_in_the_middle_every_file_is_known_to_be_ours(
    root: Path, number: int, next_command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(root)
    run("install", root, "--poll")
    with monkeypatch.context() as patch:
        break_rename(patch, number, Killed())
        with pytest.raises(Killed):
            run("install", root, "--seg", "--state", "/other")
    assert run(next_command, root) == 0
    assert run("uninstall", root) == 0
    assert snapshot(root) == before


def test_a_manifest_that_nobody_can_read_stops_everything(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("install", root)
    (root / MANIFEST).write_text('{"services": 1}')
    before = snapshot(root)
    assert [run(command, root) for command in ("install", "uninstall", "status")] == [1, 1, 1]
    assert capsys.readouterr().err.count("does not say what was installed") == 3
    assert snapshot(root) == before


# --- the machine itself


def test_a_service_is_enabled_and_disabled_by_the_gatekeepers_own_program(machine: Path) -> None:
    before = snapshot(machine)
    run("install", machine)
    assert (machine / LINK).read_text() == f"{LINE}\n"
    run("uninstall", machine)
    assert (machine.parent / "admin.log").read_text() == "-e jobmanager-samgrid\n-d jobmanager-samgrid\n"
    assert snapshot(machine) == before


def test_a_gatekeepers_program_that_fails_is_quoted_and_nothing_is_left(
    machine: Path, tools: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(machine)
    tools("globus-gatekeeper-admin", "echo no such luck >&2; exit 3")
    assert run("install", machine) == 1
    assert "jobmanager-samgrid cannot be enabled: no such luck" in capsys.readouterr().err
    assert snapshot(machine) == before


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_an_ordinary_account_is_told_that_this_is_roots(
    machine: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "uninstall":
        run("install", machine)
    before = snapshot(machine)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    capsys.readouterr()
    assert run(command, machine) == 1
    said = capsys.readouterr()
    assert "run it as root" in said.err
    assert not said.out
    assert snapshot(machine) == before
    assert run(command, machine, "--dry-run") == 0


def test_a_python_that_accounts_cannot_reach_is_a_fault(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = machine / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to("/bin/sh")
    monkeypatch.setattr("sys.executable", str(closed / "python"))
    assert run("install", machine) == 0
    assert f"python: {closed}/python cannot be reached by other accounts" in capsys.readouterr().err
    assert run("status", machine) == 1


def test_a_python_in_the_system_is_none(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/sh")
    run("install", machine)
    assert "check  python: ok" in run_status(machine, capsys)[1]


def test_a_site_configuration_that_accounts_cannot_read_is_a_fault(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("install", machine)
    assert "site's configuration" not in run_status(machine, capsys)[1]
    file = machine / "etc/samgrid/samgrid.toml"
    file.parent.mkdir()
    file.touch(mode=0o600)
    code, text = run_status(machine, capsys)
    assert code == 1
    assert f"site's configuration: {file} is closed to other accounts" in text


# --- the collector

UNIT = "etc/systemd/system/samgrid-event-collector.service"
MONITOR_UNIT = "etc/systemd/system/samgrid-monitor@.service"
WANTED = "etc/systemd/system/multi-user.target.wants/samgrid-event-collector.service"
ADD_ACCOUNT = "useradd --system --user-group --no-create-home --home-dir / --shell /usr/sbin/nologin samgrid-collector"
RESTART = ["systemctl daemon-reload", "systemctl restart samgrid-event-collector"]
COLLECTOR = ("--seg", "--collector")


class Host:
    """A machine whose accounts and services are a log: what was run there."""

    def __init__(self, root: Path) -> None:
        """``uid``: that of the collector's account, once it is made; by default folders that we make are its own."""
        self.root = root
        self.log = root.parent / "commands.log"
        self.uid = os.getuid()

    def give_folder(self) -> str:
        return f"install -d -o samgrid-collector -m 0755 {self.root / EVENTS}"

    def commands(self) -> list[str]:
        """What was run since this was asked last."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines

    def find_account(self, name: str) -> pwd.struct_passwd:
        if not (self.root.parent / "account").exists():
            raise KeyError(name)
        return pwd.struct_passwd((name, "x", self.uid, self.uid, "", "/", "/usr/sbin/nologin"))


@pytest.fixture
def host(machine: Path, tools: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """The machine, where systemd runs, and whatever is started as the collector listens."""
    host = Host(machine)
    (machine / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(pwd, "getpwnam", host.find_account)
    monkeypatch.setattr("sys.executable", "/bin/sh")
    monkeypatch.setattr("gram_shims.installation.checks._PATIENCE", 0)
    tools("useradd", f'echo "useradd $*" >> {host.log}; touch {machine.parent}/account')
    tools("install", f'echo "install $*" >> {host.log}; chmod 755 {machine / EVENTS}')
    tools("systemctl", f'echo "systemctl $*" >> {host.log}')
    # A socket's name has no more than 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(f"{folder}/socket")
        one.listen(64)
        monkeypatch.setenv("SAMGRID_GRAM_EVENT_COLLECTOR", f"{folder}/socket")
        yield host


def examined(host: Host, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``status`` says of the collector's own things."""
    names = ("collector's account", "event folder's owner", "today's events", "collector:")
    lines = run_status(host.root, capsys)[1].splitlines()
    return "\n".join(line for line in lines if line.removeprefix("check  ").startswith(names))


def test_the_collector_gets_its_account_its_folder_and_its_service(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.uid += 1
    assert run("install", host.root, *COLLECTOR) == 0
    assert host.commands() == [ADD_ACCOUNT, host.give_folder(), *RESTART]
    assert os.fspath((host.root / WANTED).readlink()) == f"/{UNIT}"
    unit = (host.root / UNIT).read_text().splitlines()
    assert f'ExecStart="/bin/sh" -P "{LAUNCH}" samgrid-event-collector' in unit
    assert {"User=samgrid-collector", f"ReadWritePaths=/{EVENTS}", "UMask=0022"} <= set(unit)
    assert f'ExecStart="/bin/sh" -P "{LAUNCH}" samgrid monitor --stay' in (host.root / MONITOR_UNIT).read_text()
    # The fake command gave the folder to nobody.
    assert f"event folder's owner: not as the collector needs it: {host.give_folder()}" in examined(host, capsys)


def test_a_second_time_only_restarts_the_collector(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    run("install", host.root, *COLLECTOR)
    before = snapshot(host.root)
    host.commands()
    assert run("install", host.root) == 0
    assert host.commands() == RESTART
    assert snapshot(host.root) == before
    said = examined(host, capsys).splitlines()
    assert len(said) == 3
    assert all(line.endswith(": ok") for line in said)


def test_a_folder_that_was_there_gets_its_mode(host: Host) -> None:
    (host.root / EVENTS).mkdir(parents=True)
    (host.root / EVENTS).chmod(0o700)
    (host.root.parent / "account").touch()
    run("install", host.root, *COLLECTOR)
    assert host.commands() == [host.give_folder(), *RESTART]
    assert stat.S_IMODE((host.root / EVENTS).stat().st_mode) == 0o755


@pytest.mark.parametrize("number", range(4))
def test_an_installation_that_was_killed_at_a_command_goes_on(
    host: Host, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(host.root)
    (host.root / EVENTS).mkdir(mode=0o700, parents=True)
    with monkeypatch.context() as patch:
        left = iter(range(number))

        def run_or_die(command: tuple[str, ...], run: Callable[[tuple[str, ...]], None] = checks.run_setup) -> None:
            return Killed.now() if next(left, None) is None else run(command)

        patch.setattr("gram_shims.installation.install.run_setup", run_or_die)
        with pytest.raises(Killed):
            run("install", host.root, *COLLECTOR)
    # What was said is known, so that it need not be said again.
    assert run("install", host.root) == 0
    assert host.commands()[-2:] == RESTART
    assert all(line.endswith(": ok") for line in examined(host, capsys).splitlines())
    assert run("uninstall", host.root) == 0
    shutil.rmtree(host.root / "var")
    assert snapshot(host.root) == before


def test_a_command_that_fails_is_quoted_and_status_says_what_is_missing(
    host: Host, tools: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tools("useradd", "echo cannot lock /etc/passwd; exit 1")
    assert run("install", host.root, *COLLECTOR) == 1
    assert f"{ADD_ACCOUNT}: cannot lock /etc/passwd" in capsys.readouterr().err
    assert f"collector's account: not as the collector needs it: {ADD_ACCOUNT}" in examined(host, capsys)
    assert run("status", host.root) == 1


def test_without_systemd_the_command_that_starts_the_collector_is_printed(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (host.root / "run/systemd/system").rmdir()
    monkeypatch.setenv("SAMGRID_GRAM_EVENT_COLLECTOR", "/nowhere/socket")
    assert run("install", host.root, *COLLECTOR) == 0
    assert host.commands() == [ADD_ACCOUNT, host.give_folder()]
    folder = "install -d -o samgrid-collector -m 0755 /run/samgrid-event-collector"
    start = f"runuser -u samgrid-collector -- /bin/sh -P {LAUNCH} samgrid-event-collector"
    said = capsys.readouterr().err
    assert "nobody listens at /nowhere/socket (No such file or directory): systemd does not run here" in said
    assert said.endswith(f"keep this running: {folder}; {start}\n")
    assert run("status", host.root) == 1


def test_a_collector_that_ended_is_a_fault(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("install", host.root, *COLLECTOR)
    monkeypatch.setenv("SAMGRID_GRAM_EVENT_COLLECTOR", "/nowhere/socket")
    assert "collector: nobody listens at /nowhere/socket" in examined(host, capsys)
    assert "journalctl -u samgrid-event-collector says why" in examined(host, capsys)


def test_a_day_of_somebody_elses_is_a_fault(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("install", host.root, *COLLECTOR)
    monkeypatch.setattr("time.strftime", lambda *_: "20261122")
    (host.root / EVENTS / "20261122").touch()
    assert "somebody else's" not in examined(host, capsys)
    host.uid += 1
    assert f"somebody else's: chown samgrid-collector {host.root / EVENTS}/20261122" in examined(host, capsys)


def test_monitors_that_do_not_know_of_the_collector_are_a_fault(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SAMGRID_GRAM_EVENT_COLLECTOR")
    run("install", host.root, *COLLECTOR)
    assert 'say event_collector = "/run/samgrid-event-collector/socket" there' in capsys.readouterr().err


def test_uninstall_stops_the_collector_first_and_leaves_its_account(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(host.root)
    run("install", host.root, *COLLECTOR)
    host.commands()
    capsys.readouterr()
    run("uninstall", host.root, "--dry-run")
    said = capsys.readouterr().out
    assert host.commands() == []
    assert said.startswith("stopping  samgrid-event-collector\n")
    assert 'keeping  account samgrid-collector: "userdel samgrid-collector" removes it\n' in said
    assert run("uninstall", host.root) == 0
    assert host.commands() == ["systemctl stop samgrid-event-collector", "systemctl daemon-reload"]
    assert snapshot(host.root) == before


def test_nothing_goes_while_the_collector_cannot_be_stopped(
    host: Host, tools: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    run("install", host.root, *COLLECTOR)
    before = snapshot(host.root)
    tools("systemctl", "echo access denied; exit 1")
    assert run("uninstall", host.root) == 1
    assert "systemctl stop samgrid-event-collector: access denied" in capsys.readouterr().err
    assert snapshot(host.root) == before


def test_the_collector_goes_on_where_gram_polls_again(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    run("install", host.root, *COLLECTOR)
    host.commands()
    capsys.readouterr()
    assert run("install", host.root, "--poll") == 0
    assert {f"unchanged  {host.root / name}" for name in (UNIT, EVENTS)} <= set(capsys.readouterr().out.splitlines())
    assert host.commands() == RESTART
    assert run("uninstall", host.root) == 0
    assert not (host.root / UNIT).exists()


def test_a_gram_that_polls_has_no_use_for_a_collector(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(root)
    assert run("install", root, "--collector") == 1
    assert "say --seg --collector" in capsys.readouterr().err
    assert snapshot(root) == before


def test_for_a_package_the_commands_are_printed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("install", root, *COLLECTOR) == 0
    said = capsys.readouterr().out.splitlines()
    own = f"install -d -o samgrid-collector -m 0755 /{EVENTS}"
    assert [line.partition("  ")[2] for line in said if line.startswith("to be run")] == [ADD_ACCOUNT, own, *RESTART]
    assert run("status", root) == 0


def test_a_dry_run_says_which_commands_would_be_run(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(host.root)
    assert run("install", host.root, *COLLECTOR, "--dry-run") == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("run ")] == [
        f"run {command}" for command in (ADD_ACCOUNT, host.give_folder(), *RESTART)
    ]
    assert host.commands() == []
    assert snapshot(host.root) == before


def test_a_path_is_one_word_for_systemd() -> None:
    registration = Registration(uses_events=True, has_collector=True)
    table = make_table(registration, "/a b/100%/$x/python", "/launch.py", b"", {})
    text = table[COLLECTOR_UNIT]
    assert isinstance(text, bytes)
    assert 'ExecStart="/a b/100%%/$$x/python" -P "/launch.py" samgrid-event-collector\n' in text.decode()


# --- what does not work


def test_nothing_is_installed_at_first(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", root) == 1
    assert run("uninstall", root) == 0
    assert capsys.readouterr().out.count("nothing is installed") == 2


def test_status_says_what_is_installed_and_enabled(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("install", root, "--seg")
    code, said = run_status(root, capsys)
    assert code == 0
    assert "jobmanager-samgrid: enabled, GRAM reads events\n" in said
    assert f"unchanged  {root / SERVICE}\n" in said
    assert "check  service samgrid: ok\n" in said
    (root / LINK).unlink()
    code, said = run_status(root, capsys)
    assert (code, "jobmanager-samgrid: not enabled" in said) == (1, True)


EVENT_WRITERS = {
    "nobody": ({}, "event_collector is not set, and event_folder is not set"),
    "into another folder": ({"FOLDER": "/elsewhere"}, "event_folder names /elsewhere"),
    "into GRAM's folder": ({"FOLDER": f"/{EVENTS}"}, "ok"),
    "a collector": ({"COLLECTOR": "/run/collector.sock", "FOLDER": "/elsewhere"}, "ok"),
}


@pytest.mark.parametrize(("settings", "verdict"), EVENT_WRITERS.values(), ids=EVENT_WRITERS)
def test_events_that_nobody_writes_are_a_fault(
    root: Path,
    settings: dict[str, str],
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SAMGRID_GRAM_EVENT_COLLECTOR")
    for key, value in settings.items():
        monkeypatch.setenv(f"SAMGRID_GRAM_EVENT_{key}", value)
    run("install", root, "--seg")
    code, said = run_status(root, capsys)
    assert code == (0 if verdict == "ok" else 1)
    (line,) = (line for line in said.splitlines() if line.startswith("check  events: "))
    assert verdict in line


@pytest.mark.skipif(shutil.which("perl") is None, reason="perl is not here")
def test_a_module_that_does_not_compile_is_a_fault(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("install", root)
    code, said = run_status(root, capsys)
    assert (code, "check  Perl module: ok\n" in said) == (0, True)
    (root / MODULE).write_text("sub {\n")
    code, said = run_status(root, capsys)
    assert (code, "check  Perl module: Missing right curly" in said) == (1, True)


WITHOUT_GRAM = 'echo "Can\'t locate Globus/GRAM/JobManager.pm in @INC"; exit 2'


def test_for_a_package_nobody_needs_grams_own_perl(
    root: Path, tools: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tools("perl", WITHOUT_GRAM)
    run("install", root)
    code, said = run_status(root, capsys)
    assert code == 0
    assert "check  Perl module: not checked: globus-gram-job-manager-scripts is not installed\n" in said


def test_a_machine_without_grams_own_perl_is_a_fault(
    machine: Path, tools: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tools("perl", WITHOUT_GRAM)
    run("install", machine)
    code, said = run_status(machine, capsys)
    assert code == 1
    assert "check  Perl module: Can't locate Globus/GRAM/JobManager.pm" in said


def test_attributes_that_gram_would_not_take_are_refused_before_anything_is_written(
    root: Path, tools: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(root)
    tools("globus-rvf-check", 'echo "unable to parse line 7"; exit 152')
    assert run("install", root) == 1
    assert "would not take the attributes that the job types declare: unable to parse line 7" in capsys.readouterr().err
    assert snapshot(root) == before


def test_a_handler_that_cannot_be_loaded_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no luck')\n")
    monkeypatch.setenv("SAMGRID_HANDLERS_MODULES", str(broken))
    before = snapshot(root)
    assert run("install", root) == 1
    assert f"handler module {broken} cannot be loaded" in capsys.readouterr().err
    assert snapshot(root) == before


def test_the_sites_own_job_types_are_in_the_validation_file(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "ours.py"
    ours.write_text(
        "from adapters import Attribute\nfrom handlers.command import CommandAdapter\n"
        "class Ours(CommandAdapter):\n    jobType = 'ours'\n    attributes = (Attribute('our_word', 'A word.'),)\n"
    )
    run("install", root)
    assert "Attribute: ourword\n" not in (root / RVF).read_text()
    monkeypatch.setenv("SAMGRID_HANDLERS_MODULES", str(ours))
    assert run("status", root) == 1
    run("install", root)
    assert "Attribute: ourword\n" in (root / RVF).read_text()


def test_the_manifest_tells_of_every_file_with_its_checksum(root: Path) -> None:
    run("install", root)
    found = json.loads((root / MANIFEST).read_text())
    assert set(found["files"]) == {f"/{name}" for name in (SERVICE, MODULE, RVF, CONFIGURATION)}
    assert all(len(sums) == 1 and len(sums[0]) == 64 for sums in found["files"].values())
    assert found["links"] == {f"/{LINK}": "available/jobmanager-samgrid"}


def test_the_command_line_names_gram_and_enters_it(samgrid: Samgrid, root: Path) -> None:
    assert "register with a Globus gatekeeper" in " ".join(samgrid("--help").stdout.split())
    done = samgrid("gram", "status", "--root", str(root))
    assert (done.returncode, done.stdout) == (1, 'nothing is installed: say "samgrid gram install"\n')
