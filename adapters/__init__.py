"""What handlers import: `JobAdapter`, the base class of all job types, and the types that it uses.

Imports are relative here: others know this package as `samgrid_jobmanager.adapters`, and so do their type checkers.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Loads what is imported from here when it is: the configuration needs only `attributes`."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import attributes, files, job_adapter, sweep

        modules = {**vars(files), **vars(attributes), **vars(sweep), **vars(job_adapter)}
        globals().update((name, modules[name]) for name in __all__)
        return modules[name]
