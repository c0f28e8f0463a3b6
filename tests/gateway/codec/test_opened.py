"""gateway/codec/opened.py"""

from __future__ import annotations

import pytest

from gateway.codec.opened import opened
from gateway.codec.tags import DELAYED_HEADERS, HEADER_DELAYS
from gateway.codec.times import TIME_MS_MAX
from gateway.errors import DELAY_ILLEGAL, RECORD_PART_ILLEGAL, RequestError
from store import record_batch
from store.record_batch import Headers, Record

_DELAY, _AT = "mq-delay-ms", "mq-deliver-at"


def _batch(*headers: Headers) -> bytes:
    return bytes(record_batch.encode([Record(b"k", b"v", 5, one) for one in headers]))


def test_headers_of_ours_become_fields_and_the_others_stay_in_their_order() -> None:
    sent = [
        ("a", b"1"),
        ("mq-tag", b"red"),
        ("b", None),
        ("mq-group", b"g"),
        (_DELAY, b"20"),
        ("mq-schedule-key", b"s"),
    ]
    plain, full = opened(_batch((), sent), allowed=HEADER_DELAYS)
    assert (plain.key, plain.value, plain.timestamp_ms, plain.headers, plain.delay_ms) == (b"k", b"v", 5, [], None)
    assert (full.tag, full.message_group, full.delay_ms, full.schedule_key) == ("red", "g", 20, "s")
    assert full.headers == [("a", b"1"), ("b", None)]


@pytest.mark.parametrize(
    ("value", "due_ms"), [(b"0", 0), (b"1700000000000", 1_700_000_000_000), (b"1970-01-01T00:00:01+00:00", 1_000)]
)
def test_times_of_delivery(value: bytes, due_ms: int) -> None:
    [record] = opened(_batch([(_AT, value)]), allowed=HEADER_DELAYS)
    assert (record.deliver_at_ms, record.delay_ms, record.headers) == (due_ms, None, [])


@pytest.mark.parametrize(
    "headers",
    [
        [(_DELAY, b"-1")], [(_DELAY, b"1.5")], [(_DELAY, b"")], [(_DELAY, None)], [(_DELAY, "²".encode())],
        [(_DELAY, b"1" * 19)], [(_AT, b"tomorrow")], [(_AT, str(TIME_MS_MAX + 1).encode())], [(_DELAY, b"\xff")],
        [(_DELAY, b"1"), (_AT, b"1")], [(_DELAY, b"1"), (_DELAY, b"1")],
    ],
)  # fmt: skip
def test_what_is_no_delay_is_refused_and_says_which_record(headers: Headers) -> None:
    with pytest.raises(RequestError, match="record 1: headers: mq-de") as refused:
        list(opened(_batch((), headers), allowed=HEADER_DELAYS))
    assert refused.value.error_code == DELAY_ILLEGAL


def test_headers_that_are_not_allowed_are_refused() -> None:
    for headers, allowed in (([(_DELAY, b"1")], DELAYED_HEADERS), ([("mq-schedule-id", b"x")], HEADER_DELAYS)):
        with pytest.raises(RequestError) as refused:
            list(opened(_batch(headers), allowed=allowed))
        assert refused.value.error_code == RECORD_PART_ILLEGAL
