"""The way out of a socket: order, bound, and what happens when nobody takes what we write."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from gateway.surfaces.ws.outbox import Closing, Outbox, OutboxClosed
from tests.waiting import until


def never(frame: bytes, is_binary: bool) -> bool:
    return False


class Held:
    """Starts what writes the queue when the test says so."""

    def __init__(self) -> None:
        self.works: list[Coroutine[object, object, None]] = []

    def __call__(self, work: Coroutine[object, object, None]) -> None:
        self.works.append(work)

    def run(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.works.pop())


class Transport:
    """Takes a frame whenever the test says so."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.open = asyncio.Event()
        self.open.set()
        self.writing = asyncio.Event()

    async def write(self, frame: bytes, is_binary: bool) -> None:
        self.writing.set()
        await self.open.wait()
        self.taken.append(frame)


async def test_frames_leave_in_order_and_send_waits_for_the_transport() -> None:
    transport = Transport()
    transport.open.clear()
    outbox = Outbox(transport.write, bytes_max=100, write_at_once=never, start=asyncio.create_task)
    await outbox.put(b"1")
    sending = asyncio.create_task(outbox.send(b"2"))
    await transport.writing.wait()
    assert not sending.done()
    transport.open.set()
    await sending
    assert transport.taken == [b"1", b"2"]
    await outbox.put(b"3")
    await outbox.flush()
    assert transport.taken == [b"1", b"2", b"3"]


async def test_who_puts_too_much_waits_and_nobody_overtakes() -> None:
    transport = Transport()
    transport.open.clear()
    outbox = Outbox(transport.write, bytes_max=10, write_at_once=never, start=asyncio.create_task)
    await outbox.put(b"a" * 6)
    await transport.writing.wait()
    large = asyncio.create_task(outbox.put(b"b" * 5))
    small = asyncio.create_task(outbox.put(b"c"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not large.done()
    assert not small.done(), "it would fit, but came later"
    transport.open.set()
    await asyncio.gather(large, small)
    await outbox.flush()
    assert transport.taken == [b"a" * 6, b"b" * 5, b"c"]
    await outbox.put(b"d" * 1000)  # larger than the bound, but alone
    await outbox.flush()


async def test_a_peer_that_is_gone_is_no_error() -> None:
    async def write(frame: bytes, is_binary: bool) -> None:
        raise ConnectionResetError

    outbox = Outbox(write, bytes_max=10, write_at_once=never, start=(held := Held()))
    await outbox.put(b"1")
    with pytest.raises(Closing) as closing:
        await held.run()
    assert closing.value.code is None


async def test_a_sender_that_is_cancelled_does_not_disturb_the_writer() -> None:
    transport = Transport()
    transport.open.clear()
    outbox = Outbox(transport.write, bytes_max=10, write_at_once=never, start=asyncio.create_task)
    sending = asyncio.create_task(outbox.send(b"1"))
    await transport.writing.wait()
    sending.cancel()
    transport.open.set()
    await outbox.flush()
    assert transport.taken == [b"1"]


async def test_who_waits_when_the_connection_ends_is_told() -> None:
    transport = Transport()
    transport.open.clear()
    outbox = Outbox(transport.write, bytes_max=10, write_at_once=never, start=asyncio.create_task)
    sending = asyncio.create_task(outbox.send(b"a" * 10))
    await transport.writing.wait()
    waiting = asyncio.create_task(outbox.put(b"b"))
    await asyncio.sleep(0)
    outbox.close()
    for task in (sending, waiting, outbox.put(b"c")):
        with pytest.raises(OutboxClosed):
            await task


async def test_what_the_transport_takes_at_once_is_written_by_its_sender_unless_something_is_before_it() -> None:
    transport = Transport()

    def write_at_once(frame: bytes, is_binary: bool) -> bool:
        if len(frame) < 3:
            transport.taken.append(frame)
        return len(frame) < 3

    outbox = Outbox(transport.write, bytes_max=100, write_at_once=write_at_once, start=(held := Held()))
    await outbox.send(b"0")
    await outbox.put(b"1")
    assert transport.taken == [b"0", b"1"], "nobody else runs"
    await outbox.put(b"222")
    assert not outbox.send_at_once(b"3")
    behind = asyncio.create_task(outbox.send(b"3"))
    last = asyncio.create_task(outbox.put(b"4"))
    await asyncio.sleep(0)
    assert transport.taken == [b"0", b"1"]
    held.run()
    await asyncio.gather(behind, last)
    await until(lambda: transport.taken[-1] == b"4")
    assert held.works == [], "one task for all that waits"
    assert outbox.send_at_once(b"5")
    assert not outbox.send_at_once(b"666")
    outbox.close()
    assert not outbox.send_at_once(b"7")
    assert transport.taken == [b"0", b"1", b"222", b"3", b"4", b"5"]


async def test_a_sender_that_finds_the_transport_gone_leaves_that_to_the_writer() -> None:
    async def write(frame: bytes, is_binary: bool) -> None:
        raise ConnectionResetError

    outbox = Outbox(write, bytes_max=10, write_at_once=never, start=(held := Held()))
    sending = asyncio.create_task(outbox.send(b"1"))
    await asyncio.sleep(0)
    with pytest.raises(Closing):
        await held.run()
    outbox.close()
    with pytest.raises(OutboxClosed):
        await sending
    with pytest.raises(OutboxClosed):
        await outbox.send(b"2")
