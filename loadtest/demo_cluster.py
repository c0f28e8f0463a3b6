"""The demo on three nodes: flights sent while partitions move and a node dies, then Spark. `make demo-cluster`

    1  start etcd and three nodes on empty folders and free ports
    2  send all flights of 2013 to the three of them in turn, and follow them over a WebSocket of the first meanwhile;
       after a third of them partitions move, after half of them the second node is killed (-9), and comes back
    3  schedule a "landed" record for some of them, and see them fire
    4  let Spark compute flights and mean delay of every airline from the topic, and compare with the file itself

A request that no node could answer is sent again, to the next node, with the same Idempotency-Key. What is checked, the
exit codes, and that nothing stays behind: as in loadtest/demo.py.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import aiohttp
import uvloop
from rich.console import Console

from loadtest.demo import (
    CONNECTIONS,
    FAILURES,
    FLIGHTS_MIN,
    INTERRUPTED,
    JSON_RECORDS,
    LANDINGS,
    LANDINGS_WITHIN_MS,
    STALL_TIMEOUT_S,
    DemoFailed,
    Outcome,
    Shown,
    create_topic,
    data_directory,
    flight_batches,
    progress_of,
    report,
    say_failed,
    schedule_landings,
    spark_carriers,
)
from loadtest.flights import FLIGHT_COUNT, Flights, Landing, Record
from loadtest.follower import Follower, following
from loadtest.peers.servers import free_port
from loadtest.process import ProcessFailed, Running, running_server

NODES = ("n1", "n2", "n3")
KILLED = "n2"
MOVES = 4
AWAY_S = 2.0
"""How long the killed node is away before it is started again."""

RETRY_S = 0.1
GIVE_UP_S = 60.0
"""How long a request is sent again."""

ETCD_START_S = 20.0


class Node:
    """One node's process, which may be killed and started again at the same addresses."""

    def __init__(self, directory: Path, name: str, etcd: str) -> None:
        self._directory = directory / name
        port, internal_port = free_port(), free_port()
        self._flags = (
            "--port", str(port), "--node", name, "--etcd", etcd, "--internal-port", str(internal_port),
            "--secret-file", str(directory / "secret"),
        )  # fmt: skip
        self.url = f"http://127.0.0.1:{port}"
        self._stack = ExitStack()
        self._running: Running | None = None

    def start(self) -> None:
        """Return when it answers. Raises ProcessFailed."""
        self._stack = ExitStack()
        self._running = self._stack.enter_context(running_server(self._directory, *self._flags))

    def kill(self) -> None:
        """kill -9."""
        assert self._running is not None
        os.kill(self._running.pid, signal.SIGKILL)
        with suppress(ProcessFailed):
            self._stack.close()

    def stop(self) -> None:
        """As an operator stops it. Raises ProcessFailed when that is not in order."""
        self._stack.close()


@contextmanager
def etcd_server(directory: Path) -> Iterator[str]:
    """Debian's etcd, of one member; its URL."""
    path = shutil.which("etcd")
    if path is None:
        raise DemoFailed("there is no etcd here: sudo apt-get install etcd-server")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in "12")
    arguments = {
        "data-dir": str(directory / "etcd"), "log-level": "error", "listen-client-urls": client,
        "advertise-client-urls": client, "listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
    }  # fmt: skip
    with (directory / "etcd.log").open("ab") as log:
        process = subprocess.Popen(
            [path, *(f"--{name}={value}" for name, value in arguments.items())],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield client
    finally:
        process.terminate()
        process.wait()


@contextmanager
def cluster(directory: Path) -> Iterator[dict[str, Node]]:
    """Three nodes on empty folders, stopped at the end."""
    (directory / "secret").write_bytes(secrets.token_hex(32).encode())
    with etcd_server(directory) as etcd, ExitStack() as stack:
        nodes = {name: Node(directory, name, etcd) for name in NODES}
        for node in nodes.values():
            node.start()
            stack.callback(node.stop)
        yield nodes


def run(console: Console, directory: Path, *, flight_count: int, with_spark: bool) -> bool:
    """All four steps; whether every check held."""
    with console.status("reading the flights of 2013 ..."):
        flights = Flights.load(flight_count)
        records = flights.records()
        landings = flights.landings(LANDINGS, LANDINGS_WITHIN_MS)
        expected = flights.carriers()
    outcome = Outcome()
    with cluster(directory) as nodes:
        for name, node in nodes.items():
            console.print(f"node {name}  {node.url}")
        uvloop.run(stream(console, nodes, records, landings, outcome))
        if with_spark:
            with console.status("Spark computes flights and mean delay of every airline ..."):
                outcome.carriers = spark_carriers(nodes["n3"].url)
    return report(console, outcome, expected)


async def stream(
    console: Console,
    nodes: dict[str, Node],
    records: Sequence[Record],
    landings: Sequence[Landing],
    outcome: Outcome,
) -> None:
    """Steps 2 and 3: everything that goes over HTTP and the WebSocket."""
    first = nodes["n1"].url
    async with aiohttp.ClientSession() as session:
        await create_topic(session, first, "flights")
        await create_topic(session, first, "landed")
        with progress_of(console) as progress:
            show = Shown(progress, outcome, len(records))
            async with following(session, first, ("flights", "landed"), show.take) as follower:
                trouble = asyncio.create_task(make_trouble(console, session, nodes, outcome, len(records)))
                try:
                    await send_flights(session, [node.url for node in nodes.values()], records, follower, show)
                    await trouble
                finally:
                    trouble.cancel()
                await schedule_landings(session, first, landings, follower, show)


async def send_flights(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    records: Sequence[Record],
    follower: Follower,
    show: Shown,
) -> None:
    """Send every flight over a few connections, to the nodes in turn; then wait until the follower has them all."""
    started = time.monotonic()
    outcome = show.outcome
    batches = enumerate(flight_batches(records))

    async def send() -> None:
        for number, batch in batches:
            await post_until_stored(session, urls, number, f"flights-{number}", batch.body)
            outcome.flights.sent(batch.rows)
            show.sent(len(batch.rows))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(send())
    outcome.send_seconds = time.monotonic() - started
    await follower.until(lambda: outcome.flights.is_complete, stall_timeout_s=STALL_TIMEOUT_S)
    outcome.receive_seconds = time.monotonic() - started


async def post_until_stored(
    session: aiohttp.ClientSession, urls: Sequence[str], number: int, key: str, body: bytes
) -> None:
    """Send records to one node after the other until one has stored them, durably: under one key, so once. Raises
    DemoFailed."""
    said = ""
    until_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until_s:
        url = f"{urls[number % len(urls)]}/topics/flights"
        try:
            headers = {**JSON_RECORDS, "Idempotency-Key": key}
            async with session.post(url, data=body, headers=headers) as response:
                said = f"{response.status} {await response.text()}"
                if response.status == 200 and '"error_code":5' not in said:
                    if response.headers["Mq-Acks"] != "flushed":
                        raise DemoFailed("the server answered before the records were durable")
                    return
                if response.status not in (200, 503):
                    break
        except aiohttp.ClientError as error:
            said = f"{type(error).__name__}: {error}"
        number += 1
        await asyncio.sleep(RETRY_S)
    raise DemoFailed(f"sending to {urls[number % len(urls)]}: {said}")


async def make_trouble(
    console: Console, session: aiohttp.ClientSession, nodes: dict[str, Node], outcome: Outcome, flight_count: int
) -> None:
    """Move partitions, then kill a node, and bring it back, while flights are sent."""
    await _until(lambda: outcome.flights.sent_count >= flight_count // 3)
    for partition in range(MOVES):
        async with session.get(f"{nodes['n1'].url}/mq/v1/topics/flights/routes") as response:
            owner = (await response.json())["partitions"][partition]["owner"]
        to = NODES[(NODES.index(owner) + 1) % len(NODES)]
        begun_s = time.monotonic()
        path = f"/mq/v1/topics/flights/partitions/{partition}/move"
        async with session.post(nodes["n1"].url + path, json={"to": to}) as response:
            if response.status != 200:
                raise DemoFailed(f"moving partition {partition}: {response.status} {await response.text()}")
        console.print(
            f"partition {partition} moved from {owner} to {to} in {(time.monotonic() - begun_s) * 1000:.0f} ms"
        )
    await _until(lambda: outcome.flights.sent_count >= flight_count // 2)
    await asyncio.to_thread(nodes[KILLED].kill)
    console.print(f"node {KILLED} was killed (-9)")
    await asyncio.sleep(AWAY_S)
    begun_s = time.monotonic()
    await asyncio.to_thread(nodes[KILLED].start)
    console.print(f"node {KILLED} is back, {time.monotonic() - begun_s:.1f} s after it was started")


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def main() -> None:
    """Run the demo and exit."""
    options = _options()
    console = Console(highlight=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with data_directory(keep=False) as directory:
            is_good = run(console, directory, flight_count=options.flights, with_spark=options.spark)
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; stopped all nodes and removed their folders")
        sys.exit(INTERRUPTED)
    except FAILURES as failure:
        say_failed(console, failure)
        sys.exit(1)
    except ExceptionGroup as failures:
        expected, bugs = failures.split(FAILURES)
        if bugs is not None:
            raise
        assert expected is not None
        say_failed(console, expected.exceptions[0])
        sys.exit(1)
    sys.exit(0 if is_good else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.demo_cluster", description="The demo on three nodes.")
    parser.add_argument(
        "--flights", type=int, default=FLIGHT_COUNT, metavar="N", help=f"send only the first N (of {FLIGHT_COUNT:,})"
    )
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="leave the Spark job out")
    options = parser.parse_args()
    if not FLIGHTS_MIN <= options.flights <= FLIGHT_COUNT:
        parser.error(f"--flights must be between {FLIGHTS_MIN} and {FLIGHT_COUNT}")
    return options


if __name__ == "__main__":
    main()
