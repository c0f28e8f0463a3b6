"""Delayed records that have not fired yet: another time for one."""

from __future__ import annotations

from typing import Annotated

from gateway.api.shapes.base import Shape, Time, time_ms, up_to
from gateway.errors import DELAY_ILLEGAL


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
