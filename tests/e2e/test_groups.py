"""Consumer groups while everything falls over: 50 members and some consumers in queue mode, in processes that are
killed, stopped and started anew, on a server that is killed with -9 again and again. Judged by what the clients saw.

    stream  1  a partition has one owner in a generation, and it begins where committing stood: not before what was
               committed by any earlier owner, not behind what anybody has tried to commit
            2  an owner gets every record from there on, in order, without a gap
            3  a commit that an owner sends after the next one was told that it owns the partition is refused
            4  every record that was acknowledged to its sender reaches a member
    queue   5  a record whose ack was confirmed is not delivered again
            6  a record on lease is delivered to nobody else, and attempts grow
            7  every record that was acknowledged is delivered, and acked in the end

MQ_GROUPS_KILLS and MQ_GROUPS_MEMBERS make it longer and larger (`make torture-groups`); a run names its seed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
import pytest

from tests.e2e.group_client import GONE, INVISIBLE_MS, QUEUE, STREAM, TOPIC
from tests.e2e.server import REPOSITORY, SMALL_FILES, Server
from tests.waiting import PATIENCE_S, until

KILLS = int(os.environ.get("MQ_GROUPS_KILLS", "2"))
"""Of the server."""

MEMBERS = int(os.environ.get("MQ_GROUPS_MEMBERS", "50"))
SEED = int(os.environ.get("MQ_TORTURE_SEED", str(random.randrange(2**32))))
PROCESSES = 5
CONSUMERS = 2
"""In each process."""

PARTITIONS = 12
SETTINGS = {
    **SMALL_FILES,
    "MQ_WS_SESSION_GRACE_MS": "500",
    "MQ_STORE_COMMIT_LOG_FILE_BYTES": str(64 * 1024 * 1024),
}
GROUP = {"drain_timeout_ms": 2_000, "session_timeout_ms": 3_000, "max_attempts": 1_000}


class Clients:
    """The processes of clients, and their logs."""

    def __init__(self, url: str, directory: Path, rng: random.Random) -> None:
        self._url, self._directory, self._rng = url, directory, rng
        self._running: list[asyncio.subprocess.Process] = []
        self._number = itertools.count(1)
        self.kill_count = self.stop_count = 0

    async def start(self) -> None:
        name = f"p{next(self._number)}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.e2e.group_client", self._url, str(self._directory / f"{name}.log"), name,
            str(MEMBERS // PROCESSES), str(CONSUMERS), str(SEED),
            cwd=REPOSITORY,
        )  # fmt: skip
        self._running.append(process)

    async def harm(self) -> None:
        """Kill one process and start another, or stop one for a while."""
        victim = self._rng.choice(self._running)
        assert victim.returncode is None, "a client gave up; its reason is above"
        if self._rng.random() < 0.5:
            self.kill_count += 1
            self._running.remove(victim)
            victim.kill()
            await victim.wait()
            await self.start()
        else:
            self.stop_count += 1
            victim.send_signal(signal.SIGSTOP)
            await asyncio.sleep(self._rng.choice((0.3, 3.0)))
            with suppress(ProcessLookupError):  # another task has killed it meanwhile
                victim.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def lines(self) -> Iterator[list[object]]:
        for path in sorted(self._directory.glob("p*.log")):
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):  # the last one may be torn
                    yield orjson.loads(line)


async def send(url: str, http: aiohttp.ClientSession, sent: set[int], stopping: asyncio.Event) -> None:
    """Batches of records, one behind the other; `sent` has what was acknowledged."""
    numbers = itertools.count()
    while not stopping.is_set():
        batch = list(itertools.islice(numbers, 10))
        records = {"records": [{"value": number, "partition": number % PARTITIONS} for number in batch]}
        with suppress(*GONE):
            headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
            async with http.post(f"{url}/topics/{TOPIC}", json=records, headers=headers) as response:
                if response.status == 200:
                    sent.update(batch)
        await asyncio.sleep(0.03)


@dataclass
class Ownership:
    """What one owner of one partition saw, from the moment it was told so."""

    member: str
    generation: int
    first: int
    at_ms: float
    got: list[tuple[int, int]] = field(default_factory=list)
    committed: int = 0
    """The highest next offset whose commit was confirmed."""

    tried: int = 0
    acks: list[tuple[float, bool | None]] = field(default_factory=list)


def ownerships(lines: Iterable[list[object]]) -> dict[int, list[Ownership]]:
    """By partition and generation. Lines of one member come in the order it wrote them."""
    now: dict[tuple[str, int], Ownership] = {}
    found: dict[int, list[Ownership]] = defaultdict(list)
    for line in lines:
        match line:
            case ["owns", str(member), int(generation), dict(request_indexes), float(at_ms)]:
                for partition, first in request_indexes.items():
                    one = now[member, int(partition)] = Ownership(member, generation, first, at_ms)
                    found[int(partition)].append(one)
            case ["got", str(member), int(partition), list(records), _]:
                now[member, partition].got += [(offset, value) for offset, value in records]
            case ["asks", str(member), int(partition), int(offset), _]:
                one = now[member, partition]
                one.tried = max(one.tried, offset + 1)
            case ["acked", str(member), int(partition), int(offset), (bool() | None) as is_ok, float(asked_ms), _]:
                one = now[member, partition]
                one.acks.append((asked_ms, is_ok))
                if is_ok:
                    one.committed = max(one.committed, offset + 1)
            case _:
                pass
    return {partition: sorted(owners, key=lambda one: one.generation) for partition, owners in found.items()}


def check_stream(lines: list[list[object]], sent: set[int], committed: dict[int, int]) -> None:
    seen: set[int] = set()
    for partition, owners in ownerships(lines).items():
        confirmed = tried = 0
        generations = [one.generation for one in owners]
        assert len(set(generations)) == len(generations), f"1: partition {partition} had two owners in a generation"
        for one, following in zip(owners, [*owners[1:], None], strict=True):
            place = f"partition {partition} of {one.member} in generation {one.generation}"
            assert confirmed <= one.first <= max(tried, confirmed), (
                f"1: {place} began at {one.first}: {confirmed}, {tried}"
            )
            offsets = [offset for offset, _ in one.got]
            assert offsets == list(range(one.first, one.first + len(offsets))), f"2: {place} got {offsets}"
            if following is not None:
                late = [is_ok for asked_ms, is_ok in one.acks if asked_ms > following.at_ms]
                assert True not in late, f"3: {place} committed after {following.member} was told"
            confirmed, tried = max(confirmed, one.committed), max(tried, one.tried)
            seen.update(value for _, value in one.got)
        assert committed[partition] >= confirmed, f"1: partition {partition} ends at {committed[partition]}"
    assert sent <= seen, f"4: {len(sent - seen)} records reached no member"


def check_queue(lines: list[list[object]], sent: set[int]) -> None:
    """Leases are judged by the server's own times: it began each one INVISIBLE_MS before its end. A late ack of an
    earlier attempt is confirmed when the record is done; so the first confirmed ack is what counts."""
    leases: dict[int, list[tuple[int, int]]] = defaultdict(list)
    done_ms: dict[int, float] = {}
    given_back: set[tuple[int, int]] = set()
    for line in lines:
        match line:
            case ["lease", _, _, int(value), int(attempt), int(until_ms), _, _]:
                leases[value].append((attempt, until_ms))
            case ["done", _, int(value), _, True, float(answered_ms), _]:
                done_ms[value] = min(answered_ms, done_ms.get(value, answered_ms))
            case ["back", _, int(value), int(attempt), _]:
                given_back.add((value, attempt))
            case _:
                pass
    for value, deliveries in leases.items():
        deliveries.sort()
        attempts = [attempt for attempt, _ in deliveries]
        assert len(set(attempts)) == len(attempts), f"6: {value} was delivered twice as the same attempt: {deliveries}"
        for (attempt, until_ms), (_, next_until_ms) in itertools.pairwise(deliveries):
            is_free = (value, attempt) in given_back or next_until_ms - INVISIBLE_MS >= until_ms
            assert is_free, f"6: {value} was on lease: {deliveries}"
        began_ms = deliveries[-1][1] - INVISIBLE_MS
        assert began_ms <= done_ms.get(value, began_ms), f"5: {value} was acked, then delivered: {deliveries}"
    assert sent <= leases.keys(), f"7: {len(sent - leases.keys())} records were never delivered"


async def until_consumed(url: str, http: aiohttp.ClientSession) -> dict[int, int]:
    """Wait until both groups have consumed everything; the stream's committed offsets."""
    while True:
        lags = {}
        for group in (STREAM, QUEUE):
            async with http.get(f"{url}/mq/v1/groups/{group}/lag") as response:
                lags[group] = await response.json()
        if all(lag["total_lag"] == 0 for lag in lags.values()):
            return {one["partition"]: one["committed"] or 0 for one in lags[STREAM]["partitions"]}
        await asyncio.sleep(0.2)


async def chaos(server: Server, clients: Clients, rng: random.Random) -> None:
    """Harm clients all the time, and the server now and then."""
    for _ in range(KILLS):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.harm())
            await asyncio.sleep(rng.uniform(1.0, 2.0))
            await server.kill()
            await asyncio.sleep(rng.choice((0, 0.3)))
            await server.start()
            tasks.create_task(clients.harm())


async def test_groups_keep_their_promises_while_everything_falls_over(tmp_path: Path) -> None:
    print(f"seed {SEED}: repeat with MQ_TORTURE_SEED={SEED}")
    rng = random.Random(SEED)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(tmp_path / "data", SETTINGS, port=port)
    await server.start()
    clients = Clients(server.url, tmp_path, rng)
    sent: set[int] = set()
    stopping = asyncio.Event()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        try:
            await http.put(f"{server.url}/mq/v1/topics/{TOPIC}", json={"partitions": PARTITIONS})
            for group in (STREAM, QUEUE):
                await http.patch(f"{server.url}/mq/v1/groups/{group}", json={**GROUP, "strategy": "averagely"})
            for _ in range(PROCESSES):
                await clients.start()
            sending = asyncio.create_task(send(server.url, http, sent, stopping))
            await asyncio.sleep(2.0)  # they come up
            await chaos(server, clients, rng)
            await until(lambda: len(sent) > 100, pause_s=0.1)
            stopping.set()
            await sending
            try:
                committed = await asyncio.wait_for(until_consumed(server.url, http), PATIENCE_S)
            except TimeoutError:
                pytest.fail(f"seed {SEED}: not all is consumed\n{server.log()[-3000:]}")
        finally:
            await clients.end()
            await server.end()
    lines = list(clients.lines())
    owners = ownerships(lines)
    members = {one.member for own in owners.values() for one in own}
    print(
        f"{len(sent)} records, {KILLS} kills of the server, {clients.kill_count} kills and {clients.stop_count} stops "
        f"of clients, {sum(map(len, owners.values()))} ownerships by {len(members)} members, "
        f"{sum(line[0] == 'acked' and line[4] is False for line in lines)} commits refused"
    )
    check_stream(lines, sent, committed)
    check_queue(lines, sent)
    assert len(owners) == PARTITIONS
