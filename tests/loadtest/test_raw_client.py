"""Our load client against a server that answers badly on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from loadtest.bench import raw_client
from loadtest.bench.raw_client import RawClient
from loadtest.bench.request import Load, Request, RunFailed

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
REQUEST = Request("POST", "/x", {"Content-Type": "text/plain"}, b"body")


@asynccontextmanager
async def answering(answer: Callable[[int], list[bytes]]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers its n-th request with the pieces `answer(n)`, each sent by itself; and what it got."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = await reader.readexactly(4)
                received.append(head + body)
                for piece in answer(len(received)):
                    if not piece:
                        writer.close()
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", received
    finally:
        server.close()


async def drive(url: str, *, connections: int = 2, duration_s: float = 0.05) -> Load:
    return await RawClient().drive(url, REQUEST, connections=connections, duration_s=duration_s)


async def test_every_answer_is_counted_once() -> None:
    async with answering(lambda _: [GOOD]) as (url, received):
        load = await drive(url)
    assert load.request_count == len(received) > 2
    assert load.error_count == 0
    assert 0 < load.p50_ms <= load.p99_ms
    assert load.duration_s >= 0.05


async def test_the_request_is_whole() -> None:
    async with answering(lambda _: [GOOD]) as (url, received):
        await drive(url, connections=1)
    head = f"POST /x HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\nContent-Type: text/plain\r\n"
    assert received[0] == head.encode() + b"Content-Length: 4\r\n\r\nbody"


async def test_head_and_body_may_be_sent_apart() -> None:
    pieces: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1000):
            pieces.append(piece)
            if piece == b"body":
                writer.write(GOOD)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        load = await RawClient(is_apart=True).drive(url, REQUEST, connections=1, duration_s=0.05)
    finally:
        server.close()
    assert load.request_count > 2
    assert set(pieces[1::2]) == {b"body"}
    assert len(set(pieces[::2])) == 1


async def test_an_answer_may_come_in_pieces() -> None:
    async with answering(lambda _: [GOOD[:20], GOOD[20:40], GOOD[40:-2], GOOD[-2:]]) as (url, received):
        load = await drive(url)
    assert load.request_count == len(received)
    assert load.error_count == 0


async def test_other_statuses_are_errors() -> None:
    async with answering(lambda n: [GOOD.replace(b"200", b"503") if n % 2 else GOOD]) as (url, received):
        load = await drive(url, connections=1)
    assert load.error_count == (len(received) + 1) // 2
    assert load.request_count == len(received) // 2


async def test_a_lost_connection_is_an_error_and_ends_the_run() -> None:
    async with answering(lambda _: [GOOD[:-2], b""]) as (url, _):
        load = await drive(url)
    assert (load.request_count, load.error_count) == (0, 2)


async def test_more_bytes_than_announced_are_an_error() -> None:
    async with answering(lambda _: [GOOD + b"surplus"]) as (url, _):
        load = await drive(url, connections=1)
    assert load.request_count == 0
    assert load.error_count > 0


async def test_a_server_that_stops_answering_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_client, "LAST_ANSWERS_TIMEOUT_S", 0.05)
    async with answering(lambda n: [GOOD] if n < 5 else []) as (url, _):
        with pytest.raises(RunFailed, match="2 requests were not answered"):
            await drive(url)
