"""gateway.brokers.kafka.read_ahead."""

from __future__ import annotations

import asyncio

import pytest

from gateway.brokers.kafka import read_ahead
from gateway.brokers.kafka.port import Fetched
from gateway.brokers.kafka.read_ahead import AHEAD_BYTES_MAX, AHEAD_MAX, READERS_MAX, Fetch, ReadAhead
from store.types import QueueKey

QUEUE = QueueKey(16, 3)


class Log:
    """Answers with the offset; each fetch counted. Those of `held` wait; `broken` ones raise."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.called_off: list[int] = []
        self.broken: set[int] = set()
        self.held: dict[int, asyncio.Event] = {}

    def fetch(self, offset: int) -> Fetch:
        async def fetch() -> Fetched:
            self.asked.append(offset)
            try:
                if offset in self.held:
                    await self.held[offset].wait()
            except asyncio.CancelledError:
                self.called_off.append(offset)
                raise
            if offset in self.broken:
                raise OSError(f"at {offset}")
            return Fetched(memoryview(b"%d" % offset), 0, 99)

        return fetch


async def read(ahead: ReadAhead, log: Log, offset: int, *, size: int = 10, has_more: bool = True, by: int = 1) -> bytes:
    found = await ahead.fetched((QUEUE, offset), log.fetch(offset))
    ahead.has_read((QUEUE, offset), (QUEUE, offset + by), size, log.fetch(offset + by) if has_more else None)
    return bytes(found.batches)


async def waiting_for_an_answer() -> tuple[ReadAhead, Log, asyncio.Task[bytes]]:
    """A reader who waits for what is held at offset 2, asked for ahead."""
    ahead, log = ReadAhead(), Log()
    log.held[2] = asyncio.Event()
    for offset in range(2):
        await read(ahead, log, offset)
    reading = asyncio.create_task(read(ahead, log, 2))
    await turns()
    assert not reading.done()
    return ahead, log, reading


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_reads_on_finds_what_comes_next() -> None:
    ahead, log = ReadAhead(), Log()
    assert await read(ahead, log, 0) == b"0"
    await turns()
    assert log.asked == [0], "one read says nothing of another"
    for offset in range(1, 6):
        assert await read(ahead, log, offset) == b"%d" % offset
        await turns()
        assert log.asked == [*range(offset + 2)], "each once"
    assert await read(ahead, log, 6, has_more=False) == b"6"
    await turns()
    assert log.asked == [*range(7)], "there is nothing behind the end"
    ahead.close()


async def test_others_do_not_take_it() -> None:
    ahead, log = ReadAhead(), Log()
    for offset in range(2):
        await read(ahead, log, offset)
    await turns()
    assert log.asked == [0, 1, 2]
    assert bytes((await ahead.fetched((QueueKey(16, 4), 2), log.fetch(70))).batches) == b"70", "another queue"
    assert await read(ahead, log, 2, size=11) == b"2", "of another size: whole batches are what they are"
    assert log.asked[3:] == [70]
    ahead.close()


@pytest.mark.parametrize(("size", "is_asked"), [(AHEAD_BYTES_MAX, True), (AHEAD_BYTES_MAX + 1, False)])
async def test_large_answers_are_not_asked_for_ahead(size: int, is_asked: bool) -> None:
    ahead, log = ReadAhead(), Log()
    for offset in range(2):
        await read(ahead, log, offset, size=size)
    await turns()
    assert log.asked == ([0, 1, 2] if is_asked else [0, 1])
    ahead.close()


async def test_so_many_answers_are_ahead_and_no_more() -> None:
    ahead, log = ReadAhead(), Log()
    for number in range(AHEAD_MAX + 3):
        for offset in (10 * number, 10 * number + 1):
            await read(ahead, log, offset)
    await turns()
    assert [offset for offset in log.asked if offset % 10 == 2] == [10 * number + 2 for number in range(AHEAD_MAX)]
    await read(ahead, log, 2, has_more=False)
    await read(ahead, log, 10 * AHEAD_MAX + 2)
    await turns()
    assert log.asked[-1] == 10 * AHEAD_MAX + 3, "one was taken"
    ahead.close()
    await turns()
    assert not ahead._under_way


async def test_ends_of_reads_are_forgotten_the_oldest_first() -> None:
    ahead, log = ReadAhead(), Log()
    for number in range(READERS_MAX + 1):
        await read(ahead, log, 10 * number)
    assert len(ahead._ends) == READERS_MAX
    await read(ahead, log, 1)
    await turns()
    assert log.asked[-1] == 1, "it is not known any more"
    await read(ahead, log, 10 * READERS_MAX + 1)
    await turns()
    assert log.asked[-1] == 10 * READERS_MAX + 2
    ahead.close()


async def test_what_nobody_takes_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "KEPT_S", 0.01)
    ahead, log = ReadAhead(), Log()
    log.held[2] = asyncio.Event()
    for offset in (0, 1, 10, 11):
        await read(ahead, log, offset)
    await turns()
    assert len(ahead._under_way) == 2
    while ahead._under_way:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.01)
    await turns()
    assert log.called_off == [2], "who was asked is told"
    assert await read(ahead, log, 12) == b"12"
    assert log.asked.count(12) == 2
    ahead.close()


async def test_an_answer_on_its_way_is_waited_for() -> None:
    ahead, log, reading = await waiting_for_an_answer()
    log.held[2].set()
    assert await reading == b"2"
    assert log.asked.count(2) == 1
    ahead.close()


async def test_who_goes_away_calls_it_off() -> None:
    _, log, reading = await waiting_for_an_answer()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert log.called_off == [2]


async def test_what_could_not_be_had_is_asked_for_once_more() -> None:
    ahead, log = ReadAhead(), Log()
    log.broken.add(2)
    for offset in range(2):
        await read(ahead, log, offset)
    await turns()
    log.broken.clear()
    assert await read(ahead, log, 2) == b"2"
    log.broken.add(3)
    with pytest.raises(OSError, match="at 3"):
        await read(ahead, log, 3)
