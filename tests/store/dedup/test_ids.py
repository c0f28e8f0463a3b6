"""The index of ids: what it knows, for how long, and how much of it. Pure."""

from __future__ import annotations

import hashlib
import tracemalloc
from array import array
from pathlib import Path
from random import Random

import pytest

from store.dedup.ids import (
    DELAY,
    Columns,
    DedupIndex,
    Row,
    packed_index,
    packed_queue,
)
from store.dedup.journal import BLOCK_IDS, DedupJournal, decode_blocks, encode_block
from store.errors import IdentityReused, TooManyIds
from store.files import OsFiles
from store.topics import TIMER_QUEUE
from store.types import NO_FINGERPRINT, NO_ID, Identity, Original, QueueKey, RequestPart, ScheduleKey

WINDOW_MS = 1000
QUEUE = QueueKey(16, 3)
BODY, OTHER = b"12345678", b"87654321"


def id_of(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def ids(*numbers: int | None) -> list[bytes]:
    return [NO_ID if number is None else id_of(number) for number in numbers]


def row(time_ms: int, *numbers: int | None, offset: int = 0, request: RequestPart | None = None) -> Row:
    return Row(offset * 100, offset, time_ms, QUEUE, ids(*numbers), request, b"")


def index(ids_max: int = 100) -> DedupIndex:
    return DedupIndex(window_ms=WINDOW_MS, ids_max=ids_max)


def part(*request_indexes: int, number: int = 7, fingerprint: bytes = BODY) -> RequestPart:
    return RequestPart(id_of(number), fingerprint, request_indexes)


def found(known: DedupIndex, now_ms: int, *numbers: int | None) -> dict[int, Original]:
    return known.find(Identity(message_ids=ids(*numbers)), now_ms)


def test_a_message_id_leads_to_its_record() -> None:
    known = index()
    known.add(row(5, 1, None, 3, offset=40))
    assert found(known, 5, 9, 3, 1) == {1: Original(QUEUE, 42, 4000, 5), 2: Original(QUEUE, 40, 4000, 5)}


def test_no_id_is_no_id() -> None:
    known = index()
    known.add(row(5, None, 1))
    assert found(known, 5, None, None) == {}
    assert len(known) == 1


def test_an_id_is_known_to_the_last_millisecond_of_the_window_and_not_one_longer() -> None:
    known = index()
    known.add(row(5, 1))
    assert found(known, 5 + WINDOW_MS, 1)
    assert not found(known, 5 + WINDOW_MS + 1, 1)
    known.prune(5 + WINDOW_MS)
    assert len(known) == 1
    known.prune(5 + WINDOW_MS + 1)
    assert len(known) == 0


def test_a_clock_that_was_set_back_forgets_nothing() -> None:
    known = index()
    known.add(row(50_000, 1))
    assert found(known, 10, 1)


def test_an_id_that_left_the_window_and_came_again_counts_from_then() -> None:
    known = index()
    known.add(row(0, 1, 2, offset=0))
    known.add(row(900, 3, offset=5))
    known.add(row(1001, 1, offset=9))
    known.prune(1900)
    assert found(known, 1900, 1, 2, 3) == {0: Original(QUEUE, 9, 900, 1001), 2: Original(QUEUE, 5, 500, 900)}
    known.prune(2001)
    assert found(known, 2001, 1, 3) == {0: Original(QUEUE, 9, 900, 1001)}


def test_a_torn_request_is_known_by_the_places_it_has() -> None:
    known = index()
    known.add(row(0, request=part(0, 2, 5), offset=10))
    wanted = Identity(request=part(1, 2, 4, 5))
    assert known.find(wanted, 0) == {1: Original(QUEUE, 11, 1000, 0), 3: Original(QUEUE, 12, 1000, 0)}
    known.add(row(1, request=part(1, 4), offset=20))
    assert sorted(known.find(wanted, 0)) == [0, 1, 2, 3]
    assert known.find(Identity(request=part(6, 7)), 0) == {}


def test_a_request_with_another_content_is_refused_while_it_is_in_the_window() -> None:
    known = index()
    known.add(row(0, request=part(0, 1)))
    other = Identity(request=part(0, 1, fingerprint=OTHER))
    with pytest.raises(IdentityReused):
        known.find(other, WINDOW_MS)
    assert known.find(other, WINDOW_MS + 1) == {}
    assert len(known.find(Identity(request=part(0, 1, fingerprint=NO_FINGERPRINT)), 0)) == 2


def test_a_delayed_record_leads_to_its_schedule() -> None:
    known = index()
    delays = DELAY.pack(111, 16, 1) + DELAY.pack(222, 16, 2)
    known.add(Row(800, 4, 5, TIMER_QUEUE, ids(1, 2), None, delays))
    assert found(known, 5, 2) == {0: Original(QueueKey(16, 2), None, 800, 5, ScheduleKey(222, 800, 1))}


def test_the_number_of_ids_is_bounded_and_none_is_forgotten_for_it() -> None:
    known = index(ids_max=3)
    known.add(row(0, 1, 2))
    known.check_room(1, WINDOW_MS)
    with pytest.raises(TooManyIds) as refusal:
        known.check_room(2, WINDOW_MS)
    assert refusal.value.retry_after_ms == 1
    assert found(known, WINDOW_MS, 1, 2).keys() == {0, 1}
    known.check_room(2, WINDOW_MS + 1)


def test_parts_of_requests_take_room_too() -> None:
    known = index(ids_max=2)
    known.add(row(0, request=part(0)))
    known.add(row(0, request=part(1)))
    with pytest.raises(TooManyIds):
        known.check_room(1, 0)
    known.check_room(1, WINDOW_MS + 1)
    assert len(known) == 0


def test_what_leaves_the_window_together_goes_at_once_and_makes_room() -> None:
    count = 60_000
    known = index(ids_max=count + 60)
    for first in range(0, count, 1_000):
        known.add(row(0, *range(first, first + 1_000), request=part(0, number=-1 - first)))
    assert len(known) == count + 60
    after_ms = WINDOW_MS + 1
    with pytest.raises(TooManyIds):
        known.check_room(1, WINDOW_MS)
    known.check_room(count + 60, after_ms)
    assert len(known) == 0
    assert found(known, 0, 1, count - 1) == {}
    with pytest.raises(TooManyIds):
        known.check_room(count + 61, after_ms)


def test_what_is_partly_out_of_the_window_makes_room_by_what_is() -> None:
    known = index(ids_max=5)
    known.add(row(0, 1, 2))
    known.add(row(10, 3, request=part(0)))
    with pytest.raises(TooManyIds) as refusal:
        known.check_room(4, WINDOW_MS + 1)
    assert refusal.value.retry_after_ms == 10
    assert len(known) == 2
    known.check_room(3, WINDOW_MS + 1)
    with pytest.raises(TooManyIds):
        known.check_room(4, WINDOW_MS + 10)
    known.check_room(4, WINDOW_MS + 11)


@pytest.mark.parametrize("swept", [1, 2, 3, 100])
def test_however_slowly_the_table_is_swept_the_same_are_known(swept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain dict: rows of 1 to 5 ids, some again after their window, requests and delays among them."""
    monkeypatch.setattr("store.dedup.id_table.SWEPT_AT_ONCE", swept)
    random = Random(swept)
    known, plain = index(ids_max=200), dict[int, tuple[int, int | None]]()
    for now_ms in range(0, 6 * WINDOW_MS, 7):
        forgotten = [number for number in range(60) if now_ms - plain.get(number, (-WINDOW_MS - 1, 0))[0] > WINDOW_MS]
        numbers = random.sample(forgotten, min(random.randint(1, 5), len(forgotten)))
        is_delayed = random.random() < 0.3
        delays = b"".join([DELAY.pack(number, 16, 1) for number in numbers]) if is_delayed else b""
        places = sorted(random.sample(range(len(numbers) + 1), len(numbers)))
        request = part(*places, number=-1 - now_ms) if numbers and random.random() < 0.5 else None
        known.add(Row(now_ms, 10 * now_ms, now_ms, QUEUE, ids(*numbers), request, delays))
        plain |= {number: (now_ms, None if is_delayed else 10 * now_ms + at) for at, number in enumerate(numbers)}
        alive = {number: offset for number, (time_ms, offset) in plain.items() if now_ms - time_ms <= WINDOW_MS}
        originals = found(known, now_ms, *range(60))
        assert {at: original.offset for at, original in originals.items()} == alive
        for at, offset in alive.items():
            schedule = originals[at].schedule
            assert (schedule is None) == (offset is not None)
            assert schedule is None or schedule.due_ms == at
        if request is not None:
            assert known.find(Identity(request=request), now_ms).keys() == set(range(len(numbers)))
    known.prune(9 * WINDOW_MS)
    assert len(known) == len(known._rows) == len(known._extras) == 0


@pytest.mark.parametrize("swept", [1, 3, 100])
def test_what_was_restored_leaves_the_window_as_what_was_added(swept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with message ids, requests, both, and delays, in one chain: of each chain the oldest must be the first."""
    monkeypatch.setattr("store.dedup.id_table.SWEPT_AT_ONCE", swept)
    random = Random(swept)
    rows = []
    for number in range(300):
        numbers = range(1_000 * number, 1_000 * number + random.randint(0, 3))
        request = part(*sorted(random.sample(range(9), 3)), number=-1 - number) if random.random() < 0.5 else None
        delays = DELAY.pack(number, 16, 1) * max(len(numbers), 3) if random.random() < 0.3 else b""
        rows.append(Row(number, 10 * number, 4 * number, QUEUE, ids(*numbers), request, delays))
    live, loaded = index(ids_max=20), index(ids_max=20)
    for some in (rows[:1], rows[1:120], rows[120:]):
        for one in some:
            live.add(one)
        [columns] = decode_blocks(encode_block(some))
        loaded.restore(columns)
    for now_ms in range(1_200, 2_300, 50):
        live.prune(now_ms)
        loaded.prune(now_ms)
        assert len(live) == len(loaded)
        for number, one in enumerate(rows):
            known = live.find(Identity(message_ids=one.message_ids, request=one.request), now_ms)
            assert known == loaded.find(Identity(message_ids=one.message_ids, request=one.request), now_ms)
            is_in_window = now_ms - 4 * number <= WINDOW_MS
            assert bool(known) == (is_in_window and bool(one.message_ids or one.request))
    assert len(live._rows) == len(loaded._rows) == 0


@pytest.mark.parametrize("ids_max", [1_000, 8_000])
def test_the_table_holds_little_more_than_the_window_however_many_chains_it_has(
    ids_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.dedup.id_table.SWEPT_AT_ONCE", 2)
    known, window_ms = DedupIndex(window_ms=4_000, ids_max=ids_max), 4_000
    for now_ms in range(0, 3 * window_ms, 4):
        known.add(row(now_ms, now_ms))
        assert sum(map(len, known._table._chains)) <= 24 * 1.3 * (window_ms // 4 + 1)
    assert len(known) >= window_ms // 4


def test_a_message_is_not_known_by_a_request_id_nor_a_request_by_a_message_id() -> None:
    known = index()
    known.add(row(0, 1, request=part(0, number=2)))
    assert found(known, 0, 2) == {}
    assert known.find(Identity(request=part(0, number=1)), 0) == {}


MILLION = 1_000_000


@pytest.mark.long
@pytest.mark.parametrize(("each", "bytes_max"), [("ids", 45), ("requests", 120)])
def test_a_million_take_the_memory_that_the_security_page_says(each: str, bytes_max: int) -> None:
    known = index(ids_max=MILLION)
    tracemalloc.start()
    try:
        for number in range(MILLION // 1_000):
            numbers = range(number * 1_000, (number + 1) * 1_000)
            if each == "ids":
                known.add(row(0, *numbers))
            else:
                for one in numbers:
                    known.add(row(0, request=part(0, number=one)))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(known) == MILLION
    assert held_bytes / MILLION < bytes_max
    with pytest.raises(TooManyIds):
        known.check_room(1, 0)
    for time_ms in range(WINDOW_MS + 1, 2 * WINDOW_MS, 11):
        known.add(row(time_ms, -time_ms))
    assert len(known) < 100


def test_rows_come_back_from_the_journal_as_they_were() -> None:
    rows = [
        row(0, 1, None, 3, offset=0),
        row(1, request=part(3, 4, 5), offset=10),
        row(2, 4, 5, request=part(7, 9), offset=20),
        Row(3000, 1, 3, TIMER_QUEUE, ids(6), part(11), DELAY.pack(111, 16, 1)),
    ]
    live, loaded = index(), index()
    for one in rows:
        live.add(one)
    for columns in decode_blocks(encode_block(rows[:1]) + encode_block(rows[1:])):
        loaded.restore(columns)
    asked = Identity(message_ids=ids(*range(9)), request=part(*range(9)))
    assert live.find(asked, 3) == loaded.find(asked, 3) != {}
    assert len(live) == len(loaded) == 8
    live.prune(WINDOW_MS + 3)
    loaded.prune(WINDOW_MS + 3)
    assert live.find(asked, 3) == loaded.find(asked, 3) != {}


@pytest.mark.parametrize("block_ids", [1, 2, 3, 100])
def test_rows_of_many_blocks_come_back_from_the_journal(
    block_ids: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.dedup.journal.BLOCK_IDS", block_ids)
    rows = [row(n, *range(10 * n, 10 * n + n % 4), request=part(n, number=-1 - n), offset=10 * n) for n in range(9)]
    journal = DedupJournal(tmp_path, OsFiles(), segment_ms=WINDOW_MS)
    live, loaded = index(), index()
    for some in (rows[:5], rows[5:6], rows[6:]):
        journal.segments = journal.append(some, WINDOW_MS)
    for one in rows:
        live.add(one)
    for columns in DedupJournal(tmp_path, OsFiles(), segment_ms=WINDOW_MS).load(journal.segments):
        loaded.restore(columns)
    numbers = range(100)
    assert found(live, 9, *numbers) == found(loaded, 9, *numbers) != {}
    for n in range(9):
        asked = Identity(request=part(n, number=-1 - n))
        assert live.find(asked, 9) == loaded.find(asked, 9) != {}
    assert len(live) == len(loaded)


def test_a_checkpoint_with_many_ids_takes_the_memory_of_a_block(tmp_path: Path) -> None:
    each = 1_000
    rows = [
        Row(n, n, 0, QUEUE, [b"%016d" % id for id in range(each * n, each * (n + 1))], None, b"") for n in range(200)
    ]
    journal = DedupJournal(tmp_path, OsFiles(), segment_ms=WINDOW_MS)
    tracemalloc.start()
    try:
        journal.append(rows, WINDOW_MS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 150 * BLOCK_IDS


def test_ids_of_requests_fill_a_block_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.dedup.journal.BLOCK_IDS", 3)
    rows = [row(0, request=part(0, number=n), offset=n) for n in range(7)]
    journal = DedupJournal(tmp_path, OsFiles(), segment_ms=WINDOW_MS)
    blocks = journal.load(journal.append(rows, WINDOW_MS))
    assert [len(block.requests) for block in blocks] == [3, 3, 1]


def test_what_is_packed_fits_eight_bytes() -> None:
    column = array("q", [packed_queue(QueueKey(2**31 - 1, 2**32 - 1)), packed_index(2**46 - 1, 2**17 - 1)])
    columns = Columns(array("q", [0]), array("q", [7]), array("q", [0]), column[:1], [], array("q"), [], [])
    known = index()
    known.restore(columns)
    known.add(row(0, 1))
    assert found(known, 0, 1)
