"""Numbered producers: which batch is new, which is a repeat, which comes too late."""

from __future__ import annotations

import pytest

from store.dedup.producers import SEQUENCES_KEPT, ProducerTable, Sent, batch_number, decode_table, encode_table
from store.errors import ProducerFenced, SequenceGap, SequenceGone, TooManyIds
from store.types import Original, ProducerSequence, QueueKey, RecordNumbers

EXPIRY_MS = 1000
QUEUE, OTHER_QUEUE = QueueKey(16, 0), QueueKey(16, 1)
A, B = b"a" * 16, b"b" * 16


def table(producers_max: int = 10) -> ProducerTable:
    return ProducerTable(expiry_ms=EXPIRY_MS, producers_max=producers_max)


def add(
    known: ProducerTable,
    sequence: int,
    *,
    offset: int = 0,
    time_ms: int = 0,
    producer: bytes = A,
    is_durable: bool = True,
) -> None:
    known.add(QUEUE, producer, Sent(sequence, offset, offset * 100, time_ms), is_durable=is_durable)


def find(known: ProducerTable, sequence: int, *, now_ms: int = 0, queue: QueueKey = QUEUE) -> Original | None:
    return known.find(queue, ProducerSequence(A, sequence), now_ms)


def test_a_higher_number_is_new_and_gaps_are_allowed() -> None:
    known = table()
    assert find(known, 0) is None
    add(known, 5, offset=7)
    assert find(known, 6) is None
    assert find(known, 1000) is None
    assert find(known, 5) == Original(QUEUE, 7, 700, 0)


def test_producers_and_queues_count_for_themselves() -> None:
    known = table()
    add(known, 5, producer=B)
    assert find(known, 5) is None
    add(known, 5)
    assert find(known, 5, queue=OTHER_QUEUE) is None


def test_the_last_few_are_answered_with_their_offset_and_older_ones_without() -> None:
    known = table()
    for sequence in range(SEQUENCES_KEPT + 1):
        add(known, sequence, offset=10 * sequence)
    assert find(known, 1) == Original(QUEUE, 10, 1000, 0)
    assert find(known, 0) == Original(QUEUE, None, 1000, 0)


def test_a_number_that_was_never_used_is_not_taken_for_a_repeat() -> None:
    known = table()
    add(known, 10)
    add(known, 20)
    for unused in (15, 3):
        with pytest.raises(SequenceGone):
            find(known, unused)


def test_a_producer_is_forgotten_after_its_time() -> None:
    known = table()
    add(known, 5)
    assert find(known, 5, now_ms=EXPIRY_MS) is not None
    assert find(known, 5, now_ms=EXPIRY_MS + 1) is None
    add(known, 3, time_ms=EXPIRY_MS + 1, offset=9)
    assert find(known, 3, now_ms=EXPIRY_MS + 1) == Original(QUEUE, 9, 900, EXPIRY_MS + 1)


def test_the_number_of_producers_is_bounded() -> None:
    known = table(producers_max=2)
    add(known, 1)
    add(known, 1, producer=B, time_ms=1)
    known.check_room(QUEUE, ProducerSequence(A, 2), 0)
    with pytest.raises(TooManyIds) as refusal:
        known.check_room(OTHER_QUEUE, ProducerSequence(A, 1), EXPIRY_MS)
    assert refusal.value.retry_after_ms == 1
    known.check_room(OTHER_QUEUE, ProducerSequence(A, 1), EXPIRY_MS + 1)
    assert len(known) == 1


def test_what_a_power_cut_may_take_is_known_but_not_saved_until_the_log_is_durable() -> None:
    known = table()
    for sequence in range(SEQUENCES_KEPT):
        add(known, sequence, offset=sequence)
    durable = known.copy()
    for sequence in range(SEQUENCES_KEPT, 3 * SEQUENCES_KEPT):
        add(known, sequence, offset=sequence, is_durable=False)
    add(known, 1, offset=50, producer=B, is_durable=False)
    assert known.has_unsaved
    assert known.copy() == durable
    assert len(known) == 2
    assert find(known, 3 * SEQUENCES_KEPT - 1) == Original(QUEUE, 14, 1400, 0)
    assert find(known, 3 * SEQUENCES_KEPT - 6) == Original(QUEUE, None, 1000, 0)
    known.confirm(700)  # the first two of those: offsets 5 and 6
    [(_, kept)] = known.copy().items()
    assert [one.sequence for one in kept] == [2, 3, 4, 5, 6]
    assert find(known, 3 * SEQUENCES_KEPT - 1) == Original(QUEUE, 14, 1400, 0)
    known.confirm(10_000)
    assert not known.has_unsaved
    assert [[one.sequence for one in kept] for kept in known.copy().values()] == [[10, 11, 12, 13, 14], [1]]


def test_a_producer_that_is_only_known_from_recent_batches_is_forgotten_too() -> None:
    known = table(producers_max=1)
    add(known, 5, is_durable=False)
    known.check_room(OTHER_QUEUE, ProducerSequence(B, 1), EXPIRY_MS + 1)
    assert len(known) == 0
    assert not known.has_unsaved
    add(known, 5, is_durable=False)
    add(known, 2, offset=9, time_ms=EXPIRY_MS + 1, is_durable=False)
    assert find(known, 2, now_ms=EXPIRY_MS + 1) == Original(QUEUE, 9, 900, EXPIRY_MS + 1)


def test_the_table_comes_back_as_it_was() -> None:
    known, loaded = table(), table()
    for sequence in range(SEQUENCES_KEPT + 2):
        add(known, sequence, offset=sequence, time_ms=sequence)
    add(known, 9, producer=B)
    loaded.restore(decode_table(encode_table(known.copy())))
    assert loaded.copy() == known.copy()
    assert list(loaded.copy()) == list(known.copy())


# ---- producers of Kafka's protocol


def _numbers(first: int, count: int, epoch: int = 0) -> RecordNumbers:
    return RecordNumbers(b"p" * 16, epoch, first, count)


def test_numbers_of_records_become_rising_numbers_of_batches() -> None:
    newest = batch_number(_numbers(0, 10), None)
    assert newest == 9
    newest = batch_number(_numbers(10, 5), newest)
    assert newest == 14
    assert batch_number(_numbers(10, 5), newest) == 14  # a repeat of the last one
    assert batch_number(_numbers(0, 10), newest) == 9  # and of the one before
    assert batch_number(_numbers(0, 3, epoch=1), newest) == (1 << 48) + 2


def test_a_gap_an_older_epoch_and_a_new_one_in_the_middle_are_refused() -> None:
    for numbers in (_numbers(11, 1), _numbers(15, 5), _numbers(5, 1, epoch=1), _numbers(5, 10)):
        with pytest.raises(SequenceGap):
            batch_number(numbers, 9)
    with pytest.raises(ProducerFenced):
        batch_number(_numbers(10, 1), (1 << 48) + 9)


def test_numbers_begin_anew_after_the_largest() -> None:
    last = 2**31 - 1
    newest = batch_number(_numbers(last - 4, 5), None)
    assert newest == last
    assert batch_number(_numbers(0, 5), newest) == 2**31 + 4
    newest = batch_number(_numbers(last - 1, 4), last - 2)  # a batch across the end
    assert newest == last + 2
    assert batch_number(_numbers(2, 1), newest) == last + 3
    assert batch_number(_numbers(last - 1, 4), last + 3) == last + 2  # its repeat
