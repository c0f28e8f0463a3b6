"""The appends of this node to a Kafka partition that others write to as well: as of writer.py, by a producer of their
own, without its rule of positions. So a batch that is sent again is stored once, as long as Kafka knows the producer;
and a caller who is told that the outcome is unknown, and sends again, may have it stored twice.

When Kafka has not answered for so long that nobody waits for what was sent, what comes after it goes by another
producer: this one's numbers go on behind what may not be stored. When Kafka does not know the producer any more, this
writer is over, and the next send begins another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, TypeVar

from gateway.brokers.base import BrokerUnreachable
from gateway.brokers.kafka.attached_links import SharedKafka, refusal
from gateway.brokers.kafka.codes import (
    CLUSTER_AUTHORIZATION,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    NEVER,
    TOPIC_AUTHORIZATION,
    Outcome,
)
from gateway.brokers.kafka.fencing import Sent, Tenure
from gateway.brokers.kafka.port import Refused, Unreached
from gateway.brokers.kafka.writer import Writer
from store.errors import RecordTooLarge, StoreError

T = TypeVar("T")

LOOK_S = 1.0
"""How long it is looked whether the topic is there, before what was not stored is sent again."""


class _AnyPlace(Tenure[T]):
    """What is stored may be acknowledged, wherever it is."""

    def stored(self, sent: Sent, base_offset: int, token: T) -> list[T]:
        """See `Tenure.stored`."""
        return [token]


class AttachedWriter(Writer):
    """See the module."""

    NEVER: ClassVar[frozenset[int]] = NEVER | {TOPIC_AUTHORIZATION, CLUSTER_AUTHORIZATION, INVALID_TIMESTAMP}

    def __init__(
        self,
        kafka: SharedKafka,
        topic: str,
        partition: int,
        *,
        on_stored: Callable[[int], None],
        on_over: Callable[[], None],
        on_freed: Callable[[int], None],
    ) -> None:
        """`on_over` is called when it takes no more. Others as of `Writer`."""
        super().__init__(
            kafka, topic, partition, producer_id=-1, epoch=0, start=0,
            on_acknowledged=lambda _append, _appended: None,
            on_stored=on_stored, on_doubt=on_over, on_freed=on_freed,
        )  # fmt: skip
        self._tenure = _AnyPlace(0)
        self._shared = kafka

    async def _send_some(self) -> bool:
        if self._producer_id < 0:
            try:
                self._producer_id, self._sequence = await self._shared.new_producer(), 0
            except Unreached as error:
                self._end(BrokerUnreachable(f"topic {self._topic}: {error}"))
                return False
            except Refused as error:
                self._end(self._refusal(error.code))
                return False
        return await super()._send_some()

    async def _pause(self, pause_s: float) -> None:
        if self._sent and all(call.done.done() for call in self._sent):
            self._lose_sent()
            self._producer_id = -1
            return
        try:
            async with asyncio.timeout(LOOK_S):
                await self._shared.partition_count(self._topic)
        except Refused as error:
            self._end(self._refusal(error.code))
        except (Unreached, TimeoutError):
            pass  # callers are told in time
        await super()._pause(pause_s)

    def _end(self, error: StoreError) -> None:
        for call in (*self._sent, *self._waiting):
            self._fail(call, error)
        self._sent.clear()
        self._waiting.clear()
        self._tenure.is_in_doubt = True

    def _refusal(self, code: Outcome) -> StoreError:
        if code == MESSAGE_TOO_LARGE:
            return RecordTooLarge(
                f"the records of a send to a partition are one batch, and Kafka's topic {self._topic} takes none as"
                " large (its max.message.bytes): send fewer, or smaller ones"
            )
        assert isinstance(code, int)
        return refusal(self._topic, code)
