"""Cursors, and the frames the server writes."""

from __future__ import annotations

import contextlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from gateway.codec import cursors
from gateway.codec.cursors import write_cursor
from gateway.errors import RequestError
from gateway.surfaces.ws import protocol
from gateway.surfaces.ws.protocol import cursor_of, parse_cursor

next_offsets = st.dictionaries(
    st.tuples(st.from_regex(r"[A-Za-z0-9._%-]{1,20}", fullmatch=True), st.integers(0, 1023)), st.integers(0, 2**63 - 1)
)


@given(next_offsets.filter(bool))
def test_a_cursor_is_read_as_it_was_written(offsets: dict[tuple[str, int], int]) -> None:
    parsed = parse_cursor(cursor_of((topic, partition, offset) for (topic, partition), offset in offsets.items()))
    assert {(topic, partition): offset for topic in parsed for partition, offset in parsed[topic].items()} == offsets


def test_sockets_and_streams_write_one_form_of_cursor_and_no_epoch_is_ignored() -> None:
    next_offsets = [("orders", 0, 101), ("orders", 1, 88)]
    assert parse_cursor(write_cursor(next_offsets, {})) == {"orders": {0: 101, 1: 88}}
    assert cursors.parse_cursor(cursor_of(next_offsets)).offsets == {"orders": {0: 101, 1: 88}}
    for text in (write_cursor(next_offsets, {"orders": "16"}), "orders:0=1;orders:0=2", "orders:0"):
        with pytest.raises(RequestError) as caught:
            parse_cursor(text)
        assert caught.value.error_code == 40050


@pytest.mark.parametrize("size", [0, 125, 126, 0xFFFF, 0x10000])
def test_a_frame_is_what_others_take_for_one(size: int) -> None:
    payload = b"x" * size
    reader = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN, max_size=None)
    reader.receive_data(
        protocol.websocket_frame(protocol.BINARY, payload) + protocol.websocket_frame(protocol.PING, b"")
    )
    binary, ping = reader.events_received()
    assert (binary.opcode, binary.fin, binary.data) == (Opcode.BINARY, True, payload)  # type: ignore[union-attr]
    assert (ping.opcode, ping.data) == (Opcode.PING, b"")  # type: ignore[union-attr]


def test_frames_are_json() -> None:
    frame = orjson.loads(protocol.messages_push('s"1', 7, b'{"a":1},2', size_bytes=8, credit=3, credit_bytes=-1))
    assert frame == {
        "op": "messages", "sub": 's"1', "seq": 7, "messages": [{"a": 1}, 2],
        "bytes": 8, "credit": 3, "credit_bytes": -1,
    }  # fmt: skip
    assert "credit_bytes" not in orjson.loads(
        protocol.messages_push("s", 1, b"1", size_bytes=1, credit=3, credit_bytes=None)
    )
    error = RequestError(40401, "Topic not found.")
    assert orjson.loads(protocol.refusal(9, error)) == {
        "id": 9, "ok": False, "error_code": 40401, "message": "Topic not found.", "retriable": False,
    }  # fmt: skip
    assert orjson.loads(protocol.error_push(error, sub="s"))["sub"] == "s"
    assert orjson.loads(protocol.reply(1, {"sub": "s"})) == {"id": 1, "ok": True, "sub": "s"}
    assert orjson.loads(protocol.pong(None, 5)) == {"op": "pong", "ts": 5}
    assert orjson.loads(protocol.pong(4, 5)) == {"id": 4, "ok": True, "op": "pong", "ts": 5}
    assert orjson.loads(protocol.goaway_push(1500, "sess_1"))["reconnect_after_ms"] == 1500
    assert orjson.loads(protocol.caught_up_push("s", "t:0=1")) == {"op": "caught_up", "sub": "s", "cursor": "t:0=1"}


def test_close_codes_say_whether_to_reconnect() -> None:
    for code in protocol.CloseCode:
        if code >= 4000:
            assert code.keeps_session is (code < 4500 and code is not protocol.CloseCode.SHUTDOWN)


@given(st.dictionaries(st.text(max_size=5), st.integers(-5, 5), max_size=3), st.binary(max_size=50))
def test_a_binary_frame_is_read_as_it_was_written(header: dict[str, int], payload: bytes) -> None:
    read, rest = protocol.split_binary(protocol.binary_frame(orjson.dumps(header), payload))
    assert (read, bytes(rest)) == (header, payload)


@given(st.binary(max_size=60))
def test_no_bytes_do_worse_than_a_bad_frame(frame: bytes) -> None:
    with contextlib.suppress(protocol.BadFrame):
        assert isinstance(protocol.split_binary(frame)[0], dict)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\x03{}", b"\0\0\0\x02[]", b"\0\0\0\x01{"])
def test_a_binary_frame_that_is_cut_short_or_has_no_header_is_a_bad_one(frame: bytes) -> None:
    with pytest.raises(protocol.BadFrame):
        protocol.split_binary(frame)
