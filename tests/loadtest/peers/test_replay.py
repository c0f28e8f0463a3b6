"""Prebuilt bytes replayed and raw bytes fetched, against small servers of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from loadtest.peers.peer import WorkFailed
from loadtest.peers.replay import Fetched, fetch, http_answer, http_header, replay

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TIMES = {"duration_s": 0.2, "warm_s": 0.05}


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[int]:
    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def whole(buffer: bytearray) -> int:
    """Two answers of three bytes."""
    if buffer.startswith(b"ERR"):
        raise WorkFailed("told so")
    return 6 if len(buffer) >= 6 else 0


def reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


async def test_a_request_is_sent_again_when_its_answer_is_whole() -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            requests.append(await reader.readexactly(4))
            writer.write(b"ok ")
            await asyncio.sleep(0.001)
            writer.write(b"ok ")

    async with served(serve) as port:
        numbers = await replay("127.0.0.1", port, request=b"four", whole=whole, records=1000, connections=3, **TIMES)
    assert set(requests) == {b"four"}
    assert numbers["records"] == pytest.approx(1000 * len(requests) * 0.2 / 0.25, rel=0.25)


async def test_connections_may_open_and_ask_each_in_its_own_way() -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readexactly(2))
        writer.write(b"hi!")
        while True:
            heard.append(await reader.readexactly(2))
            writer.write(b"ok ok ")

    async with served(serve) as port:
        await replay(
            "127.0.0.1",
            port,
            opening=lambda number: b"o%d" % number,
            opened=lambda buffer: 3 if len(buffer) >= 3 else 0,
            request=lambda number: b"r%d" % number,
            whole=whole,
            records=1,
            connections=2,
            **TIMES,
        )
    assert set(heard) == {b"o0", b"o1", b"r0", b"r1"}


@pytest.mark.parametrize(
    ("answer", "why"), [(b"ERROR", "told so"), (b"", "closed the connection")], ids=["an error", "a lost connection"]
)
async def test_an_answer_that_is_none_is_a_failure(answer: bytes, why: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await reader.readexactly(4)
            writer.write(b"ok ok ")
        await reader.readexactly(4)
        writer.write(answer)

    async with served(serve) as port:
        with pytest.raises((WorkFailed, ExceptionGroup)) as caught:
            await replay("127.0.0.1", port, request=b"four", whole=whole, records=1, connections=1, **TIMES)
    assert why in reason(caught.value)


async def test_a_fetch_goes_on_behind_what_it_got_and_from_the_start_at_the_end() -> None:
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked.append(int(await reader.readline()))
            writer.write(b"x" * 1000)

    def cut(buffer: bytearray) -> Fetched | None:
        return Fetched(1000, asked[-1] + 40) if len(buffer) >= 1000 else None

    async with served(serve) as port:
        numbers = await fetch("127.0.0.1", port, request=lambda at: b"%d\n" % at, whole=cut, count=100, **TIMES)
    assert asked[:5] == [0, 40, 80, 0, 40]
    assert numbers["records"] > 0


async def test_a_fetch_that_brings_nothing_is_a_failure() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"x")

    async with served(serve) as port:
        with pytest.raises(WorkFailed, match="nothing came at offset 0"):
            await fetch("127.0.0.1", port, request=lambda _: b"0\n", whole=lambda _: Fetched(1, 0), count=100, **TIMES)


def test_an_http_answer_is_whole_with_its_last_byte() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nMq-Next-Offset: 17\r\n\r\nabc"
    assert [http_answer(bytearray(answer[:size])) for size in (10, len(answer) - 1)] == [0, 0]
    assert http_answer(bytearray(answer + b"HTTP")) == len(answer)
    assert http_header(bytearray(answer), b"Mq-Next-Offset") == b"17"
    with pytest.raises(WorkFailed, match="503"):
        http_answer(bytearray(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"))
