"""What the timer refuses.

StoreError
└── Overloaded
    ├── TooManySchedules   the bound on pending schedules, or on those of one second, is reached   (429)
    └── TimerBusy          the timer is behind, or the schedule is under way just now              (503)
"""

from __future__ import annotations

from store.errors import Overloaded


class TooManySchedules(Overloaded):
    """No room for further schedules until some are delivered or cancelled. Nothing was stored."""

    retry_after_ms = 5000


class TimerBusy(Overloaded):
    """It cannot be said, or was not done in time. The text says why, and whether to try again or to ask what became of
    the schedule."""
