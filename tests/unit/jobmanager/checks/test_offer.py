"""Offers: what is known is told in each format, what is not is left out, and no text breaks out of its place."""

import base64
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.attributes import Attribute, Kind
from batch_adapters.adapter import BatchError, Refused, Unreachable
from batch_adapters.running.batch_system import BatchSystem
from jobmanager import SETUP
from jobmanager.checks.offer import (
    Offer,
    collect_offer,
    render_classad,
    render_json,
    render_ldif,
    send_classad,
)
from jobmanager.commands import cli
from jobmanager.site.account import Account

EVENTS = Attribute("events", "How many.", Kind.INTEGER, unit="events", required=True, minimum=1, maximum=10**9)
OFFER = Offer(
    site="fnal", host="head.example.org", account="samgrid", version="0.1.0", batch_system="fork", batch_version="1",
    slots=4, free_slots=3, waiting_local_jobs=2, running_local_jobs=3, max_cpu_minutes=60.0, max_local_jobs=1000,
    faults=[], warnings=[],
    job_types={"pythia": [EVENTS]}, made=1_795_459_944, lifetime=900,
)  # fmt: skip
UNKNOWN = replace(
    OFFER,
    batch_version="",
    slots=None,
    free_slots=None,
    waiting_local_jobs=None,
    running_local_jobs=None,
    max_cpu_minutes=None,
)

MUST = {
    "GLUE2Entity": "",
    "GLUE2Service": "ServiceID ServiceType ServiceQualityLevel ServiceAdminDomainForeignKey",
    "GLUE2ComputingService": "",
    "GLUE2Manager": "ManagerID ManagerProductName ManagerServiceForeignKey",
    "GLUE2ComputingManager": "",
    "GLUE2ApplicationEnvironment": "ApplicationEnvironmentID ApplicationEnvironmentAppName"
    " ApplicationEnvironmentComputingManagerForeignKey",
}
MAY = {
    "GLUE2Entity": "EntityName EntityOtherInfo EntityCreationTime EntityValidity",
    "GLUE2Service": "ServiceCapability ServiceComplexity ServiceStatusInfo",
    "GLUE2ComputingService": "ComputingServiceTotalJobs ComputingServiceRunningJobs ComputingServiceWaitingJobs",
    "GLUE2Manager": "ManagerProductVersion",
    "GLUE2ComputingManager": "ComputingManagerTotalSlots ComputingManagerComputingServiceForeignKey",
    "GLUE2ApplicationEnvironment": "ApplicationEnvironmentAppVersion ApplicationEnvironmentDescription"
    " ApplicationEnvironmentMaxJobs ApplicationEnvironmentFreeSlots",
}
"""Of GLUE20.schema 2.0.11, each without its prefix GLUE2; of what may be, as much as is used or near it."""


def read_ldif(text: str) -> list[dict[str, list[str]]]:
    entries = []
    for block in text.split("\n\n"):
        entry: dict[str, list[str]] = {}
        for line in block.splitlines():
            key, colons, value = re.fullmatch(r"([A-Za-z0-9]+)(::?) (.*)", line).groups()  # type: ignore[union-attr]
            entry.setdefault(key, []).append(base64.b64decode(value).decode() if colons == "::" else value)
        entries.append(entry)
    return entries


def prefixed(words: dict[str, str], classes: Sequence[str]) -> set[str]:
    return {f"GLUE2{word}" for one in classes for word in words[one].split()}


@pytest.mark.parametrize("offer", [OFFER, UNKNOWN], ids=["known", "unknown"])
def test_ldif_has_what_the_schema_wants_and_nothing_that_it_does_not_know(offer: Offer) -> None:
    entries = read_ldif(render_ldif(offer))
    assert [entry["objectClass"][-1] for entry in entries] == [
        *("GLUE2ComputingService", "GLUE2ComputingManager", "GLUE2ApplicationEnvironment")
    ]
    for entry in entries:
        classes = entry.pop("objectClass")
        (name,) = entry.pop("dn")
        assert prefixed(MUST, classes) <= set(entry) <= prefixed(MUST, classes) | prefixed(MAY, classes)
        key, _, value = name.partition(",")[0].partition("=")
        assert entry[key] == [value], "an entry is named by an attribute of its own"
        assert name.endswith(",GLUE2GroupID=resource,o=glue")
        assert all(len(values) == 1 for values in entry.values())


def test_what_nobody_answers_is_left_out_and_is_not_zero() -> None:
    told = json.loads(render_json(UNKNOWN))
    assert not {
        "slots",
        "free_slots",
        "waiting_local_jobs",
        "running_local_jobs",
        "max_cpu_minutes",
        "batch_version",
    } & set(told)
    assert not re.search(
        r"(?m)^(Slots|FreeSlots|WaitingLocalJobs|RunningLocalJobs|MaxCpuMinutes) ", render_classad(UNKNOWN)
    )
    assert not re.search("(?<!Max)Jobs:|Slots:|ProductVersion:", render_ldif(UNKNOWN))
    assert "GLUE2ComputingServiceTotalJobs: 5\n" in render_ldif(OFFER)
    assert "RunningLocalJobs = 0\n" in render_classad(replace(OFFER, running_local_jobs=0))


def test_json_has_each_attribute_with_its_limits() -> None:
    assert json.loads(render_json(OFFER))["job_types"]["pythia"]["events"] == {
        **{"kind": "an integer", "doc": "How many.", "unit": "events", "required": True},
        **{"minimum": 1, "maximum": 10**9},
    }


def test_no_text_begins_another_line() -> None:
    hostile = replace(OFFER, site='a"b\\\nHealth = "ok"', batch_version=" x\ndn: o=evil", faults=["ä\r\nx"])
    assert 'Site = "a\\"b\\\\\ufffdHealth = \\"ok\\""\n' in render_classad(hostile)
    assert re.findall(r"(?m)^Health = .*", render_classad(hostile)) == ['Health = "critical"']
    service, manager, _ = read_ldif(render_ldif(hostile))
    assert service["GLUE2ServiceAdminDomainForeignKey"] == [hostile.site]
    assert manager["GLUE2ManagerProductVersion"] == [hostile.batch_version]


def test_an_offer_is_collected_while_the_batch_system_answers_and_while_it_does_not(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = collect_offer(account, 1000.5, 900)
    assert (offer.slots, offer.waiting_local_jobs, offer.running_local_jobs, offer.made) == (
        account.fork_slots,
        0,
        0,
        1000,
    )
    assert {"command", "pythia"} <= offer.job_types.keys()
    assert offer.health != "critical", offer.faults

    def be_silent(system: BatchSystem) -> None:
        raise Unreachable("nobody there")

    monkeypatch.setattr(BatchSystem, "query", be_silent)
    silent = collect_offer(account, 1000, 900)
    assert (silent.waiting_local_jobs, silent.running_local_jobs, silent.health) == (None, None, "critical")


@pytest.mark.parametrize(
    ("program", "error"),
    [
        pytest.param("exit 0", None, id="taken"),
        pytest.param("echo 'failed to send classad' >&2; exit 1", Refused, id="not taken"),
        pytest.param(None, Unreachable, id="no program"),
    ],
)
def test_an_ad_is_handed_to_condor_advertise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, error: type[BatchError] | None
) -> None:
    if program is not None:
        fake = tmp_path / "condor_advertise"
        kept = shlex.quote(str(tmp_path / "kept"))
        fake.write_text(f'#!/bin/sh\n/bin/echo "$@" >{kept}\n/bin/cat >>{kept}\n{program}\n')
        fake.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    if error is not None:
        with pytest.raises(error, match="condor_advertise"):
            send_classad("pool:1", "A = 1\n")
    else:
        send_classad("pool:1", "A = 1\n")
        assert (tmp_path / "kept").read_text() == "-pool pool:1 -tcp UPDATE_AD_GENERIC -\nA = 1\n"


def test_the_commands_of_the_documentation_do_what_it_says(
    account: Account, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (SETUP.parent / "docs" / "advertise.md").read_text()
    commands = [shlex.split(line)[1:] for line in re.findall(r"(?m)^    (samgrid .+)$", text)]
    sent: list[str] = []
    monkeypatch.setattr("jobmanager.checks.offer.send_classad", lambda pool, ad: sent.append(f"{pool} {ad}"))
    output = tmp_path / "samgrid.ldif"
    for command in commands:
        words = [str(output) if word.endswith(".ldif") else word for word in command]
        assert cli.main([*words, "--state-dir", str(account.places.root)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("{")
    assert '\nMyType = "SamgridSite"\n' in printed
    assert sent[0].startswith("collector.example.org:9618 MyType = ")
    assert output.read_text().startswith("dn: GLUE2ServiceID=")
    assert len(commands) == 4
