"""gateway.api.light.Rendering: what is in the records of light queues, of large entries too. All else of this file:
tests/gateway/surfaces/native/test_light.py."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gateway.api import light
from gateway.api.light import Rendering
from gateway.api.turns import COUNTED_BYTES
from gateway.codec.records import split_lines
from store import record_batch
from store.limits import HEADER_COUNT_MAX
from store.record_batch import PIECE_RECORDS, STEP_ITEMS, Record
from store.types import Buffer, Entry, LightRecord, QueueKey

QUEUE = QueueKey(16, 0)


def entry_of(batch: Buffer, *, position: int = 0) -> Entry:
    return Entry(position, len(batch), QUEUE, "orders", 0, record_batch.record_count(batch), 1_000, False, bytes(batch))


def batch_of(count: int, *, headers: int = 3, is_packed: bool = False) -> bytearray:
    """Records of different sizes."""
    records = [
        Record(b"k%d" % number, b"%d" % number**3, number, [(f"h{header}", b"x") for header in range(headers)])
        for number in range(count)
    ]
    batch = record_batch.encode(records)
    return record_batch.zstd_packed(batch, level=3) if is_packed else batch


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records the entries had that were opened."""
    counts: list[int] = []

    def noted(batch: Buffer) -> Any:
        counts.append(record_batch.record_count(batch))
        return (yield from steps(batch))

    steps = light._open_in_steps
    monkeypatch.setattr(light, "_open_in_steps", noted)
    return counts


async def read(rendering: Rendering, entry: Entry, indexes: range) -> list[dict[str, object]]:
    records = [(0, LightRecord(100 + index, entry, index)) for index in indexes]
    return await rendering.of("orders", b"a", records, topic_id=None)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("count", [1, PIECE_RECORDS, PIECE_RECORDS + 1, 3 * PIECE_RECORDS])
async def test_every_record_is_what_was_sent_and_has_its_place(count: int, is_packed: bool) -> None:
    shown = await read(Rendering(), entry_of(batch_of(count, is_packed=is_packed)), range(0, count, 2))
    numbers = range(0, count, 2)
    lines = [orjson.loads(line) for line in split_lines(shown)]
    assert [(line["offset"], line["timestamp"], line["queue"], line["queue_offset"]) for line in lines] == [
        (number, number, "a", 100 + number) for number in numbers
    ]
    assert [(line["key_text"], line["value"]) for line in lines] == [(f"k{number}", number**3) for number in numbers]
    assert all(len(line["headers"]) == 3 for line in lines)


async def test_an_entry_is_opened_once_for_all_who_come_meanwhile(opened: list[int]) -> None:
    rendering, entry = Rendering(), entry_of(batch_of(PIECE_RECORDS + 1))
    await asyncio.gather(*(read(rendering, entry, range(number, number + 2)) for number in range(5)))
    assert opened == [PIECE_RECORDS + 1]
    other = entry_of(batch_of(PIECE_RECORDS), position=1)
    assert len(await read(rendering, other, range(1))) == 1
    assert opened == [PIECE_RECORDS + 1, PIECE_RECORDS]


@pytest.mark.parametrize(("size", "is_packed", "is_counted"), [
    (COUNTED_BYTES - 1, False, False), (COUNTED_BYTES, False, True), (COUNTED_BYTES, True, True),
])  # fmt: skip
async def test_opening_a_small_entry_does_not_count_in_the_turn(
    opened: list[int], size: int, is_packed: bool, is_counted: bool
) -> None:
    value = b"x" * (size - len(record_batch.encode([Record(None, b"x" * 2_000, 1)])) + 2_000)
    batch = record_batch.encode([Record(None, value, 1)])
    assert len(batch) == size
    entry = entry_of(record_batch.zstd_packed(batch, level=3) if is_packed else batch)
    [shown] = await read(Rendering(), entry, range(1))
    assert shown["value_text"] == value.decode()
    assert opened == [1] * is_counted


async def test_no_headers_are_looked_at_but_those_of_the_records_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes may have half a million of them."""
    entry = entry_of(batch_of(STEP_ITEMS // 10, headers=HEADER_COUNT_MAX, is_packed=True))
    monkeypatch.setattr(light, "decode", lambda _: pytest.fail("all are decoded"))
    [shown] = await read(Rendering(), entry, range(7, 8))
    assert shown["key_text"] == "k7"


async def test_others_have_their_turn_while_records_begin_to_be_looked_up_and_are_shown() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    record_count = 2 * STEP_ITEMS + 1
    entry = entry_of(batch_of(record_count, headers=0))
    counting = asyncio.ensure_future(count())
    rendering = Rendering()
    await asyncio.sleep(0)
    before = turns
    await read(rendering, entry, range(1))
    assert turns - before >= 2
    before = turns
    await read(rendering, entry, range(3 * PIECE_RECORDS))
    assert turns - before >= 2
    counting.cancel()
