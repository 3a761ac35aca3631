"""GRAM's error numbers, and which of them a fault in a request is (globus_gram_protocol_constants.h)."""

import enum

from adapters import canonical_name


class GramError(enum.IntEnum):
    """The errors that a job manager type answers with."""

    BAD_DIRECTORY = 4
    EXECUTABLE_NOT_FOUND = 5
    USER_CANCELLED = 8
    STDIN_NOT_FOUND = 11
    INVALID_MAX_TIME = 13
    INVALID_COUNT = 14
    JOB_EXECUTION_FAILED = 17
    INVALID_JOB_TYPE = 19
    BAD_SCRIPT_ARG_FILE = 21
    JOB_TYPE_NOT_SUPPORTED = 26
    JOB_CANCEL_FAILED = 31
    INVALID_QUEUE = 37
    INVALID_PROJECT = 38
    RSL_ARGUMENTS = 50
    RSL_DIRECTORY = 52
    RSL_ENVIRONMENT = 54
    RSL_EXECUTABLE = 55
    RSL_STDIN = 64
    EXECUTABLE_PERMISSIONS = 72
    UNDEFINED_EXECUTABLE = 81
    INVALID_MAX_MEMORY = 87
    INVALID_MAX_WALL_TIME = 102
    INVALID_MAX_CPU_TIME = 104
    SIGNALLING_JOB = 107
    UNKNOWN_SIGNAL = 108
    RSL_SCHEDULER_SPECIFIC = 134


_OF_ATTRIBUTE = {
    "arguments": GramError.RSL_ARGUMENTS,
    "count": GramError.INVALID_COUNT,
    "directory": GramError.BAD_DIRECTORY,
    "environment": GramError.RSL_ENVIRONMENT,
    "executable": GramError.RSL_EXECUTABLE,
    "jobtype": GramError.INVALID_JOB_TYPE,
    "maxcputime": GramError.INVALID_MAX_CPU_TIME,
    "maxmemory": GramError.INVALID_MAX_MEMORY,
    "maxtime": GramError.INVALID_MAX_TIME,
    "maxwalltime": GramError.INVALID_MAX_WALL_TIME,
    "project": GramError.INVALID_PROJECT,
    "queue": GramError.INVALID_QUEUE,
    "stdin": GramError.STDIN_NOT_FOUND,
}


def find_error(fault: str) -> GramError:
    """The number of a fault, whose sentence begins with the attribute's name; 134 for attributes of our own."""
    first = fault.split(maxsplit=1)[0].rstrip(":") if fault.split() else ""
    return _OF_ATTRIBUTE.get(canonical_name(first), GramError.RSL_SCHEDULER_SPECIFIC)
