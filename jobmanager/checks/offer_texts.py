"""An offer as others read it: a ClassAd for HTCondor's collector, GLUE 2 in LDIF (GFD.147, GFD.218) and JSON."""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from adapters.attributes import Attribute
from batch_adapters.adapter import Refused, Unreachable
from batch_adapters.running.commands import run_question
from jobmanager.checks.offer import Offer
from jobmanager.database.times import render_time
from jobmanager.views.text import printable

_SEND_TIME = 60.0
"""Seconds."""
_Entry = tuple[str, Iterable[str], Mapping[str, object]]
"""Its name in its parent's folder, object classes, and attributes; None: not known."""


def render_json(offer: Offer) -> str:
    """All that is known, with the attributes of each job type and their limits."""
    told = {name: value for name, value in _describe(offer).items() if value is not None}
    types = {one.name: {a.name: _describe_attribute(a) for a in one.attributes} for one in offer.job_types}
    return json.dumps({**told, "job_types": types}, indent=2) + "\n"


def render_classad(offer: Offer) -> str:
    """One attribute a line, as condor_advertise reads it; what is not known is UNDEFINED to an expression."""
    types = [one.name for one in offer.job_types]
    attributes = {
        **{"MyType": "SamgridSite", "Name": f"samgrid/{offer.name}", "ClassAdLifetime": offer.lifetime},
        **{"".join(map(str.capitalize, name.split("_"))): value for name, value in _describe(offer).items()},
        "JobTypes": types,
        **{f"Attributes_{re.sub(r'[^A-Za-z0-9]', '_', one.name)}": [a.name for a in one.attributes]
           for one in offer.job_types},
    }  # fmt: skip
    return "".join(f"{name} = {_render_value(value)}\n" for name, value in attributes.items() if value is not None)


def send_classad(pool: str, ad: str) -> None:
    """Hand a ClassAd to an HTCondor collector, ``HOST`` or ``HOST:PORT``.

    :raises Unreachable: there is no condor_advertise, or it does not end; Refused: it says that nothing was taken.
    """
    # By TCP, or it would end with 0 where nobody listens.
    said = run_question(["condor_advertise", "-pool", pool, "-tcp", "UPDATE_AD_GENERIC", "-"], _SEND_TIME, stdin=ad)
    if said.exit_code is None:
        raise Unreachable(f"condor_advertise: {said.stderr}")
    if said.exit_code != 0:
        raise Refused(f"condor_advertise: {' '.join((said.stderr or said.stdout).split())[-300:]}")


def render_ldif(offer: Offer) -> str:
    """A computing service with its manager, and an application environment for each job type."""
    service = f"urn:samgrid:{offer.name}"
    manager = f"{service}:{offer.batch_system}"
    validity = {"GLUE2EntityCreationTime": render_time(offer.made), "GLUE2EntityValidity": offer.lifetime}
    service_name = f"GLUE2ServiceID={_escape_name(service)}"
    manager_name = f"GLUE2ManagerID={_escape_name(manager)},{service_name}"
    total = None if offer.waiting is None or offer.running is None else offer.waiting + offer.running
    entries: list[_Entry] = [
        (service_name, ("GLUE2Entity", "GLUE2Service", "GLUE2ComputingService"), {
            "GLUE2ServiceID": service,
            "GLUE2ServiceType": "org.samgrid.jobmanager",
            "GLUE2ServiceQualityLevel": "production",
            "GLUE2ServiceAdminDomainForeignKey": offer.site,
            "GLUE2ServiceCapability": "executionmanagement.jobexecution",
            "GLUE2ComputingServiceTotalJobs": total,
            "GLUE2ComputingServiceRunningJobs": offer.running,
            "GLUE2ComputingServiceWaitingJobs": offer.waiting,
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
    for one in offer.job_types:
        environment = f"{manager}:{one.name}"
        entry = {
            "GLUE2ApplicationEnvironmentID": environment,
            "GLUE2ApplicationEnvironmentAppName": one.name,
            "GLUE2ApplicationEnvironmentComputingManagerForeignKey": manager,
            "GLUE2ApplicationEnvironmentMaxJobs": offer.max_local_jobs,
            "GLUE2ApplicationEnvironmentFreeSlots": offer.free_slots,
            **validity,
        }
        name = f"GLUE2ApplicationEnvironmentID={_escape_name(environment)},{manager_name}"
        entries.append((name, ("GLUE2Entity", "GLUE2ApplicationEnvironment"), entry))
    return "\n".join(_render_entry(*entry) for entry in entries)


def _describe(offer: Offer) -> dict[str, Any]:
    """All but the job types, under the same words in JSON and, joined, in the ClassAd."""
    return {
        **{"site": offer.site, "host": offer.host, "account": offer.account, "version": offer.version},
        **{"batch_system": offer.batch_system, "batch_version": offer.batch_version or None},
        **{"slots": offer.slots, "free_slots": offer.free_slots},
        **{"waiting_local_jobs": offer.waiting, "running_local_jobs": offer.running},
        **{"max_cpu_minutes": offer.max_cpu_minutes, "max_local_jobs": offer.max_local_jobs},
        **{"health": offer.health, "faults": list(offer.faults), "warnings": list(offer.warnings)},
        **{"made": offer.made, "lifetime": offer.lifetime},
    }


def _describe_attribute(attribute: Attribute) -> dict[str, Any]:
    told = {
        **{"kind": attribute.kind.value, "doc": attribute.doc, "unit": attribute.unit or None},
        **{"required": attribute.required, "minimum": attribute.minimum, "maximum": attribute.maximum},
        "choices": list(attribute.choices) or None,
    }
    return {name: value for name, value in told.items() if value is not None}


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
    """What RFC 2849 takes for no plain text goes as base64."""
    if re.fullmatch(r"[!-9;=-~](?:[ -~]*[!-~])?", value):
        return f"{key}: {value}\n"
    return f"{key}:: {base64.b64encode(value.encode(errors='replace')).decode()}\n"
