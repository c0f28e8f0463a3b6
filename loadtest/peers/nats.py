"""NATS JetStream, built from the Go module proxy. Clients: `nats bench` (of its command line), nats-py, prebuilt bytes.

JetStream takes many records at a time in three ways, and which one is best depends on the level:

    async            each record is acknowledged by itself; many are unanswered. What its clients do
    atomic batches   up to 1,000 records become visible together and have one answer. One sync for all of them
    fast batches     records flow, with an answer now and then. A sync for each record

Its delays are schedules: a record with the header Nats-Schedule is stored under a subject of its own, and published on
another subject when it is due.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.peers import replay, tool, work
from loadtest.peers.fetch import TOOLS, go_program
from loadtest.peers.peer import Durability, Level, Numbers, Options, Peer, Way, WorkFailed, by_python_client
from loadtest.peers.servers import Server, free_port, running

VERSION = "v2.15.2"
MODULE = "github.com/nats-io/nats-server/v2"
CLI_VERSION = "v0.5.1"
CLI_MODULE = "github.com/nats-io/natscli"

PENDING_MAX = 8_000
"""Unanswered records of nats-py, over all batches."""

READ_RECORDS = 5_000
"""Records on their way to a consumer. `nats bench` has 500 unless told; 5,000 was a third faster."""

FETCH_RECORDS = 1_000
FETCH_TIMEOUT_S = 1.0
GROUP = "scoreboard"
FILL_RECORDS = 50_000
FILL_S = 10.0
SCAN_RECORDS = 300_000
"""At least so many are scanned: of few records most are on their way when the clock of `nats bench` begins."""

ENDLESS = str(20_000_000)
"""Messages of a `nats bench` that is not to end. It has room for a time of each from the start: no more than needed."""


class _Client:
    """A topic is a stream with one subject of the same name."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._stream: Any = connection.jetstream(publish_async_max_pending=PENDING_MAX)

    async def create(self, topic: str, subjects: Sequence[str] = ()) -> None:
        """A stream in files that may be sent batches."""
        await self._stream.add_stream(name=topic, subjects=subjects or [topic], allow_atomic=True, allow_batched=True)

    async def drop(self, topic: str) -> None:
        """With its files."""
        await self._stream.delete_stream(topic)

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """Published without waiting in between; answered when every record is acknowledged."""
        if len(values) == 1:
            await self._stream.publish(topic, values[0])
            return
        answers = [await self._stream.publish_async(topic, one) for one in values]
        await asyncio.gather(*answers)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """An ordered push consumer, from the first record."""
        waiting: asyncio.Queue[bytes] = asyncio.Queue()

        async def on_message(message: Any) -> None:
            waiting.put_nowait(message.data)

        subscription = await self._stream.subscribe(topic, ordered_consumer=True, cb=on_message)
        try:
            while True:
                values = [await waiting.get()]
                while not waiting.empty():
                    values.append(waiting.get_nowait())
                yield values
        finally:
            await subscription.unsubscribe()

    async def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """A pull consumer. Every record has an ack of its own; the last one of a fetch is confirmed, and with it those
        before it on the same connection."""
        from nats.errors import TimeoutError as NothingThere

        subscription = await self._stream.pull_subscribe(topic, durable=GROUP)
        while True:
            try:
                messages = await subscription.fetch(FETCH_RECORDS, timeout=FETCH_TIMEOUT_S)
            except NothingThere:
                continue
            for message in messages[:-1]:
                await message.ack()
            await messages[-1].ack_sync()
            yield [message.data for message in messages]

    async def stored(self, topic: str) -> int:
        """How many records a stream holds."""
        found = await self._stream.stream_info(topic)
        count: int = found.state.messages
        return count


class _AtomicClient(_Client):
    """Sends a batch as one: NATS has headers for that, nats-py no method."""

    _count = 0

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """Answered once, when all are stored."""
        self._count += 1
        batch = f"{topic}-{self._count}"
        *others, last = enumerate(values, 1)
        for number, one in others:
            await self._connection.publish(topic, one, headers=_of_batch(batch, number))
        number, one = last
        answer = await self._stream.publish(topic, one, headers={**_of_batch(batch, number), "Nats-Batch-Commit": "1"})
        if answer.batch_size != len(values):
            raise WorkFailed(f"{answer.batch_size} of {len(values)} records were stored")


def _of_batch(batch: str, number: int) -> dict[str, str]:
    return {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}


class _DelayingClient(_Client):
    """Its streams take schedules, each under a subject of its own."""

    _count = 0

    async def create(self, topic: str, subjects: Sequence[str] = ()) -> None:
        """With subjects for what waits; readers see the subject of the topic alone."""
        subjects = [*(subjects or [topic]), f"{topic}.later.*"]
        await self._stream.add_stream(name=topic, subjects=subjects, allow_msg_schedules=True)

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """One schedule for each record; as `send`."""
        answers = []
        for one, due in zip(values, due_ms, strict=True):
            self._count += 1
            answers.append(
                await self._stream.publish_async(
                    f"{topic}.later.{self._count}",
                    one,
                    headers={"Nats-Schedule": f"@at {rfc3339(due)}", "Nats-Schedule-Target": topic},
                )
            )
        await asyncio.gather(*answers)


def rfc3339(at_ms: int) -> str:
    """A time (epoch ms) as schedules are written."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@asynccontextmanager
async def _connected(endpoint: str, kind: type[_Client] = _Client) -> AsyncIterator[Any]:
    import nats

    connection = await nats.connect(f"nats://{endpoint}")
    try:
        yield kind(connection)
    finally:
        await connection.close()


def publish(topic: str, reply: str, values: Sequence[bytes]) -> bytes:
    """A batch of PUB, each to be answered to `reply`."""
    return b"".join(b"PUB %s %s %d\r\n%s\r\n" % (topic.encode(), reply.encode(), len(one), one) for one in values)


def publish_atomic(topic: str, reply: str, values: Sequence[bytes]) -> bytes:
    """An atomic batch: HPUB, whose sizes are those of the headers and of all. The last one alone is answered.

    Its name is free again when it is stored, so the same bytes may be sent again then.
    """
    return atomic_batch(reply, [(topic.encode(), one) for one in values])


def atomic_batch(reply: str, messages: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The same of messages with a subject each, all of them of one stream."""
    found = []
    for number, (subject, one) in enumerate(messages, 1):
        head = f"NATS/1.0\r\nNats-Batch-Id: {reply}\r\nNats-Batch-Sequence: {number}\r\n"
        is_last = number == len(messages)
        headers = (head + ("Nats-Batch-Commit: 1\r\n" if is_last else "") + "\r\n").encode()
        to = b"%b %b" % (subject, reply.encode()) if is_last else subject
        found.append(b"HPUB %b %d %d\r\n" % (to, len(headers), len(headers) + len(one)) + headers + one + b"\r\n")
    return b"".join(found)


def acknowledged_bytes(buffer: bytearray, count: int) -> int:
    """The size of so many acknowledgements when all are there, else 0: each is a line MSG and one of JSON.

    The server's PING among them need no answer within minutes. Raises WorkFailed for an error.
    """
    if not buffer.endswith(b"\r\n"):
        return 0
    if b'"error"' in buffer or b"-ERR" in buffer:
        raise WorkFailed(bytes(buffer[-300:]).decode(errors="replace"))
    return len(buffer) if buffer.count(b"\r\n") - buffer.count(b"PING\r\n") == 2 * count else 0


def connected_bytes(buffer: bytearray) -> int:
    """The size of what a server says until it has answered the first PING, 0 when that is not whole."""
    end = buffer.find(b"PONG\r\n")
    return end + len(b"PONG\r\n") if end >= 0 else 0


async def _replayed(endpoint: str, topic: str, options: Options, *, is_atomic: bool) -> Numbers:
    host, _, port = endpoint.rpartition(":")
    values = [work.value(number) for number in range(work.BATCH_RECORDS)]
    make = publish_atomic if is_atomic else publish

    def opening(number: int) -> bytes:
        connect = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
        return connect + f"SUB {_inbox(topic, number)} 1\r\nPING\r\n".encode()

    async with _connected(endpoint) as client:
        await client.create(topic)
        numbers = await replay.replay(
            host,
            int(port),
            opening=opening,
            opened=connected_bytes,
            request=lambda number: make(topic, _inbox(topic, number), values),
            whole=partial(acknowledged_bytes, count=1 if is_atomic else len(values)),
            records=len(values),
            connections=int(options["connections"]),
            duration_s=options["duration_s"],
            warm_s=options["warm_s"],
        )
        await client.drop(topic)
    return numbers


def _inbox(topic: str, number: int) -> str:
    return f"_INBOX.{topic}-{number}"


async def _published(endpoint: str, topic: str, options: Options, *, how: str) -> Numbers:
    """`nats bench js pub`."""
    load = ["pub", how, topic, "--clients", str(work.IN_FLIGHT), "--batch", str(work.BATCH_RECORDS), "--msgs", ENDLESS]
    async with _connected(endpoint) as client:
        await client.create(topic)
        return await tool.window(_bench(endpoint, topic, load), lambda: client.stored(topic), options, _home())


async def _published_singly(endpoint: str, topic: str, options: Options) -> Numbers:
    """`nats bench js pub sync`, to ten subjects of one stream."""
    subjects = ["--multisubject", f"--multisubjectmax={work.SINGLES_TOPICS}"]
    load = ["pub", "sync", topic, "--clients", str(work.SINGLES_IN_FLIGHT), "--msgs", ENDLESS, *subjects]
    async with _connected(endpoint) as client:
        await client.create(topic, [f"{topic}.*"])
        numbers = await tool.window(_bench(endpoint, topic, load), lambda: client.stored(topic), options, _home())
        await client.drop(topic)
    return numbers


async def _scanned(endpoint: str, topic: str, options: Options) -> Numbers:
    """`nats bench js ordered`, again and again: its clock runs from its first message to its last."""
    count = int(options["count"])
    count += await _filled(endpoint, topic, SCAN_RECORDS - count)
    load = ["ordered", "--batch", str(READ_RECORDS), "--msgs", str(count)]
    await _consumed(endpoint, topic, load)  # the warm-up
    records, spent_s, began_s = 0, 0.0, time.monotonic()
    while spent_s < options["duration_s"]:
        records += count
        spent_s += count / await _consumed(endpoint, topic, load)
    numbers = {"records": records, "records_per_s": records / spent_s, "took_s": spent_s}
    return {**numbers, "began_s": began_s, "ended_s": time.monotonic()}


async def _received(endpoint: str, topic: str, options: Options) -> Numbers:
    """`nats bench js consume`, an ack for every message; NATS does not confirm them."""
    async with _connected(endpoint) as client:
        await client.create(topic)
        count = await _filled(endpoint, topic, int(options["count"]), options["fill_s"])
        began_s = time.monotonic()
        rate = await _consumed(endpoint, topic, ["consume", "--batch", str(READ_RECORDS), "--msgs", str(count)])
        ended_s = time.monotonic()
        await client.drop(topic)
    return {
        "records": count,
        "records_per_s": rate,
        "took_s": count / rate,
        "began_s": began_s,
        "ended_s": ended_s,
    }


async def _filled(endpoint: str, topic: str, count_max: int, within_s: float = FILL_S) -> int:
    """Add about so many records, for about so long; how many. Atomic batches are fast at both levels."""
    load = ["pub", "atomic", topic, "--clients", str(work.IN_FLIGHT), "--batch", str(work.BATCH_RECORDS)]
    count, deadline_s = 0, time.monotonic() + within_s
    while count < count_max and time.monotonic() < deadline_s:
        await tool.ran(_bench(endpoint, topic, [*load, "--msgs", str(FILL_RECORDS)]), _home())
        count += FILL_RECORDS
    return count


async def _consumed(endpoint: str, topic: str, load: Sequence[str]) -> float:
    return rate(await tool.ran(_bench(endpoint, topic, load), _home()))


def rate(output: str) -> float:
    """The messages a second that `nats bench` says. Raises WorkFailed."""
    found = re.search(r"stats: ([\d,]+) msgs/sec", output)
    if found is None or "WARNING" in output:
        raise WorkFailed(f"nats bench: {output[-500:].strip()}")
    return float(found[1].replace(",", ""))


def _bench(endpoint: str, stream: str, load: Sequence[str]) -> list[str]:
    binary = go_program(TOOLS, f"{CLI_MODULE}/nats", CLI_MODULE, CLI_VERSION)
    command = [binary, "--server", f"nats://{endpoint}", "--no-context", "bench", "js", *load]
    return [*command, "--stream", stream, "--size", f"{work.VALUE_BYTES}B", "--no-progress"]


def _home() -> dict[str, str]:
    """It reads and keeps settings there: not the user's."""
    return {"XDG_CONFIG_HOME": str(TOOLS / "nats-config")}


class Nats(Peer):
    """Two levels."""

    name = "nats"
    about = (
        f"NATS JetStream {VERSION}, one server, file storage, one replica. nats bench (natscli {CLI_VERSION}):"
        f" {work.IN_FLIGHT} clients, batches of {work.BATCH_RECORDS:,}; {READ_RECORDS:,} records on their way to a"
        f" consumer. nats-py: publish_async, an ordered push consumer, fetches of {FETCH_RECORDS:,} with an ack for"
        " every record. Single records of nats bench go to ten subjects of one stream, those of nats-py to ten streams."
        " Delayed: schedules (Nats-Schedule: @at), one subject each"
    )
    levels = (
        Level("default", Durability.WRITTEN, "written before the answer; synced every two minutes"),
        Level(
            "sync always",
            Durability.SYNCED,
            "sync_interval: always. A sync behind every record, or behind an atomic batch",
        ),
    )
    delays_per_s = 4_000

    def prepare(self, tools: Path) -> str:
        go_program(tools, MODULE, MODULE, VERSION)
        go_program(tools, f"{CLI_MODULE}/nats", CLI_MODULE, CLI_VERSION)
        return VERSION

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        port = free_port()
        sync = "sync_interval: always" if level.durability is Durability.SYNCED else ""
        (data / "nats.conf").write_text(
            f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{data / "nats"}"\n {sync} }}\n'
        )
        binary = go_program(tools, MODULE, MODULE, VERSION)
        with running(f"127.0.0.1:{port}", [[binary, "-c", str(data / "nats.conf")]], data) as server:
            yield server

    def ways(self, work_name: str) -> Sequence[Way]:
        python = partial(by_python_client, _connected, client="nats-py")
        match work_name:
            case "replay":
                return (
                    Way("prebuilt bytes", partial(_replayed, is_atomic=False)),
                    Way("prebuilt bytes, atomic batches", partial(_replayed, is_atomic=True)),
                )
            case "batched":  # the first one's topic is what `nats bench` scans: it has many records at both levels
                return (
                    Way("nats bench, atomic batches", partial(_published, how="atomic")),
                    Way("nats bench, fast batches", partial(_published, how="fast")),
                    Way("nats bench, async", partial(_published, how="async")),
                    python(work.batched),
                    by_python_client(partial(_connected, kind=_AtomicClient), work.batched, "nats-py, atomic batches"),
                )
            case "scan":
                return (Way("nats bench", _scanned), python(work.scan))
            case "receive":  # in atomic batches it is filled with more than a second's worth at both levels
                filler = partial(_connected, kind=_AtomicClient)
                return (Way("nats bench", _received), by_python_client(filler, work.receive, "nats-py"))
            case "singles":
                return (Way("nats bench", _published_singly), python(work.singles))
            case "delayed":
                return (by_python_client(partial(_connected, kind=_DelayingClient), work.delayed, "nats-py"),)
            case "push" | "topics" | "create" | "fill" | "first_record" | "drop":
                return (python(getattr(work, work_name)),)
            case _:
                return ()


PEERS = (Nats(),)
