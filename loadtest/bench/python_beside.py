"""What the Python client is measured beside, for `python_client.py`: one process of each, doing the same work.

    aiohttp    by hand, to the same server: a request for each record sent, fetches of JSON, receives and acks of 32
    JS client  to the same server, in Node: each send awaited by one of as many chains; a reader, by message
    nats-py    JetStream with `sync_interval: always`: a publish for each record; an ordered push consumer; a pull
               consumer whose acks are confirmed
    redis-py   with hiredis, `appendfsync always`: XADD; XREAD; XREADGROUP and XACK. One connection for each eight
               senders: it has no pipelining of independent calls

A worker's tasks are acked one by one, as each ends. Sends are on disk when they are answered, with all of them.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import orjson

from loadtest.peers import nats, redis
from loadtest.peers.fetch import TOOLS
from loadtest.peers.peer import Durability, Peer, Unavailable

TASKS = 1_000
TIMEOUT_S = 60.0
FETCH_BYTES = 1024 * 1024
ACK_RECORDS = 32
READ_RECORDS = 1_000
REDIS_CONNECTIONS = TASKS // 8
JSON_V2 = "application/vnd.kafka.json.v2+json"
JS_CLIENT = Path(__file__).resolve().parents[2] / "clients" / "js"


class Taken(NamedTuple):
    """One run: wall seconds and the client's CPU seconds."""

    wall_s: float
    cpu_s: float


Run = Callable[[int], Awaitable[Taken]]
"""Of so many records."""


class Other(NamedTuple):
    """A client and what it can be asked to do: 'sends', 'reads', 'tasks'."""

    name: str
    workloads: dict[str, Run]


async def timed(work: Awaitable[object]) -> Taken:
    """The time of this process that some work takes."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await work
    return Taken(time.perf_counter() - began_s, time.process_time() - cpu_s)


async def by_tasks(send: Callable[[], Awaitable[object]], count: int) -> None:
    """So many records by TASKS tasks, each of which awaits every send."""

    async def one_after_the_other() -> None:
        for _ in range(count // TASKS):
            await send()

    await asyncio.gather(*(one_after_the_other() for _ in range(TASKS)))


# ------------------------------------------------------------------------------------------------------ aiohttp


@asynccontextmanager
async def by_hand(url: str, value: object) -> AsyncIterator[Other]:
    """aiohttp as one would write it: keep-alive, up to 100 connections, orjson."""
    body = orjson.dumps({"records": [{"value": value}]})
    number = iter(range(10**6))

    async with aiohttp.ClientSession(headers={"Content-Type": JSON_V2, "Accept": JSON_V2}) as session:

        async def send() -> None:
            async with session.post(f"{url}/topics/sends", data=body) as answer:
                assert "offset" in orjson.loads(await answer.read())["offsets"][0]

        async def read(count: int) -> None:
            left, partition, offset = count, 0, "0"
            while left > 0:
                place = f"{url}/topics/records/partitions/{partition}/records"
                async with session.get(place, params={"offset": offset, "max_bytes": FETCH_BYTES}) as answer:
                    records = orjson.loads(await answer.read())
                    offset = answer.headers["Mq-Next-Offset"]
                left -= len(records)
                if not records:
                    partition, offset = partition + 1, "0"

        async def work(count: int) -> None:
            group = f"{url}/mq/v1/groups/by-hand-{next(number)}/messages"
            native = {"Content-Type": "application/json", "Accept": "application/json"}
            ask = orjson.dumps({"topics": ["tasks"], "start": "earliest", "max_messages": ACK_RECORDS, "wait_ms": 1000})
            left = count

            async def one() -> None:
                nonlocal left
                while left > 0:
                    async with session.post(f"{group}:receive", data=ask, headers=native) as answer:
                        messages = orjson.loads(await answer.read())["messages"]
                    receipts = orjson.dumps({"receipts": [message["receipt"] for message in messages]})
                    if messages:
                        async with session.post(f"{group}:ack", data=receipts, headers=native) as answer:
                            assert answer.status == 200
                    left -= len(messages)

            await asyncio.gather(*(one() for _ in range(8)))

        yield Other(
            "aiohttp by hand",
            {
                "sends": lambda count: timed(by_tasks(send, count)),
                "reads": lambda count: timed(read(count)),
                "tasks": lambda count: timed(work(count)),
            },
        )


# ------------------------------------------------------------------------------------------------------ JavaScript

_SCRIPT = """
import { connect } from "%s/dist/node.js";
const [url, what] = process.argv.slice(2), [count, tasks, value] = process.argv.slice(4).map(JSON.parse);
const mq = await connect(url);
await mq.produce("sends", { value });
const cpu = process.cpuUsage(), began = performance.now();
if (what === "sends") {
  const chain = async () => { for (let n = 0; n < count / tasks; n++) await mq.produce("sends", { value }); };
  await Promise.all(Array.from({ length: tasks }, chain));
} else {
  let left = count, quantity = 0;
  for await (const message of mq.subscribe({ topics: "records", from: "earliest" })) {
    quantity += message.value.qty;
    if (!--left) break;
  }
}
const wall = performance.now() - began, { user, system } = process.cpuUsage(cpu);
console.log(JSON.stringify([wall / 1000, (user + system) / 1e6]));
process.exit(0);
"""


@contextmanager
def in_node(url: str, value: object, directory: Path) -> Iterator[Other]:
    """The JavaScript client, as `make build-js` left it. Raises Unavailable."""
    if not (JS_CLIENT / "dist" / "node.js").exists():
        raise Unavailable("the JavaScript client is not built: make build-js")
    script = directory / "beside.mjs"
    script.write_text(_SCRIPT % JS_CLIENT)

    async def run(what: str, count: int) -> Taken:
        command = ["node", str(script), url, what, str(count), str(TASKS), orjson.dumps(value).decode()]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
        return Taken(*orjson.loads(done.stdout))

    yield Other(
        "the JS client", {"sends": lambda count: run("sends", count), "reads": lambda count: run("reads", count)}
    )


# ------------------------------------------------------------------------------------------------------ NATS, Redis


@contextmanager
def served(peer: Peer, directory: Path) -> Iterator[str]:
    """The endpoint of a peer's server that syncs before it answers. Raises Unavailable."""
    peer.prepare(TOOLS)
    (level,) = (level for level in peer.levels if level.durability is Durability.SYNCED)
    data = directory / peer.name.replace(" ", "-")
    data.mkdir()
    with peer.serve(TOOLS, data, level) as server:
        yield server.endpoint


@asynccontextmanager
async def by_nats(endpoint: str, payload: bytes, count: int) -> AsyncIterator[Other]:
    """nats-py: one connection, its own flow of pings and acks."""
    import nats as nats_py

    connection = await nats_py.connect(f"nats://{endpoint}")
    stream = connection.jetstream(timeout=TIMEOUT_S)
    for name in ("sends", "records"):
        await stream.add_stream(name=name, subjects=[name])
    for _ in range(count // TASKS):
        await asyncio.gather(*(stream.publish("records", payload) for _ in range(TASKS)))
    number = iter(range(10**6))

    async def read(count: int) -> None:
        left, quantity, done = count, 0, asyncio.Event()

        async def on_message(message: Any) -> None:
            nonlocal left, quantity
            quantity += orjson.loads(message.data)["qty"]
            left -= 1
            if not left:
                done.set()

        subscription = await stream.subscribe("records", ordered_consumer=True, cb=on_message)
        await done.wait()
        await subscription.unsubscribe()

    async def work(count: int) -> None:
        subscription = await stream.pull_subscribe("records", durable=f"workers-{next(number)}")
        left = count
        while left > 0:
            messages = await subscription.fetch(min(left, 256))
            await asyncio.gather(*(message.ack_sync() for message in messages))
            left -= len(messages)

    yield Other(
        "nats-py",
        {
            "sends": lambda count: timed(by_tasks(lambda: stream.publish("sends", payload), count)),
            "reads": lambda count: timed(read(count)),
            "tasks": lambda count: timed(work(count)),
        },
    )
    await connection.close()


@asynccontextmanager
async def by_redis(endpoint: str, payload: bytes, count: int) -> AsyncIterator[Other]:
    """redis-py, hiredis, a pool that callers wait for."""
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio import Redis as Client

    host, _, port = endpoint.rpartition(":")
    client: Any = Client(  # its answers are typed as any of three protocols
        connection_pool=BlockingConnectionPool(host=host, port=int(port), max_connections=REDIS_CONNECTIONS, timeout=60)
    )
    for _ in range(count // TASKS):
        pipeline = client.pipeline(transaction=False)
        for _ in range(TASKS):
            pipeline.xadd("records", {"v": payload})
        await pipeline.execute()
    number = iter(range(10**6))

    async def read(count: int) -> None:
        left, quantity, last = count, 0, "0-0"
        while left > 0:
            ((_, entries),) = await client.xread({"records": last}, count=READ_RECORDS)
            for last, fields in entries:  # noqa: B007 - the last one is asked from
                quantity += orjson.loads(fields[b"v"])["qty"]
            left -= len(entries)

    async def work(count: int) -> None:
        group = f"workers-{next(number)}"
        await client.xgroup_create("records", group, "0")
        left = count
        while left > 0:
            ((_, entries),) = await client.xreadgroup(group, "one", {"records": ">"}, count=256)
            await asyncio.gather(*(client.xack("records", group, one) for one, _ in entries))
            left -= len(entries)

    yield Other(
        "redis-py",
        {
            "sends": lambda count: timed(by_tasks(lambda: client.xadd("sends", {"v": payload}), count)),
            "reads": lambda count: timed(read(count)),
            "tasks": lambda count: timed(work(count)),
        },
    )
    await client.aclose()


@asynccontextmanager
async def others(
    url: str, value: object, directory: Path, count: int, say: Callable[[str], None]
) -> AsyncIterator[Sequence[Other]]:
    """All that can be had on this machine; what cannot is said. Their servers run until the end of the block."""
    payload = orjson.dumps(value)
    async with AsyncExitStack() as stack:

        async def nats_py() -> Other:
            endpoint = stack.enter_context(served(nats.PEERS[0], directory))
            return await stack.enter_async_context(by_nats(endpoint, payload, count))

        async def redis_py() -> Other:
            endpoint = stack.enter_context(served(redis.PEERS[0], directory))
            return await stack.enter_async_context(by_redis(endpoint, payload, count))

        async def node() -> Other:
            return stack.enter_context(in_node(url, value, directory))

        found = [await stack.enter_async_context(by_hand(url, value))]
        for make in (node, nats_py, redis_py):
            try:
                found.append(await make())
            except (Unavailable, ImportError) as error:
                say(f"left out: {error}")
        yield found
