"""`mq serve --workers`: real processes that share a port answer as one server, whichever is asked, while one is killed.

Covers gateway.main.workers, gateway.main.worker, gateway.main.worker_counts, gateway.surfaces.http.relaying,
gateway.surfaces.peer.link and gateway.cluster.peer_link.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest

from gateway.main.listener import bound_socket, bound_sockets
from gateway.main.workers import Workers
from loadtest.certificates import write_certificate
from tests.clock import FakeClock
from tests.e2e.server import SMALL_FILES, Server
from tests.gateway.fake_broker import fake_gateway
from tests.history import Outcome, Recorder, Seen, check
from tests.waiting import PATIENCE_S, until

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
WORKERS = 2
TRIES = 8
"""Connections, one after the other, by which each worker is asked sooner or later."""


class Client:
    """Asks a server, each time over a new connection: so by either worker."""

    def __init__(self, server: Server, http: aiohttp.ClientSession) -> None:
        self.server, self._http = server, http

    def request(self, method: str, path: str, **sent: Any) -> Any:
        return self._http.request(method, self.server.url + path, **sent)

    async def ask(self, method: str, path: str, **sent: Any) -> tuple[int, Any]:
        async with self.request(method, path, **sent) as response:
            return response.status, await response.json(content_type=None)

    async def done(self, method: str, path: str, **sent: Any) -> Any:
        status, answer = await self.ask(method, path, **sent)
        assert status < 300, (path, answer)
        return answer

    async def send(self, topic: str, value: object, **sent: Any) -> dict[str, Any]:
        records = {"records": [{"value": value}]}
        answer = await self.done("POST", f"/topics/{topic}", json=records, headers={**JSON, **sent.pop("headers", {})})
        (one,) = answer["offsets"]
        return dict(one)

    async def figures(self) -> dict[str, float]:
        async with self.request("GET", "/metrics") as response:
            lines = [line for line in (await response.text()).splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def pids(self) -> list[int]:
        """The workers' processes."""
        assert self.server._process is not None
        pid = self.server._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(each) for each in children if b"gateway.main.worker" in Path(f"/proc/{each}/cmdline").read_bytes()]


@asynccontextmanager
async def serving(directory: Path, **settings: str) -> AsyncIterator[Client]:
    environment = {**SMALL_FILES, "MQ_WORKERS": str(WORKERS), "MQ_KAFKA_ENABLED": "false", **settings}
    server = Server(directory / "data", environment)
    connector = aiohttp.TCPConnector(force_close=True, ssl=False)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        try:
            await server.start()
            yield Client(server, http)
        finally:
            await server.end()


async def test_workers_answer_as_one_server(tmp_path: Path) -> None:
    async with asyncio.timeout(3 * PATIENCE_S), serving(tmp_path) as client:
        await _sends_and_reads(client)
        await _the_rest_is_passed_on(client)
        await _topics_change_at_once(client)
        await _is_counted_once(client)
        await _a_worker_that_dies_is_started_again(client)
        end = (await client.done("GET", "/topics/orders/partitions/0/offsets"))["end_offset"]
        path = f"/topics/orders/partitions/0/records?offset={end}&timeout=20000"
        poll = asyncio.create_task(client.done("GET", path))
        await asyncio.sleep(0.2)
        pids = client.pids()
        assert len(pids) == WORKERS
        assert await client.server.stop() == 0, client.server.log()
        assert await poll == [], "what waits is answered"
        assert not any(_runs(pid) for pid in pids)


async def _sends_and_reads(client: Client) -> None:
    """Of every worker, at once, whoever made the topic; repeats are known, whoever is asked."""
    assert (await client.ask("PUT", "/mq/v1/topics/orders", json={"partitions": 1}))[0] == 201
    offsets = [(await client.send("orders", number))["offset"] for number in range(TRIES)]
    assert offsets == list(range(TRIES))
    for _ in range(TRIES):
        rows = await client.done("GET", "/topics/orders/partitions/0/records?offset=0&format=json")
        assert [row["value"] for row in rows] == list(range(TRIES))
    again = {"headers": {**JSON, "Idempotency-Key": "once"}, "json": {"records": [{"value": "once"}]}}
    answers = [await client.done("POST", "/topics/orders", **again) for _ in range(TRIES)]
    assert {answer["offsets"][0]["offset"] for answer in answers} == {TRIES}
    waiting = [
        client.done("GET", f"/topics/orders/partitions/0/records?offset={TRIES + 1}&timeout=20000&format=json")
        for _ in range(4)
    ]
    polls = [asyncio.create_task(one) for one in waiting]
    await asyncio.sleep(0.1)
    await client.send("orders", "awaited")
    for rows in await asyncio.gather(*polls):
        assert [row["value"] for row in rows] == ["awaited"]
    large = "x" * 5_000  # all of them are more than what waits in memory
    body = b"".join(b'{"value":"%d%b"}\n' % (number, large.encode()) for number in range(40))
    path, lines = "/mq/v1/topics/orders/messages:batch", {"Content-Type": "application/x-ndjson"}
    async with client.request("POST", path, data=body, headers=lines) as response:
        assert (response.status, (await response.text()).count("\n")) == (200, 40)
    rows = await client.done("GET", f"/topics/orders/partitions/0/records?offset={TRIES + 2}&format=json")
    assert [row["value"] for row in rows] == [f"{number}{large}" for number in range(40)]


async def _the_rest_is_passed_on(client: Client) -> None:
    """Groups, delays, sockets and event streams are the store's process's, and reached by every worker."""
    await client.done("PUT", "/mq/v1/topics/tasks", json={"partitions": 2})
    sent = [await client.send("tasks", number) for number in range(TRIES)]
    path = "/mq/v1/groups/g/messages"
    found: list[Any] = []
    for _ in range(TRIES):
        found += (await client.done("POST", f"{path}:receive", json={"topics": ["tasks"], "max_messages": 1}))[
            "messages"
        ]
    assert sorted(row["value"] for row in found) == list(range(TRIES))
    acked = await client.done("POST", f"{path}:ack", json={"receipts": [row["receipt"] for row in found]})
    assert all(result["ok"] for result in acked["results"])
    record = {"value": "later", "delay_ms": 60_000}
    answer = await client.done("POST", "/topics/tasks", json={"records": [record]}, headers=JSON)
    schedule = answer["offsets"][0]["schedule_id"]
    for _ in range(4):
        assert (await client.done("GET", f"/mq/v1/schedules/{schedule}"))["schedule_id"] == schedule
    for _ in range(4):
        url = f"{client.server.url}/ws/v1/consume?topic=tasks&from=earliest"
        lie = {"Mq-Client": "192.0.2.1"}
        async with client._http.ws_connect(url, autoping=False, headers=lie) as socket:
            sessions = (await client.done("GET", "/mq/v1/sessions", headers=lie))["sessions"]
            assert {row["address"] for row in sessions} == {"127.0.0.1"}, "a worker is believed, and no client"
            seen = 0
            while seen < TRIES:
                message = await socket.receive(timeout=PATIENCE_S)
                assert message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.PING), message
                seen += str(message.data).count('"value"')
            await socket.ping(b"there?")
            while (message := await socket.receive(timeout=PATIENCE_S)).type is not aiohttp.WSMsgType.PONG:
                pass
            assert message.data == b"there?"
        async with client.request("GET", "/mq/v1/topics/tasks/sse?from=earliest") as stream:
            assert stream.status == 200, await stream.text()
            read = b""
            while read.count(b'"value"') < TRIES:
                read += await stream.content.readany()
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await client._http.ws_connect(f"{client.server.url}/ws/v1/consume?nonsense=1")
    assert refused.value.status == 422
    assert {row["partition"] for row in sent} == {0, 1}
    async with client.request("HEAD", "/topics") as head:
        assert (head.status, await head.read()) == (200, b"")
    status, error = await client.ask("GET", "/mq/v1/groups/none", headers={"X-Request-Id": "mine"})
    assert (status, error["request_id"]) == (404, "mine")
    async with client.request("GET", "/mq/v1/groups/none") as response:
        assert (await response.json())["request_id"] == response.headers["X-Request-Id"]


async def _topics_change_at_once(client: Client) -> None:
    for number in range(3):
        await client.done("PUT", "/mq/v1/topics/short", json={"partitions": 1})
        for value in range(3):
            assert (await client.send("short", f"{number}/{value}"))["offset"] == value, "a new topic each time"
        await client.done("PATCH", "/mq/v1/topics/short", json={"partitions": 3})
        partition = {"records": [{"value": 1, "partition": 2}]}
        for _ in range(3):
            await client.done("POST", "/topics/short", json=partition, headers=JSON)
        assert (await client.ask("DELETE", "/mq/v1/topics/short"))[0] == 204
        status, _ = await client.ask("POST", "/topics/short", json={"records": [{"value": 1}]}, headers=JSON)
        assert status == 404


async def _is_counted_once(client: Client) -> None:
    """By each process, told within a second, added up."""
    await client.done("PUT", "/mq/v1/topics/counted", json={"partitions": 1})
    for value in range(TRIES):
        await client.send("counted", value)
    read = "/topics/counted/partitions/0/messages?offset=0"  # v1's, which no worker answers by itself
    for _ in range(TRIES):
        await client.ask("GET", read)
    for _ in range(TRIES):
        status, _ = await client.ask(
            "POST", "/topics/counted/partitions/7", json={"records": [{"value": 1}]}, headers=JSON
        )
        assert status == 404
    expected = {
        'mq_produce_records_total{topic="counted"}': TRIES,
        'mq_http_requests_total{code="404",route="produce_partition"}': TRIES,
        'mq_http_request_seconds_count{route="produce_partition"}': TRIES,
        'mq_http_request_seconds_count{route="v1_messages"}': TRIES,
        'mq_worker_up{worker="1"}': 1,
        'mq_worker_up{worker="2"}': 1,
    }
    found: dict[str, float | None] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while found != expected:
                figures = await client.figures()
                found = {name: figures.get(name) for name in expected}
                await asyncio.sleep(0.1)
    assert found == expected


async def _a_worker_that_dies_is_started_again(client: Client) -> None:
    """What is acknowledged is there; connections that were open are lost, no others."""
    killed, other = client.pids()
    os.kill(killed, signal.SIGKILL)
    sent = restarts = 0.0
    async with asyncio.timeout(PATIENCE_S):
        while sent < TRIES or restarts < 1 or len(client.pids()) < WORKERS:
            with suppress(aiohttp.ClientError):  # of what the killed one had
                await client.send("orders", "meanwhile")
                sent += 1
                figures = await client.figures()
                restarts = sum(figures[f'mq_worker_restarts_total{{worker="{number}"}}'] for number in (1, 2))
    assert restarts == 1
    assert other in client.pids()
    assert killed not in client.pids()
    assert "worker ended, starting it again worker=" in client.server.log()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_worker_that_cannot_be_forked_for_a_moment_is_started_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory is short when a worker has just been killed for it. The server goes on; before it has begun it refuses."""
    monkeypatch.setattr("gateway.main.workers.PAUSE_S", 0.0)
    gateway, _ = fake_gateway(FakeClock())
    workers = Workers(gateway, [Mock()], Mock())
    begun: list[int] = []

    async def spawn(number: int) -> object:
        begun.append(number)
        if len(begun) < 3:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        async def wait() -> int:
            workers._is_stopping = True
            return 0

        return SimpleNamespace(wait=wait)

    monkeypatch.setattr(workers, "_spawn", spawn)
    with pytest.raises(BlockingIOError):
        await workers._keep(1)
    workers._steady.set()
    await workers._keep(1)
    assert begun == [1, 1, 1]
    assert caplog.text.count("cannot be started yet") == 1


async def test_a_worker_that_is_begun_while_all_are_told_to_end_does_not_outlive_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody closes its pipe any more, and the server waited for it."""
    gateway, _ = fake_gateway(FakeClock())
    workers = Workers(gateway, [Mock()], Mock())
    workers._steady.set()
    forking, forked, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def spawn(_: int) -> object:
        forking.set()
        await forked.wait()
        return SimpleNamespace(kill=ended.set, wait=ended.wait)

    monkeypatch.setattr(workers, "_spawn", spawn)
    keeping = asyncio.create_task(workers._keep(1))
    await forking.wait()
    await workers._stop()
    forked.set()
    async with asyncio.timeout(PATIENCE_S):
        await keeping


def test_a_port_that_is_taken_is_not_shared() -> None:
    """A second server would take part of the first one's clients, with workers or without."""
    with bound_sockets("127.0.0.1", 0, 2) as sockets:
        port = sockets[0].getsockname()[1]
        assert [one.getsockname()[1] for one in sockets] == [port, port]
        with pytest.raises(OSError, match="Address already in use"), bound_sockets("127.0.0.1", port, 2):
            pass
        with pytest.raises(OSError, match="Address already in use"), bound_socket("127.0.0.1", port):
            pass


@pytest.mark.matrix
async def test_workers_ask_for_credentials_over_tls_and_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    write_certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    (tmp_path / "data").mkdir()

    def command(*arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "gateway", "token", *arguments, "--data", str(tmp_path / "data")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return ran.stdout.strip()

    admin = {"Authorization": f"Bearer {command('create', 'admin', '--allow', 'admin')}"}
    settings = {
        "MQ_AUTH_ENABLED": "true", "MQ_TLS_CERT_FILE": str(tmp_path / "cert.pem"),
        "MQ_TLS_KEY_FILE": str(tmp_path / "key.pem"),
    }  # fmt: skip
    async with serving(tmp_path, **settings) as client:
        assert client.server.url.startswith("https://")
        await client.done("PUT", "/mq/v1/topics/orders", json={"partitions": 1}, headers=admin)
        allow = {"principal": "sender", "scopes": ["send:topic:orders"]}
        made = await client.done("POST", "/mq/v1/tokens", json=allow, headers=admin)
        sender = {"Authorization": f"Bearer {made['token']}"}
        for number in range(TRIES):
            assert (await client.send("orders", number, headers=sender))["offset"] == number
            read = "/topics/orders/partitions/0/records?offset=0"
            assert [(await client.ask("GET", read, headers=who))[0] for who in (sender, {}, admin)] == [403, 401, 200]
        assert (await client.ask("DELETE", f"/mq/v1/tokens/{made['id']}", headers=admin))[0] < 300
        refused = {"json": {"records": [{"value": 1}]}, "headers": {**JSON, **sender}}
        assert {(await client.ask("POST", "/topics/orders", **refused))[0] for _ in range(TRIES)} == {401}
        pids = client.pids()
        await client.server.kill()
        await until(lambda: not any(_runs(pid) for pid in pids))


@pytest.mark.matrix
async def test_nothing_acknowledged_is_lost_or_doubled_while_workers_are_killed(tmp_path: Path) -> None:
    history = Recorder()
    is_over = False

    async def send(client: Client, name: str) -> None:
        loop = asyncio.get_running_loop()
        while not is_over:
            value = history.value(name)
            send = history.send(value, 0, loop.time() * 1000)
            with suppress(aiohttp.ClientError, AssertionError, OSError):
                one = await client.send("orders", value)
                send.ok(loop.time() * 1000, one["offset"])

    async with serving(tmp_path) as client:
        await client.done("PUT", "/mq/v1/topics/orders", json={"partitions": 1})
        senders = [asyncio.create_task(send(client, f"s{number}")) for number in range(6)]
        for number in range(6):
            await asyncio.sleep(0.5)
            pids = client.pids()
            if pids:
                os.kill(pids[number % len(pids)], signal.SIGKILL)
            count = history.count(Outcome.OK)
            await until(lambda count=count: history.count(Outcome.OK) > count + 20)  # type: ignore[misc]
        is_over = True
        await asyncio.gather(*senders)
        seen: list[Seen] = []
        path = "/topics/orders/partitions/0/records?format=json&offset="
        while more := await client.done("GET", path + str(len(seen))):
            seen += [Seen(row["offset"], row["value"]) for row in more]
        history.final_read(0, seen)
        assert check(history) == []
        assert history.count(Outcome.OK) > 100
        assert await client.server.stop() == 0
