"""What the timer refuses.

StoreError
├── Overloaded
│   ├── TooManySchedules   the bound on pending schedules, or on those of one second, is reached
│   └── TimerBusy          the timer is behind, or the schedule is under way just now
└── ScheduleKeyTaken       a pending schedule of the topic has the key
"""

from __future__ import annotations

from collections.abc import Mapping

from store.errors import Overloaded, StoreError
from timer.schedule import ScheduleId


class TooManySchedules(Overloaded):
    """No room for further schedules until some are delivered or cancelled. Nothing was stored."""

    retry_after_ms = 5000


class TimerBusy(Overloaded):
    """It cannot be said, or was not done in time. The text says why, and whether to try again or to ask what became of
    the schedule."""


class ScheduleKeyTaken(StoreError):
    """Pending schedules have keys that records of an append ask for. Nothing was stored. `taken`: by index of the
    record, the schedule that has its key; None when a send under way, or an earlier record of this one, has it."""

    def __init__(self, taken: Mapping[int, ScheduleId | None]) -> None:
        super().__init__("schedule keys of pending schedules were asked for again; nothing was stored")
        self.taken = taken
