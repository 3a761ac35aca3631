"""What a job type must say: `JobAdapter`, and the words to say it with."""

from adapters.attributes import Attribute, Kind, RequestFile, Value, canonical_name
from adapters.files import UnusableFile, copy_files, find_size_faults, open_input
from adapters.job_adapter import EVENTS, SLICING, JobAdapter, Limits, Phase, PlannedJob, Site, Slice, Step, TooLarge
from adapters.sweep import SWEEP, BadSweep, Sweep

__all__ = [
    "EVENTS",
    "SLICING",
    "SWEEP",
    "Attribute",
    "BadSweep",
    "JobAdapter",
    "Kind",
    "Limits",
    "Phase",
    "PlannedJob",
    "RequestFile",
    "Site",
    "Slice",
    "Step",
    "Sweep",
    "TooLarge",
    "UnusableFile",
    "Value",
    "canonical_name",
    "copy_files",
    "find_size_faults",
    "open_input",
]  # fmt: skip
