"""What the protocol takes, what it refuses by name, and the frames it writes."""

from __future__ import annotations

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.records import Format
from gateway.http.errors import RequestError
from gateway.ws import protocol
from gateway.ws.protocol import (
    ID_MAX,
    BadFrame,
    From,
    FromOffsets,
    FromTime,
    Hello,
    Pause,
    Permit,
    Ping,
    Produce,
    Resume,
    Subscribe,
    Unsubscribe,
    command_id,
    cursor_of,
    parse_command,
    parse_cursor,
    parse_frame,
)
from store.types import Acks

SUBSCRIBE = {"id": 3, "op": "subscribe", "sub": "s1", "topics": ["orders"]}


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
    assert parse_command({"id": 1, "op": "hello", "client": "web", "binary": False}) == Hello(1, "web")
    assert parse_command({"op": "ping"}) == Ping(None)
    assert parse_command({"op": "pause", "sub": "s"}) == Pause(None, "s")
    assert parse_command({"op": "resume", "sub": "s"}) == Resume(None, "s")
    assert parse_command({"id": 0, "op": "unsubscribe", "sub": "s"}) == Unsubscribe(0, "s")
    assert parse_command({"op": "permit", "sub": "s", "messages": 5}) == Permit(None, "s", 5, 0)
    produce = {"id": ID_MAX, "op": "produce", "topic": "t", "records": [{"value": 1}], "acks": "written", "ack": False}
    assert parse_command(produce) == Produce(ID_MAX, "t", [{"value": 1}], None, Format.JSON, Acks.WRITTEN, False)
    assert parse_command(SUBSCRIBE) == Subscribe(
        3, "s1", ("orders",), From.LATEST, {}, credit=None, credit_bytes=None, auto_credit=True, batch=256
    )


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
        ({"op": 1}, 422, "op"),
        ({"op": "ping", "id": -1}, 422, "id"),
        ({"op": "ping", "id": ID_MAX + 1}, 422, "id"),
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
        ({**SUBSCRIBE, "topics": [str(n) for n in range(65)]}, 422, "topics"),
        ({**SUBSCRIBE, "mode": "queue"}, 422, "mode"),
        ({**SUBSCRIBE, "group": "g"}, 422, "Unrecognized field: group"),
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


places = st.dictionaries(
    st.tuples(st.from_regex(r"[A-Za-z0-9._%-]{1,20}", fullmatch=True), st.integers(0, 1023)), st.integers(0, 2**63 - 1)
)


@given(places.filter(bool))
def test_a_cursor_is_read_as_it_was_written(offsets: dict[tuple[str, int], int]) -> None:
    parsed = parse_cursor(cursor_of((topic, partition, offset) for (topic, partition), offset in offsets.items()))
    assert {(topic, partition): offset for topic in parsed for partition, offset in parsed[topic].items()} == offsets


def test_frames_are_json() -> None:
    frame = orjson.loads(protocol.messages_push('s"1', [b'{"a":1}', b"2"], size_bytes=8, credit=3, credit_bytes=-1))
    assert frame == {
        "op": "messages", "sub": 's"1', "messages": [{"a": 1}, 2], "bytes": 8, "credit": 3, "credit_bytes": -1,
    }  # fmt: skip
    assert "credit_bytes" not in orjson.loads(
        protocol.messages_push("s", [b"1"], size_bytes=1, credit=3, credit_bytes=None)
    )
    error = RequestError(404, 40401, "Topic not found.")
    assert orjson.loads(protocol.refusal(9, error)) == {
        "id": 9, "ok": False, "error_code": 40401, "message": "Topic not found.", "retriable": False,
    }  # fmt: skip
    assert orjson.loads(protocol.error_push(error, sub="s"))["sub"] == "s"
    assert orjson.loads(protocol.reply(1, {"sub": "s"})) == {"id": 1, "ok": True, "sub": "s"}
    assert orjson.loads(protocol.pong(None, 5)) == {"op": "pong", "ts": 5}
    assert orjson.loads(protocol.pong(4, 5)) == {"id": 4, "ok": True, "op": "pong", "ts": 5}
    assert orjson.loads(protocol.goaway_push(1500))["reconnect_after_ms"] == 1500
    assert orjson.loads(protocol.caught_up_push("s", "t:0=1")) == {"op": "caught_up", "sub": "s", "cursor": "t:0=1"}


def test_close_codes_say_whether_to_reconnect() -> None:
    for code in protocol.CloseCode:
        if code >= 4000:
            reconnect = code in (protocol.CloseCode.SHUTDOWN, protocol.CloseCode.SLOW)
            assert (4000 <= code < 4500) is reconnect
