"""gateway.brokers.kafka.foreign: what is shown of others' batches."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from gateway.brokers.kafka import foreign
from gateway.brokers.kafka.foreign import Opened, opened
from store import record_batch
from store.errors import BrokerLacks, Corrupt, RecordTooLarge
from store.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from tests.gateway.brokers.kafka.fake_shared import (
    CODECS,
    NONE,
    SNAPPY,
    ZSTD,
    Row,
    SharedLog,
    emptied_batch,
    foreign_batch,
)

ROWS: list[Row] = [(b"k", b"v"), (None, b"no key"), (b"gone", None), (b"", b"")]


def all_of(log: SharedLog, offset: int = 0) -> Opened:
    body = b"".join(batch for _, batch in log.batches)
    return opened(body, offset, [(who, first) for who, first, _ in log.aborted], where="here")


def records(found: Opened) -> list[tuple[int, bytes | None, bytes | None]]:
    rows = []
    for base_offset, next_offset, batch in found.shown:
        record_batch.check(batch)
        own = list(record_batch.decode(batch))
        assert [one.offset for one in own] == list(range(base_offset, next_offset)), "no holes within a batch"
        rows += [(one.offset, one.key, one.value) for one in own]
    return rows


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_shown_as_they_are(codec: int) -> None:
    log = SharedLog()
    log.send((b"before", b"x"))
    log.send(*ROWS, codec=codec)
    found = all_of(log)
    assert records(found)[1:] == [(1 + n, *row) for n, row in enumerate(ROWS)]
    assert found.next_offset == 5
    record = next(record_batch.decode(found.shown[1].batch))
    assert (record.timestamp, record.headers) == (1_000, [("h", b"1"), ("null", None)])
    assert record_batch.is_compressed(found.shown[1].batch) == (codec not in (NONE, SNAPPY))


@pytest.mark.parametrize("codec", CODECS)
def test_of_a_batch_with_holes_each_run_is_a_batch_of_its_own(codec: int) -> None:
    log = SharedLog()
    log.put(foreign_batch({2: (b"a", b"1"), 3: (b"b", None), 7: (b"c", b"3")}, codec=codec, offset_count=10))
    found = all_of(log)
    assert records(found) == [(2, b"a", b"1"), (3, b"b", None), (7, b"c", b"3")]
    assert [one[:2] for one in found.shown] == [(2, 4), (7, 8)]
    assert found.next_offset == 10
    assert records(all_of(log, 4)) == [(7, b"c", b"3")]
    assert [one.timestamp for one in record_batch.decode(found.shown[1].batch)] == [1_007]


def test_batches_without_records_and_control_batches_are_passed_over() -> None:
    log = SharedLog()
    log.put(emptied_batch(5))
    log.put(foreign_batch({0: (b"t", b"1")}, producer_id=9, is_transactional=True))
    log.end_transaction(9, commit=True)
    found = all_of(log)
    assert records(found) == [(5, b"t", b"1")]
    assert found.next_offset == 7
    assert not record_batch.is_transactional(found.shown[0].batch)


def test_aborted_transactions_are_not_shown_and_others_between_them_are() -> None:
    log = SharedLog()
    for number, commit in enumerate((True, False, True, False)):
        log.put(foreign_batch({0: (b"t", b"%d" % number)}, producer_id=9, is_transactional=True))
        log.send((b"p", b"%d" % number))
        log.put(foreign_batch({0: (b"t", b"%d" % number)}, producer_id=10, is_transactional=True))
        log.end_transaction(9, commit=commit)
        log.end_transaction(10, commit=not commit)
    found = records(all_of(log))
    assert [value for _, key, value in found if key == b"p"] == [b"0", b"1", b"2", b"3"]
    assert [value for _, key, value in found if key == b"t"] == [b"0", b"1", b"2", b"3"]
    assert [offset for offset, key, _ in found if key == b"t"] == [0, 7, 10, 17]


def test_a_read_that_begins_within_an_aborted_transaction_does_not_show_the_rest_of_it() -> None:
    log = SharedLog()
    for _ in range(3):
        log.put(foreign_batch({0: (b"t", b"x")}, producer_id=9, is_transactional=True))
    log.end_transaction(9, commit=False)
    log.send((b"p", b"y"))
    assert [record[0] for record in records(all_of(log, 2))] == [4]


def test_the_last_batch_may_be_cut_short() -> None:
    log = SharedLog()
    log.send((b"a", b"1"))
    log.send((b"b", b"2"))
    body = b"".join(batch for _, batch in log.batches)
    for cut in (1, 40, len(log.batches[1][1]) - 3):
        found = opened(body[:-cut], 0, [], where="here")
        assert (records(found), found.next_offset) == ([(0, b"a", b"1")], 1)


def test_damage_is_an_error_of_its_offset_and_what_is_before_it_is_shown() -> None:
    log = SharedLog()
    log.send((b"a", b"1"))
    log.send((b"b", b"2"))
    body = bytearray(b"".join(batch for _, batch in log.batches))
    body[-1] ^= 1
    assert records(opened(bytes(body), 0, [], where="here")) == [(0, b"a", b"1")]
    with pytest.raises(Corrupt, match="CRC"):
        opened(bytes(body), 1, [], where="here")


def test_messages_of_the_old_formats_are_a_clear_error() -> None:
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1000)
    builder.append(0, timestamp=1, key=b"k", value=b"v")
    body = bytearray(builder.build())
    struct.pack_into(">q", body, 0, 7)
    with pytest.raises(BrokerLacks, match="format 1 at offset 7"):
        opened(bytes(body), 7, [], where="here")
    assert foreign.is_quick(bytes(body))


def test_what_unpacks_to_more_than_a_batch_may_have_is_shown_as_several() -> None:
    rows: dict[int, Row] = {n: (b"%d" % n, b"x" * 1_000_000) for n in range(12)}
    log = SharedLog()
    log.put(foreign_batch(rows, codec=ZSTD))
    found = all_of(log)
    assert len(found.shown) > 1
    assert records(found) == [(n, *row) for n, row in rows.items()]
    middle = found.shown[1].base_offset
    assert records(all_of(log, middle))[0][0] == middle


def test_no_more_is_made_of_a_fetch_than_is_asked_for_and_the_next_one_goes_on_there() -> None:
    rows: dict[int, Row] = {2 * n: (b"%d" % n, b"x" * 100) for n in range(50)}
    log = SharedLog()
    log.put(foreign_batch(rows, codec=ZSTD))
    log.send((None, b"last"))
    body = b"".join(batch for _, batch in log.batches)
    size = len(opened(body, 0, [], where="here", bytes_max=1).shown[0].batch)
    offset, seen, counts = 0, [], set()
    while offset < log.end:
        found = opened(body, offset, [], where="here", bytes_max=2 * size)
        counts.add(len(found.shown))
        seen += records(found)
        offset = found.next_offset
    assert seen == [(at, *row) for at, row in rows.items()] + [(99, None, b"last")]
    assert max(counts) == 2


def test_a_batch_of_too_many_records_is_shown_as_several() -> None:
    for count in (BATCH_RECORDS_MAX, BATCH_RECORDS_MAX + 1):
        log = SharedLog()
        log.put(foreign_batch(dict.fromkeys(range(count), (None, b""))))
        found = all_of(log)
        assert len(found.shown) == 1 + (count > BATCH_RECORDS_MAX)
        assert found.shown[-1].next_offset == count


def test_a_record_that_no_batch_has_room_for_is_an_error_that_names_it() -> None:
    room = BATCH_BYTES_MAX - len(foreign_batch({0: (None, b"")})) - 2 * 3  # its two lengths take more bytes
    for more in (0, 1):
        log = SharedLog()
        log.put(foreign_batch({0: (None, bytes(room + more))}, codec=ZSTD))
        if not more:
            assert len(records(all_of(log))) == 1
            continue
        with pytest.raises(RecordTooLarge, match="offset 0"):
            all_of(log)


def test_what_unpacks_to_more_than_is_ever_unpacked_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "FOREIGN_BYTES_MAX", 9_000_000)
    log = SharedLog()
    log.put(foreign_batch({n: (None, bytes(1_000_000)) for n in range(9)}, codec=ZSTD))
    with pytest.raises(RecordTooLarge, match="9000000"):
        all_of(log)
    monkeypatch.setattr(foreign, "FOREIGN_BYTES_MAX", 9_001_000)
    assert len(records(all_of(log))) == 9


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["plain", "holes", "empty", "committed", "aborted"]),
            st.sampled_from(CODECS),
            st.sets(st.integers(0, 6), min_size=1),
        ),
        max_size=12,
    ),
    st.integers(0, 60),
)
def test_a_reader_from_any_offset_sees_what_is_committed_and_nothing_else(
    history: list[tuple[str, int, set[int]]], offset: int
) -> None:
    log = SharedLog()
    expected: list[tuple[int, bytes | None, bytes | None]] = []
    for number, (kind, codec, deltas) in enumerate(history):
        value, at = b"%d" % number, log.end
        if kind == "empty":
            log.put(emptied_batch(len(deltas)))
        elif kind == "plain":
            log.send(*[(None, value) for _ in deltas], codec=codec)
            expected += [(at + n, None, value) for n in range(len(deltas))]
        else:
            is_sent = kind != "holes"
            rows: dict[int, Row] = dict.fromkeys(sorted(deltas), (b"k", value))
            log.put(
                foreign_batch(
                    rows, codec=codec, producer_id=5 if is_sent else -1, is_transactional=is_sent, offset_count=9
                )
            )
            if is_sent:
                log.end_transaction(5, commit=kind == "committed")
            expected += [(at + delta, b"k", value) for delta in rows] if kind != "aborted" else []
    batches = [batch for _, batch in log.batches if record_batch.offsets_of(batch)[1] > offset]
    aborted = [(who, first) for who, first, at in log.aborted if at >= offset]
    found = opened(b"".join(batches), offset, aborted, where="here")
    seen = [record for record in records(found) if record[0] >= offset]
    assert seen == [record for record in expected if record[0] >= offset]
    assert found.next_offset == max(offset, log.end)
