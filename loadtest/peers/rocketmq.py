"""Apache RocketMQ: name server and broker from its Maven artifacts; its own Java client.

The broker's HA port and others bind every address, so servers and client run in a network namespace of their own,
which takes root and iproute2. The client is a small Java program beside this file, spoken to over its standard input
and output, so that its clock is ours and its results are checked like the others'. Its benchmark programs
(rocketmq-example) are in no Maven repository.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import shutil
import struct
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from loadtest.peers import replay, work
from loadtest.peers import rocketmq_protocol as protocol
from loadtest.peers.fetch import TOOLS, jars, java_classes, program
from loadtest.peers.peer import (
    Durability,
    Level,
    Numbers,
    Options,
    Peer,
    Unavailable,
    Way,
    WorkFailed,
)
from loadtest.peers.servers import Server, running
from loadtest.process import log_tail

VERSION = "5.3.3"
NAME_SERVER_PORT = 9876
BROKER_PORT = 10911
NAMESPACE = "mq-peers"
HEAP = "-Xmx1g"
PROGRAM = Path(__file__).with_name("RocketMqClient.java")
_FRAME = struct.Struct(">ib")
_ANSWER, _VALUES, _FAILURE = 0, 1, 2
_CREATE, _SEND, _READ, _DELAY, _RECEIVE, _CLOSE, _DROP = 1, 2, 3, 4, 5, 6, 7
_READY = 0
"""The id of an answer to no request: the client can send."""

PULL_MESSAGES = 4096
"""The most that the broker is set to give at a time: about 1 MiB. Its Java client asks for 1,024 at most."""

FETCH_RECORDS = 1_000_000
FILL_TIMEOUT_S, READABLE_TIMEOUT_S = 60.0, 30.0
CLONE_NEWNET = 0x40000000
"""See setns(2)."""

CLIENT_WARM_S = 4.0
"""At least: the client's JVM is new in every step, unlike the server's."""

WARM_RECORDS = 50_000

WORKS = (
    *("batched", "scan", "receive", "singles", "push", "delayed", "topics"),
    *("fill", "first_record", "drop"),
)

# The last two: a send is not refused as "broker busy" when it has waited for 200 ms, or the disk for 1 s.
SETTINGS = """brokerClusterName=mq
brokerName=mq
brokerId=0
brokerIP1=127.0.0.1
namesrvAddr=127.0.0.1:{port}
listenPort={broker}
storePathRootDir={root}
storePathCommitLog={root}/commitlog
flushDiskType={flush}
autoCreateTopicEnable=true
mappedFileSizeCommitLog=268435456
defaultTopicQueueNums=1
timerPrecisionMs=100
enablePopBufferMerge=true
waitTimeMillsInSendQueue=30000
osPageCacheBusyTimeOutMills=30000
maxTransferCountOnMessageInMemory={pull}
maxTransferBytesOnMessageInMemory=4194304
"""


class Requests(Protocol):
    """The standard input of the Java client."""

    def write(self, piece: bytes, /) -> None: ...


class Client:
    """Requests out, answers and values in. A frame: u32 size, u8 kind, u32 id, then fields. Values have the id of the
    request for them."""

    def __init__(self, requests: Requests, frames: asyncio.StreamReader, log: Path) -> None:
        self._requests, self._frames = requests, frames
        self._log = log
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self._waiting = {_READY: self.ready}
        self._readers: dict[int, asyncio.Queue[list[bytes] | None]] = {}
        self._next_id = _READY
        self._has_ended = False
        self.ended = loop.create_task(self._take_frames())

    async def create(self, topic: str) -> None:
        """One queue."""
        await self._asked(_CREATE, topic)

    async def drop(self, topic: str) -> None:
        """Its queue goes at once; its messages stay in the log that all topics share."""
        await self._asked(_DROP, topic)

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One batch message, or a single one."""
        await self._asked(_SEND, topic, packed(values))

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """Single messages with a delivery time, all on their way at once: batches cannot be delayed."""
        times = struct.pack(f">{len(due_ms)}q", *due_ms)
        await self._asked(_DELAY, topic, packed(values) + times)

    def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """A pull consumer that is assigned the topic's queue, from its start."""
        return self._followed(_READ, topic)

    def receive(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Popped, and acknowledged one by one; the broker has confirmed every ack."""
        return self._followed(_RECEIVE, topic)

    async def _followed(self, kind: int, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        reader, done = self._request(kind, topic)
        values = self._readers[reader] = asyncio.Queue()
        await done
        try:
            while (piece := await values.get()) is not None:
                yield piece
            raise self._end()
        finally:
            del self._readers[reader]
            with suppress(WorkFailed):
                await self._asked(_CLOSE, "", struct.pack(">i", reader))

    async def _asked(self, kind: int, topic: str, body: bytes = b"") -> None:
        await self._request(kind, topic, body)[1]

    def _request(self, kind: int, topic: str, body: bytes = b"") -> tuple[int, asyncio.Future[None]]:
        if self._has_ended:
            raise self._end()
        self._next_id += 1
        done = self._waiting[self._next_id] = asyncio.get_running_loop().create_future()
        name = topic.encode()
        self._requests.write(_FRAME.pack(4 + 2 + len(name) + len(body), kind))
        self._requests.write(struct.pack(">ih", self._next_id, len(name)) + name + body)
        return self._next_id, done

    async def _take_frames(self) -> None:
        try:
            while True:
                size, kind = _FRAME.unpack(await self._frames.readexactly(_FRAME.size))
                self._take(kind, await self._frames.readexactly(size))
        except asyncio.IncompleteReadError:
            pass  # it has ended
        finally:
            self._has_ended = True
            for done in self._waiting.values():
                if not done.done():
                    done.set_exception(self._end())
            for values in self._readers.values():
                values.put_nowait(None)

    def _end(self) -> WorkFailed:
        return WorkFailed(f"the Java client ended{log_tail(self._log)}")

    def _take(self, kind: int, body: bytes) -> None:
        number = int.from_bytes(body[:4], "big")
        if kind == _VALUES:
            if number in self._readers:  # it may have been closed meanwhile
                self._readers[number].put_nowait(unpacked(body[4:]))
            return
        done = self._waiting.pop(number)
        if done.cancelled():
            return
        if kind == _ANSWER:
            done.set_result(None)
        else:
            done.set_exception(WorkFailed(body[4:].decode(errors="replace")))


def packed(values: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(values)) + b"".join(struct.pack(">i", len(one)) + one for one in values)


def unpacked(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return found


@asynccontextmanager
async def _connected(endpoint: str) -> AsyncIterator[Client]:
    """A client that is ready to send: its JVM has started, and its classes were compiled before."""
    jar_files = f"{TOOLS / f'rocketmq-{VERSION}'}/*"
    log = Path(endpoint) / "client.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *_java(f"{jar_files}:{java_classes(TOOLS, PROGRAM, jar_files)}", Path(endpoint)),
            PROGRAM.stem,
            f"127.0.0.1:{NAME_SERVER_PORT}",
            f"127.0.0.1:{BROKER_PORT}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=2**24,
            env={**os.environ, "HOME": endpoint},
        )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        client = Client(process.stdin, process.stdout, log)
        await client.ready
        yield client
    finally:
        process.kill()
        await process.wait()


async def _worked(do: Callable[..., Awaitable[Numbers]], endpoint: str, topic: str, options: Options) -> Numbers:
    """A work of the Java client, its JVM warm where the work has a time for that."""
    if "warm_s" in options:
        options = {**options, "warm_s": max(options["warm_s"], CLIENT_WARM_S)}
    async with _connected(endpoint) as client:
        if do is work.receive:
            await work.receive(client, f"{topic}-warm", count=WARM_RECORDS, fill_s=1, duration_s=CLIENT_WARM_S)
        return await do(client, topic, **options)


async def _replayed(endpoint: str, topic: str, options: Options) -> Numbers:
    async with _connected(endpoint) as client:
        await client.create(topic)
        _enter_namespace()
        numbers = await _replay(topic, **options)
        await client.drop(topic)
    return numbers


async def _replay(topic: str, *, connections: float, duration_s: float, warm_s: float) -> Numbers:
    values = [work.value(number) for number in range(work.BATCH_RECORDS)]
    return await replay.replay(
        "127.0.0.1",
        BROKER_PORT,
        request=protocol.send_batch(topic, values, time.time_ns() // 1_000_000),
        whole=protocol.sent_bytes,
        records=len(values),
        connections=int(connections),
        duration_s=duration_s,
        warm_s=warm_s,
    )


async def _fetched(endpoint: str, topic: str, options: Options) -> Numbers:
    async with _connected(endpoint) as client:
        await client.create(topic)
        await work.filled(client, topic, FETCH_RECORDS, FILL_TIMEOUT_S)
        _enter_namespace()
        await _until_readable(topic, FETCH_RECORDS - 1)
        numbers = await replay.fetch(
            "127.0.0.1",
            BROKER_PORT,
            request=lambda offset: protocol.pull(topic, offset, PULL_MESSAGES),
            whole=protocol.pulled,
            count=FETCH_RECORDS,
            duration_s=options["duration_s"],
            warm_s=options["warm_s"],
        )
        await client.drop(topic)
    return numbers


async def _until_readable(topic: str, offset: int) -> None:
    """What is acknowledged is in the log; it can be read once it is in the queue's index as well."""
    reader, writer = await asyncio.open_connection("127.0.0.1", BROKER_PORT)
    try:
        async with asyncio.timeout(READABLE_TIMEOUT_S):
            while True:
                writer.write(protocol.pull(topic, offset, 1))
                size = await reader.readexactly(4)
                answer = size + await reader.readexactly(int.from_bytes(size, "big"))
                with suppress(WorkFailed):
                    protocol.pulled(answer)
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise WorkFailed(f"record {offset:,} cannot be read after {READABLE_TIMEOUT_S:g} s") from None
    finally:
        writer.close()


def _enter_namespace() -> None:
    """For what this thread connects to from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/var/run/netns", NAMESPACE).open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {NAMESPACE} cannot be entered")


class RocketMq(Peer):
    """One broker; two levels."""

    name = "rocketmq"
    about = (
        f"Apache RocketMQ {VERSION}, one broker, heap 1 GiB, up to 1,024 messages a pull. Its Java client holds up"
        " to 65,536 pulled messages. Work queue: 16 pops of 32 under way, every ack confirmed by the broker, which"
        " merges acks in memory before it stores them (enablePopBufferMerge). Delays: its timer messages, by 100 ms"
    )
    levels = (
        Level("ASYNC_FLUSH", Durability.WRITTEN, "flushDiskType=ASYNC_FLUSH: in the mapped file, synced every 500 ms"),
        Level("SYNC_FLUSH", Durability.SYNCED, "flushDiskType=SYNC_FLUSH: a sync for all that waits, then the answers"),
    )
    warm_up_s = 20.0
    delays_per_s = 2_000

    def prepare(self, tools: Path) -> str:
        if os.geteuid() != 0:
            raise Unavailable("its ports bind every address, so it needs a network namespace, and that needs root")
        artifacts = [f"org.apache.rocketmq:rocketmq-{part}:{VERSION}" for part in ("broker", "namesrv", "tools")]
        directory = jars(tools, f"rocketmq-{VERSION}", artifacts)
        java_classes(tools, PROGRAM, f"{directory}/*")
        ip = program("ip", "iproute2")
        subprocess.run([ip, "netns", "add", NAMESPACE], capture_output=True, check=False)
        made = subprocess.run(
            [ip, "netns", "exec", NAMESPACE, ip, "link", "set", "lo", "up"], capture_output=True, check=False
        )
        if made.returncode:
            raise Unavailable(f"no network namespace can be made: {made.stderr.decode().strip()}")
        return VERSION

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        root = data / "rocketmq"
        root.mkdir(exist_ok=True)
        (data / "broker.conf").write_text(
            SETTINGS.format(port=NAME_SERVER_PORT, broker=BROKER_PORT, root=root, flush=level.name, pull=PULL_MESSAGES)
        )
        java = _java(f"{tools / f'rocketmq-{VERSION}'}/*", data)
        commands = [
            [*java, "org.apache.rocketmq.namesrv.NamesrvStartup"],
            [*java, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(data / "broker.conf")],
        ]
        environment = {"ROCKETMQ_HOME": str(data), "HOME": str(data)}
        with running(str(data), commands, data, environment=environment, is_ready=_is_listening) as server:
            yield server

    def ways(self, work_name: str) -> Sequence[Way]:
        if work_name == "replay":
            return (Way("prebuilt bytes", _replayed),)
        if work_name == "fetch":
            return (Way("raw bytes", _fetched),)
        if work_name not in WORKS:
            return ()
        return (Way("Java client", partial(_worked, getattr(work, work_name))),)


def _java(classpath: str, data: Path) -> list[str]:
    """Java in the namespace; RocketMQ's logs go under `data`."""
    opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang")]
    return [
        *(shutil.which("ip") or "ip", "netns", "exec", NAMESPACE),
        *(program("java", "default-jre-headless"), HEAP, *opens),
        *("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", f"-Duser.home={data}", "-cp", classpath),
    ]


def _is_listening(server: Server) -> bool:
    """Broker and name server; when it has told the name server of itself is waited for by `create`."""
    ip = shutil.which("ip") or "ip"
    listening = subprocess.run(
        [ip, "netns", "exec", NAMESPACE, "cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, check=False
    ).stdout.decode()
    return all(re.search(rf":{port:04X} [0:]+ 0A ", listening) for port in (NAME_SERVER_PORT, BROKER_PORT))


PEERS = (RocketMq(),)
