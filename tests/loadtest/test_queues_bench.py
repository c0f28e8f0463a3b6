"""The bench of light queues: a small run of each part measures, and ends; answers of peers are whole or refused."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from loadtest.bench import queues, queues_wire
from loadtest.bench.parts import Part, as_dicts
from loadtest.bench.push_work import Frames
from loadtest.bench.queues import BESIDE, PARTS, Beside, Options, as_markdown, beside_table
from loadtest.bench.queues_wire import SERVERS, Inboxes, NatsInboxes, Ours, RedisStreams
from loadtest.bench.request import RunFailed
from loadtest.peers.fetch import TOOLS
from loadtest.peers.peer import Unavailable, WorkFailed


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MANY", (1_000,))
    monkeypatch.setattr(queues, "RATE", 50)
    monkeypatch.setattr(queues, "SETTLE_S", 0.1)


@pytest.mark.parametrize(
    ("name", "row_count"),
    [
        pytest.param("rows", 3, marks=pytest.mark.matrix),
        pytest.param("many", 3, marks=pytest.mark.matrix),
        ("inboxes", 3),
    ],
)
@pytest.mark.usefixtures("small")
async def test_a_small_run_of_each_part(name: str, row_count: int, tmp_path: Path) -> None:
    rows = await PARTS[name](Options(tmp_path, rounds=1, scale=0.0001))
    assert len(rows) == row_count
    assert all(value > 0 for row in rows for value in row.ours)  # type: ignore[union-attr]
    page = as_markdown({name: Part({}, as_dicts(rows))})  # type: ignore[arg-type]
    assert all(row.work in page for row in rows)


@contextmanager
def nowhere(_: Path) -> Iterator[Inboxes]:
    raise Unavailable("there is none")
    yield


WORKS = ["memory", "rows", "rows", "rows", "read", "send to push", "memory of a socket"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(Ours.name, marks=pytest.mark.matrix),
        pytest.param(
            RedisStreams.name,
            marks=[
                pytest.mark.matrix,
                pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed"),
            ],
        ),
        pytest.param(
            NatsInboxes.name,
            marks=[
                pytest.mark.matrix,
                pytest.mark.skipif(
                    not list(TOOLS.glob("bin/nats-server-v*")), reason="nats-server was not built (make bench-queues)"
                ),
            ],
        ),
    ],
)
@pytest.mark.usefixtures("small")
async def test_a_small_run_beside_others_of_which_one_cannot_be_had(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"other": nowhere} if name == Ours.name else {}
    monkeypatch.setattr(queues, "SERVERS", {name: SERVERS[name], **others})
    rows = await PARTS[BESIDE](Options(tmp_path, rounds=1, scale=0.0001))
    measured = [row for row in rows if isinstance(row, Beside) and row.values]
    assert all(value > 0 for row in measured for values in row.values.values() for value in values)
    assert len(measured) == len(WORKS) + (2 if name == NatsInboxes.name else 0)
    for row, work in zip(measured, WORKS, strict=False):
        assert row.work.startswith(work)
        assert row.notes[name]
    page = as_markdown({BESIDE: Part({}, [row._asdict() for row in rows])})
    assert ("Left out: other: there is none." in page) is bool(others)


def test_ours_is_beside_each_other_round_by_round_and_a_failure_is_said() -> None:
    mq, its, other = SERVERS
    rows = [
        Beside(
            "rows", "records/s", {mq: [2e3, 4e3], its: [1e3, 1e3], other: [1e3]}, {mq: "1 core", its: "", other: ""}
        ),
        Beside("push", "ms", {mq: [2.0], other: [4.0]}, {mq: "", its: "it could not", other: ""}),
    ]
    lines = beside_table(rows)[2:]
    assert lines[0].endswith("| 3x (2 - 4) | - |"), "another number of rounds is not compared"
    assert "3 k/s (1 core)" in lines[0]
    assert lines[1].split(" | ")[1:] == ["2 ms ()", "- (it could not)", "4 ms ()", "-", "2x |"], "less is better"


async def test_a_subscription_that_is_refused_ends_the_run(tmp_path: Path) -> None:
    with SERVERS[Ours.name](tmp_path) as ours:  # there is no such topic
        with pytest.raises(RunFailed, match=r"inbox 0 has no subscription: .*40401"):
            await ours.listen("socket", 0, lambda _: None, "127.0.0.1")
        with pytest.raises(WorkFailed, match=r"HTTP/1.1 404"):
            await ours.ask(ours.read(0, 1))
        await ours.begin()
        with pytest.raises(WorkFailed, match="an inbox is empty"):
            await ours.ask(ours.read(0, 1))
        with pytest.raises(WorkFailed, match="error_code"):
            await ours.ask(ours.send(0, [[1, 1]]))  # a name twice


@pytest.mark.parametrize(
    ("whole", "answer"),
    [
        (RedisStreams.send(None, 0, [[1]]).whole, b"$3\r\n1-0\r\n"),  # type: ignore[arg-type]
        (
            RedisStreams.send(None, 0, [[1, 2]]).whole,  # type: ignore[arg-type]
            b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$3\r\n1-0\r\n$3\r\n1-0\r\n",
        ),
        (NatsInboxes.send(None, 0, [[1, 2]]).whole, b'MSG _INBOX.bench-0 1 16\r\n{"stream":"b"}\r\n'),  # type: ignore[arg-type]
        (
            queues_wire._messages,
            b"HMSG i 1 20 22\r\nNATS/1.0\r\nA: 1\r\n\r\nhi\r\nHMSG i 1 20 20\r\nNATS/1.0 204 EOB\r\n\r\n\r\n",
        ),
    ],
)
def test_an_answer_is_whole_with_its_last_byte(whole: queues_wire.Whole, answer: bytes) -> None:
    assert [whole(bytearray(answer[:size])) for size in range(len(answer))] == [0] * len(answer)
    assert whole(bytearray(answer)) == len(answer)


@pytest.mark.parametrize(
    ("whole", "refusal"),
    [
        (partial(queues_wire._lines, count=2), b"-ERR no\r\n"),
        (partial(queues_wire._lines, count=9), b"+OK\r\n-ERR no\r\n"),
        (queues_wire._messages, b"HMSG i 1 30 30\r\nNATS/1.0 404 Message Not Found\r\n\r\n\r\n"),
    ],
)
def test_a_refusal_is_no_answer(whole: queues_wire.Whole, refusal: bytes) -> None:
    with pytest.raises(WorkFailed):
        whole(bytearray(refusal))


@pytest.mark.parametrize("piece_bytes", [1, 7, 1_000])
async def test_pushes_of_nats_are_read_however_they_are_cut(piece_bytes: int) -> None:
    arrived: list[int] = []
    subscriber = queues_wire._Subscriber(7, arrived.extend, has_consumer=False)
    said: list[bytes] = []
    subscriber.connection_made(type("T", (), {"write": lambda _, data: said.append(data)})())  # type: ignore[arg-type]
    stream = b'INFO {}\r\nPONG\r\nMSG user.7 1 14\r\n{"sequence":12}\r\nPING\r\nMSG user.7 1 14\r\n{"sequence":3}\r\n'
    for at in range(0, len(stream), piece_bytes):
        subscriber.data_received(stream[at : at + piece_bytes])
    await asyncio.wait_for(subscriber.subscribed, 1)
    assert (arrived, said[1:]) == ([12, 3], [b"PONG\r\n"])


async def test_a_socket_that_the_server_closes_is_no_frame() -> None:
    socket = Frames(lambda _: None, lambda payload: 1)
    closed = []
    socket._transport = type("T", (), {"close": lambda _: closed.append(True)})()  # type: ignore[assignment]
    socket.data_received(b"HTTP/1.1 101 \r\n\r\n" + b"\x81\x02{}" + b"\x88\x02\x03\xe9")
    assert (socket.count, socket.decoded_count, socket.closed_with, closed) == (1, 1, b"\x03\xe9", [True])
