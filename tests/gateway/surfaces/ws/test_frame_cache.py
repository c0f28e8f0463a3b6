"""What is encoded once for many: cuts, filters, the cache's bound, and one read for all who ask at once.

Covers gateway.routing.tail_watcher and gateway.surfaces.ws.merged too: what they share among many.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import orjson
import pytest

from gateway.api.tasks import Tasks
from gateway.api.turns import COUNTED_BYTES
from gateway.codec.filters import parse_filter
from gateway.codec.records import render_records_in_steps, split_lines
from gateway.codec.texts import KEPT_RECORDS_MIN
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.ws.commands import Form
from gateway.surfaces.ws.frame_cache import CACHE_BYTES_MAX, FrameCache, Wanted, _render_all, cut_in_ranges, one_message
from gateway.surfaces.ws.merged import Merged
from gateway.surfaces.ws.protocol import FRAME_BYTES_TARGET
from store.record_batch import Record, at_once
from store.turns import TURN_S
from store.types import Entry
from tests.gateway.codec.test_texts import entry_of
from tests.gateway.fake_broker import FakeBroker
from tests.gateway.surfaces.ws.memory import memory_gateway
from tests.gateway.surfaces.ws.talk import subscribe, talking
from tests.waiting import until

ALL = Wanted(Form.JSON, 10)


async def filled(count: int, *, tag: str | None = None) -> tuple[Gateway, FakeBroker]:
    gateway, broker = memory_gateway({"orders": 1})
    for n in range(count):
        record = {"value": n} if tag is None else {"value": n, "tag": tag if n % 3 == 0 else "other"}
        await produce(gateway, record)
    return gateway, broker


async def produce(gateway: Gateway, record: dict[str, object]) -> None:
    from gateway.codec.records import Format, parse_records

    await gateway.producer.produce("orders", parse_records([record], Format.JSON, raw_keys=False), json_values=True)


def frame_cache_of(gateway: Gateway, cache_bytes_max: int = CACHE_BYTES_MAX) -> FrameCache:
    return FrameCache(gateway.consumer, lambda name: gateway.routes_table.topic(name).topic_id, cache_bytes_max)


async def read(frame_cache: FrameCache, offset: int, wanted: Wanted = ALL, count_max: int = 1000) -> list[int]:
    portion = await frame_cache.read("orders", 16, 0, offset, wanted, count_max=count_max)
    return [orjson.loads(b"[" + part.body + b"]")[n]["value"] for part in portion.ranges for n in range(len(part.ends))]


async def test_ranges_follow_each_other_without_a_gap_and_each_prefix_is_json() -> None:
    gateway, _ = await filled(25)
    frame_cache = frame_cache_of(gateway)
    portion = await frame_cache.read("orders", 16, 0, 3, ALL, count_max=1000)
    assert [(part.start, part.stop) for part in portion.ranges] == [(3, 13), (13, 23), (23, 25)]
    part = portion.ranges[0]
    for count in range(1, 11):
        messages = orjson.loads(b"[" + part.body[: part.marks[count - 1]] + b"]")
        assert [message["value"] for message in messages] == list(range(3, 3 + count))
        assert part.size_bytes(count) == sum(len(orjson.dumps(message)) for message in messages)
    beyond = await frame_cache.read("orders", 16, 0, 26, ALL, count_max=1000)
    assert (beyond.ranges, beyond.end) == ((), 25)


async def test_many_who_ask_at_once_share_one_read() -> None:
    gateway, broker = await filled(10)
    frame_cache = frame_cache_of(gateway)
    before = broker.read_count
    answers = await asyncio.gather(*[read(frame_cache, 0) for _ in range(100)])
    assert answers == [list(range(10))] * 100
    assert broker.read_count == before + 1
    assert await read(frame_cache, 0, count_max=3) == list(range(10)), "what is there already costs nothing"
    assert await read(frame_cache, 5, count_max=3) == [5, 6, 7], "else a poor client gets what it may have"


async def test_a_reader_that_gives_up_does_not_hold_up_the_others() -> None:
    gateway, _ = await filled(5)
    frame_cache = frame_cache_of(gateway)
    first = asyncio.create_task(read(frame_cache, 0))
    second = asyncio.create_task(read(frame_cache, 0))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == list(range(5))


async def test_the_cache_forgets_the_oldest_beyond_its_bytes() -> None:
    gateway, broker = await filled(40)
    frame_cache = frame_cache_of(gateway, cache_bytes_max=8_000)
    for offset in range(0, 40, 10):
        await read(frame_cache, offset, Wanted(Form.JSON, 10))
        assert frame_cache._bytes <= 8_000
    before = broker.read_count
    await read(frame_cache, 30)
    assert broker.read_count == before
    await read(frame_cache, 0)
    assert broker.read_count == before + 1


@pytest.mark.parametrize("form", [Form.JSON, Form.BINARY])
async def test_a_filter_leaves_out_the_others_and_moves_on_behind_them(form: Form) -> None:
    gateway, _ = await filled(20, tag="paid")
    frame_cache = frame_cache_of(gateway)
    wanted = Wanted(form, 4, parse_filter("tag:paid"))
    portion = await frame_cache.read("orders", 16, 0, 1, wanted, count_max=1000)
    assert [list(part.ends) for part in portion.ranges] == [[4, 7, 10, 13], [16, 19]]
    assert portion.ranges[-1].stop == 20
    nothing = await frame_cache.read("orders", 16, 0, 0, Wanted(form, 4, parse_filter("tag:none")), count_max=1000)
    assert [(part.start, part.stop, len(part.ends)) for part in nothing.ranges] == [(0, 20, 0)]
    few = await frame_cache.read("orders", 16, 0, 1, wanted, count_max=2)
    assert few.ranges[0].ends, "cached or not, at least what may be sent is there"


async def test_a_filtered_subscription_gets_its_tags_only_and_credit_counts_those() -> None:
    async with talking({"orders": 1}) as talk:
        records = [{"value": n, "tag": "ab"[n % 2]} for n in range(20)]
        await talk.answer({"id": 1, "op": "produce", "topic": "orders", "records": records})
        await talk.say(subscribe(filter="tag:b", credit=4, auto_credit=False))
        await talk.hear()
        assert [message["offset"] for message in await talk.messages(4)] == [1, 3, 5, 7]
        await talk.quiet()
        await talk.say({"op": "permit", "sub": "s", "messages": 100})
        assert [message["offset"] for message in await talk.messages(6)] == [9, 11, 13, 15, 17, 19]


@pytest.mark.parametrize(
    "wanted",
    [ALL, Wanted(Form.JSON, 4, parse_filter("tag:paid")), Wanted(Form.BINARY, 4)],
    ids=["all", "some", "binary"],
)
async def test_of_many_reads_that_come_together_few_are_encoded_in_a_turn(
    wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a socket with a thousand partitions: each is one step, which by itself asks for no turn."""
    gateway, _ = await filled(20, tag="paid")
    turn, encoding_s = 0, 0.0
    turns: Counter[int] = Counter()

    async def other() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    def thread_time() -> float:  # asked for before a step and behind it
        nonlocal encoding_s
        encoding_s += 0.6 * TURN_S
        turns[turn] += 1
        return encoding_s

    monkeypatch.setattr("gateway.api.turns.thread_time", thread_time)
    running = asyncio.ensure_future(other())
    caches = [frame_cache_of(gateway) for _ in range(9)]
    await asyncio.gather(*(cache.read("orders", 16, 0, 0, wanted, count_max=1000) for cache in caches))
    running.cancel()
    assert sum(turns.values()) >= 9
    assert max(turns.values()) <= 4, "two reads, before and behind each"


@pytest.mark.parametrize(("value_bytes", "is_counted"), [(10, False), (COUNTED_BYTES, True)])
async def test_one_small_record_does_not_count(
    value_bytes: int, is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its push takes longer; a large one may take milliseconds."""
    gateway, _ = await filled(0)
    await produce(gateway, {"value": "v" * value_bytes})
    asked: list[float] = []
    cache = frame_cache_of(gateway)
    with monkeypatch.context() as patch:
        patch.setattr("store.turns.Stretches.spent", lambda _, seconds: asked.append(seconds))
        portion = await cache.read("orders", 16, 0, 0, ALL, count_max=1000)
    assert len(portion.ranges) == 1
    assert bool(asked) is is_counted


async def test_all_who_wait_at_an_end_are_woken_by_one_read() -> None:
    gateway, broker = await filled(3)
    consumer = gateway.consumer
    woken: list[int] = []
    for n in range(50):
        call_off = consumer.watch("orders", 0, 3, lambda n=n: woken.append(n))  # type: ignore[misc]
        if n == 7:
            call_off()
    await asyncio.sleep(0)
    assert consumer.is_end("orders", 0, 3)
    assert not woken
    before = broker.read_count
    await produce(gateway, {"value": 3})
    await until(lambda: woken)
    assert woken == [n for n in range(50) if n != 7]
    assert broker.read_count <= before + 2
    consumer.watch("orders", 0, 3, lambda: woken.append(99))
    await until(lambda: woken[-1] == 99)
    assert not consumer.is_end("orders", 0, 3)


async def test_what_is_asked_while_a_call_runs_goes_into_the_next_one() -> None:
    calls: list[list[int]] = []
    go = asyncio.Event()

    async def work(items: list[int]) -> Sequence[int]:
        calls.append(items)
        await go.wait()
        if 13 in items:
            raise ValueError("13")
        return [item * 10 for item in items]

    tasks = Tasks(lambda error: None)
    merged: Merged[int, int] = Merged(work, tasks)
    asked = [merged.ask(items) for items in ([1], [2, 3], [], [4])]
    await asyncio.sleep(0)
    go.set()
    assert [list(await one) for one in asked] == [[10], [20, 30], [], [40]]
    assert len(calls) <= 2
    with pytest.raises(ValueError, match="13"):
        await merged.ask([13])
    assert list(await merged.ask([5])) == [50]
    nobody_waits = merged.ask([6])
    nobody_waits.cancel()
    await merged.settled()
    assert calls[-1] == [6], "what is asked is done"


def test_records_written_as_text_are_what_their_objects_are() -> None:
    """Entries that are alike, small, with headers, with keys, of bytes, one behind the other."""
    plain = [Record(None, b'{"a":%d}' % (10 + n), 5) for n in range(20)]
    keyed = [Record(b"k\xc3\xa4%d" % n, b"[1]", 5 + n) for n in range(KEPT_RECORDS_MIN)]
    tagged = [Record(None, b"1", 5, [("mq-tag", b"red")] if n == 3 else []) for n in range(20)]
    odd = [Record(None, None if n else b"\xff", 5) for n in range(20)]
    alike = [Record(b"%07d" % n, b'{"a":%07d}' % (10**6 + n), 5) for n in range(200)]
    entries: list[Entry] = []
    base_offset = 3
    for records in (plain, keyed[:2], keyed, tagged, plain[:1], odd, alike, plain):
        made = entry_of(records, base_offset=base_offset, json_values=records is not odd, raw_keys=True)
        entries.append(made)
        base_offset = made.next_offset
    last = base_offset
    for start, stop in ((3, last), (5, last - 1), (30, 31), (0, 4), (40, 40), (last, last + 5), (100, 250)):
        asked = [one for one in entries if one.next_offset > start and one.base_offset < stop]
        objects = at_once(render_records_in_steps("a%b", 1, asked, None, start=start, stop=stop))
        expected_ends = [int(str(one["offset"])) + 1 for one in objects]
        expected = [
            orjson.dumps({**one, "cursor": f"a%b:1={end}"}) for one, end in zip(objects, expected_ends, strict=True)
        ]
        assert at_once(_render_all("a%b", 1, asked, start, stop)) == (expected, expected_ends)


def test_ranges_end_with_their_count_or_their_bytes() -> None:
    size = FRAME_BYTES_TARGET // 4
    messages = [b"m" * (size - 1)] * 3 + [b"m" * (size - 3)] + [b"m" * size] * 3 + [b"x" * 2 * FRAME_BYTES_TARGET, b"y"]
    ends = list(range(1, 10))
    ranges = cut_in_ranges(0, 9, ends, messages, None, 100)
    assert [list(one.ends) for one in ranges] == [[1, 2, 3, 4], [5, 6, 7], [8], [9]]
    assert [one.marks[-1] for one in ranges] == [len(one.body) for one in ranges]
    assert ranges[0].marks[-1] == FRAME_BYTES_TARGET - 3
    few = cut_in_ranges(0, 9, ends, messages, None, 3)
    assert [list(one.ends) for one in few] == [[1, 2, 3], [4, 5, 6], [7], [8], [9]]
    payloads = [b"p" * size] * 9
    binary = cut_in_ranges(0, 9, ends, [b"m"] * 9, payloads, 100)
    assert [list(one.ends) for one in binary] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [(one.marks[-1], one.payload_marks[-1]) for one in binary] == [(5, 3 * size)] * 3


@pytest.mark.parametrize("payload", [None, b"", b"pay\nload"])
def test_a_single_message_is_encoded_as_one_of_many(payload: bytes | None) -> None:
    message: dict[str, object] = {"value": orjson.Fragment(b'{"a":",\\n,"}'), "key": 'line\nbreak",\n,"', "offset": 7}
    payloads = None if payload is None else [payload]
    assert [one_message(7, message, payload)] == cut_in_ranges(7, 8, [8], split_lines([message]), payloads, 256)
