"""``samgrid advertise``: what this site offers to the grid (job types, slots, local jobs, versions, health).

It is written as a ClassAd for HTCondor's collector, as GLUE 2 in LDIF (GFD.147, GFD.218), and as JSON.
"""

import base64
import json
import os
import pwd
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from adapters.attributes import Attribute
from batch_adapters.adapter import BatchError, Refused, Unreachable
from batch_adapters.running.commands import run_question
from batch_adapters.running.diagnosis import Level
from batch_adapters.states import State
from jobmanager import read_version
from jobmanager.checks.doctor import examine
from jobmanager.database.times import render_time
from jobmanager.requests.job_types import read_job_types
from jobmanager.site.account import Account, find_batch_system
from jobmanager.views.text import printable

_T = TypeVar("_T")
_SEND_TIME = 60.0
"""Seconds."""
_Entry = tuple[str, Iterable[str], Mapping[str, object]]
"""Its name in its parent's folder, object classes, and attributes; None: not known."""


@dataclass(frozen=True)
class Offer:
    """What one account of a site offers; None or an empty text means that it is not known, which is not zero."""

    site: str
    host: str
    account: str
    version: str
    batch_system: str
    batch_version: str
    slots: int | None
    free_slots: int | None
    """Of the whole batch system."""
    waiting_local_jobs: int | None
    """Local jobs of this account, as the batch system counts them."""
    running_local_jobs: int | None
    max_cpu_minutes: float | None
    """Of one local job; None if the site sets no limit."""
    max_local_jobs: int
    """Of one grid job."""
    faults: Sequence[str]
    """What doctor finds."""
    warnings: Sequence[str]
    job_types: Mapping[str, Sequence[Attribute]]
    """The attributes of each."""
    made: int
    """Seconds since 1970."""
    lifetime: int
    """Seconds after which it expires."""

    @property
    def name(self) -> str:
        """Different for each account of each host."""
        return f"{self.account}@{self.host}"

    @property
    def health(self) -> str:
        """One of GLUE's words."""
        return "critical" if self.faults else "warning" if self.warnings else "ok"

    def describe(self) -> dict[str, Any]:
        """Everything that is known but the job types, by the names in JSON; in a ClassAd these are joined."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "job_types"}
        known = {name: value for name, value in values.items() if value not in (None, "")}
        return {**known, "health": self.health}


def collect_offer(account: Account, now: float, lifetime: int) -> Offer:
    """Ask the configuration, the handlers, doctor and the batch system; if that does not answer, it is left out.

    :raises UnknownBatchSystem: the configured one does not exist.
    """
    configuration = account.configuration
    name = configuration.site.batch_system
    system = find_batch_system(account, name)
    findings = list(examine(account, [name], None))
    statuses = _ask(system.query)
    states = None if statuses is None else Counter(status.state for status in statuses)
    asked = None if name == "fork" else _ask(system.slots)
    slots, free_slots = asked or (account.fork_slots if name == "fork" else None, None)
    types, _ = read_job_types(configuration.handlers.modules)
    return Offer(
        site=configuration.site.name,
        host=socket.getfqdn(),
        account=pwd.getpwuid(os.geteuid()).pw_name,
        version=read_version(),
        batch_system=name,
        batch_version=_ask(system.version) or "",
        slots=slots,
        free_slots=free_slots,
        waiting_local_jobs=None if states is None else states[State.PENDING],
        running_local_jobs=None if states is None else states[State.ACTIVE],
        max_cpu_minutes=configuration.decomposition.max_cpu_time or None,
        max_local_jobs=configuration.decomposition.max_local_jobs,
        faults=[finding.text for finding in findings if finding.level is Level.FAULT],
        warnings=[finding.text for finding in findings if finding.level is Level.WARNING],
        job_types={word: types[word].attributes for word in sorted(types)},
        made=int(now),
        lifetime=lifetime,
    )


def _ask(question: Callable[[], _T]) -> _T | None:
    """The batch system's answer; None if it does not answer."""
    try:
        return question()
    except BatchError:
        return None


def render_json(offer: Offer) -> str:
    """Everything that is known, with the attributes of each job type and their limits."""
    types = {word: {a.name: _describe_attribute(a) for a in known} for word, known in offer.job_types.items()}
    return json.dumps({**offer.describe(), "job_types": types}, indent=2) + "\n"


def render_classad(offer: Offer) -> str:
    """One attribute a line, as condor_advertise reads it; what is not known is left out, so it is UNDEFINED."""
    attributes = {
        **{"MyType": "SamgridSite", "Name": f"samgrid/{offer.name}", "ClassAdLifetime": offer.lifetime},
        **{"".join(map(str.capitalize, name.split("_"))): value for name, value in offer.describe().items()},
        "JobTypes": list(offer.job_types),
        **{f"Attributes_{re.sub(r'[^A-Za-z0-9]', '_', word)}": [a.name for a in known]
           for word, known in offer.job_types.items()},
    }  # fmt: skip
    return "".join(f"{name} = {_render_value(value)}\n" for name, value in attributes.items())


def send_classad(pool: str, ad: str) -> None:
    """Hand a ClassAd to an HTCondor collector, ``HOST`` or ``HOST:PORT``.

    :raises Unreachable: condor_advertise is missing, or does not end; Refused: it reports a failure.
    """
    # With UDP it would end with 0 even if nobody listens.
    done = run_question(["condor_advertise", "-pool", pool, "-tcp", "UPDATE_AD_GENERIC", "-"], _SEND_TIME, stdin=ad)
    if done.exit_code is None:
        raise Unreachable(done.stderr)
    if done.exit_code != 0:
        raise Refused(f"condor_advertise: {' '.join((done.stderr or done.stdout).split())[-300:]}")


def render_ldif(offer: Offer) -> str:
    """A computing service with its manager, and an application environment for each job type."""
    service = f"urn:samgrid:{offer.name}"
    manager = f"{service}:{offer.batch_system}"
    validity = {"GLUE2EntityCreationTime": render_time(offer.made), "GLUE2EntityValidity": offer.lifetime}
    service_name = f"GLUE2ServiceID={_escape_name(service)}"
    manager_name = f"GLUE2ManagerID={_escape_name(manager)},{service_name}"
    waiting, running = offer.waiting_local_jobs, offer.running_local_jobs
    entries: list[_Entry] = [
        (service_name, ("GLUE2Entity", "GLUE2Service", "GLUE2ComputingService"), {
            "GLUE2ServiceID": service,
            "GLUE2ServiceType": "org.samgrid.jobmanager",
            "GLUE2ServiceQualityLevel": "production",
            "GLUE2ServiceAdminDomainForeignKey": offer.site,
            "GLUE2ServiceCapability": "executionmanagement.jobexecution",
            "GLUE2ComputingServiceTotalJobs": None if waiting is None or running is None else waiting + running,
            "GLUE2ComputingServiceRunningJobs": running,
            "GLUE2ComputingServiceWaitingJobs": waiting,
            "GLUE2EntityOtherInfo": f"HealthState={offer.health}",
            **validity,
        }),
        (manager_name, ("GLUE2Entity", "GLUE2Manager", "GLUE2ComputingManager"), {
            "GLUE2ManagerID": manager,
            "GLUE2ManagerProductName": offer.batch_system,
            "GLUE2ManagerProductVersion": offer.batch_version or None,
            "GLUE2ManagerServiceForeignKey": service,
            "GLUE2ComputingManagerComputingServiceForeignKey": service,
            "GLUE2ComputingManagerTotalSlots": offer.slots,
            **validity,
        }),
    ]  # fmt: skip
    for job_type in offer.job_types:
        environment = f"{manager}:{job_type}"
        entry = {
            "GLUE2ApplicationEnvironmentID": environment,
            "GLUE2ApplicationEnvironmentAppName": job_type,
            "GLUE2ApplicationEnvironmentComputingManagerForeignKey": manager,
            "GLUE2ApplicationEnvironmentMaxJobs": offer.max_local_jobs,
            "GLUE2ApplicationEnvironmentFreeSlots": offer.free_slots,
            **validity,
        }
        name = f"GLUE2ApplicationEnvironmentID={_escape_name(environment)},{manager_name}"
        entries.append((name, ("GLUE2Entity", "GLUE2ApplicationEnvironment"), entry))
    return "\n".join(_render_entry(*entry) for entry in entries)


def _describe_attribute(attribute: Attribute) -> dict[str, Any]:
    names = ("doc", "unit", "required", "minimum", "maximum", "choices")
    values = {"kind": attribute.kind.value, **{name: getattr(attribute, name) for name in names}}
    return {name: value for name, value in values.items() if value not in (None, "", ())}


def _render_value(value: object) -> str:
    if isinstance(value, list):
        return f"{{ {', '.join(map(_render_value, value))} }}"
    if isinstance(value, str):
        # A line break would begin another attribute.
        return '"' + printable(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _escape_name(value: str) -> str:
    """A value inside a distinguished name (RFC 4514)."""
    return re.sub(r'([\\,+"<>;=#])', r"\\\1", printable(value))


def _render_entry(name: str, classes: Iterable[str], attributes: Mapping[str, object]) -> str:
    lines = [_render_line("dn", f"{name},GLUE2GroupID=resource,o=glue")]
    lines += [_render_line("objectClass", one) for one in classes]
    return "".join([*lines, *(_render_line(key, str(value)) for key, value in attributes.items() if value is not None)])


def _render_line(key: str, value: str) -> str:
    """A line of LDIF; what RFC 2849 does not allow as plain text is written as base64."""
    if re.fullmatch(r"[!-9;=-~](?:[ -~]*[!-~])?", value):
        return f"{key}: {value}\n"
    return f"{key}:: {base64.b64encode(value.encode(errors='replace')).decode()}\n"
