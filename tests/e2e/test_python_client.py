"""The Python client (`clients/python`) while connections are cut and the server is killed with -9.

`make test` kills once; MQ_KILLS asks for more. `make test-long` kills workers and servers for two minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mq
import pytest

from tests.e2e.server import Server

KILLS = int(os.environ.get("MQ_KILLS", "1"))
WITHIN_S = 60.0


class Cutter:
    """Between client and server: cuts all connections when told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Cutter:
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, there}
        await asyncio.gather(self._pump(reader, there), self._pump(there_reader, writer))
        self._writers -= {writer, there}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()


async def until(is_so: Any, what: Any = lambda: "it") -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not (answer if isinstance(answer := is_so(), bool) else await answer):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {WITHIN_S} s: {what()}") from None


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that do it no harm."""
    server = Server(tmp_path_factory.mktemp("shared") / "data")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(server.start())
    yield server
    loop.run_until_complete(server.end())
    loop.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "data", port=0)
    await server.start()
    yield server
    await server.end()


def same_port(server: Server, data: Path) -> Server:
    """The server as it is to be started again: at the same port."""
    return Server(data, port=int(server.url.rpartition(":")[2]))


@asynccontextmanager
async def running(*work: Any) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def consume(messages: Any, found: list[mq.Message[Any]], ack: bool = False) -> None:
    async for message in messages:
        found.append(message)
        if ack:
            message.ack()
        if len(found) % 20 == 0:
            await asyncio.sleep(0.001)


@pytest.mark.behaviour(1, 6, 14, 20, 22, 36, 41)
async def test_kill_9_under_load_nothing_is_lost_and_readers_and_streams_get_nothing_twice(
    server: Server, tmp_path: Path
) -> None:
    found: dict[str, list[mq.Message[Any]]] = {"reader": [], "stream": [], "queue": []}
    async with mq.connect(server.url, pending_max=5_000) as client:
        await client.topics.create("t", 3)
        group = client.group("s")
        stream = group.stream("t", start="earliest", member="one", commit_interval="100ms")
        queue = client.group("q").queue("t", lease="3s")
        sends: list[Any] = []
        is_sending = True

        async def send() -> None:
            while is_sending:
                await client.room()
                sends.append(client.send("t", len(sends), key=f"k{len(sends) % 20}"))
                if len(sends) % 10 == 0:
                    await asyncio.sleep(0.002)

        async with running(
            consume(client.read("t", start="earliest"), found["reader"]),
            consume(stream, found["stream"]),
            consume(queue, found["queue"], ack=True),
        ):
            sending = asyncio.ensure_future(send())
            for _ in range(KILLS):
                before = len(found["stream"])
                await until(lambda: len(found["stream"]) > before + 500, lambda: {k: len(v) for k, v in found.items()})  # noqa: B023
                await server.kill()
                await asyncio.sleep(0.1)
                again = same_port(server, tmp_path / "data")
                server._process, again._process = None, None
                await again.start()
                server._process, server.url = again._process, again.url
            before = len(found["stream"])
            await until(lambda: len(found["stream"]) > before + 500)
            is_sending = False
            await sending
            receipts = await asyncio.gather(*sends)
            sent = len(sends)
            assert len({(receipt.partition, receipt.offset) for receipt in receipts}) == sent  # each stored once
            for name, messages in found.items():
                await until(lambda m=messages: len({one.value for one in m}) == sent, lambda n=name: (n, sent))
            await asyncio.sleep(0.3)
            for name in ("reader", "stream"):
                assert Counter(one.value for one in found[name]).most_common(1)[0][1] == 1, f"{name}: none twice"
                assert len(found[name]) == sent
            await stream.commit()

            async def is_empty() -> bool:
                return await client.group("q").lag() == 0

            await until(is_empty)
        assert await group.lag() <= 1  # the one in hand when the loop was left
    # What was committed is committed: another client under the same name begins behind it.
    async with mq.connect(server.url) as other:
        again_found: list[mq.Message[Any]] = []
        async with running(consume(other.group("s").stream("t", member="one"), again_found)):
            await other.send("t", "last")
            await until(lambda: any(one.value == "last" for one in again_found))
        assert len(again_found) <= 2


@pytest.mark.behaviour(15, 19)
@pytest.mark.parametrize("mode", ["reader", "stream", "queue"])
async def test_connections_are_cut_again_and_again_and_the_session_goes_on(shared: Server, mode: str) -> None:
    total, states = 4_000, []
    async with mq.connect(shared.url) as direct, Cutter(int(shared.url.rpartition(":")[2])) as cutter:
        await direct.topics.create(topic := f"cut-{mode}", 3)
        async with mq.connect(cutter.url, on_state=lambda state, why: states.append(state)) as client:
            found: list[mq.Message[Any]] = []
            revoked: list[Any] = []
            group = client.group(topic)
            subscription: Any = {
                "reader": lambda: client.read(topic, start="earliest", credit=64),
                "stream": lambda: group.stream(topic, start="earliest", credit=64, commit_interval="50ms",
                                               on_revoked=lambda *lost: revoked.append(lost)),
                "queue": lambda: group.queue(topic, prefetch=64),
            }[mode]()  # fmt: skip
            async with running(consume(subscription, found, ack=mode == "queue")):
                sending = asyncio.ensure_future(
                    asyncio.gather(*(direct.send_many(topic, list(range(n, n + 20))) for n in range(0, total, 20)))
                )
                while len(found) < total:
                    before = len(found)
                    await until(lambda: len(found) > before + 1_000 or len(found) >= total, lambda: len(found))  # noqa: B023
                    cutter.cut()
                await sending
                await asyncio.sleep(0.2)
                assert states.count("open") >= 3
                assert sorted(one.value for one in found) == list(range(total))
                assert revoked == []
                if mode != "queue":
                    for partition in range(3):
                        offsets = [one.offset for one in found if one.partition == partition]
                        assert offsets == list(range(len(offsets)))


@pytest.mark.behaviour(6, 7)
async def test_idempotent_sends_over_cut_connections_are_stored_once_and_others_are_told(shared: Server) -> None:
    async with (
        mq.connect(shared.url) as direct,
        Cutter(int(shared.url.rpartition(":")[2])) as cutter,
        mq.connect(cutter.url) as sure,
        mq.connect(cutter.url, idempotent=False) as unsure,
    ):
        await direct.topics.create("once", 2)
        sends: list[Any] = []
        others: list[Any] = []
        for n in range(2_000):
            sends.append(sure.send("once", n))
            others.append(unsure.send("once", f"u{n}"))
            if n % 20 == 0:
                await asyncio.sleep(0.002)
            if n % 400 == 399:
                cutter.cut()
        receipts = await asyncio.gather(*sends)
        outcomes = await asyncio.gather(*others, return_exceptions=True)
        assert {type(one) for one in outcomes} <= {mq.Receipt, mq.ConnectionLost}
        assert len({(one.partition, one.offset) for one in receipts}) == 2_000
        await direct.send_many("once", [mq.Record("end", partition=0), mq.Record("end", partition=1)])
        values: list[Any] = []
        async for message in direct.read("once", start="earliest"):
            values.append(message.value)
            if values.count("end") == 2:
                break
        counts = Counter(values)
        assert [counts[n] for n in range(2_000)] == [1] * 2_000
        for n, outcome in enumerate(outcomes):
            assert counts[f"u{n}"] <= 1
            assert counts[f"u{n}"] == 1 or isinstance(outcome, mq.ConnectionLost)


@pytest.mark.behaviour(14, 16)
async def test_a_server_that_stops_says_so_and_the_client_is_back_when_the_server_is(
    server: Server, tmp_path: Path
) -> None:
    states: list[tuple[str, str]] = []
    async with mq.connect(server.url, on_state=lambda state, why: states.append((state, str(why)))) as client:
        await client.topics.create("t", 1)
        found: list[mq.Message[Any]] = []
        async with running(consume(client.read("t", start="earliest"), found)):
            await asyncio.gather(*(client.send("t", n) for n in range(50)))
            assert await server.stop() == 0
            later = client.send("t", "later")
            again = same_port(server, tmp_path / "data")
            await again.start()
            try:
                assert (await later).offset == 50
                await until(lambda: len(found) == 51, lambda: len(found))
            finally:
                await client.close()
                await again.end()
        assert any(state == "waiting" and ("4001" in why or "1006" in why) for state, why in states), states


@pytest.mark.long
@pytest.mark.behaviour(17, 18)
async def test_a_token_that_ends_is_renewed_without_a_gap_and_one_that_is_revoked_closes(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def cli(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *arguments, "--data", str(data)],
            capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[2],
        )  # fmt: skip
        return done.stdout.strip()

    long = cli("token", "create", "ann", "--allow", "admin")
    server = Server(data, {"MQ_AUTH_ENABLED": "true"})
    await server.start()
    try:
        short = cli("token", "create", "ann", "--allow", "admin", "--expires", "4s")
        await asyncio.sleep(1.5)  # the server looks at its tokens every second
        asked = 0

        def token() -> str:
            nonlocal asked
            asked += 1
            return short if asked == 1 else long

        states: list[str] = []
        async with mq.connect(server.url, token=token, on_state=lambda state, why: states.append(state)) as client:
            await client.topics.create("t", 1)
            found: list[mq.Message[Any]] = []
            consuming = asyncio.ensure_future(consume(client.read("t", start="earliest"), found))
            sent = 0
            end = asyncio.get_running_loop().time() + 4
            while asyncio.get_running_loop().time() < end:
                await client.send("t", sent)
                sent += 1
                await asyncio.sleep(0.02)
            await until(lambda: len(found) == sent, lambda: (len(found), sent))
            assert states == ["open"], "one connection all the time"
            cli("token", "revoke", long.split("_")[1])
            await until(lambda: client.state == "closed")
            with pytest.raises(mq.Closed) as caught:
                await consuming
            assert caught.value.code == 4501
        with pytest.raises(mq.Closed, match="refused the token"):
            await mq.connect(server.url, token="mq_nonsense")
    finally:
        await server.end()


@pytest.mark.behaviour(21)
async def test_frames_of_six_mebibytes_go_and_come(shared: Server) -> None:
    async with mq.connect(shared.url) as client:
        await client.topics.create("large", 1, max_message_bytes=None)
        body = random.Random(1).randbytes(4 * 1024 * 1024 - 70_000)
        await client.send("large", body)
        async for message in client.read("large", start="earliest", as_=bytes):
            assert message.value == body
            break


@pytest.mark.behaviour(24)
async def test_a_topic_that_was_made_again_is_not_read_on_under_the_old_offsets(shared: Server) -> None:
    async with mq.connect(shared.url) as client:
        await client.topics.create("again", 1)
        await client.send_many("again", [1, 2, 3])
        iterator = aiter(client.read("again", start="earliest"))
        assert (await anext(iterator)).value == 1
        await client.topics.delete("again")
        await client.topics.create("again", 1)
        await client.send_many("again", [4, 5, 6])
        with pytest.raises(mq.Refused) as caught:
            await asyncio.wait_for(rest(iterator), WITHIN_S)
        assert caught.value.code in (40401, 40953)


async def rest(iterator: Any) -> None:
    async for message in iterator:
        assert message.value in (2, 3)


WORKER = """
import asyncio, os, sys
import mq

@mq.worker("tasks", group="workers", concurrency=16, lease="2s", backoff="100ms")
async def work(message: mq.Message[int]) -> None:
    await asyncio.sleep(0)
    os.write(log, b"%d\\n" % message.value)

log = os.open("done.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
"""


@pytest.mark.long
@pytest.mark.behaviour(38, 41, 44)
async def test_worker_processes_are_killed_while_the_server_is_and_every_task_is_done(
    server: Server, tmp_path: Path
) -> None:
    tasks, kills = 20_000, 20
    (tmp_path / "app.py").write_text(WORKER)
    source = Path(mq.__file__).parents[1]
    dice = random.Random(4)
    environment = {**os.environ, "MQ_URL": server.url, "PYTHONPATH": str(source)}

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mq.worker_cli", "app:work", "--log-level", "error", cwd=tmp_path, env=environment
        )

    def done() -> Counter[int]:
        path = tmp_path / "done.txt"
        return Counter(int(line) for line in path.read_text().split()) if path.exists() else Counter()

    current = server
    async with mq.connect(server.url) as client:
        await client.topics.create("tasks", 4)
        workers = [await start() for _ in range(4)]
        try:
            sends = [client.send("tasks", n) for n in range(tasks // 2)]
            for kill in range(kills):
                target = min((kill + 1) * tasks // (kills + 2), len(sends)) * 2 // 3
                await until(partial(_has_done, done, target), lambda: len(done()))
                victim = dice.randrange(4)
                workers[victim].send_signal(signal.SIGKILL)
                await workers[victim].wait()
                if kill % 2 == 0:
                    await current.kill()
                    current = same_port(server, tmp_path / "data")
                    await current.start()
                workers[victim] = await start()
                more = len(sends) + tasks // (2 * kills)
                sends += [client.send("tasks", n) for n in range(len(sends), min(more, tasks))]
            sends += [client.send("tasks", n) for n in range(len(sends), tasks)]
            receipts = await asyncio.gather(*sends)
            assert len({(one.partition, one.offset) for one in receipts}) == tasks

            async def is_empty() -> bool:
                return await client.group("workers").lag() == 0

            await until(is_empty, lambda: f"{len(done())} of {tasks}")
            counts = done()
            assert counts.keys() == set(range(tasks)), "every task is done at least once"
            twice = sum(count > 1 for count in counts.values())
            print(f"{tasks} tasks, {kills} kills of a worker, {kills // 2} of the server: {twice} done more than once")
            # Only what a killed worker held, or was acking, comes again: its slots and what it had prefetched.
            assert twice <= kills * 2 * 4 * 24, twice
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.terminate()
            for worker in workers:
                await worker.wait()
            if current is not server:
                await current.end()


def _has_done(done: Any, count: int) -> bool:
    return len(done()) >= count


@pytest.mark.behaviour(49)
@pytest.mark.embedded("light queues are refused on a Kafka cluster")
async def test_an_inbox_goes_on_over_a_kill_and_a_device_where_it_was(tmp_path: Path) -> None:
    rocksdb = {"MQ_STORE_INDEX": "rocksdb"}
    server = Server(tmp_path / "data", rocksdb)
    await server.start()
    try:
        async with mq.connect(server.url) as client:
            await client.topics.create("orders", partitions=2)
            await client.send("orders", 0, queues=["user/42", "room/7"])
            await client.send("orders", "not yours", queues=["user/43"])
            got: list[tuple[Any, int | None]] = []
            reader = client.inbox("orders", "user/42", start="earliest")
            async with client.group("phone").inbox("orders", "user/42", start="earliest", commit="manual") as phone:
                first = await anext(aiter(phone))
                assert (first.value, first.queue, first.queues) == (0, "user/42", [])
                await first.ack()
                await phone.commit()
            async for message in reader:
                got.append((message.value, message.queue_offset))
                if len(got) == 1:
                    await server.kill()
                    server = Server(tmp_path / "data", rocksdb, port=int(server.url.rpartition(":")[2]))
                    await server.start()
                    sent = await client.send("orders", 1, queues=["user/42"], delay="200ms")
                    assert sent.schedule_id is not None
                    await client.send_many("orders", [mq.Record(2, queues=["user/42"]), mq.Record(3)])
                elif len(got) == 3:
                    break
            assert sorted(got) == [(0, got[0][1]), (1, got[2][1]), (2, got[1][1])]
            assert len({offset for _, offset in got}) == 3
            async with client.group("phone").inbox("orders", "user/42") as phone:
                assert (await anext(aiter(phone))).value == 2, "behind what it has committed"
            rooms = client.inbox("orders", "room/*", start="earliest")
            assert (await anext(aiter(rooms))).queues == ["room/7"]
            await rooms.aclose()
            with pytest.raises(mq.MqError, match="must be a list"):
                await client.send("orders", 1, queues="user/42")
    finally:
        await server.end()


@pytest.mark.embedded("light queues are refused on a Kafka cluster")
async def test_records_of_an_inbox_are_leased_and_tried_again_over_a_kill(tmp_path: Path) -> None:
    rocksdb = {"MQ_STORE_INDEX": "rocksdb"}
    server = Server(tmp_path / "data", rocksdb)
    await server.start()
    try:
        async with mq.connect(server.url) as client:
            await client.topics.create("orders", partitions=1)
            for value, queue in ((0, "a"), (1, "a"), (2, "b"), (3, "a")):
                await client.send("orders", value, queues=[queue])
            workers = client.group("workers")
            async with workers.queue("orders", queue="a", prefetch=2) as messages:
                first, second = await messages.get(), await messages.get()
                assert first is not None
                assert second is not None
                assert (first.value, first.queue, first.queue_offset, first.attempt) == (0, "a", 0, 1)
                await first.nack("100ms")
                await second.ack()
                await server.kill()
                server = Server(tmp_path / "data", rocksdb, port=int(server.url.rpartition(":")[2]))
                await server.start()
                got: list[tuple[Any, int]] = []
                while len(got) < 2:
                    message = await messages.get()
                    assert message is not None
                    got.append((message.value, message.attempt))
                    await message.ack()
            assert [value for value, _ in sorted(got)] == [0, 3], "not what was acked, nor what is in another inbox"
            assert dict(got)[0] >= 2
            async with workers.queue("orders", queue="b") as messages:
                other = await messages.get()
                assert other is not None
                assert (other.value, other.attempt) == (2, 1)
                await other.reject("no")
    finally:
        await server.end()
