"""What the commands do, for Python: functions and objects that `samgrid_jobmanager` gives to everybody.

What others see is imported relatively, as in `adapters`: their type checkers know our modules by the long names only.
"""

from ... import UserError
from ...control.resubmission import NotRepeatable, UnknownRequest
from ...database.database import DatabaseError, UnknownJob
from ...database.local_jobs import Blocked
from ...requests.attributes import BadRequest
from ...requests.job_types import HandlerError
from ...site.configuration import ConfigurationError
from ...site.places import StateFolderError
from ...views.outputs import NoOutput
from ...views.query.query import Item, QueryError
from ...views.watching import CannotGoOn
from .handles import BadArgument, JobHandle, Recovered, grid_job, grid_jobs, query, recover, submit
from .mapping import CallFailed, MapHandle, submit_map
from .statuses import CredentialStatus, JobStatus, LocalJobStatus, PhaseProgress, StepStatus

__all__ = [
    "BadArgument", "BadRequest", "Blocked", "CallFailed", "CannotGoOn", "ConfigurationError", "CredentialStatus",
    "DatabaseError", "HandlerError", "Item", "JobHandle", "JobStatus", "LocalJobStatus", "MapHandle", "NoOutput",
    "NotRepeatable", "PhaseProgress", "QueryError", "Recovered", "StateFolderError", "StepStatus", "UnknownJob",
    "UnknownRequest", "UserError", "grid_job", "grid_jobs", "query", "recover", "submit", "submit_map",
]  # fmt: skip
