"""What clients may say: every command and field, what is refused by name, and which right each op asks for."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.shapes.commands import (
    ID_MAX,
    Auth,
    Extend,
    Hello,
    Nack,
    Pause,
    Permit,
    Ping,
    Reject,
    Release,
    Resume,
    Seen,
    Unsubscribe,
)
from gateway.auth.access import Permission
from gateway.codec.records import Format
from gateway.errors import RequestError
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import RECEIPTS_MAX
from gateway.settings.limits import IDEMPOTENCY_KEY_BYTES_MAX, Limits
from gateway.surfaces.ws.commands import (
    PERMISSIONS,
    Ack,
    Command,
    From,
    FromOffsets,
    FromTime,
    Mode,
    Produce,
    Seek,
    Subscribe,
    UpTo,
)
from gateway.surfaces.ws.parse import COMMANDS_MAX, TooManyCommands, command_id, parse_frame
from gateway.surfaces.ws.parse import parse_command as parse_within
from gateway.surfaces.ws.protocol import BadFrame
from store.types import Acks

QUEUE = {"group": "g", "mode": "queue"}
SUBSCRIBE = {"id": 3, "op": "subscribe", "sub": "s1", "topics": ["orders"]}


def parse_command(command: dict[str, Any]) -> Command:
    return parse_within(command, Limits())


def refused(command: dict[str, object]) -> RequestError:
    with pytest.raises(RequestError) as raised:
        parse_command(command)
    return raised.value


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('{"op":"ping"}', 1),
        ('[{"op":"ping"},{"op":"ping"}]', 2),
        ('{"op":"ping"}\n{"op":"ping"}\n', 2),
        ('{"op":\n"ping"}', 1),
        ("[]", 0),
        ("", 0),
        ("\n\n", 0),
    ],
)
def test_a_frame_holds_an_object_an_array_or_lines(text: str, count: int) -> None:
    assert [command["op"] for command in parse_frame(text)] == ["ping"] * count


@pytest.mark.parametrize(
    "text", ["{", "17", '"ping"', "[1]", '{"op":"ping"}\n7', '{"op":"ping"}\n{', "null", '{"a":NaN}']
)
def test_anything_else_is_a_bad_frame(text: str) -> None:
    with pytest.raises(BadFrame):
        parse_frame(text)


@given(st.text())
def test_no_text_does_worse_than_a_bad_frame(text: str) -> None:
    with contextlib.suppress(BadFrame):
        assert all(isinstance(command, dict) for command in parse_frame(text))


def test_every_command_is_understood() -> None:
    hello = {"id": 1, "op": "hello", "client": "web", "binary": True, "resume": "x", "seen": {"s": 4}}
    assert parse_command(hello) == Hello(
        op="hello", id=1, client="web", binary=True, token=None, resume="x", seen={"s": 4}
    )
    assert parse_command({"op": "auth", "token": "t"}) == Auth(op="auth", token="t")
    assert parse_command({"op": "ping"}) == Ping(op="ping")
    assert parse_command({"op": "pause", "sub": "s"}) == Pause(op="pause", sub="s")
    assert parse_command({"op": "resume", "sub": "s"}) == Resume(op="resume", sub="s")
    assert parse_command({"id": 0, "op": "unsubscribe", "sub": "s"}) == Unsubscribe(op="unsubscribe", id=0, sub="s")
    assert parse_command({"op": "permit", "sub": "s", "messages": 5}) == Permit(op="permit", sub="s", messages=5)
    produce = {"id": ID_MAX, "op": "produce", "topic": "t", "records": [{"value": 1}], "acks": "written", "ack": False}
    assert parse_command(produce) == Produce(ID_MAX, "t", [{"value": 1}], None, Format.JSON, Acks.WRITTEN, False)
    key = "k" * IDEMPOTENCY_KEY_BYTES_MAX
    parsed = parse_command({**produce, "idempotency_key": key})
    assert isinstance(parsed, Produce)
    assert parsed.idempotency_key == key
    parsed = parse_command(SUBSCRIBE)
    assert isinstance(parsed, Subscribe)
    assert (parsed.topics, parsed.mode, parsed.start, parsed.auto_credit, parsed.batch) == (
        ("orders",), Mode.READER, None, True, 256,
    )  # fmt: skip
    queue = {"id": 1, "op": "subscribe", "sub": "s", "pattern": "o.*", "group": "g", "mode": "queue",
             "start": {"timestamp": 5}, "filter": "tag:a||b", "invisible_ms": 9, "auto_ack": True}  # fmt: skip
    parsed = parse_command(queue)
    assert isinstance(parsed, Subscribe)
    assert (parsed.pattern, parsed.group, parsed.mode, parsed.start, parsed.invisible_ms, parsed.auto_ack) == (
        "o.*", "g", Mode.QUEUE, FromTime(5), 9, True,
    )  # fmt: skip
    assert parsed.filter is not None
    assert parsed.filter.tags == {"a", "b"}
    assert parse_command({"op": "ack", "sub": "s", "receipts": ["r"]}) == Ack(None, "s", ("r",), ())
    place = {"topic": "t", "partition": 1, "offset": 140}
    assert parse_command({"op": "ack", "sub": "s", "up_to": [place]}) == Ack(None, "s", (), (UpTo("t", 1, 141),))
    assert parse_command({"op": "ack", "sub": "s", "cursor": "t:1=141"}) == Ack(None, "s", (), (UpTo("t", 1, 141),))
    r: dict[str, Any] = {"sub": "s", "receipts": ["r"]}
    assert parse_command({"op": "nack", **r, "delay_ms": 5}) == Nack(op="nack", **r, delay_ms=5)
    assert parse_command({"op": "reject", **r, "reason": "x"}) == Reject(op="reject", **r, reason="x")
    assert parse_command({"op": "extend", **r}) == Extend(op="extend", **r)
    partitions = {"t": [0]}
    assert parse_command({"op": "release", "sub": "s", "partitions": partitions}) == Release(
        op="release", sub="s", partitions=partitions
    )
    assert parse_command({"op": "seek", "sub": "s", "to": "latest"}) == Seek(None, "s", From.LATEST)
    assert parse_command({"op": "seen", "subs": {"s": 3}}) == Seen(op="seen", subs={"s": 3})


@pytest.mark.parametrize(
    ("given_from", "start"),
    [
        ("earliest", From.EARLIEST),
        ("latest", From.LATEST),
        ({"timestamp": 1767225600000}, FromTime(1767225600000)),
        ({"orders": {"0": 100, "1": 0}}, FromOffsets({"orders": {0: 100, 1: 0}})),
        ("orders:0=101;orders:1=88", FromOffsets({"orders": {0: 101, 1: 88}})),
    ],
)
def test_a_reader_starts_where_it_says(given_from: object, start: object) -> None:
    parsed = parse_command({**SUBSCRIBE, "from": given_from})
    assert isinstance(parsed, Subscribe)
    assert parsed.start == start


@pytest.mark.parametrize(
    ("given_from", "code"),
    [
        ("first", 40050),
        ("orders:0=", 40050),
        ("orders:0=1;orders:0=2", 40050),
        ("orders:0=99999999999999999999", 40050),
        ("payments:0=1", 422),
        ({"timestamp": -1}, 422),
        ({"timestamp": True}, 422),
        ({"timestamp": "now"}, 422),
        ({"payments": {"0": 1}}, 422),
        ({"orders": {"x": 1}}, 422),
        ({"orders": {"01": 1}}, 422),
        ({"orders": {"0": -1}}, 422),
        ({"orders": {"0": 1.5}}, 422),
        ({"orders": 1}, 422),
        ({}, 422),
        (7, 422),
    ],
)
def test_a_start_that_is_none_is_refused(given_from: object, code: int) -> None:
    assert refused({**SUBSCRIBE, "from": given_from}).error_code == code


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ({}, 422, "op: is required"),
        ({"op": "publish"}, 422, "Unrecognized op: publish"),
        ({"op": 1}, 422, "Unrecognized op: 1"),
        ({"op": "ping", "id": -1}, 422, "id"),
        ({"op": "ping", "id": ID_MAX + 1}, 422, "id"),
        ({"op": "produce", "topic": "t", "idempotency_key": "k" * (IDEMPOTENCY_KEY_BYTES_MAX + 1)}, 422, "idempotency"),
        ({"op": "ping", "id": True}, 422, "id"),
        ({"op": "ping", "id": "7"}, 422, "id"),
        ({"op": "ping", "idd": 7}, 422, "Unrecognized field: idd"),
        ({"op": "produce", "records": []}, 422, "topic: is required"),
        ({"op": "produce", "topic": "t", "records": [], "delay_ms": 1}, 422, "Unrecognized field: delay_ms"),
        ({"op": "produce", "topic": "t", "format": "avro"}, 422, "format"),
        ({"op": "produce", "topic": "t", "acks": "all"}, 422, "acks"),
        ({"op": "produce", "topic": "t", "ack": 1}, 422, "ack"),
        ({"op": "produce", "topic": "t", "partition": -1}, 422, "partition"),
        ({"op": "subscribe", "topics": ["t"]}, 422, "sub: is required"),
        ({**SUBSCRIBE, "sub": "x" * 65}, 422, "sub"),
        ({**SUBSCRIBE, "topics": []}, 422, "topics"),
        ({**SUBSCRIBE, "topics": [1]}, 422, "topics"),
        ({**SUBSCRIBE, "topics": ["a", "a"]}, 422, "twice"),
        ({**SUBSCRIBE, "topics": [str(n) for n in range(TOPICS_MAX + 1)]}, 422, "topics"),
        ({**SUBSCRIBE, "mode": "queue"}, 422, "group"),
        ({**SUBSCRIBE, "mode": "reader", "group": "g"}, 422, "group"),
        ({**SUBSCRIBE, "group": "g"}, 422, "mode"),
        ({**SUBSCRIBE, "start": "earliest"}, 422, "Unrecognized field: start"),
        ({**SUBSCRIBE, **QUEUE, "from": "earliest"}, 422, "Unrecognized field: from"),
        ({**SUBSCRIBE, **QUEUE, "start": {"orders": {"0": 1}}}, 422, "start"),
        ({**SUBSCRIBE, **QUEUE, "format": "batch"}, 422, "format"),
        ({**SUBSCRIBE, **QUEUE, "member": "m"}, 422, "Unrecognized field: member"),
        ({**SUBSCRIBE, **QUEUE, "room": "r"}, 422, "Unrecognized field: room"),
        ({**SUBSCRIBE, **QUEUE, "invisible_ms": 0}, 42253, "invisible_ms"),
        ({**SUBSCRIBE, "auto_ack": True}, 422, "Unrecognized field: auto_ack"),
        ({**SUBSCRIBE, "format": "batch", "filter": "tag:a"}, 422, "format"),
        ({**SUBSCRIBE, "pattern": "o.*"}, 422, "topics"),
        ({**SUBSCRIBE, "filter": "paid"}, 42252, "filter"),
        ({**SUBSCRIBE, "batch": 10_001}, 42253, "batch"),
        ({"op": "ack", "sub": "s", "receipts": ["r"], "cursor": "t:0=1"}, 422, "one of"),
        ({"op": "ack", "sub": "s", "receipts": []}, 422, "receipts"),
        ({"op": "ack", "sub": "s", "receipts": ["r"] * 10_001}, 422, "receipts"),
        ({"op": "ack", "sub": "s", "receipts": [1]}, 422, "receipts"),
        ({"op": "ack", "sub": "s", "up_to": [{"topic": "t"}]}, 422, "up_to"),
        ({"op": "ack", "sub": "s", "up_to": [{"topic": "t", "partition": -1, "offset": 0}]}, 422, "up_to"),
        ({"op": "ack", "sub": "s", "cursor": "t"}, 40050, "cursor"),
        ({"op": "nack", "sub": "s", "receipts": ["r"], "delay_ms": -1}, 42250, "delay_ms"),
        ({"op": "nack", "sub": "s", "receipts": ["r"], "reason": "x" * 1025}, 422, "reason"),
        ({"op": "release", "sub": "s", "partitions": {"t": ["0"]}}, 422, "partitions"),
        ({"op": "seek", "sub": "s"}, 422, "to: is required"),
        ({"op": "seen", "subs": {"s": -1}}, 422, "subs"),
        ({"op": "hello", "seen": {"s": "1"}}, 422, "seen"),
        ({"op": "auth"}, 422, "token: is required"),
        ({**SUBSCRIBE, "credit": -1}, 42253, "credit"),
        ({**SUBSCRIBE, "credit_bytes": -1}, 42253, "credit_bytes"),
        ({**SUBSCRIBE, "batch": 0}, 42253, "batch"),
        ({**SUBSCRIBE, "epochs": {"payments": "1"}}, 422, "epochs"),
        ({**SUBSCRIBE, "epochs": {"orders": 1}}, 422, "epochs"),
        ({"op": "permit", "sub": "s", "messages": -1}, 42253, "messages"),
        ({"op": "permit", "sub": "s", "messages": 2**63}, 42253, "messages"),
        ({"op": "permit", "sub": "s", "messages": 1.0}, 42253, "messages"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(command: dict[str, object], code: int, words: str) -> None:
    error = refused(command)
    assert (error.error_code, words in error.message) == (code, True), error.message


def test_an_id_that_cannot_be_echoed_is_not() -> None:
    assert [command_id({"id": value}) for value in (7, 0, -1, 1.0, True, "7", None, ID_MAX, ID_MAX + 1)] == [
        7, 0, None, None, None, None, None, ID_MAX, None,
    ]  # fmt: skip


def test_as_many_commands_as_may_be_and_one_more() -> None:
    assert len(parse_frame("[" + ",".join(["{}"] * COMMANDS_MAX) + "]")) == COMMANDS_MAX
    with pytest.raises(TooManyCommands):
        parse_frame("[" + ",".join(["{}"] * (COMMANDS_MAX + 1)) + "]")


def test_the_largest_receipts_are_taken() -> None:
    parsed = parse_command({"op": "ack", "sub": "s", "receipts": ["r"] * RECEIPTS_MAX})
    assert isinstance(parsed, Ack)
    assert len(parsed.receipts) == RECEIPTS_MAX


def test_what_shows_or_changes_records_asks_for_a_right() -> None:
    asks = {op for op, permission in PERMISSIONS.items() if permission is not None}
    assert asks == {"produce", "subscribe", "ack", "nack", "reject", "extend", "release", "seek"}
    assert {op for op, permission in PERMISSIONS.items() if permission is Permission.SEND} == {"produce"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda v: st.lists(v, max_size=3), max_leaves=4
)
names = st.sampled_from(
    ["id", "sub", "topics", "topic", "records", "from", "start", "group", "mode", "receipts", "up_to", "cursor", "to",
     "partitions", "messages", "bytes", "seen", "subs", "token", "filter", "format", "credit", "batch", "x"]
)  # fmt: skip


@given(st.sampled_from(sorted(PERMISSIONS)), st.dictionaries(names, json_values, max_size=6))
def test_no_fields_do_worse_than_a_refusal(op: str, fields: dict[str, object]) -> None:
    with contextlib.suppress(RequestError):
        parse_command({**fields, "op": op})
