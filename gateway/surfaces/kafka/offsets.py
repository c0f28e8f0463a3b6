"""ListOffsets, OffsetForLeaderEpoch: where a partition begins, ends, and where a time is.

A search by time goes by the records' own time, to the record. Where it begins, the store knows (`Boundary.DATED`); from
there on the headers of batches are looked at, a piece of the log in each turn of the event loop.
"""

from __future__ import annotations

from enum import IntEnum

from gateway.api.read import Consumer, Fetched
from gateway.api.turns import few_a_turn
from gateway.auth.access import Permission
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.errors import code_of
from gateway.surfaces.kafka.nodes import ANY_EPOCH, leader_epoch, refusal
from gateway.surfaces.kafka.schema import Message
from gateway.surfaces.kafka.session import Session
from store import record_batch
from store.limits import MiB
from store.turns import others_turn
from store.types import Boundary, ReadStatus

SCAN_BYTES = 1 * MiB
"""Bytes of one read of a search by record time."""

_NO_OFFSET = -1


class Special(IntEnum):
    """What stands in the place of a time."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


_SINCE_VERSION = {
    Special.LATEST: 1,
    Special.EARLIEST: 1,
    Special.MAX_TIMESTAMP: 7,
    Special.EARLIEST_LOCAL: 8,
    Special.LATEST_TIERED: 9,
    Special.EARLIEST_PENDING_UPLOAD: 11,
}


async def list_offsets(session: Session, version: int, request: Message) -> Message:
    """The first offset, the end, the first record from a time on, or the one with the latest time, of partitions."""
    topics = []
    for topic in request["topics"]:
        name = topic["name"]
        is_allowed = session.may(Permission.DESCRIBE, topic=name)
        partitions = []
        async for one in few_a_turn(topic["partitions"]):
            number, time_ms = one["partition_index"], one["timestamp"]
            answer: Message = {"partition_index": number}
            if not is_allowed:
                answer["error_code"] = errors.TOPIC_AUTHORIZATION_FAILED
            elif time_ms < 0 and _SINCE_VERSION.get(time_ms, version + 1) > version:
                answer["error_code"] = errors.UNSUPPORTED_VERSION
            elif code := refusal(session, name, number, one.get("current_leader_epoch", ANY_EPOCH)):
                answer["error_code"] = code
            else:
                try:
                    found = await _found(session.gateway.consumer, name, number, time_ms)
                    if found:
                        answer |= found | {"leader_epoch": leader_epoch(session.gateway.routes_table, name, number)}
                except Exception as error:
                    answer["error_code"] = code_of(error)
            partitions.append(answer if version >= 4 else {k: v for k, v in answer.items() if k != "leader_epoch"})
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


async def _found(consumer: Consumer, topic: str, partition: int, time_ms: int) -> Message:
    """An offset, and the time of the record there when it was found by time; nothing, when there is none."""
    low, high = await consumer.bounds(topic, partition)
    if time_ms in (Special.LATEST_TIERED, Special.EARLIEST_PENDING_UPLOAD):
        return {}  # of storage in tiers: there is none
    if time_ms in (Special.LATEST, Special.EARLIEST, Special.EARLIEST_LOCAL):
        return {"offset": high if time_ms == Special.LATEST else low}
    if time_ms == Special.MAX_TIMESTAMP:
        if low == high:
            return {}
        time_ms = await _latest_date(consumer, topic, partition, high)
    record = await _first_dated(consumer, topic, partition, time_ms)
    return {} if record is None else {"offset": record.offset, "timestamp": record.timestamp}


async def _first_dated(
    consumer: Consumer, topic: str, partition: int, time_ms: int
) -> record_batch.DecodedRecord | None:
    """The first record that is dated at or after a time."""
    at = await consumer.offset_for_time(topic, partition, time_ms, Boundary.DATED)
    while True:
        fetched = await _fetched(consumer, topic, partition, at)
        for entry in fetched.entries:
            if record_batch.max_timestamp_ms(entry.batch) >= time_ms:
                for piece in record_batch.decode_in_pieces(entry.batch):
                    for record in piece:
                        if record.timestamp >= time_ms and record.offset >= fetched.min_offset:
                            return record
                    await others_turn()
        if not fetched.entries:
            return None
        at = fetched.next_offset
        await others_turn()


async def _latest_date(consumer: Consumer, topic: str, partition: int, high: int) -> int:
    """The latest time of a record before `high`. What is looked at is the last record, and where there may be later
    dates than the latest so far: ten seconds of the log, where records are dated when they are sent."""
    latest_ms = _date(await consumer.fetch(topic, partition, high - 1, max_bytes=1))
    at = await consumer.offset_for_time(topic, partition, latest_ms + 1, Boundary.DATED)
    while at < high:
        fetched = await _fetched(consumer, topic, partition, at)
        if not fetched.entries:
            break
        at = fetched.next_offset
        if (found_ms := _date(fetched)) > latest_ms:
            latest_ms = found_ms
            at = max(at, await consumer.offset_for_time(topic, partition, latest_ms + 1, Boundary.DATED))
        await others_turn()
    return latest_ms


async def _fetched(consumer: Consumer, topic: str, partition: int, at: int) -> Fetched:
    """A piece of the log from an offset on; from the first that is kept, if that is behind it now."""
    while True:
        fetched = await consumer.fetch(topic, partition, at, max_bytes=SCAN_BYTES)
        if fetched.status is not ReadStatus.TOO_SMALL:
            return fetched
        at = fetched.min_offset  # retention has passed it since it was found


def _date(fetched: Fetched) -> int:
    """The latest time of what was read; -1 for nothing."""
    return max([record_batch.max_timestamp_ms(entry.batch) for entry in fetched.entries], default=-1)


async def offset_for_leader_epoch(session: Session, version: int, request: Message) -> Message:
    """Up to where a consumer that has read in an epoch agrees with the partition: to its end, whichever epoch that was.
    Nothing that was ever shown is truncated (C3), and batches do not say in which epoch they came."""
    topics = []
    for topic in request["topics"]:
        name = topic["topic"]
        partitions = []
        async for one in few_a_turn(topic["partitions"]):
            number = one["partition"]
            answer: Message = {"partition": number, "leader_epoch": ANY_EPOCH, "end_offset": _NO_OFFSET}
            if not session.may(Permission.DESCRIBE, topic=name):
                answer["error_code"] = errors.TOPIC_AUTHORIZATION_FAILED
            elif code := refusal(session, name, number, one["current_leader_epoch"]):
                answer["error_code"] = code
            else:
                try:
                    own = leader_epoch(session.gateway.routes_table, name, number)
                    answer["end_offset"] = (await session.gateway.consumer.bounds(name, number)).max_offset
                    answer["leader_epoch"] = max(0, min(one["leader_epoch"], own))
                except Exception as error:
                    answer["error_code"] = code_of(error)
            partitions.append(answer)
        topics.append({"topic": name, "partitions": partitions})
    return {"topics": topics}
