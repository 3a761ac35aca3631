"""What a job type must say: `JobAdapter`, and the words to say it with.

Imports are relative here: others know this package as `samgrid_jobmanager.adapters`, and so do their type checkers.
"""

from .attributes import Attribute, Kind, RequestFile, Value, canonical_name
from .files import UnusableFile, copy_files, find_size_faults, open_input
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
    find_faults_of_order,
    find_needs,
)
from .sweep import SWEEP, BadSweep, Sweep

__all__ = [
    "EVENTS", "SLICING", "SWEEP", "Attribute", "BadSweep", "JobAdapter", "Kind", "Limits", "Phase",
    "PlannedJob", "RequestFile", "Site", "Slice", "Step", "Sweep", "TooLarge", "UnknownDataset", "UnusableFile",
    "Value", "canonical_name", "copy_files", "find_faults_of_order", "find_needs", "find_size_faults", "open_input",
]  # fmt: skip
