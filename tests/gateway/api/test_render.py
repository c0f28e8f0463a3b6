"""gateway/api/render.py: text that is filled in says what the objects say, whatever the records are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import orjson
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.api.render import delivered_as_json, delivered_as_list, settled_as_json, settled_as_list
from gateway.groups.machines.receipts import RUN_RECORDS_MAX, RunReceipts
from gateway.groups.protocol import (
    LEASE_OVER,
    Accepted,
    Delivered,
    PlainRecords,
    Received,
    Run,
    Settled,
    cut,
    receipts_of,
)
from gateway.surfaces.ws.commands import Form, Subscribe
from gateway.surfaces.ws.queue import Queue

JSON = st.sampled_from([None, b"null", b'{"a":1}', b'"%d %b \\u0661"', b"[1, 2]"])
TEXT = st.sampled_from([None, b"k", "ключ".encode(), b"\xff", b"%d", b'"'])


class Stored(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


def receipts(count: int) -> st.SearchStrategy[Sequence[str]]:
    """As texts, or as those of one run."""
    texts = st.lists(st.integers(0, 9).map("r2.AbC-_.{}".format), min_size=count, max_size=count)
    of_a_run = st.integers(0, RUN_RECORDS_MAX - count).map(lambda first: RunReceipts("r2.AbC-_", first, count))
    return st.one_of(texts, of_a_run)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    is_json, raw_keys = draw(st.booleans()), draw(st.booleans())
    may_have_headers = draw(st.booleans())
    handed: Sequence[Stored] | PlainRecords
    headers = st.sampled_from([[], [], [("mq-tag", b"red")], [("h", b"\xff")], [("mq-group", b"a")]])
    records = st.builds(
        Stored,
        JSON if is_json and not raw_keys else TEXT,
        JSON if is_json else TEXT,
        headers if may_have_headers else st.just([]),
        st.integers(-1, 2**62),
    )
    count = draw(st.integers(1, 4))
    queue = draw(st.sampled_from([None, None, None, "q"])) if count == 1 else None
    offset = draw(st.integers(0, 2**62))
    stored = draw(st.lists(records, min_size=count, max_size=count))
    if not may_have_headers and draw(st.booleans()):
        keys = [one.key for one in stored] if draw(st.booleans()) else None
        handed = PlainRecords(offset, keys, [one.value for one in stored], stored[0].timestamp)
    else:
        handed = stored
    return Run(
        topic=draw(st.sampled_from(["orders", "%RETRY%g", "gone", "a.b-c_d"])),
        partition=draw(st.integers(0, 1)),
        offset=offset,
        records=handed,
        store_time_ms=draw(st.integers(0, 1)),
        json_values=is_json,
        raw_keys=raw_keys,
        attempt=draw(st.integers(1, 2)),
        receipts=draw(receipts(count)),
        until_ms=draw(st.integers(0, 1)),
        queue=queue,
        queue_offset=None if queue is None else 7,
    )


def messages_of(handed_out: Sequence[Run]) -> list[Delivered]:
    return [one for run in handed_out for one in run.messages()]


def id_of(topic: str) -> int | None:
    return {"orders": 16, "%RETRY%g": 17, "a.b-c_d": 2**31}.get(topic)


@given(st.lists(runs(), max_size=4))
def test_records_by_http(handed_out: list[Run]) -> None:
    each = [orjson.dumps(delivered_as_json(one, id_of(one.topic))) for one in messages_of(handed_out)]
    assert delivered_as_list(handed_out, id_of) == b",".join(each)


@given(st.lists(runs(), max_size=4), st.booleans())
def test_records_on_a_socket(handed_out: list[Run], auto_ack: bool) -> None:
    queue = object.__new__(Queue)
    queue._command = cast(Subscribe, type("Said", (), {"auto_ack": auto_ack})())
    queue._form = Form.JSON
    each = [orjson.dumps(queue._message(one)[0]) for one in messages_of(handed_out)]
    assert queue._lines(handed_out) == b"\n".join(each)


@given(runs())
def test_what_is_known_to_be_json_is_shown_as_what_is_found_to_be(run: Run) -> None:
    assume(run.json_values)
    unknown = run._replace(json_values=False)
    assert delivered_as_list([run], id_of) == delivered_as_list([unknown], id_of)
    for known, looked_at in zip(run.messages(), unknown.messages(), strict=True):
        assert orjson.dumps(delivered_as_json(known, 1)) == orjson.dumps(delivered_as_json(looked_at, 1))


def test_a_record_by_itself_is_what_its_run_says() -> None:
    records = [Stored(b"k", b"1", [("mq-tag", b"red"), ("mq-group", b"a")], 5), Stored(None, None, [], 6)]
    run = Run("t", 3, 10, records, 7, True, False, 2, ["r.0", "r.1"], 99)
    assert run.messages() == [
        Delivered("t", 3, 10, b"k", b"1", records[0].headers, 5, 7, True, False, "red", "a", 2, "r.0", 99, None, None),
        Delivered("t", 3, 11, None, None, [], 6, 7, True, False, None, None, 2, "r.1", 99, None, None),
    ]
    queue = Run("t", 3, 10, records[1:], 7, True, False, 1, ["r.0"], 99, "q", 4)
    assert [(one.offset, one.queue, one.queue_offset) for one in queue.messages()] == [(10, "q", 4)]


@given(st.lists(runs(), max_size=4), st.integers(0, 12), st.integers(0, 12))
def test_a_part_of_runs_has_these_records(handed_out: list[Run], first: int, end: int) -> None:
    assert messages_of(cut(handed_out, first, end)) == messages_of(handed_out)[first:end]
    assert list(receipts_of(handed_out)) == [one.receipt for one in messages_of(handed_out)]
    assert list(Received(tuple(handed_out), 0).messages) == messages_of(handed_out)


@given(
    st.lists(
        st.builds(Settled, st.sampled_from(["r2.a.0", "r2.a.1"]), st.just(True))
        | st.builds(Settled, st.sampled_from(["r2.a.0", '"', "ü"]), st.just(False), st.just(LEASE_OVER), st.text())
        | st.builds(Settled, st.just("r2.a.0"), st.just(True), new_receipt=st.just("r2.b.0")),
        max_size=4,
    )
)
def test_what_became_of_receipts(results: list[Settled]) -> None:
    assert settled_as_list(results) == orjson.dumps([settled_as_json(one) for one in results])


@given(st.lists(st.sampled_from(["r2.a.0", "r2.a.1"]), max_size=4), st.integers(-5, 5), st.integers(-5, 5))
def test_what_was_all_accepted_is_what_a_list_of_it_would_be(receipts: list[str], first: int, end: int) -> None:
    accepted, each = Accepted(receipts), [Settled(receipt, True) for receipt in receipts]
    assert settled_as_list(accepted) == orjson.dumps([settled_as_json(one) for one in each])
    assert (len(accepted), list(accepted), bool(accepted)) == (len(each), each, bool(each))
    assert list(accepted[first:end]) == each[first:end]
    assert [accepted[index] for index in range(len(each))] == each
