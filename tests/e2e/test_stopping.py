"""The end of a server, and of somebody's rights, as those see it who wait: a real process, its signals, its files.

A stop: not ready first, then sockets are told to reconnect, streams and long polls end well, whoever sends is answered;
what was acknowledged is there at the next start, which has nothing to recover. A second signal stops at once.
A revoked token: whatever it holds open ends within seconds.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.auth.tokens import change_tokens, mint
from tests.e2e.server import SMALL_FILES, Server
from tests.fork_server import EXECUTED
from tests.waiting import PATIENCE_S, WOKEN_S

WAIT_MS = 30_000
"""What everybody who waits is ready to wait: longer than the test."""

END_S = WOKEN_S
"""Within which everything is to end."""

DRAIN_DELAY_MS = 500
INSTANCE = "/consumers/old/instances/c1"
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json", "Accept": "application/vnd.kafka.json.v2+json"}


class Waiting:
    """One of everything that waits: three kinds of long polls, two event streams, a socket, a sender's open stream."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self._client = client
        self.polls: list[asyncio.Task[tuple[int, Any]]] = []
        self.streams: list[asyncio.Task[list[bytes]]] = []
        self.socket: asyncio.Task[tuple[list[Any], int | None]] | None = None
        self.sending: asyncio.Task[list[bytes]] | None = None

    async def begin(self) -> None:
        """Open all of them; they wait on return."""
        client = self._client
        async with client.post("/consumers/old", json={"name": "c1", "format": "json"}, headers=JSON) as answer:
            assert answer.status == 200, await answer.text()
        async with client.post(f"{INSTANCE}/subscription", json={"topics": ["quiet"]}, headers=JSON) as answer:
            assert answer.status == 204, await answer.text()
        receive = {"topics": ["quiet"], "wait_ms": WAIT_MS}
        self.polls = [
            asyncio.create_task(self._poll("GET", f"/topics/quiet/partitions/0/records?timeout={WAIT_MS}")),
            asyncio.create_task(self._poll("POST", "/mq/v1/groups/g/messages:receive", json=receive)),
            asyncio.create_task(self._poll("GET", f"{INSTANCE}/records?timeout={WAIT_MS}", headers=JSON)),
        ]
        is_open = [asyncio.Event() for _ in range(4)]
        self.streams = [
            asyncio.create_task(self._follow("", is_open[0])),
            asyncio.create_task(self._follow("?group=g3&ack=manual", is_open[1])),
        ]
        self.socket = asyncio.create_task(self._talk(is_open[2]))
        self.sending = asyncio.create_task(self._send(is_open[3]))
        async with asyncio.timeout(PATIENCE_S):
            for event in is_open:
                await event.wait()
            while await self._long_polls() < len(self.polls):  # noqa: ASYNC110 -- a counter of another process
                await asyncio.sleep(0.02)

    def tasks(self) -> list[asyncio.Task[Any]]:
        assert self.socket is not None
        assert self.sending is not None
        return [*self.polls, *self.streams, self.socket, self.sending]

    async def _long_polls(self) -> float:
        async with self._client.get("/metrics") as answer:
            (line,) = [line for line in (await answer.text()).splitlines() if line.startswith("mq_long_polls ")]
            return float(line.split()[1])

    async def _poll(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        async with self._client.request(method, path, **options) as answer:
            return answer.status, await answer.json(content_type=None)

    async def _follow(self, query: str, is_open: asyncio.Event) -> list[bytes]:
        lines = []
        headers = {"Accept": "text/event-stream"}
        async with self._client.get(f"/mq/v1/topics/quiet/sse{query}", headers=headers) as answer:
            assert answer.status == 200
            async for line in answer.content:
                is_open.set()
                lines.append(line)
        return lines

    async def _talk(self, is_open: asyncio.Event) -> tuple[list[Any], int | None]:
        frames = []
        async with self._client.ws_connect("/ws/v1") as socket:
            await socket.send_json({"id": 1, "op": "hello"})
            await socket.send_json(
                {
                    "id": 2,
                    "op": "subscribe",
                    "sub": "s",
                    "topics": ["quiet"],
                    "mode": "queue",
                    "group": "g2",
                    "credit": 9,
                }
            )
            async for message in socket:
                frames.append(orjson.loads(message.data))
                if len(frames) >= 2:
                    is_open.set()
        return frames, socket.close_code

    async def _send(self, is_open: asyncio.Event) -> list[bytes]:
        async def body() -> AsyncIterator[bytes]:
            yield b'{"value":"streamed"}\n'
            await asyncio.sleep(WAIT_MS / 1000)

        lines = []
        headers = {"Content-Type": "application/x-ndjson"}
        async with self._client.post("/mq/v1/topics/busy/messages:batch", data=body(), headers=headers) as answer:
            assert answer.status == 200
            async for line in answer.content:
                lines.append(line)
                is_open.set()
        return lines


async def prepare(client: aiohttp.ClientSession) -> None:
    for topic in ("quiet", "busy"):
        async with client.put(f"/mq/v1/topics/{topic}", json={"partitions": 1}) as answer:
            assert answer.status == 201


async def status(url: str) -> int:
    """The status of one request over a connection of its own; 0 when it is not taken."""
    try:
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            return answer.status
    except aiohttp.ClientConnectionError:
        return 0


async def send_until_refused(url: str, name: int, acknowledged: set[str]) -> None:
    """Send one by one; every answer is a 200, or a refusal that says to go elsewhere."""
    async with aiohttp.ClientSession(url) as client:
        for number in range(1_000_000):
            value = f"{name}-{number}"
            try:
                async with client.post("/topics/busy", json={"records": [{"value": value}]}, headers=JSON) as answer:
                    assert answer.status in (200, 503), await answer.text()
                    if answer.status == 503:
                        return
                    acknowledged.add(value)
            except aiohttp.ClientConnectionError:
                return


async def stored(url: str) -> set[str]:
    headers = {"Accept": "application/x-ndjson"}
    async with (
        aiohttp.ClientSession(url) as client,
        client.get("/topics/busy/partitions/0/records", headers=headers) as answer,
    ):
        return {orjson.loads(line)["value"] async for line in answer.content}


async def test_a_stop_is_told_to_everybody_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", {**SMALL_FILES, "MQ_DRAIN_DELAY_MS": str(DRAIN_DELAY_MS)})
    await server.start()
    acknowledged: set[str] = set()
    try:
        async with aiohttp.ClientSession(server.url) as client:
            await prepare(client)
            waiting = Waiting(client)
            await waiting.begin()
            senders = [asyncio.create_task(send_until_refused(server.url, name, acknowledged)) for name in range(4)]
            assert await status(f"{server.url}/readyz") == 200
            server.signal(signal.SIGTERM)
            stopping_s = time.monotonic()
            while (ready := await status(f"{server.url}/readyz")) == 200:
                assert time.monotonic() < stopping_s + END_S
            assert ready == 503, "it was said on /readyz before connections were refused"
            before = len(acknowledged)
            assert await server.ended() == 0
            assert time.monotonic() - stopping_s < DRAIN_DELAY_MS / 1000 + END_S
            await asyncio.gather(*senders)
            assert len(acknowledged) > before, "while it only says that it will stop, everything goes on"
            await asyncio.wait(waiting.tasks(), timeout=END_S)

            (_, pulled), (_, received), (_, read) = answers = [poll.result() for poll in waiting.polls]
            assert [code for code, _ in answers] == [200, 200, 200]
            assert (pulled, received["messages"], read) == ([], [], [])
            for stream in waiting.streams:
                assert b"event: goaway\n" in stream.result()
            assert waiting.socket is not None
            frames, close_code = waiting.socket.result()
            assert [frame["op"] for frame in frames if "op" in frame][-1] == "goaway"
            assert close_code in (1001, 4001)
            assert waiting.sending is not None
            receipt, last_words = map(orjson.loads, waiting.sending.result())
            assert (receipt["offset"] is not None, last_words["error_code"], last_words["count"]) == (True, 50350, 1)
        await server.start()
        assert await stored(server.url) >= acknowledged | {"streamed"}
        assert "torn" not in server.log()
        assert await server.stop() == 0
        assert "Traceback" not in server.log()
    finally:
        await server.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_at_once_and_loses_nothing(tmp_path: Path, number: signal.Signals) -> None:
    server = Server(tmp_path / "data", {**SMALL_FILES, "MQ_DRAIN_DELAY_MS": "60000"}, under=EXECUTED)
    await server.start()
    acknowledged: set[str] = set()
    try:
        async with aiohttp.ClientSession(server.url) as client:
            await prepare(client)
        senders = [asyncio.create_task(send_until_refused(server.url, name, acknowledged)) for name in range(4)]
        server.signal(number)
        while await status(f"{server.url}/readyz") != 503:
            pass
        while len(acknowledged) < 20:  # noqa: ASYNC110 -- filled by the senders
            await asyncio.sleep(0.01)
        server.signal(number)
        assert await asyncio.wait_for(server.ended(), END_S) == -number
        await asyncio.gather(*senders)
        await server.start()
        assert await stored(server.url) >= acknowledged
    finally:
        await server.end()


async def test_a_revoked_token_ends_what_it_holds_open(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = Server(data, {**SMALL_FILES, "MQ_AUTH_ENABLED": "true"})
    token, record = mint("ann", ["admin"], now_ms=int(time.time() * 1000) - 1000)
    (data / "auth").mkdir(parents=True)
    change_tokens(data / "auth" / "tokens.json", lambda tokens: tokens.update({record.id: record}))
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {token}"}) as client:
            await prepare(client)
            waiting = Waiting(client)
            await waiting.begin()
            change_tokens(data / "auth" / "tokens.json", lambda tokens: tokens.clear())
            done, pending = await asyncio.wait(waiting.tasks(), timeout=END_S)
            assert not pending, [task.get_coro() for task in pending]
            assert len(done) == 7

            assert [(code, body["error_code"]) for code, body in (poll.result() for poll in waiting.polls)] == [
                (401, 40101)
            ] * 3
            for stream in waiting.streams:
                lines = stream.result()
                assert b"event: error\n" in lines
                assert any(b'"error_code":40101' in line for line in lines)
            assert waiting.socket is not None
            assert waiting.socket.result()[1] == 4501
            assert waiting.sending is not None
            receipt, last_words = map(orjson.loads, waiting.sending.result())
            assert (receipt["offset"] is not None, last_words["error_code"]) == (True, 40101)
        assert await server.stop() == 0
        assert "Traceback" not in server.log()
    finally:
        await server.end()
