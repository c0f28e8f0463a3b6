"""Delayed records that have not fired yet: another time for one, the same for many at once."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.api.shapes.base import Shape, Time, chars, one_of, time_ms, up_to
from gateway.errors import DELAY_ILLEGAL, INVALID, RequestError

SCHEDULES_PER_BATCH_MAX = 1_000
SCHEDULE_ID_CHARS_MAX = 64


class MoveTo(Shape):
    """A due time."""

    deliver_at: Time

    def due_ms(self, now_ms: int) -> int:
        """Epoch ms. Raises RequestError DELAY_ILLEGAL."""
        return time_ms(self.deliver_at, "deliver_at", DELAY_ILLEGAL)


class MoveBy(Shape):
    """A delay from now."""

    codes = {"delay_ms": DELAY_ILLEGAL}

    delay_ms: Annotated[int, up_to("delay_ms_max")]

    def due_ms(self, now_ms: int) -> int:
        """Epoch ms."""
        return now_ms + self.delay_ms


class BatchBody(Shape):
    """The same done to each of some schedules. `move` needs a due time, or a delay from now; the others take none."""

    codes = {"delay_ms": DELAY_ILLEGAL}
    more = {"examples": [{"action": "move", "schedule_ids": ["sAAABm0QxAAAAAAAAAAAAAAAAAAA"], "delay_ms": 60_000}]}

    action: Annotated[Literal["cancel", "move", "fire"], one_of("cancel", "move", "fire")]
    schedule_ids: Annotated[
        list[Annotated[str, chars(SCHEDULE_ID_CHARS_MAX)]], Meta(min_length=1, max_length=SCHEDULES_PER_BATCH_MAX)
    ]
    deliver_at: Time | None = None
    delay_ms: Annotated[int, up_to("delay_ms_max")] | None = None

    def due_ms(self, now_ms: int) -> int | None:
        """Epoch ms; None: nothing is moved. Raises RequestError."""
        given_count = (self.deliver_at is not None) + (self.delay_ms is not None)
        if given_count != (self.action == "move"):
            wanted = "either deliver_at or delay_ms" if self.action == "move" else "neither deliver_at nor delay_ms"
            raise RequestError(INVALID, f"action: {self.action} takes {wanted}")
        if self.delay_ms is not None:
            return now_ms + self.delay_ms
        return None if self.deliver_at is None else time_ms(self.deliver_at, "deliver_at", DELAY_ILLEGAL)
