"""What a job type must say: `JobAdapter`, and the words to say it with."""

from adapters.attributes import Attribute, Kind, RequestFile, Value, canonical_name
from adapters.decomposition import Limits, Slice, TooLarge
from adapters.job_adapter import EVENTS, SLICING, JobAdapter, LocalJob, Phase, Site, Step

__all__ = [
    "EVENTS",
    "SLICING",
    "Attribute",
    "JobAdapter",
    "Kind",
    "Limits",
    "LocalJob",
    "Phase",
    "RequestFile",
    "Site",
    "Slice",
    "Step",
    "TooLarge",
    "Value",
    "canonical_name",
]
