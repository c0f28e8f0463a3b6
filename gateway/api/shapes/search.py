"""Which messages of a topic a search looks for."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from gateway.api.shapes.base import Partition, RecordOffset, Shape, Time, chars, in_bytes, time_ms, whole
from gateway.api.shapes.queries import CURSOR_CHARS_MAX, LIST_ROWS_MAX, PAGE_ROWS_DEFAULT
from store.limits import KEY_BYTES_MAX, TAG_BYTES_MAX

TEXT_BYTES_MAX = 1024


class SearchBody(Shape):
    """What a message must have; nothing: any message."""

    more = {"examples": [{"text": "timeout", "from": "2026-01-31T09:30:00Z", "limit": 50}]}

    partition: Partition | None = None
    offset: Annotated[RecordOffset | None, Meta(description="From here on, in the partition.")] = None
    from_: Time | None = field(default=None, name="from")
    to: Time | None = None
    key: Annotated[str, in_bytes(KEY_BYTES_MAX)] | None = None
    tag: Annotated[str, in_bytes(TAG_BYTES_MAX, least=1)] | None = None
    text: (
        Annotated[str, in_bytes(TEXT_BYTES_MAX, "In its key, value or headers; A to Z as a to z.", least=1)] | None
    ) = None
    limit: Annotated[int, whole(1, LIST_ROWS_MAX, f"{PAGE_ROWS_DEFAULT} by default.")] = PAGE_ROWS_DEFAULT
    cursor: Annotated[str, chars(CURSOR_CHARS_MAX, "The `next_cursor` of the page before.")] | None = None

    def from_ms(self) -> int | None:
        """Epoch ms. Raises RequestError."""
        return None if self.from_ is None else time_ms(self.from_, "from")

    def to_ms(self) -> int | None:
        """Epoch ms. Raises RequestError."""
        return None if self.to is None else time_ms(self.to, "to")
