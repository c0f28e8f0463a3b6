"""Links between nodes (gateway.cluster.peer_link, gateway.surfaces.peer.connection): frames that were recorded, changed
or sent elsewhere are refused, and change nothing; nodes of before are asked by HTTP; secrets that are exchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.cluster import peer as peer_module
from gateway.cluster import peer_link
from gateway.cluster.peer import PeerBroker
from gateway.cluster.peer_auth import FRAME_CODES, NONCE_BYTES, NotAuthentic, Secret
from gateway.cluster.peer_link import LINK, PATH
from gateway.surfaces.peer.connection import READS_AT_ONCE
from gateway.surfaces.peer.server import PeerService
from store.types import Acks, QueueKey, ReadResult
from tests.clock import FakeClock
from tests.gateway.cluster.etcd_server import free_port
from tests.gateway.surfaces.peer.test_server import SECRET, World, world
from tests.store.kit import append_of
from tests.waiting import PATIENCE_S, until

NEW = b"the next secret of these nodes"


async def append(made: World, peer: PeerBroker, value: bytes = b"a") -> int:
    async with asyncio.timeout(PATIENCE_S):
        [appended] = await peer.append([append_of(made.queue, [value])], acks=Acks.FLUSHED)
    return appended.base_offset


class _Wire:
    """A relay that keeps what is sent, and may change it. Every piece that it reads is passed on at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sent: list[bytes] = []
        self.change: Callable[[bytes], bytes] = lambda piece: piece
        self.is_held = False
        self._writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers = [writer, to]

        async def back() -> None:
            while piece := await there.read(65536):
                if not self.is_held:
                    writer.write(piece)
            writer.close()

        answering = asyncio.create_task(back())
        while piece := await reader.read(65536):
            self.sent.append(piece)
            to.write(self.change(piece))
        to.close()
        await answering

    async def said(self, *pieces: bytes) -> bytes:
        """What the node answers to these pieces on a connection of their own, until it ends it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.writelines(pieces)
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read(1000)
        writer.close()
        return answer


@asynccontextmanager
async def tapped(directory: Path) -> AsyncIterator[tuple[World, PeerBroker, _Wire]]:
    """A node, a peer that reaches it through a relay, and the relay."""
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(world(directory))
        wire = _Wire(int(made.peer._url.split(":")[2].split("/")[0]))
        relay = await asyncio.start_server(wire.accept, "127.0.0.1", port := free_port())
        stack.callback(relay.close)
        peer = await stack.enter_async_context(PeerBroker("n1", f"http://127.0.0.1:{port}", SECRET, FakeClock()))
        yield made, peer, wire


async def test_a_link_carries_appends_and_its_bytes_are_good_nowhere_else(tmp_path: Path) -> None:
    async with tapped(tmp_path) as (made, peer, wire):
        assert [await append(made, peer), await append(made, peer)] == [0, 1]
        assert peer._link is not None
        first, *frames = wire.sent
        assert first.startswith(f"POST {PATH}{LINK} HTTP/1.1\r\n".encode())
        assert not any(b"HTTP" in piece for piece in frames)
        assert (await wire.said(first)).startswith(b"HTTP/1.1 401 "), "its number was seen"
        assert b" 400 Bad Request" in await wire.said(*frames)
        refused = made.service.refused_count
        wire.change = lambda piece: piece + frames[-1]  # a frame that was sent before
        with pytest.raises(AnswerLost):
            await append(made, peer)
        wire.change = lambda piece: piece
        assert made.service.refused_count == refused + 1
        assert await made.local.bounds(made.queue) == (0, 2)
        assert await append(made, peer) == 2, "by another link"


@pytest.mark.parametrize("at", [5, 20, -40, -1])
async def test_a_frame_that_was_changed_stores_nothing_and_ends_the_link(tmp_path: Path, at: int) -> None:
    async with tapped(tmp_path) as (made, peer, wire):
        await append(made, peer)

        def changed(piece: bytes) -> bytes:
            whole = bytearray(piece)
            whole[at] ^= 1
            return bytes(whole)

        wire.change = changed
        with pytest.raises(AnswerLost):
            await append(made, peer)
        wire.change = lambda piece: piece
        assert await made.local.bounds(made.queue) == (0, 1)
        assert await append(made, peer) == 1


async def test_an_answer_that_does_not_come_is_lost_and_the_next_append_has_another_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tapped(tmp_path) as (made, peer, wire):
        await append(made, peer)
        monkeypatch.setattr(peer_module, "CALL_TIMEOUT_S", 0.05)
        wire.is_held = True
        with pytest.raises(AnswerLost):
            await append(made, peer)
        monkeypatch.undo()
        wire.is_held = False
        assert await append(made, peer) == 2, "the one whose answer was lost is stored"


async def test_an_answer_to_the_first_request_that_does_not_come_leaves_nothing_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "CONNECT_TIMEOUT_S", 0.05)
    async with tapped(tmp_path) as (made, peer, wire):
        wire.is_held = True
        with pytest.raises(BrokerUnreachable):
            await append(made, peer)
        assert await made.local.bounds(made.queue) == (0, 0)


async def test_all_who_need_a_link_that_cannot_be_made_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_link, "CONNECT_TIMEOUT_S", 0.2)
    async with asyncio.timeout(PATIENCE_S), tapped(tmp_path) as (made, peer, wire):
        wire.is_held = True
        begun_s = asyncio.get_running_loop().time()
        asked = [asyncio.create_task(peer.bounds(made.queue)) for _ in range(30)]
        await asyncio.wait(asked)
        assert {type(each.exception()) for each in asked} == {BrokerUnreachable}
        assert asyncio.get_running_loop().time() - begun_s < 30 * 0.2, "not one after the other"
        assert len(wire.sent) == 1
        asked = [asyncio.create_task(peer.bounds(made.queue)) for _ in range(3)]
        await until(lambda: len(wire.sent) == 2)
        asked[0].cancel()  # the others still wait
        peer._close_links()  # as when the node is found at another address
        await asyncio.wait(asked)
        assert asked[0].cancelled()
        assert [type(each.exception()) for each in asked[1:]] == [BrokerUnreachable] * 2
        wire.is_held = False
        assert await peer.bounds(made.queue) == (0, 0)


async def test_a_node_of_before_is_asked_by_http_and_for_a_link_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "NO_LINKS_S", 0.2)
    async with world(tmp_path) as made, AsyncExitStack() as stack:
        service = PeerService(made.local, SECRET, FakeClock(), queues_of=made.store.queues_of)
        old = web.Application()
        old.router.add_post(PATH + "{operation}", service._answer)
        runner = web.AppRunner(old)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", port := free_port()).start()
        peer = await stack.enter_async_context(PeerBroker("n1", f"http://127.0.0.1:{port}", SECRET, FakeClock()))
        asked: list[str] = []
        done = service.done

        async def noted(operation: str, body: bytes) -> bytes:
            asked.append(operation)
            return await done(operation, body)

        monkeypatch.setattr(service, "done", noted)
        assert [await append(made, peer), await append(made, peer)] == [0, 1]
        assert asked == [LINK, "append", "append"]
        await asyncio.sleep(0.25)
        await append(made, peer)
        assert asked[3:] == [LINK, "append"]
        peer._no_links_until_s = 0.0
        assert await peer.bounds(made.queue) == await peer.bounds(made.queue) == (0, 3)
        assert asked[5:] == [LINK, "bounds", "bounds"]


async def test_a_link_goes_with_the_secret_that_it_was_made_with(tmp_path: Path) -> None:
    theirs = Secret(b"the secret of a node before")
    async with world(tmp_path, secret=theirs) as made:
        ours = made.service._secret = Secret(b"the secret of a node before")
        assert await append(made, made.peer) == 0
        link = made.peer._link
        assert link is not None
        before = link._connection
        ours.rotate(b"the secret of a node before", NEW)
        theirs.rotate(NEW, b"the secret of a node before")
        assert await append(made, made.peer) == 1
        assert link._connection is not before, "made with the one that is sent with now"
        ours.rotate(b"a third one, of other nodes", None)
        ours.forget_former()
        with pytest.raises(AnswerLost):
            await append(made, made.peer)
        assert await made.local.bounds(made.queue) == (0, 2)


async def test_a_link_is_there_before_the_first_append_that_is_expected(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), world(tmp_path) as made:
        link = made.peer._link
        assert link is not None
        made.peer.expect_appends()
        await until(lambda: link._connection is not None)
        before = link._connection
        made.peer.expect_appends()
        assert await append(made, made.peer) == 0
        assert link._connection is before
    async with PeerBroker("n1", f"http://127.0.0.1:{free_port()}", SECRET, FakeClock()) as away:
        away.expect_appends()
        await until(lambda: not away._running)


async def test_a_link_that_was_idle_for_long_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as made:
        await append(made, made.peer)
        link = made.peer._link
        assert link is not None
        before = link._connection
        await append(made, made.peer)
        assert link._connection is before
        monkeypatch.setattr(peer_link, "IDLE_S", 0.0)
        await append(made, made.peer)
        assert link._connection is not before
        assert before is not None
        await until(lambda: before.transport is None)


async def test_a_node_that_stops_ends_its_links_at_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(world(tmp_path))
        await append(made, made.peer)
        await made.service._end_links(web.Application())
        link = made.peer._link
        assert link is not None
        await until(lambda: link._connection is not None and link._connection.transport is None)
        assert await append(made, made.peer) == 1


async def test_reads_go_over_a_link_of_their_own_and_what_waits_over_none(tmp_path: Path) -> None:
    async with tapped(tmp_path) as (made, peer, wire):
        assert await append(made, peer) == 0
        asked = len(wire.sent)
        read = await peer.read(made.queue, 0, max_bytes=1000)
        assert [bytes(entry.batch) for entry in read.entries]
        assert await peer.bounds(made.queue) == (0, 1)
        first, *frames = wire.sent[asked:]
        assert first.startswith(f"POST {PATH}{LINK} HTTP/1.1\r\n".encode())
        assert len(frames) == 2
        assert not any(b"HTTP" in piece for piece in frames)
        forget = peer.watch(made.topic.topic_id, lambda _: None)
        await until(lambda: wire.sent[-1].startswith(f"POST {PATH}changes HTTP/1.1\r\n".encode()))
        forget()


class _Held:
    """Reads of a broker that wait, and how many were begun."""

    def __init__(self, made: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.goes_on = asyncio.Event()
        self._read = made.local.read
        monkeypatch.setattr(made.local, "read", self.read)

    async def read(self, queue: QueueKey, offset: int, **named: Any) -> ReadResult:
        self.begun += 1
        await self.goes_on.wait()
        return await self._read(queue, offset, **named)


@pytest.mark.parametrize("is_unix", [False, True])
async def test_so_many_reads_of_a_link_are_answered_at_a_time_and_nothing_else_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_unix: bool
) -> None:
    async with asyncio.timeout(PATIENCE_S), world(tmp_path, is_unix=is_unix) as made:
        held = _Held(made, monkeypatch)
        reads = [asyncio.create_task(made.peer.read(made.queue, 0, max_bytes=100)) for _ in range(READS_AT_ONCE + 1)]
        await until(lambda: held.begun == READS_AT_ONCE)
        assert await append(made, made.peer) == 0
        assert await made.peer.bounds(made.queue) == (0, 1)
        assert held.begun == READS_AT_ONCE
        held.goes_on.set()
        assert [len(read.entries) for read in await asyncio.gather(*reads)] == [1] * len(reads)


async def test_answers_to_reads_are_not_gathered_for_who_does_not_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, size, records = 400, 15_000, 6
    async with asyncio.timeout(PATIENCE_S), world(tmp_path) as made:
        for _ in range(records):
            await append(made, made.peer, bytes(size))
        held = _Held(made, monkeypatch)
        held.goes_on.set()
        assert await made.peer.bounds(made.queue) == (0, records)  # there is a link
        assert made.peer._second_link is not None
        connection = made.peer._second_link._connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.pause_reading()
        reads = [asyncio.create_task(made.peer.read(made.queue, 0, max_bytes=records * size)) for _ in range(count)]
        before = -1
        while held.begun > before:  # until it goes no further
            before = held.begun
            await asyncio.sleep(0.1)
        assert READS_AT_ONCE < held.begun < count
        assert await append(made, made.peer) == records, "over the other link"
        [serving] = [link for link in made.service._links if not link._is_taken.is_set()]
        assert serving._transport is not None
        assert serving._transport.get_write_buffer_size() < (READS_AT_ONCE + 1) * records * size
        connection.transport.resume_reading()
        assert {len(read.entries) for read in await asyncio.gather(*reads)} == {records - 1}


async def test_what_was_asked_over_a_link_that_is_made_anew_is_answered_over_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Secret(b"the secret of a node before")
    async with asyncio.timeout(PATIENCE_S), world(tmp_path, secret=theirs) as made:
        made.service._secret = ours = Secret(b"the secret of a node before")
        held = _Held(made, monkeypatch)
        slow = asyncio.create_task(made.peer.read(made.queue, 0, max_bytes=100))
        await until(lambda: held.begun == 1)
        link = made.peer._second_link
        assert link is not None
        before = link._connection
        assert before is not None
        ours.rotate(b"the secret of a node before", NEW)
        theirs.rotate(NEW, b"the secret of a node before")
        assert await made.peer.bounds(made.queue) == (0, 0)
        assert link._connection is not before
        assert before.transport is not None
        held.goes_on.set()
        assert (await slow).max_offset == 0
        await until(lambda: before.transport is None)


@pytest.mark.parametrize("is_heard", [False, True])
async def test_a_read_that_takes_too_long_ends_the_link_only_when_nothing_else_is_answered_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> None:
    async with asyncio.timeout(PATIENCE_S), world(tmp_path) as made:
        await made.peer.bounds(made.queue)
        held = _Held(made, monkeypatch)
        monkeypatch.setattr(peer_module, "CALL_TIMEOUT_S", 0.5)
        link = made.peer._second_link
        assert link is not None
        before = link._connection
        slow = asyncio.create_task(made.peer.read(made.queue, 0, max_bytes=100))
        await until(lambda: held.begun == 1)
        if is_heard:
            await made.peer.bounds(made.queue)
        with pytest.raises(BrokerUnreachable):
            await slow
        await made.peer.bounds(made.queue)
        assert (link._connection is before) == is_heard
        held.goes_on.set()


@pytest.mark.parametrize("kind", FRAME_CODES)
def test_codes_of_frames_are_of_their_place_direction_and_link(kind: str) -> None:
    wish = f"{kind} {'ab' * NONCE_BYTES}"
    to, back = SECRET.link_codes(wish, "1")
    same, _ = SECRET.link_codes(wish, "1")
    first, second = to.next(b"ab"), to.next(b"ab")
    assert len({first, second, back.next(b"ab"), SECRET.link_codes(wish, "2")[0].next(b"ab")}) == 4
    same.check(b"ab", first)
    same.check(b"ab", second)
    with pytest.raises(NotAuthentic):
        same.check(b"ab", second)
    for wrong in (f"md5 {'ab' * NONCE_BYTES}", kind, f"{kind} ab", ""):
        with pytest.raises(ValueError, match="not understood"):
            SECRET.link_codes(wrong, "1")
