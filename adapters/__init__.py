"""What handlers import: `JobAdapter`, the base class of all job types, and the types that it uses.

Imports are relative here: others know this package as `samgrid_jobmanager.adapters`, and so do their type checkers.
"""

from .attributes import Attribute, Kind, RequestFile, Value, canonical_name
from .files import UnusableFile, check_sizes, copy_files, open_input
from .job_adapter import (
    EVENTS,
    SLICING,
    JobAdapter,
    Limits,
    Phase,
    PlannedJob,
    Site,
    Slice,
    Step,
    TooLarge,
    UnknownDataset,
    check_order,
    read_needs,
)
from .sweep import SWEEP, BadSweep, Sweep

__all__ = [
    "EVENTS", "SLICING", "SWEEP", "Attribute", "BadSweep", "JobAdapter", "Kind", "Limits", "Phase",
    "PlannedJob", "RequestFile", "Site", "Slice", "Step", "Sweep", "TooLarge", "UnknownDataset", "UnusableFile",
    "Value", "canonical_name", "check_order", "check_sizes", "copy_files", "open_input", "read_needs",
]  # fmt: skip
