"""Offers as real programs take them: HTCondor's collector, and OpenLDAP with the GLUE 2 schema."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from batch_adapters.adapter import Refused
from jobmanager.checks.offer import render_classad, render_ldif, send_classad
from tests.real.site import SYSTEMS, Site, open_ground
from tests.unit.jobmanager.checks.test_offer import OFFER, UNKNOWN
from tests.waiting import wait_until

SLAPD = "/usr/sbin/slapd"
SCHEMAS = Path("/etc/ldap/schema")
BASE = """\
dn: o=glue
objectClass: organization
o: glue

dn: GLUE2GroupID=resource,o=glue
objectClass: GLUE2Group
GLUE2GroupID: resource

"""
OTHER = replace(OFFER, host="other.example.org", job_types={"command": []}, faults=["full disk"])


@pytest.fixture
def folder() -> Iterator[Path]:
    """One in which a daemon may write that is not root's."""
    with open_ground("samgrid-collector") as folder:
        folder.chmod(0o777)
        yield folder


@pytest.fixture
def collector(site: Site, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A collector alone, on a port and in a folder of its own; its HOST:PORT."""
    monkeypatch.setenv("PATH", f"{site.folder}/bin:{os.environ['PATH']}")
    program = shutil.which("condor_collector")
    assert program is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folders = ("LOCAL_DIR", "LOG", "SPOOL", "LOCK", "RUN", "EXECUTE")
    settings: Mapping[str, object] = {
        **{"CONDOR_HOST": "127.0.0.1", "NETWORK_INTERFACE": "127.0.0.1", "COLLECTOR_HOST": address},
        # It looks for what has expired three times in that many seconds; an ad says its own lifetime.
        **{"USE_SHARED_PORT": False, "CLASSAD_LIFETIME": 15},
        **{f"SEC_DEFAULT_{what}": "NEVER" for what in ("AUTHENTICATION", "ENCRYPTION", "INTEGRITY", "NEGOTIATION")},
        **{f"ALLOW_{what}": "*" for what in ("READ", "WRITE", "DAEMON")},
        **dict.fromkeys(folders, folder),
    }
    configuration = folder / "condor_config"
    configuration.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    monkeypatch.setenv("CONDOR_CONFIG", str(configuration))
    with subprocess.Popen(
        [program, "-f", "-p", address.partition(":")[2]], user="nobody", group="nogroup", extra_groups=[]
    ) as process:
        try:
            wait_until(lambda: process.poll() is not None or "Collector" in ask("-any", "-af", "MyType"), "a collector")
            assert process.poll() is None
            yield address
        finally:
            process.terminate()


def ask(*options: str) -> str:
    """What condor_status prints."""
    return subprocess.run(["condor_status", *options], capture_output=True, text=True, check=False, timeout=60).stdout


def choose(expression: str) -> list[str]:
    return ask("-any", "-constraint", f'MyType == "SamgridSite" && ({expression})', "-af", "Host").split()


with_condor = pytest.mark.parametrize("site", ["condor"], indirect=True)


@with_condor
def test_a_broker_picks_the_right_site_of_two(collector: str) -> None:
    for offer in (OFFER, OTHER):
        send_classad(collector, render_classad(offer))
    wait_until(lambda: ask("-any").count("SamgridSite") == 2, "both sites in condor_status")
    assert choose('member("pythia", JobTypes) && Health != "critical"') == ["head.example.org"]
    assert choose('member("command", JobTypes)') == ["other.example.org"]
    assert choose('member("events", Attributes_pythia) && Slots >= 4 && RunningLocalJobs == 3') == ["head.example.org"]
    assert choose('member("unheard", JobTypes)') == []


@with_condor
def test_an_offer_that_nobody_renews_expires(collector: str) -> None:
    for offer in (OFFER, OTHER):
        send_classad(collector, render_classad(offer))
    wait_until(lambda: ask("-any").count("SamgridSite") == 2, "both sites in condor_status")
    send_classad(collector, render_classad(replace(OFFER, lifetime=1)))
    wait_until(lambda: choose("true") == [OTHER.host], "the other site alone")


@with_condor
def test_what_is_not_known_matches_no_expression(collector: str) -> None:
    send_classad(collector, render_classad(UNKNOWN))
    wait_until(lambda: "SamgridSite" in ask("-any"), "the site in condor_status")
    assert choose("RunningLocalJobs == 0 || WaitingLocalJobs < 10 || Slots >= 0") == []


@with_condor
def test_a_collector_that_is_not_there_is_told(collector: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Refused, match="failed to send"):
        send_classad(nobody, render_classad(OFFER))


@pytest.fixture(scope="module")
def slapd() -> str:
    """OpenLDAP's server, which is installed with the schema if need be and possible; none is started."""
    schema = SCHEMAS / "GLUE20.schema"
    if not (schema.exists() and Path(SLAPD).exists()) and os.geteuid() == 0:
        install = [str(SYSTEMS / "prepare.sh"), "--no-install-recommends", "slapd", "glue-schema"]
        subprocess.run(install, check=False, stdout=subprocess.DEVNULL)
    if not (schema.exists() and Path(SLAPD).exists()):
        pytest.skip("no OpenLDAP with the GLUE 2 schema here, and it cannot be installed: packages slapd, glue-schema")
    return SLAPD


def test_openldap_takes_the_ldif_by_the_schema(slapd: str, tmp_path: Path) -> None:
    includes = "".join(f"include {SCHEMAS / name}.schema\n" for name in ("core", "GLUE20"))
    database = f"database mdb\nsuffix o=glue\ndirectory {tmp_path}\n"
    configuration = tmp_path / "slapd.conf"
    configuration.write_text(f"{includes}modulepath /usr/lib/ldap\nmoduleload back_mdb\n{database}")
    for offer in (OFFER, UNKNOWN):
        for text, is_taken in ((render_ldif(offer), True), (render_ldif(offer).replace("ServiceType", "X"), False)):
            done = subprocess.run(
                [slapd, "-T", "add", "-u", "-f", str(configuration)],
                input=BASE + text, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert (done.returncode == 0) is is_taken, done.stderr
