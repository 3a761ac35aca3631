"""What ``samgrid doctor`` looks at in an LSF cluster's parameters, as ``bparams -a`` shows them (lsb.params(5))."""

import re
from collections.abc import Iterator, Mapping

from batch_adapters.diagnosis import Ask, Finding, Level

_SHORTEST_MEMORY = 600
"""Seconds for which ended jobs should be remembered: some twenty looks of the job manager."""


def diagnose(ask: Ask, environment: Mapping[str, str]) -> Iterator[Finding]:
    """How long ended jobs are shown: there is no other history to be asked."""
    del environment
    printed = ask(["bparams", "-a"])
    found = re.search(r"\bCLEAN_PERIOD\s*=\s*(\d+)", printed.stdout)
    if printed.exit_code != 0 or found is None:
        return
    text = f"LSF shows ended jobs for {found[1]} s (CLEAN_PERIOD)"
    if int(found[1]) >= _SHORTEST_MEMORY:
        yield Finding(Level.GOOD, text)
    else:
        yield Finding(Level.WARNING, text, "lsb.params: CLEAN_PERIOD = 3600, then: badmin reconfig")
