"""When a recurring schedule is due: every so long, or by a cron expression in a time zone. Pure.

    every       anchor, anchor + every, anchor + 2 * every, ...: elapsed time, whatever clocks on walls do
    cron        five fields as Debian's cron reads them, or a name such as @daily; parsed by cronsim

A zone's clocks are put forward and back. What cron means then is what Debian's cron does:

    the clock is put forward (02:00 -> 03:00)   a job at a fixed time inside the gap is due once, at its end: 02:30 at
                                                03:00
    the clock is put back (03:00 -> 02:00)      a job at a fixed time inside the overlap is due once, in the first pass
    minute or hour is a wildcard (`*`, `*/5`)   due by elapsed time: not in the skipped hour, in both passes of the
                                                repeated one

Due times are computed when they are asked for and never stored, so that a new tzdata counts from the next start on.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

EVERY_MS_MIN = 1_000
EVERY_MS_MAX = 366 * 86_400_000
CRON_CHARS_MAX = 256
ZONE_CHARS_MAX = 64

_NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = 5


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either `every_ms` (from `anchor_ms` on) or `cron` (in `zone`) is set. `check` before it is used."""

    every_ms: int | None = None
    anchor_ms: int = 0
    cron: str | None = None
    zone: str = "UTC"

    def check(self, now_ms: int) -> None:
        """Raises ValueError, which says what is wrong with the rule, also when it is due never again."""
        if self.cron is not None:
            zone_of(self.zone)
            if len(_expression(self.cron).split()) != _FIELDS:
                raise ValueError(f"cron: five fields, or one of {', '.join(_NAMES)}; not {self.cron!r}")
        try:
            is_ever_due = self.due_after(now_ms) is not None
        except CronSimError as error:
            raise ValueError(f"cron: {self.cron!r} is not a cron expression: {error}") from None
        if not is_ever_due:
            raise ValueError(f"cron: {self.cron!r} is never due")

    def due_after(self, after_ms: int) -> int | None:
        """The first due time behind a time, epoch ms; None: there is none any more."""
        return next(self.dues(after_ms), None)

    def dues(self, after_ms: int) -> Iterator[int]:
        """The due times behind a time, in order, epoch ms."""
        if self.every_ms is not None:
            due_ms = self.anchor_ms + self._passed(after_ms) * self.every_ms
            while True:
                yield due_ms
                due_ms += self.every_ms
        assert self.cron is not None
        last_ms = after_ms
        for moment in CronSim(_expression(self.cron), datetime.fromtimestamp(after_ms / 1000, zone_of(self.zone))):
            due_ms = round(moment.timestamp()) * 1000
            # A fixed time inside an overlap is of the first pass, also when the start lies in the second one.
            if due_ms > last_ms:
                last_ms = due_ms
                yield due_ms

    def count_between(self, after_ms: int, until_ms: int) -> int | None:
        """How many due times there are in (after, until], where that can be told without going through them."""
        return None if self.every_ms is None else self._passed(until_ms) - self._passed(after_ms)

    def _passed(self, time_ms: int) -> int:
        """How many due times of `every` there are up to a time."""
        assert self.every_ms is not None
        return max(0, (time_ms - self.anchor_ms) // self.every_ms + 1)


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """A time zone by its IANA name. Raises ValueError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not there; not a name; a directory
        raise ValueError(f"tz: {name!r} is not a time zone such as Europe/Berlin") from None


def _expression(cron: str) -> str:
    return _NAMES.get(cron.strip().lower(), cron)
