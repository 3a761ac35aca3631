"""Which event lines may leave the generator: well-formed ones, from the start time on."""

import re

_REST = r";[ -:<-~]{1,128}+;(?:[1248]|16);-?[0-9]{1,9}+\n"
_DIGITS = 10


def render_at_least(number: int) -> str:
    """A regular expression for decimal numbers of at most ten digits (no leading zeros) from the given one on."""
    digits = str(number)
    longer = [f"[1-9][0-9]{{{len(digits)},{_DIGITS - 1}}}+"] if len(digits) < _DIGITS else []
    greater = [
        f"{digits[:place]}[{int(digit) + 1}-9][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if digit != "9"
    ]
    return f"(?:{'|'.join([*longer, *greater, digits])})"


class LineFilter:
    """Takes whole blocks of lines through one compiled pattern; looks at single lines only where one is not good.

    Good is ``001;SECONDS;ID;STATE;EXIT_CODE`` with at most ten digits, an id of 1 to 128 printable ASCII characters
    without ``;`` (one that is not blocks GRAM's own reader for ever), a state of 1, 2, 4, 8 and 16.
    """

    def __init__(self, since: int | None) -> None:
        """``since``: seconds since 1970, inclusive; None: any time."""
        self.malformed = 0
        line = f"001;{render_at_least(since or 0)}{_REST}"
        self._line = line
        self._all_good = re.compile(f"(?:{line})*+".encode())

    def read_good(self, block: bytes) -> bytes:
        """The good lines of a block, in order; the malformed ones are counted."""
        if self._all_good.fullmatch(block):
            return block
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        well_formed = re.compile(f"^001;{render_at_least(0)}{_REST}".encode(), re.MULTILINE)
        self.malformed += lines - sum(1 for _ in well_formed.finditer(block))
        return b"".join(re.findall(f"^{self._line}".encode(), block, re.MULTILINE))
