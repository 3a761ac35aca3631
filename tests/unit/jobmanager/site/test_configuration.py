import os
import pwd
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobmanager.site.account import open_account
from jobmanager.site.configuration import Configuration, ConfigurationError, read_configuration, render_configuration
from jobmanager.site.places import StateFolderError, StatePlaces, find_state_folder, make_state_folder
from jobmanager.site.settings import SECTIONS, SETTINGS, EventSource, EventsSettings, Setting
from tests.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = (ROOT / "examples" / "samgrid.toml").read_text()
EVERY_SETTING = [setting for keys in SETTINGS.values() for setting in keys.values()]


def read_text(tmp_path: Path, text: str, environment: Mapping[str, str] | None = None) -> Configuration:
    site_file = tmp_path / "site.toml"
    site_file.write_text(text)
    return read_configuration(environment or {}, site_file)


def faults_of(tmp_path: Path, text: str, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        read_text(tmp_path, text, environment)
    return caught.value.faults


def test_without_files_and_variables_everything_is_a_default(tmp_path: Path) -> None:
    configuration = read_configuration({"SAMGRID_CONFIG": ""}, tmp_path / "absent.toml")
    assert configuration == Configuration()
    assert configuration.decomposition.events_per_local_job == 250
    assert configuration.sandbox.scratch_folder is None
    assert configuration.origin("fork", "slots") == "default"


def test_events_of_one_batch_system_may_come_from_elsewhere(tmp_path: Path) -> None:
    text = (
        '[events]\npath = "/log"\n[events.slurm]\nsource = "day-files"\npath = "/days"\n'
        '[events.pbs]\nprefix = ["sudo", "-u", "reader"]\n'
    )
    configuration = read_text(tmp_path, text)
    assert configuration.find_events("condor") == configuration.events == EventsSettings(path=Path("/log"))
    assert configuration.find_events("slurm") == EventsSettings(EventSource.DAY_FILES, Path("/days"))
    assert configuration.find_events("pbs") == EventsSettings(path=Path("/log"), prefix=("sudo", "-u", "reader"))
    assert configuration.origin("events.pbs", "prefix") == str(tmp_path / "site.toml")
    shown = tomllib.loads(render_configuration(configuration))["events"]
    assert shown["slurm"] == {"source": "day-files", "path": "/days"}
    assert shown["pbs"] == {"prefix": ["sudo", "-u", "reader"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[events.slrum]\n", '[events.slrum] unknown batch system "slrum"'),
        ('[events.slurm]\nfile = "/x"\n', "[events.slurm] has no key 'file'; the keys are source, path"),
        ('[events.slurm]\nprefix = "sudo"\n', "[events.slurm] prefix must be a list of the words of a command"),
        ('[events.slurm]\nprefix = ["./read", "-q"]\n', "its program absolute or on PATH, not ['./read', '-q']"),
    ],
)
def test_what_is_wrong_with_the_events_of_one_batch_system_is_named(tmp_path: Path, text: str, words: str) -> None:
    (fault,) = faults_of(tmp_path, text)
    assert words in fault


def test_each_layer_overrides_the_one_before_it_key_by_key(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text('[fork]\nslots = 2\ncancel_grace = 2\n[type.pythia]\npython = "/b"\n')
    environment = {"SAMGRID_CONFIG": str(named), "SAMGRID_FORK_SLOTS": "3"}
    text = (
        '[fork]\nslots = 1\ncancel_grace = 1\n[monitor]\nworkers = 1\n[type.pythia]\npython = "/a"\ntunes = [1, 2.5]\n'
    )
    configuration = read_text(tmp_path, text, environment)
    assert (configuration.fork.slots, configuration.fork.cancel_grace, configuration.monitor.workers) == (3, 2, 1)
    assert configuration.types == {"pythia": {"python": "/b", "tunes": [1, 2.5]}}
    assert configuration.origin("fork", "slots") == "environment SAMGRID_FORK_SLOTS"
    assert configuration.origin("fork", "cancel_grace") == configuration.origin("type.pythia", "python") == str(named)
    assert configuration.origin("monitor", "workers") == str(tmp_path / "site.toml")
    assert configuration.origin("type.pythia", "tunes") == str(tmp_path / "site.toml")


@pytest.mark.parametrize(
    ("variable", "text", "section", "value"),
    [
        pytest.param("SAMGRID_SITE_NAME", "fermilab", "site", "fermilab", id="word"),
        pytest.param("SAMGRID_FORK_SLOTS", "16", "fork", 16, id="integer"),
        pytest.param("SAMGRID_MONITOR_IDLE_TIME", "0.5", "monitor", 0.5, id="number"),
        pytest.param("SAMGRID_SANDBOX_SCRATCH_FOLDER", "/scratch", "sandbox", Path("/scratch"), id="path"),
        pytest.param("SAMGRID_HANDLERS_MODULES", "d0.mc:/x/y.py", "handlers", ("d0.mc", "/x/y.py"), id="list"),
        pytest.param("SAMGRID_SANDBOX_SITE_FILES", "/a:/b c", "sandbox", (Path("/a"), Path("/b c")), id="paths"),
        pytest.param("SAMGRID_HANDLERS_MODULES", "", "handlers", (), id="empty list"),
    ],
)
def test_a_variable_gives_the_typed_value(
    tmp_path: Path, variable: str, text: str, section: str, value: object
) -> None:
    configuration = read_configuration({variable: text}, tmp_path / "absent.toml")
    key = variable.split("_", 2)[2].lower()
    found = getattr(getattr(configuration, section), key)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("name", ["STATE", "GRID_JOB", "STATUS", "FORK_ID", "FORK_INDEX", "SITE", "SANDBOXES_X"])
def test_variables_that_are_no_settings_are_none_of_our_business(tmp_path: Path, name: str) -> None:
    assert read_configuration({f"SAMGRID_{name}": "?", "FORK_X": "?"}, tmp_path / "absent") == Configuration()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('[fork]\nslots = "4"', ["[fork] slots must be an integer from 0 to 900", "not '4'"], id="text"),
        pytest.param("[fork]\nslots = true", ["[fork] slots must be an integer", "not True"], id="boolean"),
        pytest.param("[fork]\nslots = 4.0", ["[fork] slots must be an integer", "not 4.0"], id="float"),
        pytest.param("[fork]\nslots = -1", ["from 0 to 900", "not -1"], id="below the range"),
        pytest.param("[fork]\nslots = 901", ["from 0 to 900", "not 901"], id="above the range"),
        pytest.param("[monitor]\nidle_time = nan", ["(seconds)", "not nan"], id="nan"),
        pytest.param("[monitor]\nidle_time = true", ["[monitor] idle_time must be a number"], id="boolean number"),
        pytest.param('[site]\nname = "a b"', ["[site] name must be a word", "not 'a b'"], id="two words"),
        pytest.param('[site]\nname = "a\\n"', ["[site] name must be a word"], id="newline"),
        pytest.param("[site]\nname = 3", ["[site] name must be a word", "not 3"], id="number as word"),
        pytest.param('[sandbox]\nscratch_folder = "tmp"', ["an absolute path", "not 'tmp'"], id="relative path"),
        pytest.param('[sandbox]\nscratch_folder = "/a\\u0000"', ["an absolute path"], id="NUL in a path"),
        pytest.param('[handlers]\nmodules = "a"', ["a list of dotted module names"], id="text as list"),
        pytest.param('[handlers]\nmodules = ["x.py/"]', ["a list of dotted module names"], id="relative module"),
        pytest.param('[handlers]\nmodules = ["/x/y"]', ["paths of .py files"], id="path of no .py file"),
        pytest.param("[handlers]\nmodules = [1]", ["a list of dotted module names"], id="number as module"),
        pytest.param("[fork]\nslot = 1", ["[fork] has no key 'slot'; the keys are slots, cancel_grace"], id="key"),
        pytest.param("[frok]", ["unknown section or key 'frok'", "site, decomposition, sandbox"], id="section"),
        pytest.param("slots = 3", ["unknown section or key 'slots'", "type.NAME"], id="key of no section"),
        pytest.param("fork = 3", ["fork must be a section, [fork], not 3"], id="value as section"),
        pytest.param("type = 3", ["type must be a section"], id="value as type"),
        pytest.param("[type]\npythia = 3", ["type.pythia must be a section, [type.pythia], not 3"], id="type's value"),
        pytest.param("[type.a]\nx = 2001-01-01", ["[type.a] x must be a string", "date"], id="date"),
        pytest.param("[type.a]\nx = [{}]", ["[type.a] x must be a string"], id="table in a list"),
        pytest.param("[fork\n", ["this is not TOML", "line 1"], id="no TOML"),
        pytest.param("batch = 3", ["batch must be a section"], id="value as batch system"),
        pytest.param("[batch]\nfork = 3", ["batch.fork must be a section, [batch.fork], not 3"], id="batch's value"),
        pytest.param('[sandbox]\ntransfer = "ftp"', ["transfer must be one of shared, batch-system"], id="choice"),
    ],
)
def test_a_faulty_file_is_refused_naming_file_key_and_way_out(tmp_path: Path, text: str, words: list[str]) -> None:
    (fault,) = faults_of(tmp_path, text)
    assert fault.startswith(f"{tmp_path}/site.toml: ")
    assert [word for word in words if word not in fault] == []
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        pytest.param("SAMGRID_FORK_SLOTS", "x", "must be an integer from 0 to 900 (local jobs), not 'x'", id="text"),
        pytest.param("SAMGRID_SITE_NAME", "", "must be a word", id="empty"),
        pytest.param("SAMGRID_FORK_SLOTS", "99999", "not 99999", id="range"),
        pytest.param("SAMGRID_SANDBOX_SCRATCH_FOLDER", "/\udc80", "must be an absolute path", id="invalid UTF-8"),
        pytest.param("SAMGRID_FORK_SLOT", "1", "those of [fork] are SAMGRID_FORK_SLOTS, SAMGRID_FORK_", id="key"),
        pytest.param("SAMGRID_FORK_slots", "1", "unknown variable", id="lower case"),
        pytest.param("SAMGRID_TYPE_PYTHIA", "1", "tables [type.NAME] are set in a file only", id="type"),
    ],
)  # fmt: skip
def test_a_faulty_variable_is_refused_by_its_name(tmp_path: Path, variable: str, text: str, words: str) -> None:
    (fault,) = faults_of(tmp_path, "", {variable: text})
    assert fault.startswith(f"environment {variable}: ")
    assert words in fault


def test_all_faults_of_all_layers_are_told_at_once(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text("[monitor]\nworkers = 0\n")
    environment = {"SAMGRID_CONFIG": str(named), "SAMGRID_FORK_SLOTS": "x", "SAMGRID_SITE_X": ""}
    faults = faults_of(tmp_path, "[fork]\nslots = 'x'\nslot = 1\n[frok]\n[type.a]\nx = 10:00:00\n", environment)
    assert [re.split(r"[ :]", fault)[0] for fault in faults] == [str(tmp_path / "site.toml")] * 4 + [str(named)] + [
        "environment"
    ] * 2


def test_a_file_that_samgrid_config_names_must_be_there_and_regular(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, words in [
        (str(tmp_path / "absent.toml"), f"cannot read {tmp_path}/absent.toml: No such file"),
        (str(tmp_path), "it is not a regular file"),
        (str(tmp_path / "fifo"), "it is not a regular file"),
        ("relative.toml", "cannot read relative.toml: it must be an absolute path"),
    ]:
        (fault,) = faults_of(tmp_path, "", {"SAMGRID_CONFIG": name})
        assert fault.startswith("environment SAMGRID_CONFIG: ")
        assert words in fault


def test_a_site_file_that_cannot_be_read_is_not_taken_for_absent(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*: Is a directory"):
        read_configuration({}, tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigurationError, match=r"latin\.toml: this is not TOML"):
        read_configuration({}, tmp_path / "latin.toml")


def test_the_rendered_configuration_says_value_origin_and_unit(tmp_path: Path) -> None:
    text = render_configuration(read_text(tmp_path, "[type.a]\nx = true\n", {"SAMGRID_FORK_SLOTS": "4"}))
    lines = [re.sub(" +", " ", line) for line in text.splitlines()]
    assert "slots = 4 # environment SAMGRID_FORK_SLOTS; local jobs" in lines
    assert "idle_time = 60 # default; seconds" in lines
    assert 'scratch_folder = "" # default' in lines
    assert lines[lines.index("[type.a]") + 1] == f"x = true # {tmp_path}/site.toml"


texts = st.text(st.characters(codec="utf-8"))
scalars = texts | st.integers() | st.floats(allow_nan=False) | st.booleans()
tables = st.dictionaries(texts, st.recursive(scalars, st.lists, max_leaves=5), max_size=5)


@given(st.dictionaries(texts, tables, max_size=3), texts)
def test_the_rendered_configuration_is_toml_of_the_same_values(
    types: dict[str, dict[str, object]], origin: str
) -> None:
    origins = {(f"type.{name}", key): origin for name, table in types.items() for key in table}
    document = tomllib.loads(render_configuration(Configuration(types=types, origins=origins)))
    assert document.pop("type", {}) == types
    assert list(document) == list(SETTINGS)
    for setting in EVERY_SETTING:
        assert setting.read_plain(document[setting.section][setting.name]) == setting.default


@pytest.mark.parametrize("setting", EVERY_SETTING, ids=lambda setting: setting.variable)
def test_the_example_explains_every_setting(setting: Setting) -> None:
    description = setting.describe()
    comment = f"# {setting.doc}\n# {description[0].upper()}{description[1:]}. Variable {setting.variable}.\n"
    assert re.search(rf"^{re.escape(comment)}#{setting.name} = ", EXAMPLE, re.MULTILINE)


def test_the_example_uncommented_is_the_default_configuration(tmp_path: Path) -> None:
    assert read_text(tmp_path, EXAMPLE) == Configuration()
    uncommented = re.sub(r"^#(\w+ = )", r"\1", EXAMPLE, flags=re.MULTILINE)
    assert {section: list(keys) for section, keys in tomllib.loads(uncommented).items()} == {
        section: list(keys) for section, keys in SETTINGS.items()
    }
    configuration = read_text(tmp_path, uncommented)
    for section, defaults in SECTIONS.items():
        assert getattr(configuration, section) == defaults()
        assert f"\n# {defaults.__doc__}\n[{section}]\n" in EXAMPLE


@pytest.mark.parametrize("table", ["type.pythia", "batch.slurm"])
def test_the_tables_that_the_example_shows_are_accepted(tmp_path: Path, table: str) -> None:
    section, name = table.split(".")
    _, found, lines = EXAMPLE.partition(f"# [{table}]\n")
    commented = re.match(r"(# \w+ = .+\n)+", lines)
    assert found
    assert commented is not None
    text = f"[{table}]\n" + commented[0].replace("# ", "")
    configuration = read_text(tmp_path, text)
    assert {"type": configuration.types, "batch": configuration.batch}[section] == {
        name: tomllib.loads(text)[section][name]
    }


def test_reading_the_configuration_loads_no_heavy_module() -> None:
    heavy = {"lxml", "jinja2", "sh", "lark", "rich", "sqlite3", "asyncio", "subprocess", "logging", "json"}
    code = f"import jobmanager.site.configuration, jobmanager.site.places, sys; print(*({heavy!r} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=SECONDS)
    assert result.stdout == "\n"


@pytest.mark.parametrize(
    ("option", "environment", "folder"),
    [
        pytest.param("/o", {"SAMGRID_STATE": "/s", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/o", id="option"),
        pytest.param(None, {"SAMGRID_STATE": "/s", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/s", id="variable"),
        pytest.param(None, {"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/samgrid", id="XDG"),
        pytest.param(None, {"HOME": "/h"}, "/h/.local/state/samgrid", id="home"),
        pytest.param("", {"SAMGRID_STATE": "", "XDG_STATE_HOME": "/x"}, "/x/samgrid", id="empty"),
        pytest.param(None, {"XDG_STATE_HOME": "x", "HOME": "/h"}, "/h/.local/state/samgrid", id="relative XDG"),
        pytest.param("o", {}, str(Path.cwd() / "o"), id="relative option"),
    ],
)  # fmt: skip
def test_the_state_folder_is_found(option: str | None, environment: Mapping[str, str], folder: str) -> None:
    assert find_state_folder(option, environment) == Path(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("[batch.fork]\nqeue = 1", ["[batch.fork] has no key 'qeue'; the keys are"], id="key"),
        pytest.param("[batch.oar]\nmax_array = 1", ["[batch.oar] submit is missing"], id="a new one without commands"),
        pytest.param('[batch."o r"]\nbased_on = "fork"', ["[batch.o r] the name 'o r' must be a word"], id="name"),
        pytest.param(
            '[batch.oar]\nbased_on = "raf"', ["[batch.oar] based_on:", 'batch system "raf": known are'], id="base"
        ),
        pytest.param(
            '[batch.a]\nbased_on = "b"\n[batch.b]\nbased_on = "fork"', ["[batch.a] based_on:", '"b"'], id="base of ours"
        ),
    ],
)
def test_a_table_that_makes_no_batch_adapter_is_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    fault = faults_of(tmp_path, text)[0]
    assert [word for word in words if word not in fault] == []
    assert "\n" not in fault


def test_tables_of_batch_systems_are_merged_and_shown(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text("[batch.fork]\nmax_array = 7\n")
    text = '[batch.fork]\nmax_array = 3\nqueue = { timeout = 5 }\noptions = ["a b"]\n'
    configuration = read_text(tmp_path, text, {"SAMGRID_CONFIG": str(named)})
    tables = {"fork": {"max_array": 7, "queue": {"timeout": 5}, "options": ["a b"]}}
    assert configuration.batch == tables
    assert configuration.origin("batch.fork", "max_array") == str(named)
    assert tomllib.loads(render_configuration(configuration))["batch"] == tables


def test_without_home_the_account_says_where_it_is() -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert find_state_folder(None, {}) == find_state_folder(None, {"HOME": "h"}) == home / ".local/state/samgrid"


def test_every_place_lies_in_the_state_folder() -> None:
    places, job = StatePlaces(Path("/s")), "k3f9zq2m"
    single = [places.database, places.monitor_lock, places.monitor_socket, places.monitor_log, places.fork_spool]
    assert [path.name for path in single] == ["jobs.db", "monitor.lock", "monitor.sock", "monitor.log", "fork"]
    assert {path.parent for path in single} == {Path("/s")}
    out = [places.sandbox_tar(job), places.driver(job), places.local_jobs(job)]
    assert out == [Path("/s/jobs/k3f9zq2m/sandbox") / name for name in ("sandbox.tar", "driver.sh", "local-jobs")]
    assert places.results(job) == Path("/s/jobs/k3f9zq2m/results")
    assert places.output(job) == Path("/s/jobs/k3f9zq2m/k3f9zq2m.tar")


def test_only_the_grid_jobs_folders_lie_in_a_spool_folder() -> None:
    places = StatePlaces(Path("/s"), Path("/shared/physicist"))
    assert places.database == Path("/s/jobs.db")
    assert places.results("k3f9zq2m") == Path("/shared/physicist/k3f9zq2m/results")


@pytest.mark.parametrize("name", ["", "..", "../../aa", "k3f9zq2", "k3f9zq2mm", "k3f9zq2m\n", "K3F9ZQ2M", "3aaaaaaa"])
def test_what_is_no_grid_job_id_has_no_place(name: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a grid job"):
        StatePlaces(Path("/s")).grid_job(name)


def test_the_state_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "samgrid"
    old_umask = os.umask(0)
    try:
        make_state_folder(folder)
        make_state_folder(folder)
    finally:
        os.umask(old_umask)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


def test_a_state_folder_that_others_could_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "samgrid"
    folder.mkdir()
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        with pytest.raises(StateFolderError, match=f"others can write the state folder {folder}: chmod go-w"):
            make_state_folder(folder)
    folder.chmod(0o755)
    make_state_folder(folder)


def test_a_state_folder_that_is_none_of_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    for name, words in [
        ("link", "is a symbolic link"),
        ("dangling", "is a symbolic link"),
        ("file", "is not a folder"),
        ("file/samgrid", "cannot make the state folder .*: Not a directory"),
        ("line\n", r"line\\n' has control characters"),
        (os.fsdecode(b"\xff"), "is no UTF-8"),
    ]:
        with pytest.raises(StateFolderError, match=words):
            make_state_folder(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"link", "dangling", "file"}
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StateFolderError, match=f"belongs to user {os.getuid()}, not to user {os.getuid() + 1}"):
        make_state_folder(tmp_path)


def test_an_account_without_a_name_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", find_none)
    with pytest.raises(StateFolderError, match="has no name on this host"):
        open_account(str(tmp_path / "state"))
