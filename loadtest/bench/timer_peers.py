"""Delayed records through a server: from a client that sends them to a client that gets them when they are due.

Ours, and what people would use instead, a Redis sorted set and beanstalkd: all of them in every round, each with a new
server, one client process and the same work:

    accept     batches of 1,000 records of 100 bytes, due in an hour, one at a time over one connection. Only the time
               between a batch and its answer counts, not that in which the client makes the batch
    busy       so many records due in one second: from its beginning until the client has the last of them
    lateness   records due evenly over some seconds: from the due millisecond until the client has the record

Who gets them: ours, a reader on a WebSocket (JSON frames). Redis, a client that runs a script, which moves what is due
from the sorted set to a list and returns it with the next due time; the client sleeps until then, so the lateness has
no poll of the client in it. beanstalkd, a client with reserves on their way, which deletes what it gets; its delays are
whole seconds, so for lateness jobs are put as they will be due, two seconds before.

Redis and beanstalkd are measured durable as we are (appendfsync always; -f 0, a sync after every job) and as they come
(everysec; -f 50, at most 50 ms between syncs). Syncing after every job beanstalkd gets a tenth of the work. Ours:
accepted after a sync, or with acks=written; what is delivered is synced first in both.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson
import uvloop

from loadtest.bench.payloads import JSON_TYPE
from loadtest.bench.push_work import Frames, connect
from loadtest.bench.raw_client import connect as connect_http
from loadtest.bench.request import Request
from loadtest.bench.timer_work import BATCH_RECORDS, HOUR_MS, VALUE, TooSlow, percentiles
from loadtest.peers import beanstalkd, redis
from loadtest.peers.fetch import TOOLS
from loadtest.peers.peer import Durability, Peer, Unavailable
from loadtest.process import running_server
from loadtest.stats import Spread, paired_ratio, spread

ACCEPT_S = 1.0
"""How long each accepts in a round, at least: a second or more of waiting for answers."""

RATE, LATENESS_S = 5_000, 4
SLOW_SHARE = 10
"""What syncs after every job gets so much less work."""

LEAD_S = 2.0
ACCEPTS_PER_S = 40_000
"""How far ahead the busy second is put: slower than this, and the measurement says so."""

ARRIVAL_TIMEOUT_S = 60.0
RESERVES = 100
"""On their way to beanstalkd."""

KEPT_S = 3_600
"""How long beanstalkd leaves a reserved job to its client."""

BEANSTALKD_DELAY_S = 2
PUT_STEP_S = 0.01
TOPIC = "bench"

_MOVE = (
    b"local d=redis.call('ZRANGEBYSCORE',KEYS[1],'-inf',ARGV[1],'LIMIT',0,1000) "
    b"if #d>0 then redis.call('ZREM',KEYS[1],unpack(d)) redis.call('RPUSH',KEYS[2],unpack(d)) end "
    b"d[#d+1]=redis.call('ZRANGE',KEYS[1],0,0,'WITHSCORES')[2] or '' return d"
)


class Arrival(NamedTuple):
    """One record at the client: when it was due and when it came, epoch ms."""

    due_ms: float
    at_ms: float


class Delaying(Protocol):
    """A client of a server that holds records back."""

    def accept(self, dues_ms: Sequence[int]) -> float:
        """Send records with their due times, in batches; seconds between the batches and their answers."""

    def receive(self, count: int) -> list[Arrival]:
        """The next so many records to come."""

    def late(self, rate: int, seconds: int) -> list[Arrival]:
        """Records due evenly, so many a second: sent, and received."""


class Subject(NamedTuple):
    """One line of the result. `share`: what part of the work it gets."""

    name: str
    about: str
    share: int
    served: Callable[[Path], AbstractContextManager[Delaying]]


class Measured(NamedTuple):
    """What one round of a subject came to."""

    accepted_per_s: float
    busy_ms: float
    late_ms: Sequence[float]


class Served(NamedTuple):
    """One line of the result, a value a round. `failure`: why there is none."""

    subject: str
    about: str
    busy_count: int
    rate: int
    accepted_per_s: Sequence[float] = ()
    busy_ms: Sequence[float] = ()
    late_p50_ms: Sequence[float] = ()
    late_p99_ms: Sequence[float] = ()
    failure: str = ""


OURS_DURABLE, OURS_WRITTEN = "mq", "mq, acks=written"
REDIS_DURABLE, REDIS_DEFAULT = "redis, appendfsync always", "redis, appendfsync everysec (default)"
COMPARED = ((OURS_DURABLE, REDIS_DURABLE), (OURS_WRITTEN, REDIS_DEFAULT))


def measure(directory: Path, count: int, rounds: int, said: Callable[[str], None]) -> list[Served]:
    """Every subject in every round; one that fails or is not installed is a row that says why. `said` is told what is
    under way."""
    found = {one.name: Served(one.name, one.about, count // one.share, RATE // one.share) for one in subjects()}
    for number in range(rounds):
        for one in subjects():
            row = found[one.name]
            if row.failure:
                continue
            said(f"round {number + 1}: {one.name}")
            root = directory / f"{number}-{one.name.split(' (')[0]}".replace(",", "").replace(" ", "-")
            root.mkdir()
            try:
                with one.served(root) as client:
                    took = round_of(client, row.busy_count, row.rate)
            except (Unavailable, TooSlow, OSError) as error:
                found[one.name] = row._replace(failure=f"not measured: {error}")
                continue
            p50, p99 = percentiles(took.late_ms, (50, 99))
            found[one.name] = row._replace(
                accepted_per_s=[*row.accepted_per_s, took.accepted_per_s],
                busy_ms=[*row.busy_ms, took.busy_ms],
                late_p50_ms=[*row.late_p50_ms, p50],
                late_p99_ms=[*row.late_p99_ms, p99],
            )
    return list(found.values())


def round_of(client: Delaying, busy_count: int, rate: int) -> Measured:
    """Busy, lateness, accept; a little of everything first. Raises TooSlow."""
    client.accept([now_ms() + 500] * BATCH_RECORDS)
    client.receive(BATCH_RECORDS)
    start_ms = (int(time.time() + LEAD_S + busy_count / ACCEPTS_PER_S) + 1) * 1000
    client.accept([start_ms + number * 7919 % 1000 for number in range(busy_count)])
    if now_ms() >= start_ms:
        raise TooSlow("the busy second began while it was being filled")
    busy_ms = max(one.at_ms for one in client.receive(busy_count)) - start_ms
    late_ms = [one.at_ms - one.due_ms for one in client.late(rate, LATENESS_S)]
    spent_s, accepted = 0.0, 0
    while spent_s < ACCEPT_S:
        far_ms = now_ms() + HOUR_MS
        spent_s += client.accept(range(far_ms + accepted, far_ms + accepted + BATCH_RECORDS))
        accepted += BATCH_RECORDS
    return Measured(accepted / spent_s, busy_ms, late_ms)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def subjects() -> list[Subject]:
    """In the order of the page."""
    return [
        Subject(OURS_DURABLE, "accepted after an fdatasync", 1, partial(_ours, "flushed")),
        Subject(REDIS_DURABLE, "a sync behind every command", 1, partial(_redis, Durability.SYNCED)),
        Subject("beanstalkd, -f 0", "a sync behind every job", SLOW_SHARE, partial(_beanstalkd, Durability.SYNCED)),
        Subject(OURS_WRITTEN, "accepted after the write; delivered after an fdatasync", 1, partial(_ours, "written")),
        Subject(REDIS_DEFAULT, "a sync a second", 1, partial(_redis, Durability.WRITTEN)),
        Subject("beanstalkd, -f 50 (default)", "a sync every 50 ms", 1, partial(_beanstalkd, Durability.WRITTEN)),
    ]


def _sent_first(client: Delaying, rate: int, seconds: int) -> list[Arrival]:
    """Records due evenly, so many a second, all of them sent before the first is due. Raises TooSlow."""
    start_ms = now_ms() + 3_000
    client.accept([start_ms + number * 1000 // rate for number in range(rate * seconds)])
    if now_ms() >= start_ms:
        raise TooSlow("the first record was due while they were being sent")
    return client.receive(rate * seconds)


# -------------------------------------------------------------------------------------------------------- ours


class Ours:
    """One connection to send on, one socket to read from."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._arrivals: list[Arrival] = []
        self._arrived = asyncio.Event()
        self._wanted = 0
        self._frames: Frames
        self._runner.run(self._open())

    def close(self) -> None:
        self._frames.close()
        self._runner.close()

    def accept(self, dues_ms: Sequence[int]) -> float:
        """As JSON records, each with `deliver_at`."""
        return self._runner.run(self._accept(dues_ms))

    def receive(self, count: int) -> list[Arrival]:
        """As JSON frames."""
        return self._runner.run(self._receive(count))

    def late(self, rate: int, seconds: int) -> list[Arrival]:
        """All sent before the first is due."""
        return _sent_first(self, rate, seconds)

    async def _open(self) -> None:
        await self._request("PUT", f"/mq/v1/topics/{TOPIC}", b'{"partitions": 1}')
        self._frames = await connect(self._url, "/ws/v1", lambda _: None, self._take)
        self._frames.say(
            {"id": 1, "op": "subscribe", "sub": "s", "topics": [TOPIC], "from": "latest", "credit": 10_000}
        )
        while self._frames.count < 1:  # noqa: ASYNC110 - the answer
            await asyncio.sleep(0.01)

    def _take(self, payload: bytes) -> int:
        at_ms = time.time_ns() / 1e6
        push = orjson.loads(payload)
        if push.get("op") != "messages":  # the answer to subscribe
            return 0
        self._arrivals += [Arrival(message["deliver_at"], at_ms) for message in push["messages"]]
        if len(self._arrivals) >= self._wanted:
            self._arrived.set()
        return len(push["messages"])

    async def _accept(self, dues_ms: Sequence[int]) -> float:
        bodies = [
            b'{"records":[%b]}' % b",".join(b'{"value":%b,"deliver_at":%d}' % (VALUE, due_ms) for due_ms in some)
            for some in _batches(dues_ms)
        ]
        return await self._request("POST", f"/topics/{TOPIC}", *bodies)

    async def _request(self, method: str, target: str, *bodies: bytes) -> float:
        """One after the other; seconds between requests and answers. Raises OSError."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[int] = loop.create_future()
        connection = await connect_http(self._url, lambda _, status: answered.set_result(status))
        spent_s = 0.0
        try:
            for body in bodies:
                request = Request(method, target, {"Content-Type": JSON_TYPE}, body).encode(self._url)
                began_s = time.perf_counter()
                connection.send(request)
                status = await answered
                spent_s += time.perf_counter() - began_s
                if status not in (200, 201):
                    raise OSError(f"{method} {target} was answered with {status}")
                answered = loop.create_future()
        finally:
            connection.close()
        return spent_s

    async def _receive(self, count: int) -> list[Arrival]:
        self._wanted = count
        if len(self._arrivals) < count:
            self._arrived.clear()
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                await self._arrived.wait()
        taken, self._arrivals = self._arrivals[:count], self._arrivals[count:]
        return taken


@contextmanager
def _ours(acks: str, directory: Path) -> Iterator[Ours]:
    with running_server(directory / "data", "--acks", acks) as running:
        client = Ours(running.url)
        try:
            yield client
        finally:
            client.close()


# ------------------------------------------------------------------------------------------------------- Redis


class RedisSet:
    """One connection, commands written out."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._replies = connection.makefile("rb")
        self._number = 0

    def accept(self, dues_ms: Sequence[int]) -> float:
        """One ZADD a batch. Members begin with their due time and a number, since equal members would be one."""
        spent_s = 0.0
        for some in _batches(dues_ms):
            parts = [b"ZADD", b"due"]
            for due_ms in some:
                self._number += 1
                parts += [b"%d" % due_ms, b"%d:%d:" % (due_ms, self._number) + VALUE]
            command = resp(parts)
            began_s = time.perf_counter()
            self._connection.sendall(command)
            answer = self._replies.readline()
            spent_s += time.perf_counter() - began_s
            if answer != b":%d\r\n" % len(some):
                raise OSError(f"ZADD was answered with {answer!r}")
        return spent_s

    def receive(self, count: int) -> list[Arrival]:
        """Moves what is due and sleeps until the next record is."""
        arrivals: list[Arrival] = []
        while len(arrivals) < count:
            next_ms = self._move(arrivals)
            wait_ms = next_ms - time.time_ns() / 1e6
            if len(arrivals) < count and wait_ms > 0:
                time.sleep(wait_ms / 1000)
        return arrivals

    def late(self, rate: int, seconds: int) -> list[Arrival]:
        """All sent before the first is due."""
        return _sent_first(self, rate, seconds)

    def _move(self, arrivals: list[Arrival]) -> float:
        """Adds what has come; when the next is due, 0 when none waits."""
        self._connection.sendall(resp([b"EVAL", _MOVE, b"2", b"due", b"ready", b"%d" % now_ms()]))
        head = self._replies.readline()
        if not head.startswith(b"*"):
            raise OSError(f"EVAL was answered with {head!r}")
        at_ms = time.time_ns() / 1e6
        for _ in range(int(head[1:]) - 1):
            arrivals.append(Arrival(int(_bulk(self._replies).partition(b":")[0]), at_ms))
        return float(_bulk(self._replies) or 0)


def _bulk(replies: BufferedReader) -> bytes:
    size = int(replies.readline()[1:])
    return replies.read(size + 2)[:-2]


def resp(parts: Sequence[bytes]) -> bytes:
    """A command as Redis takes it."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


@contextmanager
def _redis(durability: Durability, directory: Path) -> Iterator[RedisSet]:
    with _served(redis.PEERS[0], durability, directory) as port, _connected(port) as connection:
        yield RedisSet(connection)


# -------------------------------------------------------------------------------------------------- beanstalkd


class Tube:
    """A connection to put on and one with reserves on their way."""

    def __init__(self, putting: socket.socket, taking: socket.socket) -> None:
        self._putting = putting
        self._taking = taking
        self._answers = putting.makefile("rb")
        self._replies = taking.makefile("rb")
        taking.sendall(b"reserve\r\n" * RESERVES)

    def accept(self, dues_ms: Sequence[int]) -> float:
        """`put`s, pipelined; each due in the whole second before its due time."""
        return sum(self._put([max(1, (due_ms - now_ms()) // 1000) for due_ms in some]) for some in _batches(dues_ms))

    def receive(self, count: int) -> list[Arrival]:
        """Reserved, and deleted. A delete is done when the reserves before it have got something: those of the last
        RESERVES records wait for the next ones."""
        arrivals: list[Arrival] = []
        while len(arrivals) < count:
            line = self._replies.readline()
            if line == b"DELETED\r\n":
                continue
            at_ms = time.time_ns() / 1e6
            if not line.startswith(b"RESERVED "):
                raise OSError(f"reserve was answered with {line!r}")
            _, job, size = line.split()
            arrivals.append(Arrival(float(self._replies.read(int(size) + 2).partition(b":")[0]), at_ms))
            self._taking.sendall(b"delete %s\r\nreserve\r\n" % job)
        return arrivals

    def late(self, rate: int, seconds: int) -> list[Arrival]:
        """Put as they will be due, one delay of whole seconds before: it knows no other due times."""
        count = rate * seconds

        def put_all() -> None:
            began_s, put_count = time.perf_counter(), 0
            while put_count < count:
                step = min(count, int((time.perf_counter() - began_s) * rate)) - put_count
                self._put([BEANSTALKD_DELAY_S] * step)
                put_count += step
                time.sleep(PUT_STEP_S)

        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(put_all)
            arrivals = self.receive(count)
            done.result()
        return arrivals

    def _put(self, delays_s: Sequence[int]) -> float:
        """Seconds until all are answered. A job says when it is due, by the clock of the moment before it is sent."""
        puts = []
        began_ms = time.time_ns() / 1e6
        for delay_s in delays_s:
            job = b"%.3f:" % (began_ms + delay_s * 1000) + VALUE
            puts.append(b"put 1 %d %d %d\r\n%s\r\n" % (delay_s, KEPT_S, len(job), job))
        command = b"".join(puts)
        began_s = time.perf_counter()
        self._putting.sendall(command)
        answers = [self._answers.readline() for _ in puts]
        spent_s = time.perf_counter() - began_s
        if not all(answer.startswith(b"INSERTED ") for answer in answers):
            raise OSError(f"put was answered with {next(one for one in answers if not one.startswith(b'INSERTED '))!r}")
        return spent_s


@contextmanager
def _beanstalkd(durability: Durability, directory: Path) -> Iterator[Tube]:
    peer = beanstalkd.PEERS[0]
    with _served(peer, durability, directory) as port, _connected(port) as putting, _connected(port) as taking:
        yield Tube(putting, taking)


# -------------------------------------------------------------------------------------------------------- both


@contextmanager
def _served(peer: Peer, durability: Durability, directory: Path) -> Iterator[int]:
    """The port of a server that has nothing yet, until the block ends. Raises Unavailable."""
    peer.prepare(TOOLS)
    level = next(one for one in peer.levels if one.durability is durability)
    with peer.serve(TOOLS, directory, level) as server:
        yield int(server.endpoint.rpartition(":")[2])


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(ARRIVAL_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def _batches(dues_ms: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(dues_ms)
    while some := list(islice(rest, BATCH_RECORDS)):
        yield some


# ---------------------------------------------------------------------------------------------------- the page

HEADINGS = ("", "accept", "busy: the last is there after", "late p50", "late p99", "work")


def cells(row: Served) -> tuple[str, ...]:
    """A line of the table: medians of the rounds, and their range."""
    work = f"{row.busy_count:,} in the busy second, {row.rate:,}/s for lateness; {row.about}"
    if row.failure:
        return row.subject, row.failure, "-", "-", "-", work
    accepted = spread(row.accepted_per_s)
    return (
        row.subject,
        f"{accepted.median:,.0f}/s ({accepted.low:,.0f} - {accepted.high:,.0f})",
        *(_ms(spread(values)) for values in (row.busy_ms, row.late_p50_ms, row.late_p99_ms)),
        work,
    )


def _ms(value: Spread) -> str:
    return f"{value.median:,.1f} ms ({value.low:,.1f} - {value.high:,.1f})"


def ratio_cells(rows: Sequence[Served], ours: str, peer: str) -> tuple[str, ...] | None:
    """Ours divided by a peer, round by round; None unless both were measured."""
    named = {row.subject: row for row in rows if not row.failure}
    if not {ours, peer} <= named.keys():
        return None
    mine, its = named[ours], named[peer]
    pairs = (
        (mine.accepted_per_s, its.accepted_per_s),
        (mine.busy_ms, its.busy_ms),
        (mine.late_p50_ms, its.late_p50_ms),
        (mine.late_p99_ms, its.late_p99_ms),
    )
    ratios = [paired_ratio(*pair) for pair in pairs]
    return (f"{ours} / {peer}", *(f"{one.median:.2f}x ({one.low:.2f} - {one.high:.2f})" for one in ratios), "")


def table(rows: Sequence[Served]) -> list[str]:
    """Markdown: each subject, then the ratios."""
    ratios = [found for ours, peer in COMPARED if (found := ratio_cells(rows, ours, peer)) is not None]
    return [
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---:|---:|---:|---|",
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        *(f"| {' | '.join(one)} |" for one in ratios),
    ]
