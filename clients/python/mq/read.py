"""Readers: every reader gets every message, and keeps its own offsets, as a cursor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, TypeAlias, TypeVar

from mq.clock import Clock
from mq.connection import Connection
from mq.errors import MqError, Refused, Undecodable
from mq.frames import Frame
from mq.partitioned import PartitionedSubscription
from mq.progress import Partitions, Progress, ProgressTable, write_cursor
from mq.record_batch import RawBatch
from mq.subscription import What
from mq.values import Decode, Instant, epoch_ms

T = TypeVar("T")

Start: TypeAlias = str | Instant
"""Where to begin: "earliest", "latest", or the first record stored at or after a time."""

CREDIT = 2_000
"""Messages that may wait here; S1."""
CREDIT_RAW = 10_000

EPOCH_CHANGED = 40953


def start_field(start: Start) -> object:
    """As `from` and `start` take it. Raises MqError."""
    if isinstance(start, str):
        if start not in ("earliest", "latest"):
            raise MqError(f'start: must be "earliest", "latest" or a time, and is {start!r}')
        return start
    return {"timestamp": epoch_ms(start, "start")}


class Reader(PartitionedSubscription[T]):
    """Messages of topics, by partition in the order of offsets, without a gap, each once. `cursor` is where it is."""

    mode: ClassVar[str] = "reader"

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        sub: str,
        what: What,
        decode: Decode,
        *,
        start: Start,
        cursor: str | None,
        credit: int | None,
        on_assigned: Callable[[Partitions], object] | None,
        on_caught_up: Callable[[], object] | None,
        on_over: Callable[[Any], object],
    ) -> None:
        self._start = cursor if cursor is not None else start_field(start)
        most = connection.conversation.limits.max_credit
        super().__init__(connection, clock, sub, what, decode, credit=min(credit or CREDIT, most), on_over=on_over)
        self._progress = ProgressTable()
        self._epochs: dict[str, str] = {}
        """Of topics whose offsets are those of the last subscribe."""
        self._is_raw = False
        self._on_assigned = on_assigned
        self._on_caught_up = on_caught_up
        self._has_credit = credit is not None

    @property
    def cursor(self) -> str:
        """Where to go on: behind the last message that the loop got. For `client.read(topics, cursor=...)`."""
        self._sync()
        return write_cursor(self._progress, lambda progress: progress.given)

    async def raw(self) -> AsyncIterator[RawBatch]:
        """Whole record batches as the server stores them, undecoded: for copies and bulk loads. Without `tags`; call it
        right after `client.read`. The cursor is behind the last batch."""
        if self._is_attached or self._what.tags is not None:
            raise MqError("raw: iterate over client.read(...).raw() at once, without `tags`")
        self._is_raw = True
        if not self._has_credit:
            self._window.size = min(CREDIT_RAW, self._conversation.limits.max_credit)
        self._begin_reading()
        try:
            while (held := await self._next()) is not None:
                self._last = held.items[0]
                assert held.progress is not None
                held.progress.given = held.end
                yield held.items[0]
        finally:
            await self.aclose()

    def _command(self) -> dict[str, object]:
        is_known = self._ready.done()
        # What has come since to a pattern that had matched nothing begins with its first record too.
        cursor = write_cursor(self._progress, lambda progress: progress.next) or "earliest"
        fields: dict[str, object] = {
            "from": cursor if is_known else self._start,
            "epochs": self._epochs if is_known else None,
            "format": "batch" if self._is_raw else None,
            "credit": self._window.opened(),
            "auto_credit": False,
        }
        return fields

    def _subscribed(self, answer: Frame) -> None:
        super()._subscribed(answer)
        self._epochs = answer.epochs or {}

    def _not_subscribed(self, attempt: int, error: Exception) -> None:
        if isinstance(error, Refused) and error.code == EPOCH_CHANGED and self._what.pattern is not None:
            # A topic was made again: the pattern goes on, with the first record of the new one.
            made_again = error.details.get("topic") if isinstance(error.details, dict) else None
            lost = [progress for progress in self._progress if progress.topic == made_again]
            if lost:
                self._lose(lost)
                self._attach_again(attempt)
                return
        super()._not_subscribed(attempt, error)

    def _lose(self, lost: list[Progress]) -> None:
        super()._lose(lost)
        here = {progress.topic for progress in self._progress}
        for topic in {progress.topic for progress in lost} - here:  # one of that name is another one now
            self._epochs.pop(topic, None)

    def _take_in(self, frame: Frame) -> None:
        if frame.op == "messages":
            super()._take_in(frame)
            return
        if frame.next_offset < frame.offset:
            raise Undecodable("a batch that ends before it begins")
        batch = RawBatch(frame.topic, frame.partition, frame.offset, frame.next_offset, frame.payload)
        self._hold([batch], frame.topic, frame.partition, frame.next_offset, frame.count)
