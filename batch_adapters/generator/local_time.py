"""Converts local time stamps of logs to seconds since 1970, and finds out a log's time zone."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone, tzinfo

_MOST_STAMPS = 10_000
_DAY = 86_400
# Lines of one log may be out of order by this much (several writers, buffers); see LocalStamps._choose.
_DISORDER = 600


class LocalStamps(dict[bytes, bytes]):
    """``stamps[b"11/20/2026 23:39:47"]`` is ``b"1795217987"``; an impossible stamp gives ``b""``.

    Layouts are written in letters: ``mm/dd/YYYY HH:MM:SS``, ``YYYY-mm-ddTHH:MM:SS``. Without ``YYYY``, the year is the
    latest one that is at most a day ahead. A stamp with ``Z`` or ``+HH:MM`` after the layout is not local. A time that
    occurs twice (end of summer time) is the first one, unless the log is already more than ten minutes later: then the
    second. A time that clocks skip is read as if they had not.
    """

    def __init__(self, layout: str, zone: tzinfo | None = None, now: Callable[[], float] = time.time) -> None:
        """``zone`` is the log's time zone; None: the zone of this process (``TZ``)."""
        super().__init__()
        self._zone = zone
        self._now = now
        self._length = len(layout)
        self._year, self._month, self._day, self._hour, self._minute, self._second = (
            _find_field(layout, field) for field in ("YYYY", "mm", "dd", "HH", "MM", "SS")
        )
        self._minutes: dict[bytes, tuple[int, int]] = {}
        self._latest = 0
        # Without a year, a stamp means another second each year: converted ones are kept for one day.
        self._lifetime = math.inf if "YYYY" in layout else _DAY
        self._forget_at = now() + self._lifetime

    def __getitem__(self, stamp: bytes) -> bytes:
        if self._now() >= self._forget_at:
            self.clear()
            self._minutes.clear()
            self._forget_at = self._now() + self._lifetime
        return super().__getitem__(stamp)

    def __missing__(self, stamp: bytes) -> bytes:
        try:
            first, second = self._read_minute(stamp)
            seconds = int(stamp[self._second])
        except (ValueError, OverflowError, OSError):
            return b""
        if first != second:
            return b"%d" % self._choose(first + seconds, second + seconds)
        if len(self) >= _MOST_STAMPS:
            self.clear()
        self._latest = max(self._latest, first + seconds)
        self[stamp] = answer = b"%d" % (first + seconds)
        return answer

    def _choose(self, first: int, second: int) -> int:
        reading = first if first >= self._latest - _DISORDER else second
        self._latest = max(self._latest, reading)
        return reading

    def _read_minute(self, stamp: bytes) -> tuple[int, int]:
        key = stamp[: self._second.start] + stamp[self._length :]
        readings = self._minutes.get(key)
        if readings is None:
            if len(self._minutes) >= _MOST_STAMPS:
                self._minutes.clear()
            self._minutes[key] = readings = self._convert(stamp)
        return readings

    def _convert(self, stamp: bytes) -> tuple[int, int]:
        month, day, hour, minute = (int(stamp[field]) for field in (self._month, self._day, self._hour, self._minute))
        zone = _read_offset(stamp[self._length :]) or self._zone
        if self._year.start != self._year.stop:
            return _read_both(datetime(int(stamp[self._year]), month, day, hour, minute, tzinfo=zone))
        latest = self._now() + _DAY
        this_year = datetime.fromtimestamp(latest).year
        for year in range(this_year, this_year - 9, -1):
            if (month, day) == (2, 29) and year % 4:
                continue
            readings = _read_both(datetime(year, month, day, hour, minute, tzinfo=zone))
            if readings[0] <= latest:
                return readings
        raise ValueError(stamp)


def _find_field(layout: str, field: str) -> slice:
    start = layout.find(field)
    return slice(start, start + len(field)) if start >= 0 else slice(0, 0)


def _read_offset(text: bytes) -> timezone | None:
    if not text:
        return None
    if text == b"Z":
        return UTC
    digits = text[1:].replace(b":", b"")
    if len(digits) != 4 or text[:1] not in b"+-":
        raise ValueError(text)
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(ahead if text[:1] == b"+" else -ahead)


def _read_both(moment: datetime) -> tuple[int, int]:
    first = int(moment.timestamp())
    second = int(moment.replace(fold=1).timestamp())
    # In the hour that clocks skip, fold=1 lies before fold=0: there is no second reading then.
    return first, max(first, second)


ReadTime = Callable[[bytes], int | None]
_QUARTER = 900
_WEST, _EAST = -12 * 3600, 14 * 3600
_WRITTEN_BEFORE, _WRITTEN_AFTER = 30, 60
"""Seconds by which a file's time may be before, or after, its last stamp: clocks differ."""
_LAST_LINES = 200


def find_zone(new_reader: Callable[[], ReadTime], tail: bytes, written: float) -> str | None:
    """The zone of a log's local stamps, as a value of TZ; None if it is this process' zone, or cannot be found out.

    The last record was written at the file's last change: the difference is the writer's offset from UTC. The offset
    is valid until the writer changes to or from summer time.

    :param new_reader: makes a reader of a block's first time; a new one each time, as readers keep state.
    :param tail: the end of the log.
    :param written: seconds since 1970 of the file's last change.
    """
    lines = tail.splitlines(keepends=True)
    for start in range(len(lines) - 1, max(-1, len(lines) - 1 - _LAST_LINES), -1):
        record = b"".join(lines[start:])
        here = new_reader()(record)
        if here is not None:
            break
    else:
        return None
    with _being_in("UTC0"):
        clock = new_reader()(record)
    with _being_in("<+0100>-1"):
        is_local = clock != new_reader()(record)
    if clock is None or not is_local or _fits(written - here):
        return None
    offset = round((clock - written) / _QUARTER) * _QUARTER
    if not _WEST <= offset <= _EAST or not _fits(written - clock + offset):
        return None
    hours, minutes = divmod(abs(offset) // 60, 60)
    # In POSIX, offsets are positive to the west.
    sign, against = ("+", "-") if offset >= 0 else ("-", "")
    return f"<{sign}{hours:02}{minutes:02}>{against}{hours}:{minutes:02}"


def _fits(late: float) -> bool:
    return -_WRITTEN_BEFORE <= late <= _WRITTEN_AFTER


def be_in_zone(zone: str) -> None:
    """Set this process' time zone to a value of TZ."""
    os.environ["TZ"] = zone
    time.tzset()


@contextmanager
def _being_in(zone: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    be_in_zone(zone)
    try:
        yield
    finally:
        del os.environ["TZ"]
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()
