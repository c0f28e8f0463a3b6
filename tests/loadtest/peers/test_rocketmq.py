"""What is spoken to RocketMQ's Java client and to its broker."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import orjson
import pytest

from loadtest.peers import rocketmq_protocol as protocol
from loadtest.peers.peer import WorkFailed
from loadtest.peers.replay import Fetched
from loadtest.peers.rocketmq import Client, packed, unpacked

NO_LOG = Path("/nowhere")
ANSWER, VALUES, FAILURE = 0, 1, 2


class Requests:
    """What was written to the Java client."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, piece: bytes) -> None:
        self.written += piece


def frame(kind: int, number: int, body: bytes = b"") -> bytes:
    return struct.pack(">ibi", 4 + len(body), kind, number) + body


def one_value(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def answered(header: dict[str, object], body: bytes = b"") -> bytes:
    """A broker's answer."""
    encoded = orjson.dumps(header)
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def test_values_are_packed_and_unpacked() -> None:
    values = [b"a", b"", b"x" * 300]
    counted = packed(values)
    assert struct.unpack_from(">i", counted) == (3,)
    assert unpacked(counted[4:]) == values


async def test_an_answer_ends_the_request_that_it_is_for() -> None:
    requests, frames = Requests(), asyncio.StreamReader()
    client = Client(requests, frames, NO_LOG)
    frames.feed_data(frame(ANSWER, 0))
    await client.ready
    first, second = asyncio.create_task(client.create("t")), asyncio.create_task(client.send("t", [b"1"]))
    await asyncio.sleep(0)
    assert requests.written.startswith(struct.pack(">ibih", 4 + 2 + 1, 1, 1, 1) + b"t")
    frames.feed_data(frame(ANSWER, 2))
    await second
    assert not first.done()
    frames.feed_data(frame(FAILURE, 1, b"no broker"))
    with pytest.raises(WorkFailed, match="no broker"):
        await first
    frames.feed_eof()
    await client.ended


async def test_values_go_to_their_reader_and_not_to_one_that_was_closed() -> None:
    requests, frames = Requests(), asyncio.StreamReader()
    client = Client(requests, frames, NO_LOG)
    reader = client.read("t")
    frames.feed_data(frame(ANSWER, 1) + frame(VALUES, 1, one_value(b"a") + one_value(b"b")))
    assert await anext(reader) == [b"a", b"b"]
    closing = asyncio.create_task(reader.aclose())
    await asyncio.sleep(0)
    frames.feed_data(frame(VALUES, 1, one_value(b"too late")) + frame(ANSWER, 2))
    await closing
    assert requests.written.endswith(struct.pack(">bihi", 6, 2, 0, 1))
    frames.feed_eof()
    await client.ended


async def test_the_end_of_the_client_fails_what_waits_for_it() -> None:
    frames = asyncio.StreamReader()
    client = Client(Requests(), frames, NO_LOG)
    reader = client.receive("t")
    values, sent = asyncio.create_task(anext(reader)), asyncio.create_task(client.send("t", [b"1"]))
    await asyncio.sleep(0)
    frames.feed_data(frame(ANSWER, 1))
    frames.feed_eof()
    with pytest.raises(WorkFailed, match="ended"):
        await values
    with pytest.raises(WorkFailed, match="ended"):
        await sent
    with pytest.raises(WorkFailed, match="ended"):
        await client.create("t")


def test_a_batch_has_the_size_of_every_message_and_an_id_in_each() -> None:
    request = protocol.send_batch("topic", [b"a" * 100, b"b" * 100], 123)
    size, header_size = struct.unpack_from(">ii", request)
    assert size == len(request) - 4
    header = orjson.loads(request[8 : 8 + header_size])
    assert (header["code"], header["extFields"]["b"], header["extFields"]["m"]) == (320, "topic", "true")
    body = request[8 + header_size :]
    (first_size,) = struct.unpack_from(">i", body)
    assert struct.unpack_from(">i", body, first_size) == (len(body) - first_size,)
    assert body[16:20] == struct.pack(">i", 100)
    assert body[:first_size] != body[first_size:].replace(b"b" * 100, b"a" * 100)


def test_an_answer_to_a_batch_is_cut_where_it_ends() -> None:
    answer = answered({"code": 0, "opaque": 1, "extFields": {"queueOffset": "7"}})
    for size in range(len(answer)):
        assert protocol.sent_bytes(answer[:size]) == 0
    assert protocol.sent_bytes(answer + answer) == len(answer)


@pytest.mark.parametrize("header", [{"code": 2, "remark": "busy"}, {"code": 10, "remark": "FLUSH_DISK_TIMEOUT"}, {}])
def test_an_error_is_a_failure(header: dict[str, object]) -> None:
    with pytest.raises(WorkFailed, match="the broker answered"):
        protocol.sent_bytes(answered(header))


def test_a_pull_goes_on_where_the_broker_says() -> None:
    request = protocol.pull("topic", 77, 4096)
    fields = orjson.loads(request[8:])["extFields"]
    assert (fields["queueOffset"], fields["maxMsgNums"]) == ("77", "4096")
    answer = answered({"code": 0, "extFields": {"nextBeginOffset": "4173"}}, b"x" * 1_000)
    assert protocol.pulled(answer[:-1]) is None
    assert protocol.pulled(answer) == Fetched(len(answer), 4_173)
    with pytest.raises(WorkFailed, match="the broker answered"):
        protocol.pulled(answered({"code": 19, "extFields": {"nextBeginOffset": "77"}}))
