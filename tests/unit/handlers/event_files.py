"""Les Houches event files of a few events, for unit tests."""

from collections.abc import Iterable

ROW = "5.0e+02 1.0e+01 1.0e+00 9999\n"
"""A process: cross section, its error, the highest weight, the process's number."""


def render_events(
    numbers: Iterable[int],
    *,
    energy: float = 980,
    pdf: int = 0,
    rows: str = ROW,
    header: str = "",
    version: str = "1.0",
    behind: str = "",
) -> bytes:
    """A file whose events are of no particles, each with its number behind."""
    init = f"2212 -2212 {energy} {energy} 0 0 {pdf} {pdf} 3 {rows.count(chr(10))}"
    events = "".join(f"<event>\n0 9999 1.0 91.2 0.0078 0.118\n# event {number}\n</event>\n" for number in numbers)
    begin = f'<LesHouchesEvents version="{version}">\n{header}'
    return f"{begin}<init>\n{init}\n{rows}</init>\n{events}{behind}</LesHouchesEvents>\n".encode()
