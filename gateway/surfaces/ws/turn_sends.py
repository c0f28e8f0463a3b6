"""What a socket's produces take: a place in the batch of its turn, or a task.

A command of one small record that `Producer.batch_partition` takes shares one batch with those of all sockets in the
same turn of the event loop (gateway/api/turn_batches.py), and is answered without a task. Any other one is stored by
itself, and so is one whose batch was refused or failed.

Invariants
    T1  the records of a socket to one topic reach the store in the order they came, whichever way they take: what is
        in a batch of this turn begins before anything that takes a task, and nothing joins a batch while such a task
        is under way. One that is refused or fails first, and then sent by itself, may come behind later ones
    T2  each command counts as in flight until its answer is out
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Protocol

from gateway.api.producer import Begun, Producer, RequestIdentity
from gateway.api.turn_batches import TurnBatch, TurnBatches, Way, is_to_be_told
from gateway.api.turns import COUNTED_BYTES
from gateway.routing.base import TopicView
from gateway.surfaces.ws.commands import Produce
from gateway.surfaces.ws.in_flight import InFlight
from gateway.surfaces.ws.outbox import Outbox
from gateway.surfaces.ws.protocol import stored_reply
from gateway.surfaces.ws.sends import Records, send

log = logging.getLogger(__name__)


class AnswerLater(Protocol):
    """`Conversation._answer_later`."""

    def __call__(
        self, id_: int | None, work: Awaitable[dict[str, object]], *, is_wanted: bool = True
    ) -> Coroutine[object, object, None]:
        """Answer with what comes out of `work`."""
        ...


Waiting = tuple["TurnSends", Produce, Records, int]
"""A command whose record is in a batch, of whom it is, and its bytes."""


def turn_batches(producer: Producer) -> TurnBatches[Waiting]:
    """The batches of all sockets of a server."""

    def answer(batch: TurnBatch[Waiting], begun: Begun) -> None:
        try:
            offset, reached = producer.finish(begun)
        except (Exception, asyncio.CancelledError) as error:
            give_back(batch.waiting, error if is_to_be_told(error, batch.started_s) else None)
            return
        level = reached.name.lower().encode()
        for own_offset, (sends, command, _, size_bytes) in enumerate(batch.waiting, offset):
            try:
                sends.stored(command, size_bytes, level, begun.partition, own_offset)
            except Exception:  # of one socket; the others wait for their answers
                log.exception("a socket was not answered")

    def give_back(waiting: Sequence[Waiting], error: BaseException | None = None) -> None:
        for sends, command, sent, size_bytes in waiting:
            sends.failed(command, sent, size_bytes, error)

    return TurnBatches(producer, answer=answer, give_back=give_back)


class TurnSends:
    """The produces of one socket."""

    def __init__(
        self,
        producer: Producer,
        turn: TurnBatches[Waiting],
        in_flight: InFlight,
        outbox: Outbox,
        answer_later: AnswerLater,
    ) -> None:
        self._producer = producer
        self._turn = turn
        self._in_flight = in_flight
        self._outbox = outbox
        self._answer_later = answer_later
        self._task_count = 0  # produces that take a task, under way
        self._number = -1  # of the turn that `_ways` are of
        self._ways: dict[str, Way] = {}  # of records in batches that have not begun, by topic

    async def begin(
        self,
        command: Produce,
        view: TopicView,
        sent: Records | bytes,
        identity: RequestIdentity | None,
        size_bytes: int,
    ) -> None:
        """Begin to store what a command of so many bytes sends; waits first while too much is unanswered. Raises
        UnknownPartition."""
        await self._in_flight.room(size_bytes)
        way: Way | None = None
        if isinstance(sent, Records) and len(sent.records) == 1 and identity is None and size_bytes < COUNTED_BYTES:
            chosen = self._producer.batch_partition(view, sent.records[0], command.partition)
            if chosen is not None:
                way = command.topic, chosen[0], sent.json_values, command.acks
        is_waiting = self._ways and self._number == self._turn.number
        if is_waiting and (way is None or self._task_count or self._ways.get(command.topic, way) != way):
            self._turn.end()
        if way is None or self._task_count:
            self._send(command, sent, identity, size_bytes)
        else:
            assert isinstance(sent, Records)
            self._join(way, command, sent, size_bytes)

    def stored(self, command: Produce, size_bytes: int, level: bytes, partition: int, offset: int) -> None:
        """The record of a command is stored there, at the level of this name."""
        if command.ack and command.id is not None:
            frame = stored_reply(command.id, level, partition, offset)
            if not self._outbox.send_at_once(frame):
                self._in_flight.start_now(self._outbox.put(frame), size_bytes)
        self._in_flight.ended(size_bytes)

    def failed(self, command: Produce, sent: Records, size_bytes: int, error: BaseException | None) -> None:
        """The batch with a command's record failed, or did not begin. `error` None: the record may be sent by itself;
        else that is the answer."""
        self._send(command, sent, None, size_bytes, error)
        self._in_flight.ended(size_bytes)

    def _join(self, way: Way, command: Produce, sent: Records, size_bytes: int) -> None:
        turn = self._turn
        if self._number != turn.number:
            self._ways.clear()
            self._number = turn.number
        self._ways[command.topic] = way
        self._in_flight.begun(size_bytes)
        turn.add(way, sent.records[0], (self, command, sent, size_bytes), size_bytes)

    def _send(
        self,
        command: Produce,
        sent: Records | bytes,
        identity: RequestIdentity | None,
        size_bytes: int,
        error: BaseException | None = None,
    ) -> None:
        """By a task: store what a command sends, or answer with the error."""

        async def send_and_answer() -> None:
            work = send(self._producer, command, sent, identity) if error is None else _raised(error)
            await self._answer_later(command.id, work, is_wanted=command.ack)

        task = self._in_flight.start_now(send_and_answer(), size_bytes)
        if task is not None:
            self._task_count += 1
            task.add_done_callback(self._task_done)

    def _task_done(self, _: asyncio.Task[None]) -> None:
        self._task_count -= 1


async def _raised(error: BaseException) -> dict[str, object]:
    raise error
