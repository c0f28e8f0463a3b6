"""Records in and out: Produce, Fetch, InitProducerId, DeleteRecords."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from secrets import randbits
from time import monotonic
from typing import NamedTuple

from gateway.api.producer import Begun, Receipt, TooLong
from gateway.api.read import Tail
from gateway.api.tasks import when_set
from gateway.api.topics import delete_before
from gateway.api.turns import COUNTED_BYTES, ITEMS_PER_TURN, few_a_turn
from gateway.auth.access import Permission
from gateway.errors import RequestError
from gateway.routing.base import UnknownPartition
from gateway.surfaces.http.answer_memory import SMALL_BYTES, Allowance
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.connection import Done
from gateway.surfaces.kafka.errors import code_of
from gateway.surfaces.kafka.fetch import FetchRequest, PartitionBatches, PartitionFetch, write_fetched
from gateway.surfaces.kafka.nodes import refusal
from gateway.surfaces.kafka.produce import PartitionRecords, Produced, ProduceRequest, write_produced
from gateway.surfaces.kafka.schema import Message
from gateway.surfaces.kafka.session import Session
from gateway.surfaces.kafka.trail import record
from store import record_batch
from store.errors import StoreError, UnknownQueue
from store.limits import MiB
from store.turns import others_turn, stretches
from store.types import Acks, Appended, Buffer, ReadStatus

TURN_BYTES = 1 * MiB
"""Bytes of batches that are checked between two turns of the event loop."""

_PARTITION_BYTES = TURN_BYTES // ITEMS_PER_TURN
"""What a partition counts for among them, however little it has."""

FULL_WAIT_S = 0.1
"""How long a response without records waits when there is no memory for one with records."""

AGAIN_WAIT_S = 0.02
"""How long each of those who found no room has their turn to ask again."""

_NO_OFFSET = -1
_ZSTD_FROM = 7
"""The version of Produce from which zstd may be used."""

_WHOLE = (0, -1)
"""Epochs of a fetch session in which a request names all its partitions: it begins a session, or has none."""

_HIGH_WATERMARK = -1
_ALL, _NONE = -1, 0
_ACKS: dict[int, Acks | None] = {_ALL: None, _NONE: Acks.WRITTEN, 1: Acks.WRITTEN}
"""What an acknowledgement says: `all` is the server's own level, which is durable unless it is configured otherwise."""


# ------------------------------------------------------------------------------------------------------ Produce


def _may_be_long(one: PartitionRecords) -> bool:
    return one.records is not None and record_batch.may_be_long(one.records)


class Producing:
    """One Produce request under way. `done` gets the response, or that there is none where the client wants none."""

    def __init__(
        self,
        session: Session,
        version: int,
        request: ProduceRequest,
        done: Done,
    ) -> None:
        self._session = session
        self._version = version
        self._done = done
        self._request = request
        self._answers: list[tuple[str, list[Produced]]] = [(topic, []) for topic, _ in request.topics]
        self._open_count = 1  # the one is for having begun all
        self._opened: list[asyncio.Task[Sequence[Receipt]]] = []
        self._checked: dict[int, tuple[int, Sequence[int]]] = {}  # by the id of its place in the request
        self._is_in_turns = False

    @property
    def takes_turns(self) -> bool:
        """Whether to begin all appends takes more than a turn of the event loop, or than is left of this one. Of a
        request of some partitions."""
        size = 0
        for topic, partitions in self._request.topics:
            for one in partitions:
                own = len(one.records or b"")
                size += max(own, _PARTITION_BYTES)
                if (
                    (own >= COUNTED_BYTES and stretches().is_full)
                    or size > TURN_BYTES
                    or (_may_be_long(one) and not self._is_checked_at_once(topic, one))
                ):
                    return True
            if self._is_opened(topic):
                return True
        return False

    def _is_checked_at_once(self, topic: str, one: PartitionRecords) -> bool:
        """Check a batch that may have half a million headers, if that is short all the same: if its records are alike.
        What is wrong with it shows again when it is begun."""
        records = one.records or b""
        if record_batch.is_compressed(records):
            return False
        if self._session.may(Permission.SEND, topic=topic):
            with suppress(StoreError, RequestError):
                try:
                    self._checked[id(one)] = self._session.gateway.producer.checked_at_once(topic, records)
                except TooLong:
                    return False
        return True

    def _is_opened(self, topic: str) -> bool:
        try:
            return bool(self._session.gateway.routes_table.topic(topic).config.mq_headers)
        except UnknownQueue:
            return False

    def begin(self) -> None:
        """Begin all appends, in their order."""
        for _ in self._steps():
            pass

    async def begin_in_turns(self) -> None:
        """As `begin`, with others' turns in between. Batches that are opened are stored on return: they have no other
        way to keep their order."""
        self._is_in_turns = True
        async for topic, partitions in few_a_turn(self._request.topics):
            async for one in few_a_turn(partitions):
                await self._check_long(topic, one)
        unseen_bytes = 0
        for size in self._steps():
            unseen_bytes += size
            if unseen_bytes > TURN_BYTES or stretches().is_full:
                unseen_bytes = 0
                await others_turn()
        if self._opened:
            await asyncio.wait(self._opened)

    async def _check_long(self, topic: str, one: PartitionRecords) -> None:
        """Check a batch in turns that may have half a million headers. What is wrong with it shows again when it is
        begun."""
        if _may_be_long(one) and self._session.may(Permission.SEND, topic=topic):
            with suppress(StoreError, RequestError, UnknownPartition):
                producer = self._session.gateway.producer
                self._checked[id(one)] = await producer.checked(topic, one.records or b"")

    def _steps(self) -> Iterator[int]:
        request = self._request
        refused = errors.NONE
        if request.is_transactional:
            refused = errors.UNSUPPORTED_VERSION
        elif request.acks not in _ACKS:
            refused = errors.INVALID_REQUIRED_ACKS
        for (topic, partitions), (_, answers) in zip(request.topics, self._answers, strict=True):
            may_send = self._session.may(Permission.SEND, topic=topic)
            topic_refusal = refused if may_send else errors.TOPIC_AUTHORIZATION_FAILED
            for number, one in enumerate(partitions):
                code = topic_refusal or refusal(self._session, topic, one.partition)
                if not code and self._version < _ZSTD_FROM and record_batch.is_zstd(one.records or b""):
                    code = errors.UNSUPPORTED_COMPRESSION
                if code:
                    answers.append(Produced(one.partition, code, _NO_OFFSET, _NO_OFFSET, None))
                else:
                    self._begin_one(topic, one, answers, number)
                yield max(len(one.records or b""), _PARTITION_BYTES)
            if not partitions:
                yield _PARTITION_BYTES
        self._end_one()

    def _begin_one(self, topic: str, one: PartitionRecords, answers: list[Produced], number: int) -> None:
        producer = self._session.gateway.producer
        acks = _ACKS[self._request.acks]
        if self._is_in_turns and self._is_opened(topic):
            self._begin_opened(topic, one, answers, number, acks)
            return
        try:
            begun = producer.begin_batch(
                topic, one.partition, one.records or b"", acks=acks, is_numbered=True,
                checked=self._checked.pop(id(one), None), is_given=True,
            )  # fmt: skip
        except Exception as error:
            answers.append(_refused(one.partition, error))
            return
        answers.append(Produced(one.partition, errors.NONE, _NO_OFFSET, _NO_OFFSET, None))
        self._open_count += 1

        def ended(outcome: asyncio.Future[list[Appended]]) -> None:
            answers[number] = self._answer(begun, outcome)
            self._end_one()

        begun.outcome.add_done_callback(ended)

    def _begin_opened(
        self, topic: str, one: PartitionRecords, answers: list[Produced], number: int, acks: Acks | None
    ) -> None:
        """Send records one by one, some of them later; see `Producer.produce_opened`."""
        producer = self._session.gateway.producer
        sending = asyncio.ensure_future(producer.produce_opened(topic, one.partition, one.records or b"", acks=acks))
        answers.append(Produced(one.partition, errors.NONE, _NO_OFFSET, _NO_OFFSET, None))
        self._opened.append(sending)
        self._open_count += 1

        def ended(outcome: asyncio.Future[Sequence[Receipt]]) -> None:
            if outcome.cancelled():
                answers[number] = answers[number]._replace(error_code=errors.STORAGE_ERROR)
            elif (error := outcome.exception()) is not None:
                assert isinstance(error, Exception)
                answers[number] = _refused(one.partition, error)
            else:
                answers[number] = answers[number]._replace(base_offset=_base_offset(outcome.result()))
            self._end_one()

        sending.add_done_callback(ended)

    def _answer(self, begun: Begun, outcome: asyncio.Future[list[Appended]]) -> Produced:
        if outcome.cancelled():
            return Produced(begun.partition, errors.STORAGE_ERROR, _NO_OFFSET, _NO_OFFSET, None)
        try:
            receipt = self._session.gateway.producer.finish_batch(begun)
        except Exception as error:
            return _refused(begun.partition, error)
        if receipt.offset is None:  # a repeat of a batch so old that its offset is forgotten
            return Produced(begun.partition, errors.DUPLICATE_SEQUENCE, _NO_OFFSET, _NO_OFFSET, None)
        return Produced(begun.partition, errors.NONE, receipt.offset, _NO_OFFSET, None)

    def _end_one(self) -> None:
        self._open_count -= 1
        if not self._open_count:
            if self._request.acks == _NONE:  # an end is all that tells its client to look again who has a partition
                failed = any(one.error_code for _, answers in self._answers for one in answers)
                self._done(None, is_last=failed)
            else:
                self._done((write_produced(self._answers, self._version),))


def _base_offset(receipts: Sequence[Receipt]) -> int:
    """From where the records of one batch follow each other; no offset, when one of them waits to be delivered."""
    first = receipts[0].offset
    if first is None or any(receipt.offset != first + index for index, receipt in enumerate(receipts)):
        return _NO_OFFSET
    return first


def _refused(partition: int, error: Exception) -> Produced:
    code = code_of(error)
    message = None if code in (errors.UNKNOWN, errors.STORAGE_ERROR) else str(error)
    return Produced(partition, code, _NO_OFFSET, _NO_OFFSET, message)


# ------------------------------------------------------------------------------------------------------ Fetch


async def fetch(session: Session, version: int, request: FetchRequest, allowance: Allowance) -> Iterable[Buffer]:
    """The response to a Fetch request, to be written by who goes through it: at once when there are `min_bytes` or
    something is wrong, else when there are, or after the longest wait."""
    gateway = session.gateway
    if request.session_epoch not in _WHOLE:
        return write_fetched((), version, error_code=errors.FETCH_SESSION_ID_NOT_FOUND)
    wait_ms = min(max(0, request.max_wait_ms), gateway.limits.timeout_ms_max)
    until_s = monotonic() + wait_ms / 1000
    if session.is_short_of_room:  # else those who read nothing would have the disk read for them all the time
        async with gateway.stats.answers.again:
            await asyncio.sleep(AGAIN_WAIT_S)
        session.is_short_of_room = False
    while True:
        found = _at_ends(session, request)
        if found is None:
            room_bytes = allowance.reserve(max(1, min(request.max_bytes, gateway.limits.fetch_bytes_max)))
            async with gateway.stats.answers.making:
                found = await _read_all(session, request, room_bytes)
                if found.size > SMALL_BYTES:
                    await others_turn()  # held meanwhile: of hundreds that ask at once, one has its turn
        topics, size, has_error, tails = found
        left_s = until_s - monotonic()
        is_over = size >= request.min_bytes or has_error or left_s <= 0 or gateway.draining.is_set()
        if is_over or session.access.is_over:
            if not allowance.hold(size):  # others' responses fill the memory: the client asks again
                session.is_short_of_room = True
                await asyncio.sleep(FULL_WAIT_S)
                topics = [(name, [one._replace(batches=()) for one in batches]) for name, batches in topics]
            else:
                gateway.stats.kafka.fetched_byte_count += size
            return write_fetched(topics, version)
        allowance.release()
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        wake = partial(_end, woken)
        timer = loop.call_later(until_s - monotonic(), wake)
        gateway.stats.long_poll_count += 1
        try:
            async with gateway.consumer.watching(tails, wake):
                with when_set(gateway.draining, wake):
                    await woken
        finally:
            timer.cancel()
            gateway.stats.long_poll_count -= 1


def _end(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)


class _Found(NamedTuple):
    """What there is of all partitions, its bytes, whether something is wrong, and the ends of what was read to its
    end."""

    topics: list[tuple[str, Sequence[PartitionBatches]]]
    size: int
    has_error: bool
    tails: Sequence[Tail]


def _at_ends(session: Session, request: FetchRequest) -> _Found | None:
    """What `_read_all` finds where nothing is to be read: of a request that asks for what is behind the known ends of a
    few partitions, as all do that wait. None for any other."""
    is_end = session.gateway.consumer.is_end
    topics: list[tuple[str, Sequence[PartitionBatches]]] = []
    tails: dict[Tail, None] = {}  # each once, however often a request names its partition
    for topic, wanted in request.topics:
        if len(topics) + len(tails) + len(wanted) > ITEMS_PER_TURN or not session.may(Permission.RECEIVE, topic=topic):
            return None
        for number, epoch, offset, _ in wanted:
            if refusal(session, topic, number, epoch) or not is_end(topic, number, offset):
                return None
            tails[Tail(topic, number, offset)] = None
        topics.append((topic, [_nothing_behind(one) for one in wanted]))
    return _Found(topics, 0, False, list(tails))


def _nothing_behind(one: PartitionFetch) -> PartitionBatches:
    return PartitionBatches(one.partition, errors.NONE, one.offset, _NO_OFFSET, ())


async def _read_all(session: Session, request: FetchRequest, room_bytes: int) -> _Found:
    """Read in turns."""
    topics: list[tuple[str, Sequence[PartitionBatches]]] = []
    tails: dict[Tail, None] = {}
    size, has_error, seen_count = 0, False, 0
    is_end = session.gateway.consumer.is_end
    for topic, wanted in request.topics:
        found: list[PartitionBatches] = []
        is_allowed = session.may(Permission.RECEIVE, topic=topic)
        for one in wanted:
            if not is_allowed:
                found.append(_nothing(one.partition, errors.TOPIC_AUTHORIZATION_FAILED))
            elif code := refusal(session, topic, one.partition, one.leader_epoch):
                found.append(_nothing(one.partition, code))
            elif is_end(topic, one.partition, one.offset):
                found.append(_nothing_behind(one))
                tails[Tail(topic, one.partition, one.offset)] = None
            else:
                batches = await _read(session, topic, one, room_bytes - size)
                found.append(batches)
                if not batches.error_code:
                    tails[Tail(topic, one.partition, batches.end)] = None
                size += sum(map(len, batches.batches))
            seen_count += 1
            if seen_count % ITEMS_PER_TURN == 0:
                await others_turn()
            has_error = has_error or found[-1].error_code != errors.NONE
        topics.append((topic, found))
    return _Found(topics, size, has_error, list(tails))


async def _read(session: Session, topic: str, one: PartitionFetch, room_bytes: int) -> PartitionBatches:
    """Whole batches of a partition from the one that holds the offset on: at least one if there is any and there is
    room left for anything."""
    consumer = session.gateway.consumer
    try:
        if room_bytes <= 0:
            low, high = await consumer.bounds(topic, one.partition)
            return PartitionBatches(one.partition, errors.NONE, high, low, ())
        if one.offset < 0:
            await consumer.bounds(topic, one.partition)
            return _nothing(one.partition, errors.OFFSET_OUT_OF_RANGE)
        fetched = await consumer.fetch(
            topic, one.partition, one.offset, max_bytes=max(1, min(one.max_bytes, room_bytes))
        )
    except Exception as error:
        return _nothing(one.partition, code_of(error))
    if not session.may(Permission.RECEIVE, topic=topic):  # dead letters of another topic may have come meanwhile
        return _nothing(one.partition, errors.TOPIC_AUTHORIZATION_FAILED)
    if fetched.status in (ReadStatus.TOO_SMALL, ReadStatus.TOO_LARGE):
        return _nothing(one.partition, errors.OFFSET_OUT_OF_RANGE)
    session.gateway.stats.kafka.fetched_record_count += sum(entry.record_count for entry in fetched.entries)
    batches = [entry.batch for entry in fetched.entries]
    return PartitionBatches(one.partition, errors.NONE, fetched.max_offset, fetched.min_offset, batches)


def _nothing(partition: int, code: int) -> PartitionBatches:
    return PartitionBatches(partition, code, _NO_OFFSET, _NO_OFFSET, ())


# ------------------------------------------------------------------------------------------------------ others


async def init_producer_id(session: Session, version: int, request: Message) -> Message:
    """An id by which an idempotent producer's batches are told from all others'. It is random, so no restart can give
    it away twice; what it has sent is remembered with the records."""
    code = errors.NONE
    if request["transactional_id"]:
        code = errors.UNSUPPORTED_VERSION
    elif not session.may(Permission.SEND):
        code = errors.CLUSTER_AUTHORIZATION_FAILED
    elif request["transactional_id"] is not None or (request.get("producer_id", -1) < 0) is not (
        request.get("producer_epoch", -1) < 0
    ):
        code = errors.INVALID_REQUEST
    if code:
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {"producer_id": randbits(62), "producer_epoch": 0}


async def delete_records(session: Session, version: int, request: Message) -> Message:
    """Give up the records before an offset; -1: all. Durable when answered."""
    topics = []
    for topic in request["topics"]:
        name = topic["name"]
        partitions = []
        async for one in few_a_turn(topic["partitions"]):
            number = one["partition_index"]
            answer: Message = {"partition_index": number, "low_watermark": _NO_OFFSET}
            if not session.may(Permission.DELETE, topic=name):
                answer["error_code"] = errors.TOPIC_AUTHORIZATION_FAILED
            elif code := refusal(session, name, number):
                answer["error_code"] = code
            else:
                try:
                    answer |= await _delete_before(session, name, number, one["offset"])
                except Exception as error:
                    answer["error_code"] = code_of(error)
            await record(
                session, "topic.delete_records", {"topic": name}, answer.get("error_code", errors.NONE),
                partition=number, before_offset=one["offset"],
            )  # fmt: skip
            partitions.append(answer)
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


async def _delete_before(session: Session, topic: str, partition: int, offset: int) -> Message:
    gateway = session.gateway
    low, high = await gateway.consumer.bounds(topic, partition)
    if offset == _HIGH_WATERMARK:
        offset = high
    if not 0 <= offset <= high:
        return {"error_code": errors.OFFSET_OUT_OF_RANGE}
    if offset > low:
        await delete_before(gateway.routes_table, topic, partition, offset)
    return {"low_watermark": max(low, offset)}
