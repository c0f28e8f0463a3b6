"""Batches of several requests over a real store: on a disk that fails or is full, and for queues that are sealed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, NamedTuple

import orjson
import pytest

from gateway.api.producer import Begun
from gateway.errors import READ_ONLY
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.fast_path import FastPath, _Batch
from store.errors import StoreStopped
from store.log.writer import Writer
from store.record_batch import Record, encode
from store.store import Store
from store.types import Acks, QueueKey
from tests.clock import FakeClock
from tests.gateway.brokers.test_local import broker_over
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served
from tests.gateway.surfaces.http.plain_requests import ORDINARY, answer, request, warmed
from tests.simdisk import Fault, Operation, SimDisk
from tests.store.kit import abandon, open_store, values_of

SENDERS = 6
LOG = "commitlog"
FULL: Sequence[Operation] = ("pwritev", "allocate", "create")


class World(NamedTuple):
    """A gateway over a store on a simulated disk, its topic, and connections to it that have had an answer."""

    disk: SimDisk
    store: Store
    gateway: Gateway
    topic_id: int
    connections: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]

    async def send(self, *sent: bytes) -> list[tuple[str, dict[str, object]]]:
        """Requests in one turn, one a connection: status and body of each answer."""
        for (_, writer), one in zip(self.connections, sent, strict=False):
            writer.write(one)
        answers = [await answer(reader) for (reader, _), _ in zip(self.connections, sent, strict=False)]
        return [(head[9:12], orjson.loads(body)) for head, body in answers]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    disk = SimDisk()
    store = await open_store(disk)
    gateway, _ = fake_gateway(FakeClock(), shutdown_timeout_ms=100)
    gateway.producer._own_store = store
    topic = await broker_over(store, gateway.routes_table).create_topic("orders", 2)  # type: ignore[arg-type]
    async with served(gateway) as port:
        made = [await warmed(port) for _ in range(SENDERS)]
        yield World(disk, store, gateway, topic.topic_id, made)
        for _, writer in made:
            writer.transport.abort()


def numbered(number: int, partition: int = 0) -> bytes:
    return request(b'{"records":[{"value":%d}]}' % number, target=f"/topics/orders/partitions/{partition}")


async def kept(disk: SimDisk, topic_id: int) -> list[bytes]:
    """The values of partition 0 that a store finds there."""
    await abandon()
    store = await open_store(disk)
    values = await values_of(store, QueueKey(topic_id, 0))
    await store.close()
    return values


@pytest.mark.parametrize("operation", ["pwritev", "datasync"])
async def test_a_disk_that_fails_refuses_the_whole_batch_and_ends_appends(operation: Operation) -> None:
    async with world() as it:
        first = await it.send(*(numbered(number) for number in range(SENDERS)))
        assert {status for status, _ in first} == {"200"}
        assert it.store.stats.append_count < it.store.stats.record_count, "there was a batch of several requests"
        it.disk.inject(Fault(operation, path_part=LOG, drop_dirty=True))
        answers = await it.send(*(numbered(100 + number) for number in range(SENDERS)))
        assert {(status, body["error_code"]) for status, body in answers} == {("503", READ_ONLY)}
        assert isinstance(it.store.failure, StoreStopped)
        touched = len(it.disk.calls)
        again = await it.send(*(numbered(200 + number) for number in range(SENDERS)))
        assert {status for status, _ in again} == {"503"}
        assert not [call for call in it.disk.calls[touched:] if LOG in call.path], "an append went on"
    values = [int(value) for value in await kept(it.disk.crash(Random(1)), it.topic_id) if value.isdigit()]
    assert values[:SENDERS] == list(range(SENDERS)), "what was acked is there"
    assert values[SENDERS:] in ([], list(range(100, 100 + SENDERS))), "a batch is there as a whole, or not at all"


async def test_a_full_disk_refuses_the_whole_batch_and_takes_the_next_one() -> None:
    async with world() as it:
        for operation in FULL:
            it.disk.inject(Fault(operation, errno.ENOSPC, sticky=True, path_part=LOG))
        large = request(b'{"records":[{"value":"%b"}]}' % (b"x" * 12_000), target="/topics/orders/partitions/0")
        before = it.store.bounds(QueueKey(it.topic_id, 0)).max_offset
        answers = await it.send(*[large] * SENDERS)  # more than is prepared of the log
        assert {status for status, _ in answers} == {"507"}
        it.disk.faults.clear()
        answers = await it.send(*(numbered(number) for number in range(SENDERS)))
        assert {status for status, _ in answers} == {"200"}
        offsets = [offset["offset"] for _, body in answers for offset in body["offsets"]]  # type: ignore[attr-defined]
        assert sorted(offsets) == list(range(before, before + SENDERS)), "no offset was used up"


async def test_a_sealed_queue_refuses_its_own_batch_alone() -> None:
    async with world() as it:
        ended = await it.store.seal_queue(QueueKey(it.topic_id, 0))
        answers = await it.send(*(numbered(number, number % 2) for number in range(SENDERS)))
        assert [status for status, _ in answers] == ["503", "200"] * (SENDERS // 2)
        assert all("moving" in str(body["message"]) for status, body in answers if status == "503")
        assert it.store.bounds(QueueKey(it.topic_id, 0)).max_offset == ended


async def test_what_is_under_way_when_a_queue_is_sealed_is_stored_once() -> None:
    async with world() as it:
        queue = QueueKey(it.topic_id, 0)
        before = it.store.bounds(queue).max_offset
        for number, (_, writer) in enumerate(it.connections):
            writer.write(numbered(number))
        ended = await it.store.seal_queue(queue)
        answers = [await answer(reader) for reader, _ in it.connections]
        statuses = [head[9:12] for head, _ in answers]
        assert set(statuses) <= {"200", "503"}
        assert ended == it.store.bounds(queue).max_offset == before + statuses.count("200")


@pytest.mark.parametrize("ahead", [0, 1, -1])
async def test_answers_are_made_while_the_disk_works_and_again_where_the_offset_is_another(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, bool]] = []
    original = FastPath._answers_of

    def noted(self: FastPath, batch: _Batch, begun: Begun, offset: int, reached: Acks) -> Iterator[bytes]:
        made.append((offset, begun.outcome.done()))
        return original(self, batch, begun, offset, reached)

    async with world() as it:
        queue = QueueKey(it.topic_id, 0)
        before = it.store.bounds(queue).max_offset
        monkeypatch.setattr(FastPath, "_answers_of", noted)
        following = it.store.next_offset
        monkeypatch.setattr(it.store, "next_offset", lambda queue: following(queue) + ahead)
        answers = await it.send(*(numbered(number) for number in range(SENDERS)))
        offsets = [offset["offset"] for _, body in answers for offset in body["offsets"]]  # type: ignore[attr-defined]
        assert sorted(offsets) == list(range(before, before + SENDERS))
        early = [offset - ahead for offset, is_done in made if not is_done]
        late = [offset for offset, is_done in made if is_done]
        assert early[0] == before
        assert late == (early if ahead else [])
        made.clear()
        target = "/topics/orders/partitions/0?acks=written"
        await it.send(*[request(b'{"records":[{"value":1}]}', target=target)] * SENDERS)
        assert made, "what is not synced is not waited for"
        assert all(is_done for _, is_done in made)


@pytest.mark.parametrize("acks", ["written", "flushed"])
async def test_raw_batches_of_a_turn_are_one_write(acks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_task: list[int] = []
    write = Writer._write

    async def noted(self: Writer, loop: Any, group: list[Any], *, is_asked: bool) -> None:
        by_task.append(len(group))
        await write(self, loop, group, is_asked=is_asked)

    batch = bytes(encode([Record(None, b"raw", 5)] * 3))
    sent = request(batch, target=f"/topics/orders/partitions/0?acks={acks}", content_type="application/vnd.mq.batch")
    bad = sent[:-1] + bytes((sent[-1] ^ 1,))
    async with world() as it:
        await asyncio.sleep(0.01)
        monkeypatch.setattr(Writer, "_write", noted)
        for some in ([sent] * SENDERS, [sent, bad] * (SENDERS // 2), [bad] * SENDERS, [sent] * SENDERS):
            await asyncio.sleep(0.01)
            good, before, groups = some.count(sent), it.store.stats.append_count, it.store.stats.group_count
            answers = await it.send(*some)
            assert [status for status, _ in answers] == ["200" if one is sent else "400" for one in some]
            assert it.store.stats.append_count == before + good
            assert it.store.stats.group_count <= groups + min(good, 2), "not one for each of them"
        assert not it.store._writer._is_held
        assert (by_task == []) is (acks == "written"), "what is only written is, in the turn in which it came"
        values = await values_of(it.store, QueueKey(it.topic_id, 0))
    assert values.count(b"raw") == 3 * (2 * SENDERS + SENDERS // 2)
    await abandon()


async def test_what_comes_while_the_next_sync_waits_for_more_is_one_batch() -> None:
    async with world() as it:
        begin = it.store.when_gathered
        is_gathering = True
        calls: list[Callable[[], None]] = []

        def held(call: Callable[[], None]) -> bool:
            if is_gathering:
                calls.append(call)
            return is_gathering or begin(call)

        it.store.when_gathered = held  # type: ignore[method-assign]
        before = it.store.stats.append_count
        readers = []
        for number, (reader, writer) in enumerate(it.connections):
            writer.write(numbered(number))
            readers.append(reader)
            await asyncio.sleep(0.01)
        assert len(calls) == 1
        assert it.store.stats.append_count == before
        is_gathering = False
        calls[0]()
        answers = [await answer(reader) for reader in readers]
        assert {head[9:12] for head, _ in answers} == {"200"}
        assert it.store.stats.append_count == before + 1


async def test_a_bad_record_fails_alone_over_a_real_store() -> None:
    async with world() as it:
        sent = [numbered(number) for number in range(SENDERS)]
        sent[2] = request(b'{"records":[{"value":2,"oops":1}]}', target="/topics/orders/partitions/0")
        sent[4] = request(b'{"records":[{"value":4}]}', ORDINARY, target="/topics/orders/partitions/0")
        answers = await it.send(*sent)
        assert [status for status, _ in answers] == ["200", "200", "422", "200", "200", "200"]
