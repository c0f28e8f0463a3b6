"""mq.celery: real Celery workers, that are stopped and killed, as their server is."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mq
import mq.celery
import mq.sync
import pytest
from celery import Celery, chord, group
from mq.kombu.link import close_links

from loadtest.certificates import write_certificate
from tests.e2e.faked_clock import LIBRARIES, MISSING, FakedClock
from tests.e2e.server import REPOSITORY, Server

TASKS = """
import json, os, signal, sys, time
import mq.celery
from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.update(
    task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1, task_track_started=False,
    broker_transport_options={"lease": float(os.environ["LEASE"])}, broker_use_ssl=json.loads(os.environ["TLS"]),
    worker_cancel_long_running_tasks_on_connection_loss=True,
)

def note(word):
    with open("done.txt", "a") as done:
        done.write(f"{word} {os.getpid()} {time.time()}\\n")

@app.task
def add(a, b):
    return a + b

@app.task
def total(numbers):
    return sum(numbers)

@app.task
def mark(word):
    note(word)

@app.task
def slow(word, seconds):
    note(f"{word}-began")
    time.sleep(seconds)
    note(f"{word}-ended")

@app.task(bind=True, max_retries=3)
def flaky(self, word):
    note(word)
    if self.request.retries < 2:
        raise self.retry(countdown=0.3)
    return self.request.retries

@app.task(bind=True)
def fatal(self, word):
    note(word)
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)
"""
LEASE_S = 2.0
HOUR_S = 3600
SCOPES = [
    f"{right}:{what}"
    for right in ("create", "describe", "send", "receive")
    for what in ("topic:celery", "topic:kombu-exchange.*", "group:celery")
]
"""What docs/celery.md says a token needs."""
COUNT = int(os.environ.get("MQ_TEST_CELERY_TASKS", "20000"))
"""Of the long run."""


class World:
    """A server, workers beside it, and the app that sends to them."""

    def __init__(self, path: Path, server: Server) -> None:
        self.path = path
        self.server = server
        self.workers: list[asyncio.subprocess.Process] = []
        self.app: Celery
        self.settings: dict[str, str] = {}
        self.token = ""
        self.tls: dict[str, str] | None = None
        self.clock: dict[str, str] = {}  # in the workers' environment

    def begin(
        self, backend: str = "rpc://", lease_s: float = LEASE_S, token: str = "", tls: dict[str, str] | None = None
    ) -> None:
        self.token, self.tls = token, tls
        (self.path / "tasks.py").write_text(TASKS)
        scheme, _, host = self.server.url.partition("://")
        broker = f"{scheme.replace('http', 'mq')}://{f':{token}@' if token else ''}{host}"
        self.settings = {"BROKER": broker, "BACKEND": backend, "LEASE": str(lease_s), "TLS": json.dumps(tls)}
        self.app = Celery("tasks", broker=broker, backend=backend, set_as_current=False)
        self.app.conf.update(broker_transport_options={"lease": lease_s}, broker_use_ssl=tls)

    async def worker(
        self, *options: str, pool: str = "prefork", concurrency: int = 2, under: tuple[str, ...] = ()
    ) -> Any:
        """Start a worker; return when it takes tasks."""
        log = self.path / f"worker{len(self.workers)}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")} | self.clock
        source = f"{Path(mq.__file__).parents[1]}:{REPOSITORY}"
        with log.open("wb") as errors:
            worker = await asyncio.create_subprocess_exec(
                *under, sys.executable, "-m", "celery", "-A", "tasks", "worker", "-l", "INFO", "-P", pool,
                "-c", str(concurrency), "-n", f"w{len(self.workers)}@test", *options,
                cwd=self.path, stdout=errors, stderr=errors, start_new_session=True,
                env={**environment, **self.settings, "PYTHONPATH": source},
            )  # fmt: skip
        self.workers.append(worker)
        await self.until(lambda: b" ready." in log.read_bytes() or worker.returncode is not None)
        assert worker.returncode is None, log.read_text()
        return worker

    async def until(self, is_so: Callable[[], bool], within_s: float = 60) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not is_so():  # noqa: ASYNC110 - other processes tell nobody
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s\n{self.logs()}") from None

    def done(self) -> list[list[str]]:
        """The word, process and time of each note."""
        path = self.path / "done.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def count(self, word: str) -> int:
        return sum(line[0] == word for line in self.done())

    async def until_done(self, word: str, times: int = 1, within_s: float = 60) -> None:
        await self.until(lambda: self.count(word) >= times, within_s)

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(f"tasks.{task}", arguments, **options)

    def get(self, result: Any, within_s: float = 30) -> Any:
        """In this thread: a thread of Celery's gets the results of what it sent, and no others."""
        return result.get(timeout=within_s)

    def sign(self, task: str, *arguments: Any) -> Any:
        return self.app.signature(f"tasks.{task}", arguments)

    async def nothing_left(self) -> None:
        """Everything is acked."""
        trusted = ssl.create_default_context(cafile=self.tls["ca_certs"]) if self.tls else None
        with mq.sync.connect(self.server.url, token=self.token or None, ssl=trusted) as client:
            await self.until(lambda: client.group("celery").lag() == 0)

    async def kill_server(self, away_s: float = 0.0) -> None:
        """kill -9, and start it again on its port."""
        self.server._port = int(self.server.url.rpartition(":")[2])
        await self.server.kill()
        await asyncio.sleep(away_s)
        await self.server.start()

    def kill_tree(self, worker: Any) -> None:
        os.killpg(worker.pid, signal.SIGKILL)

    async def stop(self, worker: Any) -> int:
        worker.terminate()
        return int(await asyncio.wait_for(worker.wait(), 60))

    def said(self, text: str) -> bool:
        """Whether a worker has logged this."""
        return any(text in path.read_text() for path in self.path.glob("worker*.log"))

    def logs(self) -> str:
        return "\n".join(path.read_text()[-6000:] for path in sorted(self.path.glob("worker*.log")))

    async def end(self) -> None:
        close_links()
        for worker in self.workers:
            with suppress(ProcessLookupError):
                self.kill_tree(worker)
            await worker.wait()
        await self.server.end()


@pytest.fixture
def clock(tmp_path: Path, request: pytest.FixtureRequest) -> FakedClock | None:
    """Of the server and the workers; None: the true one."""
    if not hasattr(request, "param"):
        return None
    if not LIBRARIES:
        pytest.skip(MISSING)
    return FakedClock(tmp_path / "clock")


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest, clock: FakedClock | None) -> AsyncIterator[World]:
    faked = clock.environment if clock is not None else {}
    server = Server(tmp_path / "data", getattr(request, "param", {}) | faked)
    await server.start()
    world = World(tmp_path, server)
    world.clock = faked
    yield world
    await world.end()


async def test_a_worker_works_with_a_token_over_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    tls = {"MQ_TLS_CERT_FILE": str(cert), "MQ_TLS_KEY_FILE": str(key)}
    world = World(tmp_path, Server(tmp_path / "data", {"MQ_AUTH_ENABLED": "true", **tls}))
    allowed = [word for scope in SCOPES for word in ("--allow", scope)]
    making = [sys.executable, "-m", "gateway", "token", "create", "celery", "--data", str(tmp_path / "data"), "--json"]
    made = await asyncio.to_thread(subprocess.run, [*making, *allowed], cwd=REPOSITORY, capture_output=True, check=True)
    await world.server.start()
    try:
        world.begin(token=json.loads(made.stdout)["token"], tls={"ca_certs": str(cert)})
        worker = await world.worker()
        assert world.get(world.send("add", 1, 2)) == 3
        several = group((world.sign("add", n, n) for n in range(10)), app=world.app)
        assert world.get(several.apply_async()) == [2 * n for n in range(10)]
        began = time.time()
        world.send("mark", "late", countdown=1)
        revoked = world.send("mark", "revoked", countdown=1)
        assert mq.celery.revoke(world.app, revoked.id, queue="celery")
        assert not mq.celery.revoke(world.app, revoked.id, queue="celery")
        assert world.app.control.ping(timeout=5, limit=1) == [{"w0@test": {"ok": "pong"}}]
        (queues,) = world.app.control.inspect(timeout=5, limit=1).active_queues().values()
        assert [queue["name"] for queue in queues] == ["celery"]
        await world.until_done("late")
        assert float(world.done()[0][2]) >= began + 1
        world.send("slow", "last", 0.5)
        await world.until_done("last-began")
        assert await world.stop(worker) == 0  # finishes what it began
        assert world.count("last-ended") == 1
        assert not world.count("revoked")
        await world.nothing_left()
    finally:
        await world.end()


async def test_a_worker_and_a_server_are_killed(world: World) -> None:
    world.begin(lease_s=60)
    worker = await world.worker(concurrency=1)
    world.send("slow", "through", 3)
    await world.until_done("through-began")
    await world.kill_server()
    await world.until_done("through-ended")
    assert await world.stop(worker) == 0
    world.settings["LEASE"] = "3"
    worker = await world.worker(concurrency=1)
    world.send("slow", "cut", 1_000)
    await world.until_done("cut-began")
    world.kill_tree(worker)
    world.send("mark", "after")
    await world.worker(concurrency=2)
    await world.until_done("after")
    await world.until_done("cut-began", 2, within_s=45)  # its lease ended
    assert world.count("through-began") == 1  # its lease went on
    assert world.count("through-ended") == 1


# ---------------------------------------------------------------------------------------------------------- the matrix


POOLS = ["prefork", "threads", "solo", "gevent"]


@pytest.mark.matrix
@pytest.mark.parametrize("pool", POOLS)
async def test_each_pool_does_what_celery_says(world: World, pool: str) -> None:
    results = world.path / "results"
    results.mkdir()
    world.begin(f"file://{results}")
    worker = await world.worker(pool=pool)
    assert world.get(world.send("add", 1, 2)) == 3
    assert world.get(chord([world.sign("add", n, n) for n in range(5)], app=world.app)(world.sign("total"))) == 20
    assert world.get(world.send("flaky", "flaky")) == 2
    assert world.count("flaky") == 3
    world.send("slow", "long", 12 * LEASE_S)
    await world.until_done("long-ended", within_s=60)
    assert world.count("long-began") == 1
    assert world.app.control.ping(timeout=5, limit=1)
    world.send("slow", "last", 2)
    await world.until_done("last-began")
    assert await world.stop(worker) == 0
    assert world.count("last-ended") == 1
    await world.nothing_left()


@pytest.mark.matrix
@pytest.mark.parametrize("pool", POOLS)
async def test_each_pool_survives_an_outage_below_a_lease(world: World, pool: str) -> None:
    world.begin(lease_s=120)  # above any start of a server on a busy machine
    await world.worker(pool=pool)
    world.send("slow", "through", 8)
    await world.until_done("through-began")
    await world.kill_server(away_s=3)
    await world.until_done("through-ended")
    await world.nothing_left()
    assert world.count("through-began") == 1
    assert world.get(world.send("add", 1, 2)) == 3


@pytest.mark.matrix
async def test_an_outage_above_a_lease_runs_a_task_again(world: World) -> None:
    world.begin()
    await world.worker()
    world.send("slow", "twice", 12)
    await world.until_done("twice-began")
    await world.kill_server(away_s=2 * LEASE_S)
    await world.until_done("twice-ended", 2)
    await world.nothing_left()
    assert world.count("twice-began") == 2
    assert world.said("is over: it is delivered again")


@pytest.mark.matrix
@pytest.mark.parametrize("clock", ["faked"], indirect=True)
async def test_tasks_of_in_an_hour_run_in_an_hour(world: World, clock: FakedClock) -> None:
    world.begin(lease_s=60)
    worker = await world.worker()
    began = time.time()
    world.send("mark", "countdown", countdown=HOUR_S)
    world.send("mark", "eta", eta=datetime.fromtimestamp(began + HOUR_S, UTC))
    world.send("mark", "next-day", countdown=24 * HOUR_S)
    world.send("mark", "now")
    await world.until_done("now")
    await world.nothing_left()
    await world.kill_server()  # what waits survives it
    clock.set(f"+{HOUR_S - 30}")
    world.send("mark", "before")
    await world.until_done("before")
    assert len(world.done()) == 2
    clock.set(f"+{HOUR_S + 30}")
    await world.until_done("countdown")
    await world.until_done("eta")
    assert all(float(at) >= began + HOUR_S for word, _, at in world.done() if word in ("countdown", "eta"))
    assert await world.stop(worker) == 0
    assert [world.count(word) for word in ("countdown", "eta", "next-day")] == [1, 1, 0]


@pytest.mark.matrix
async def test_a_killed_child_costs_its_task_another_run(world: World) -> None:
    world.begin()
    await world.worker()
    world.send("fatal", "fatal")
    await world.until_done("fatal", 2)
    await world.nothing_left()
    assert world.count("fatal") == 2


@pytest.mark.matrix
async def test_children_are_replaced(world: World) -> None:
    world.begin()
    await world.worker("--max-tasks-per-child", "3")
    results = [world.send("add", n, 1) for n in range(20)]
    for n, result in enumerate(results):
        assert world.get(result) == n + 1
    for n in range(20):
        world.send("mark", f"m{n}")
    await world.until(lambda: len(world.done()) == 20)
    assert len({process for _, process, _ in world.done()}) >= 6
    await world.nothing_left()


@pytest.mark.matrix
async def test_a_running_task_is_revoked_and_a_worker_shut_down(world: World) -> None:
    world.begin()
    worker = await world.worker()
    result = world.send("slow", "stopped", 1_000)
    await world.until_done("stopped-began")
    assert not mq.celery.revoke(world.app, result.id, terminate=True)
    await world.nothing_left()
    world.app.control.shutdown()
    assert await asyncio.wait_for(worker.wait(), 60) == 0
    assert world.count("stopped-began") == 1


@pytest.mark.matrix
async def test_a_worker_that_is_not_given_its_time_gives_its_tasks_back(world: World) -> None:
    world.begin(lease_s=60)
    worker = await world.worker(concurrency=1)
    world.send("slow", "cut", 5)
    await world.until_done("cut-began")
    worker.send_signal(signal.SIGQUIT)  # Celery's cold shutdown
    await asyncio.wait_for(worker.wait(), 60)
    await world.worker(concurrency=1)
    await world.until_done("cut-ended", within_s=30)  # not after a lease of 60 s


@pytest.mark.long
async def test_no_task_is_lost_over_random_kills(world: World) -> None:
    count, seed = COUNT, random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    world.begin(lease_s=5)
    world.app.conf.broker_transport_options |= {"send_timeout": 600}  # a busy machine starts servers slowly
    workers = [await world.worker(concurrency=2) for _ in range(3)]

    def send_all() -> None:
        for n in range(count):
            world.send("mark", f"t{n}", retry=True)

    sending = asyncio.create_task(asyncio.to_thread(send_all))
    kills = Counter[str]()
    until_s = time.monotonic() + 3000

    def distinct() -> int:
        return len({word for word, _, _ in world.done()})

    while distinct() < count:
        if sending.done():
            sending.result()  # tells what went wrong
        assert time.monotonic() < until_s, f"{distinct()} of {count} after {kills}\n{world.logs()}"
        await asyncio.sleep(chance.uniform(1, 4))
        what = chance.choice(["server", "tree", "child"])
        kills[what] += 1
        if what == "server":
            await world.kill_server(chance.uniform(0, 2))
        else:
            index = chance.randrange(len(workers))
            worker = workers[index]
            if what == "tree":
                world.kill_tree(worker)
                await worker.wait()
                workers[index] = await world.worker(concurrency=2)
            else:
                children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
                if children:
                    os.kill(int(chance.choice(children)), signal.SIGKILL)
    await sending
    await world.nothing_left()
    times = Counter(word for word, _, _ in world.done())
    assert set(times) == {f"t{n}" for n in range(count)}
    again = sum(times.values()) - count
    print(f"{again} of {count} tasks ran again; kills: {dict(kills)}")
    assert again <= 20 * (kills["tree"] + kills["child"] + kills["server"])
    assert not world.said("Unrecoverable error")
