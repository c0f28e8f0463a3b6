"""A broker over a real store, asked by another node: over TCP and over a Unix socket it is what it is at home.

Covers gateway.surfaces.peer.server and gateway.cluster.peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.brokers.local import LocalBroker
from gateway.cluster import peer as peer_module
from gateway.cluster.peer import CODE_HEADER, HEAD_CODE_HEADER, PATH, STAMP_HEADER, PeerBroker
from gateway.cluster.peer_auth import Secret, parse_stamp
from gateway.cluster.peer_wire import frame
from gateway.main.listener import bound_unix_socket
from gateway.surfaces.peer.link import serving_links
from gateway.surfaces.peer.server import PeerService
from store import Store, record_batch
from store.errors import (
    AlreadyStored,
    IllegalTopic,
    MalformedBatch,
    Overloaded,
    RecordTooLarge,
    SealedQueue,
    StoreStopped,
    UnknownQueue,
)
from store.limits import PARTITIONS_MAX
from store.record_batch import Record
from store.topics import TIMER_QUEUE, Topic
from store.types import (
    Acks,
    Append,
    Boundary,
    Bounds,
    Delay,
    Identity,
    QueueKey,
)
from tests.clock import FakeClock
from tests.gateway.cluster.etcd_server import free_port
from tests.gateway.groups.coordinator.world import PlainTimer
from tests.simdisk import SimDisk
from tests.store.kit import append_of, open_store
from tests.waiting import PATIENCE_S, WOKEN_S, until

SECRET = Secret(b"sixteen bytes!!!")


class World:
    """A node with one topic of two partitions, and a peer that asks it."""

    def __init__(self, store: Store, local: LocalBroker, peer: PeerBroker, service: PeerService, topic: Topic) -> None:
        self.store, self.local, self.peer, self.service, self.topic = store, local, peer, service, topic
        self.queue = QueueKey(topic.topic_id, 0)


@asynccontextmanager
async def world(
    directory: Path, *, is_unix: bool = False, secret: Secret = SECRET, skew_ms: int = 0
) -> AsyncIterator[World]:
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        store = await open_store(SimDisk(), clock=clock)
        stack.push_async_callback(store.close)
        local = LocalBroker(
            store, PlainTimer(store, clock), name="n1", on_topic=lambda _: None, on_deleted=lambda _: None
        )
        topic = await local.create_topic("orders", 2)
        service = PeerService(local, SECRET, clock, queues_of=store.queues_of)
        port, path = free_port(), directory / "peer.sock"
        if is_unix:
            bound = stack.enter_context(bound_unix_socket(path))
            await stack.enter_async_context(serving_links(service, SECRET, bound))
        else:
            runner = web.AppRunner(service.application())
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", port).start()
        theirs = FakeClock()
        theirs.step(skew_ms)
        address = f"unix:{path}" if is_unix else f"http://127.0.0.1:{port}"
        peer = await stack.enter_async_context(PeerBroker("n1", address, secret, theirs))
        yield World(store, local, peer, service, topic)


@pytest.fixture(params=["tcp", "unix"])
async def made(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, is_unix=request.param == "unix") as one:
        yield one


async def test_records_are_appended_and_read_as_at_home(made: World) -> None:
    [first] = await made.peer.append([append_of(made.queue, [b"a", b"b"])], acks=Acks.FLUSHED)
    assert (first.base_offset, first.acks) == (0, Acks.FLUSHED)
    tagged = append_of(made.queue, [b"c"])
    tagged.tag_hashes, tagged.json_values = [7], True
    other = append_of(QueueKey(made.topic.topic_id, 1), [b"x"])
    both = await made.peer.append([tagged, other], acks=Acks.WRITTEN)
    assert [each.base_offset for each in both] == [2, 0]
    for offset, tags in ((0, None), (1, None), (3, None), (4, None), (0, frozenset([7])), (0, frozenset([8]))):
        theirs = await made.peer.read(made.queue, offset, max_bytes=10_000, tag_hashes=tags)
        ours = await made.local.read(made.queue, offset, max_bytes=10_000, tag_hashes=tags)
        assert theirs._replace(entries=[]) == ours._replace(entries=[])
        assert len(theirs.entries) == len(ours.entries)
        for their, our in zip(theirs.entries, ours.entries, strict=True):
            assert bytes(their.batch) == bytes(our.batch)
            for name in ("position", "size", "queue", "topic", "base_offset", "record_count", "store_time_ms",
                         "json_values"):  # fmt: skip
                assert getattr(their, name) == getattr(our, name)
            assert list(their.tag_hashes) == list(our.tag_hashes)
    assert (await made.peer.read(made.queue, 0, max_bytes=1, end_offset=1)).entries[0].next_offset == 2
    assert await made.peer.bounds(made.queue) == await made.local.bounds(made.queue) == (0, 3)
    time_ms = FakeClock().now_ms()
    assert await made.peer.offset_for_time(made.queue, time_ms, Boundary.UPPER) == 2
    assert made.peer.name == "n1"


async def test_appends_of_one_turn_share_a_request_and_keep_their_order(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "MESSAGE_BYTES_MAX", 1500)
    asked: list[str] = []
    plain = PeerBroker._ask

    async def counted(self: PeerBroker, operation: str, *arguments: object, **named: object) -> object:
        asked.append(operation)
        return await plain(self, operation, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(PeerBroker, "_ask", counted)
    begun = [made.peer.begin_append([append_of(made.queue, [bytes(400)])], acks=Acks.FLUSHED) for _ in range(10)]
    unknown = made.peer.begin_append([append_of(QueueKey(999, 0), [b""])], acks=Acks.FLUSHED)
    behind = made.peer.begin_append([append_of(made.queue, [b""])], acks=Acks.FLUSHED)
    assert [(await each)[0].base_offset for each in begun] == list(range(10))
    with pytest.raises(UnknownQueue):
        await unknown
    assert (await behind)[0].base_offset == 10, "what is refused takes nobody along"
    assert len(asked) == 4
    large = await made.peer.append([append_of(made.queue, [bytes(3000)])], acks=Acks.FLUSHED)
    assert large[0].base_offset == 11


async def test_errors_arrive_as_what_they_are(made: World) -> None:
    identity = Identity(message_ids=[b"i" * 16])
    known = append_of(made.queue, [b"a"])
    known.identity = identity
    await made.peer.append([known], acks=Acks.FLUSHED)
    again = append_of(made.queue, [b"a"])
    again.identity = identity
    with pytest.raises(AlreadyStored) as stored:
        await made.peer.append([again], acks=Acks.FLUSHED)
    assert stored.value.originals[0][0].offset == 0
    with pytest.raises(RecordTooLarge):
        await made.peer.append([append_of(made.queue, [bytes(300_000)])], acks=Acks.FLUSHED)
    with pytest.raises(UnknownQueue):
        await made.peer.read(QueueKey(999, 0), 0, max_bytes=1)
    with pytest.raises(IllegalTopic):
        await made.peer.create_queue(QueueKey(made.topic.topic_id, 5))


async def test_a_queue_is_made_sealed_and_given_up_from_afar(made: World) -> None:
    queue = QueueKey(made.topic.topic_id, PARTITIONS_MAX)
    await made.peer.create_queue(queue)
    await made.peer.create_queue(queue)
    await made.peer.append([append_of(queue, [b"a"])], acks=Acks.FLUSHED)
    assert await made.peer.seal_queue(queue) == await made.peer.seal_queue(queue) == 1
    with pytest.raises(SealedQueue):
        await made.peer.append([append_of(queue, [b"b"])], acks=Acks.FLUSHED)
    await made.peer.expire_queue(queue, 1)
    assert await made.peer.bounds(queue) == (1, 1)


async def test_a_queue_is_left_in_one_call_and_tells_what_it_remembers(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        sent = append_of(made.queue, [b"a"])
        sent.identity = Identity(message_ids=[b"%d" % number * 16])
        await made.peer.append([sent], acks=Acks.FLUSHED)
    into = QueueKey(made.topic.topic_id, PARTITIONS_MAX)
    end, told = await made.peer.leave_queue(made.queue, into=into, shift=5, since=0)
    assert (end, told) == await made.local.leave_queue(made.queue, into=into, shift=5, since=0)
    assert end == 2
    assert told.content
    assert (await made.peer.leave_queue(made.queue, into=into, shift=5, since=told.next_position))[1].content == b""
    with pytest.raises(SealedQueue):
        await made.peer.append([append_of(made.queue, [b"b"])], acks=Acks.FLUSHED)
    asked: list[str] = []
    ask = made.peer._look

    async def of_before(operation: str, head: dict[str, object], **named: object) -> object:
        asked.append(operation)
        if operation == "seal_queue":
            head = {"queue": head["queue"]}
        return await ask(operation, head, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(made.peer, "_look", of_before)
    assert await made.peer.leave_queue(made.queue, into=into, shift=5, since=0) == (2, told)
    assert asked == ["seal_queue", "export_ids"]


async def test_a_delayed_record_is_accepted(made: World) -> None:
    batch = record_batch.encode([Record(None, b"later", 0)])
    due_ms = FakeClock().now_ms() + 1000
    append = Append(queue=TIMER_QUEUE, batch=batch, record_count=1, delays=[Delay(due_ms, made.topic.topic_id, 0)])
    appended = await made.peer.schedule(append, acks=Acks.FLUSHED, keys=[None])
    [entry] = (await made.store.read(TIMER_QUEUE, 0, max_bytes=1000)).entries
    assert entry.position == appended.position
    assert list(entry.delays) == [Delay(due_ms, made.topic.topic_id, 0)]


async def test_who_waits_afar_is_woken(made: World) -> None:
    async with asyncio.timeout(WOKEN_S):
        seen: list[Mapping[QueueKey, int]] = []
        forget = made.peer.watch(made.topic.topic_id, seen.append)
        await until(lambda: seen, pause_s=0.001)
        assert seen.pop() == {made.queue: 0, QueueKey(made.topic.topic_id, 1): 0}, "some may have changed before"
        await made.local.append([append_of(made.queue, [b"a"])], acks=Acks.FLUSHED)
        await until(lambda: seen, pause_s=0.001)
        assert seen == [{made.queue: 1}]
        await made.local.delete_topic("orders")
        await until(lambda: seen[-1] == {}, pause_s=0.001)
        forget()


@pytest.mark.parametrize("is_unix", [False, True])
async def test_strangers_are_told_nothing(tmp_path: Path, is_unix: bool) -> None:
    async with world(tmp_path, secret=Secret(b"another secret of 16"), is_unix=is_unix) as other:
        with pytest.raises(AnswerLost):
            await other.peer.append([append_of(other.queue, [b"a"])], acks=Acks.FLUSHED)
        with pytest.raises(BrokerUnreachable):
            await other.peer.bounds(other.queue)
        assert await other.local.bounds(other.queue) == (0, 0)
        assert other.service.refused_count == (2 if is_unix else 3), "a link, and then each by HTTP"
        if is_unix:
            return
        async with aiohttp.ClientSession() as http, http.post(other.peer._url + "bounds", data=b"{}") as answer:
            assert (answer.status, await answer.read()) == (401, b"")


async def test_a_request_that_was_recorded_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as made, aiohttp.ClientSession() as http:
        recorded: list[tuple[str, bytes, dict[str, str]]] = []
        post = made.peer._http.post

        def record(url: str, *, data: bytes, headers: dict[str, str]) -> object:
            recorded.append((url, data, headers))
            return post(url, data=data, headers=headers)

        made.peer._http.post = record  # type: ignore[assignment,method-assign]
        made.peer._no_links_until_s = float("inf")
        await made.peer.append([append_of(made.queue, [b"a"])], acks=Acks.FLUSHED)
        [(url, data, headers)] = recorded
        stamp = parse_stamp(headers[STAMP_HEADER])._replace(number=2)
        head_code = SECRET.head_code(stamp, PATH + "append", len(data))
        code = SECRET.request_code(head_code, data)
        for said, body in (
            (headers, data),
            ({**headers, STAMP_HEADER: stamp.text}, data),
            ({STAMP_HEADER: stamp.text, HEAD_CODE_HEADER: head_code, CODE_HEADER: code}, data[:-1] + b"!"),
            ({STAMP_HEADER: stamp.text, HEAD_CODE_HEADER: head_code, CODE_HEADER: code}, data + b"!"),
            ({}, data),
        ):
            async with http.post(url, data=body, headers=said) as answer:
                assert answer.status == 401
        assert await made.local.bounds(made.queue) == (0, 1)


async def test_clocks_that_differ_too_much_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path, skew_ms=30_000) as near:
        assert await near.peer.bounds(near.queue) == (0, 0)
    (tmp_path / "far").mkdir()
    async with world(tmp_path / "far", skew_ms=30_001) as far:
        with pytest.raises(BrokerUnreachable):
            await far.peer.bounds(far.queue)


async def test_a_request_that_is_not_understood_is_said_so(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        for operation, head in (("bounds", {}), ("nothing", {}), ("append", {"calls": [[9, []]]})):
            with pytest.raises(MalformedBatch):
                await made.peer._ask(operation, head)


async def test_a_node_that_is_not_there_has_stored_nothing_and_one_that_goes_away_may_have() -> None:
    async with PeerBroker("n1", f"http://127.0.0.1:{free_port()}", SECRET, FakeClock()) as peer:
        with pytest.raises(BrokerUnreachable):
            await peer.append([append_of(QueueKey(16, 0), [b"a"])], acks=Acks.FLUSHED)

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    server = await asyncio.start_server(drop, "127.0.0.1", port := free_port())
    async with server, PeerBroker("n1", f"http://127.0.0.1:{port}", SECRET, FakeClock()) as peer:
        with pytest.raises(BrokerUnreachable):  # there is no link yet
            await peer.append([append_of(QueueKey(16, 0), [b"a"])], acks=Acks.FLUSHED)
        peer._no_links_until_s = float("inf")
        with pytest.raises(AnswerLost):
            await peer.append([append_of(QueueKey(16, 0), [b"a"])], acks=Acks.FLUSHED)
        with pytest.raises(BrokerUnreachable):
            await peer.bounds(QueueKey(16, 0))


async def test_a_connection_that_has_ended_is_made_again(tmp_path: Path) -> None:
    async with world(tmp_path, is_unix=True) as made:
        assert await made.peer.bounds(made.queue) == (0, 0)
        link = made.peer._link
        assert link is not None
        link.close()
        await until(lambda: link._connection is not None and link._connection.transport is None)
        both = await asyncio.gather(made.peer.bounds(made.queue), made.peer.bounds(made.queue))
        assert list(both) == [Bounds(0, 0)] * 2
        ended = asyncio.create_task(made.peer.append([append_of(made.queue, [b"a"])], acks=Acks.FLUSHED))
        await until(lambda: link._connection is not None and link._connection._waiting, pause_s=0)
        link.close()
        with pytest.raises(AnswerLost):
            await ended
    async with PeerBroker("n1", f"unix:{tmp_path / 'none'}", SECRET, FakeClock()) as peer:
        with pytest.raises(BrokerUnreachable):
            await peer.append([append_of(QueueKey(16, 0), [b"a"])], acks=Acks.FLUSHED)


async def test_what_is_no_frame_ends_the_connection(tmp_path: Path) -> None:
    async with world(tmp_path, is_unix=True) as made:
        for said in (b"\xff" * 20, b"".join(frame(0, "bounds", (b"x",))), b"".join(frame(0, "hello", (b"x" * 64,)))):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "peer.sock")
            writer.write(said)
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
        assert made.service.refused_count == 3


async def test_an_operation_that_fails_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, is_unix=True) as made:

        async def fail(*_: object) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(made.local, "bounds", fail)
        with pytest.raises(BrokerUnreachable, match="a mistake"):
            await made.peer.bounds(made.queue)


async def test_a_store_that_has_stopped_is_told_as_another_nodes(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """StoreStopped would have the timer, and recurring schedules, of this node stop for good."""

    def stopped(*_: object, **__: object) -> None:
        raise StoreStopped("a disk has failed")

    for operation in ("begin_append", "schedule", "seal_queue"):
        monkeypatch.setattr(made.local, operation, stopped)
    append = append_of(made.queue, [b"a"])
    for send in (made.peer.append([append], acks=Acks.FLUSHED), made.peer.schedule(append, acks=Acks.FLUSHED)):
        with pytest.raises(AnswerLost, match="a disk has failed"):
            await send
    with pytest.raises(BrokerUnreachable):
        await made.peer.seal_queue(made.queue)


async def test_what_waits_for_a_peer_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as made:
        size = len(append_of(made.queue, [bytes(100)]).batch)
        monkeypatch.setattr(peer_module, "WAITING_BYTES_MAX", 3 * size)
        begun = [made.peer.begin_append([append_of(made.queue, [bytes(100)])], acks=Acks.FLUSHED) for _ in range(3)]
        with pytest.raises(Overloaded):
            made.peer.begin_append([append_of(made.queue, [bytes(100)])], acks=Acks.FLUSHED)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*begun)
        await until(lambda: made.peer._waiting_bytes == 0)
        await made.peer.append([append_of(made.queue, [bytes(100)])], acks=Acks.FLUSHED)


async def test_leaving_a_peer_ends_what_waits(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        begun = made.peer.begin_append([append_of(made.queue, [b"a"])], acks=Acks.FLUSHED)
        made.peer.watch(made.topic.topic_id, lambda _: None)
        await asyncio.sleep(0)
        await made.peer.__aexit__()
        with pytest.raises((AnswerLost, BrokerUnreachable)):
            await begun
        assert not made.peer._running


async def test_two_nodes_know_each_other_while_the_secret_is_exchanged(tmp_path: Path) -> None:
    """The one that asks has the new secret first, or the old one last: while both are accepted, both are answered."""
    old, new = b"the old secret of nodes", b"the new secret of nodes"
    asking = Secret(old)
    async with world(tmp_path, secret=asking) as it:
        answering = it.service._secret = Secret(old)
        await it.peer.bounds(it.queue)
        answering.rotate(old, new)
        await it.peer.bounds(it.queue)
        asking.rotate(new, old)
        await it.peer.bounds(it.queue)
        answering.rotate(new, old)
        await it.peer.bounds(it.queue)
        asking.rotate(old, None)
        await it.peer.bounds(it.queue)
        answering.rotate(new, None)
        answering.forget_former()
        with pytest.raises(BrokerUnreachable):
            await it.peer.bounds(it.queue)


async def test_an_error_says_for_how_long_the_other_node_has_not_been_reached(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        reached_at = it.peer._url.removesuffix(PATH)
        it.peer.reach_at(f"http://127.0.0.1:{free_port()}")
        with pytest.raises(BrokerUnreachable) as first:
            await it.peer.bounds(it.queue)
        await asyncio.sleep(0.05)
        with pytest.raises(BrokerUnreachable) as second:
            await it.peer.bounds(it.queue)
        assert first.value.away_s < 0.05 <= second.value.away_s
        it.peer.reach_at(reached_at)
        await it.peer.bounds(it.queue)
        it.peer.reach_at(f"http://127.0.0.1:{free_port()}")
        with pytest.raises(BrokerUnreachable) as third:
            await it.peer.bounds(it.queue)
        assert third.value.away_s < 0.05, "it was there meanwhile"
