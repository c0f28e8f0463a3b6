"""How fast sockets are fed: what is counted and decoded, what limits a row, and what NATS's own tool printed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import orjson
import pytest

from loadtest.bench import push, push_work
from loadtest.bench.parts import Part
from loadtest.bench.payloads import RECORDS_PER_BATCH, raw_batch
from loadtest.bench.push import Beside, Options, beside_cells, bound, compared, one_subscriber_parts
from loadtest.bench.push_peer import Counter, printed_rate
from loadtest.bench.push_work import Frames, Pushed, Subscribing, decode_batches, fill, one_subscriber, parse_json
from loadtest.bench.request import RunFailed
from loadtest.peers.peer import Unavailable
from loadtest.process import running_server


def run(per_s: float, client_s: float = 0.0, server_s: float = 0.0) -> Pushed:
    return Pushed(int(per_s), 1.0, 1.0, client_s, server_s)


@pytest.mark.parametrize(
    ("client_s", "server_s", "said"),
    [
        (0.2, 0.95, "server (client 20%, server 95%)"),
        (0.91, 0.3, "client (client 91%, server 30%)"),
        (0.5, 0.5, "neither (client 50%, server 50%)"),
        (0.95, 0.96, "the machine (client 95%, server 96%)"),
    ],
)
def test_the_limit_of_a_row_is_the_process_that_takes_a_core(
    client_s: float, server_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert bound([run(1, client_s, server_s)] * 2) == said


def test_a_row_beside_nats_compares_what_does_the_same_and_names_both_limits() -> None:
    row = Beside("counted", "JSON frames", "raw socket", [1e6, 3e6], [2e6, 2e6], "server (95%)", "neither (50%)")
    assert beside_cells(row) == (
        "counted", "JSON frames", "raw socket", "2.00 M/s", "2.00 M/s", "1x (0.5 - 1.5)",
        "ours: server (95%); NATS: neither (50%)",
    )  # fmt: skip


def test_what_is_only_counted_is_never_beside_what_is_decoded() -> None:
    rates = {
        ("counted", "raw-batch frames"): 1.0, ("counted", "JSON frames"): 2.0,
        ("counted", "JSON frames, records stored one by one"): 3.0, ("decoded", "raw-batch frames"): 4.0,
        ("parsed", "JSON frames"): 5.0, ("parsed", "JSON frames, records stored one by one"): 6.0,
        ("counted", "raw socket"): 7.0, ("decoded", "nats bench (Go)"): 8.0, ("decoded", "nats-py"): 9.0,
        ("parsed", "nats-py and orjson"): 10.0,
    }  # fmt: skip
    rows = [Beside(**row) for row in compared({key: [run(rate)] for key, rate in rates.items()})]  # type: ignore[arg-type]
    assert [(row.done, row.ours_per_s, row.peer_per_s) for row in rows] == [
        ("counted", [1], [7]), ("counted", [2], [7]), ("counted", [3], [7]),
        ("decoded", [4], [8]), ("decoded", [4], [9]),
        ("parsed", [5], [8]), ("parsed", [5], [10]), ("parsed", [6], [8]), ("parsed", [6], [10]),
    ]  # fmt: skip


def test_the_rate_of_the_tool_is_read_or_the_run_fails() -> None:
    text = "NATS JetStream ordered ephemeral consumer (old API) stats: 563,366 msgs/sec ~ 69 MiB/sec"
    assert printed_rate(text) == 563_366
    with pytest.raises(RunFailed, match="printed no rate: nats: error: no stream"):
        printed_rate("nats: error: no stream matches subject")


class Wire(asyncio.Transport):
    """What a client has sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)


async def counter(wanted: int) -> tuple[Counter, Wire]:
    found, wire = Counter(wanted), Wire()
    found.connection_made(wire)
    wire.sent = b""
    return found, wire


@pytest.mark.parametrize("piece_bytes", [1, 7, 1_000])
async def test_messages_are_counted_however_they_are_cut(piece_bytes: int) -> None:
    found, wire = await counter(3)
    message = b"MSG push 1 $JS.ACK.push.c.1.1.1.7.0 5\r\nhello\r\n"
    flow = b"HMSG push 1 $JS.FC.push.c.x 58 58\r\nNATS/1.0 100 FlowControl Request\r\n\r\n\r\n"
    stream = b'INFO {"version":"2"}\r\n' + message + flow + b"PING\r\n" + message
    for at in range(0, len(stream), piece_bytes):
        found.data_received(stream[at : at + piece_bytes])
    assert found.count == 2
    assert not found.done.done()
    assert wire.sent == b"PUB $JS.FC.push.c.x 0\r\n\r\nPONG\r\n"
    found.data_received(message)
    assert found.done.done()


@pytest.mark.parametrize(
    "said", [b"-ERR 'Authorization Violation'\r\n", b'MSG inbox 2 20\r\n{"error":{"code":404}}\r\n']
)
async def test_a_refusal_fails_the_run(said: bytes) -> None:
    found, _ = await counter(3)
    found.data_received(said)
    with pytest.raises(RunFailed, match="NATS refused"):
        await found.done


async def test_a_connection_that_ends_early_fails_the_run() -> None:
    found, _ = await counter(3)
    found.connection_lost(None)
    with pytest.raises(RunFailed, match="after 0 messages"):
        await found.done


async def test_pings_are_answered_and_count_as_no_frame() -> None:
    payloads: list[bytes] = []
    frames, wire = Frames(lambda _: None, lambda payload: payloads.append(payload) or 1), Wire()
    frames.connection_made(wire)
    frames.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + b"\x89\x02hi" + b"\x82\x03abc")
    assert (frames.count, frames.byte_count, frames.decoded_count, payloads) == (1, 3, 1, [b"abc"])
    assert wire.sent == b"\x8a\x82" + bytes(4) + b"hi"


def test_frames_are_decoded_into_as_many_values_as_they_have_records() -> None:
    head = orjson.dumps({"op": "batch", "count": 1_003})
    body = raw_batch(range(RECORDS_PER_BATCH)) + raw_batch(range(3))
    assert decode_batches(len(head).to_bytes(4, "big") + head + body) == RECORDS_PER_BATCH + 3
    assert decode_batches(b'{"op":"caught_up"}') == 0
    assert parse_json(b'{"op":"messages","messages":[{"value":1},{"value":2}]}') == 2
    assert parse_json(b'{"id":1,"ok":true}') == 0


@pytest.mark.matrix
@pytest.mark.parametrize("form", ["json", "batch"])
async def test_what_was_decoded_must_be_what_was_stored(form: str, tmp_path: Path) -> None:
    decode = parse_json if form == "json" else decode_batches
    with running_server(tmp_path / "data") as server:
        await fill(server.url, "t", 2_000, form)
        work = Subscribing("", "t", form, 2_000, 0)
        pushed = await one_subscriber(server, work, 255, decode, 0.0)
        assert pushed.record_count == 2_000
        assert min(pushed.took_s, pushed.client_cpu_s, pushed.frame_count, pushed.frame_bytes) > 0
        with pytest.raises(RunFailed, match="2000 records were decoded, not 1999"):
            await one_subscriber(server, work._replace(record_count=1_999), 254, decode, 0.0)


@pytest.mark.matrix
async def test_without_nats_ours_is_measured_and_the_page_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> object:
        raise Unavailable("go is not installed (apt-get install golang-go)")

    monkeypatch.setattr(push, "nats_push", unavailable)
    monkeypatch.setattr(push_work, "SINGLES_A_FRAME", 100)
    found = await one_subscriber_parts(Options(tmp_path, rounds=2, scale=0.001, readers=1, idle_sockets=1))
    rows = cast(list[dict[str, list[float]]], found["one subscriber"])
    assert [len(row["ours"]) for row in rows] == [2, 2, 2], "the first round does not count"
    assert all(min(row["ours"] + row["limit"]) > 0 for row in rows)
    page = push.as_markdown({name: Part({}, rows) for name, rows in found.items()})
    assert "NATS: not measured: go is not installed" in page
