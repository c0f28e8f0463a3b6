"""Apache RocketMQ: name server and broker from its Maven artifacts; its own Java client.

The broker's HA port and others bind every address, so servers and client run in a network namespace of their own,
which takes root and iproute2. The client is a small Java program beside this file, spoken to over its standard input
and output, so that its clock is ours and its results are checked like everybody's.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import struct
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from loadtest.peers.fetch import jars, program
from loadtest.peers.peer import Client, Durability, Peer, Unavailable
from loadtest.peers.servers import Server, running

VERSION = "5.3.3"
NAME_SERVER_PORT = 9876
BROKER_PORT = 10911
NAMESPACE = "mq-peers"
HEAP = "-Xmx1g"
PROGRAM = Path(__file__).with_name("RocketMqClient.java")
_FRAME = struct.Struct(">ib")
_ANSWER, _VALUES, _FAILURE = 0, 1, 2
_CREATE, _SEND, _READ, _DELAY = 1, 2, 3, 4

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
maxTransferCountOnMessageInMemory=1024
maxTransferBytesOnMessageInMemory=4194304
"""


class _Client:
    """Requests out, answers and values in. A frame: u32 size, u8 kind, u32 id, then fields."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._values: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._next_id = 0
        self._pump = asyncio.get_running_loop().create_task(self._receive())

    async def create(self, topic: str) -> None:
        """One queue."""
        await self._asked(_CREATE, topic, b"")

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One batch message."""
        await self._asked(_SEND, topic, _packed(values))

    async def delay(self, topic: str, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        """Single messages with a delivery time, all on their way at once: batches cannot be delayed."""
        times = struct.pack(f">{len(due_ms)}q", *due_ms)
        await self._asked(_DELAY, topic, _packed(values) + times)

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """A pull consumer that is assigned the topic's queue, from its start."""
        await self._asked(_READ, topic, b"")
        while True:
            yield await self._values.get()

    async def _asked(self, kind: int, topic: str, body: bytes) -> None:
        self._next_id += 1
        done = self._waiting[self._next_id] = asyncio.get_running_loop().create_future()
        name = topic.encode()
        request = struct.pack(">ibi", 4 + 2 + len(name) + len(body), kind, self._next_id)
        assert self._process.stdin is not None
        self._process.stdin.write(request + struct.pack(">h", len(name)) + name + body)
        await done

    async def _receive(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                size, kind = _FRAME.unpack(await self._process.stdout.readexactly(_FRAME.size))
                body = await self._process.stdout.readexactly(size)
                if kind == _VALUES:
                    self._values.put_nowait(_unpacked(body))
                    continue
                done = self._waiting.pop(int.from_bytes(body[:4], "big"))
                if kind == _ANSWER:
                    done.set_result(None)
                else:
                    done.set_exception(RuntimeError(body[4:].decode(errors="replace")))
        except asyncio.IncompleteReadError:
            for done in self._waiting.values():
                done.set_exception(RuntimeError("the Java client ended"))


def _packed(values: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(values)) + b"".join(struct.pack(">i", len(one)) + one for one in values)


def _unpacked(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return found


class RocketMq(Peer):
    """flushDiskType=SYNC_FLUSH syncs before the answer; ASYNC_FLUSH is its default."""

    name = "rocketmq"
    about = f"Apache RocketMQ {VERSION}, one broker, heap 1 GiB, up to 1,024 messages a pull; its Java client"
    can_delay = True
    delays_per_s = 2_000

    def prepare(self, tools: Path) -> str:
        if os.geteuid() != 0:
            raise Unavailable("its ports bind every address, so it needs a network namespace, and that needs root")
        artifacts = [f"org.apache.rocketmq:rocketmq-{part}:{VERSION}" for part in ("broker", "namesrv", "tools")]
        jars(tools, f"rocketmq-{VERSION}", artifacts)
        ip = program("ip", "iproute2")
        subprocess.run([ip, "netns", "add", NAMESPACE], capture_output=True, check=False)
        made = subprocess.run(
            [ip, "netns", "exec", NAMESPACE, ip, "link", "set", "lo", "up"], capture_output=True, check=False
        )
        if made.returncode:
            raise Unavailable(f"no network namespace can be made: {made.stderr.decode().strip()}")
        return VERSION

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        root = data / "rocketmq"
        root.mkdir(exist_ok=True)
        flush = "SYNC_FLUSH" if durability is Durability.SYNCED else "ASYNC_FLUSH"
        (data / "broker.conf").write_text(
            SETTINGS.format(port=NAME_SERVER_PORT, broker=BROKER_PORT, root=root, flush=flush)
        )
        java = _java(tools, data)
        commands = [
            [*java, "org.apache.rocketmq.namesrv.NamesrvStartup"],
            [*java, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(data / "broker.conf")],
        ]
        environment = {"ROCKETMQ_HOME": str(data), "HOME": str(data)}
        ready = _is_registered
        with running(str(data), commands, data, environment=environment, is_ready=ready) as server:
            yield server

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        tools = Path(__file__).resolve().parents[2] / "artifacts" / "peers"
        process = await asyncio.create_subprocess_exec(
            *_java(tools, Path(endpoint)),
            str(PROGRAM),
            f"127.0.0.1:{NAME_SERVER_PORT}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=(Path(endpoint) / "client.log").open("ab"),
            limit=2**24,
            env={**os.environ, "HOME": endpoint},
        )
        try:
            yield _Client(process)
        finally:
            process.kill()
            await process.wait()


def _java(tools: Path, data: Path) -> list[str]:
    """Java in the namespace, with RocketMQ on its path and its logs under `data`."""
    classpath = f"{tools / f'rocketmq-{VERSION}'}/*"
    inside = [shutil.which("ip") or "ip", "netns", "exec", NAMESPACE]
    opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang")]
    exports = ["--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"]
    return [
        *inside,
        program("java", "default-jre-headless"),
        HEAP,
        *opens,
        *exports,
        f"-Duser.home={data}",
        "-cp",
        classpath,
    ]


def _is_registered(server: Server) -> bool:
    """Whether broker and name server listen."""
    ip = shutil.which("ip") or "ip"
    listening = subprocess.run(
        [ip, "netns", "exec", NAMESPACE, "cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, check=False
    ).stdout.decode()
    return all(re.search(rf":{port:04X} [0:]+ 0A ", listening) for port in (NAME_SERVER_PORT, BROKER_PORT))


PEERS = (RocketMq(),)
