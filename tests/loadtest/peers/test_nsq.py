"""nsqd's protocol, spoken here: commands byte by byte, frames cut off a buffer; and what its statistics count."""

from __future__ import annotations

import struct

import pytest

from loadtest.peers.nsq import OK, Endpoint, Stats, answered_bytes, depth, frames, identify, left, publish
from loadtest.peers.peer import WorkFailed

HEARTBEAT = struct.pack(">ii", 15, 0) + b"_heartbeat_"
ERROR = struct.pack(">ii", 15, 1) + b"E_BAD_TOPIC"
STATS: Stats = {
    "topics": [
        {
            "topic_name": "orders",
            "depth": 7,
            "message_count": 100,
            "channels": [
                {"channel_name": "a", "depth": 20, "in_flight_count": 5, "message_count": 93},
            ],
        }
    ]
}


def message(value: bytes) -> bytes:
    """A frame of a message: time, attempts, ID, value."""
    body = struct.pack(">qH", 1_700_000_000_000_000_000, 1) + b"0123456789abcdef" + value
    return struct.pack(">ii", 4 + len(body), 2) + body


def test_one_message_is_a_pub_and_several_are_an_mpub() -> None:
    assert publish("orders", [b"abc"]) == b"PUB orders\n\x00\x00\x00\x03abc"
    assert publish("orders", [b"abc", b"de"]) == (
        b"MPUB orders\n\x00\x00\x00\x11\x00\x00\x00\x02\x00\x00\x00\x03abc\x00\x00\x00\x02de"
    )


def test_settings_are_json_behind_its_length() -> None:
    assert identify({"heartbeat_interval": -1}) == b'IDENTIFY\n\x00\x00\x00\x19{"heartbeat_interval":-1}'


def test_whole_frames_are_cut_off_and_the_rest_is_kept() -> None:
    last = message(b"second")
    buffer = bytearray(OK + message(b"first") + last[:-1])
    ok, first = frames(buffer)
    assert (ok, first[26:], first[10:26]) == (b"OK", b"first", b"0123456789abcdef")
    assert buffer == last[:-1]
    assert frames(buffer) == []
    buffer += last[-1:]
    assert [one[26:] for one in frames(buffer)] == [b"second"]
    assert not buffer


def test_an_error_frame_is_a_failure() -> None:
    with pytest.raises(WorkFailed, match="E_BAD_TOPIC"):
        frames(bytearray(OK + ERROR))


def test_a_replayed_batch_is_answered_by_ok_and_nothing_else() -> None:
    assert answered_bytes(bytearray(OK)) == len(OK)
    assert answered_bytes(bytearray(OK[:-1])) == answered_bytes(bytearray()) == 0
    for other in (ERROR, HEARTBEAT):
        with pytest.raises(WorkFailed):
            answered_bytes(bytearray(other))


def test_what_a_topic_and_its_channel_hold_is_counted() -> None:
    assert (depth(STATS), left(STATS)) == (7, 32)
    assert depth({"topics": None}) == left({"topics": None}) == 0


def test_an_endpoint_has_two_ports() -> None:
    endpoint = Endpoint.parse("127.0.0.1:4151:4150")
    assert (endpoint.url, endpoint.tcp) == ("http://127.0.0.1:4151", 4150)
