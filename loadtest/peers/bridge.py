"""Strimzi's HTTP bridge over the Kafka of this scoreboard: the direct peer of our REST API.

Its releases are archives, not Maven artifacts, so it is measured where somebody has unpacked one: MQ_KAFKA_BRIDGE
names that directory (with bin/kafka_bridge_run.sh). Sends over HTTP; reads with Kafka's client, as its users would.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import orjson

from loadtest.bench.request import Request
from loadtest.peers import kafka
from loadtest.peers.peer import Client, Durability, Peer, Unavailable
from loadtest.peers.servers import Server, free_port, running

VARIABLE = "MQ_KAFKA_BRIDGE"
JSON_TYPE = "application/vnd.kafka.json.v2+json"
SETTINGS = """bridge.id=scoreboard
kafka.bootstrap.servers={kafka}
kafka.producer.acks=all
http.host=127.0.0.1
http.port={port}
"""


class _Client:
    """Kafka's client for topics and reading, HTTP for sending."""

    def __init__(self, session: aiohttp.ClientSession, url: str, broker: Client) -> None:
        self._session = session
        self._url = url
        self._broker = broker

    async def create(self, topic: str) -> None:
        """One partition."""
        await self._broker.create(topic)

    async def send(self, topic: str, values: Sequence[bytes]) -> None:
        """One request."""
        body = orjson.dumps({"records": [{"value": one.decode()} for one in values]})
        headers = {"Content-Type": JSON_TYPE}
        async with self._session.post(f"{self._url}/topics/{topic}", data=body, headers=headers) as response:
            answer = await response.json(content_type=None)
            if response.status != 200 or any("error" in offset for offset in answer["offsets"]):
                raise RuntimeError(f"{response.status}: {str(answer)[:200]}")

    async def read(self, topic: str) -> AsyncGenerator[Sequence[bytes]]:
        """Kafka's; values were stored as JSON texts."""
        async for values in self._broker.read(topic):
            yield [orjson.loads(one).encode() for one in values]


class Bridge(Peer):
    """See the module."""

    name = "strimzi bridge"
    about = "Strimzi's HTTP bridge over the Kafka above; aiohttp's client"

    def prepare(self, tools: Path) -> str:
        home = os.environ.get(VARIABLE)
        if home is None or not (Path(home) / "bin" / "kafka_bridge_run.sh").exists():
            raise Unavailable(f"no package registry has it; unpack a release and name its directory in {VARIABLE}")
        kafka.PEERS[0].prepare(tools)
        return Path(home).resolve().name

    @contextmanager
    def serve(self, tools: Path, data: Path, durability: Durability) -> Iterator[Server]:
        port = free_port()
        with kafka.PEERS[0].serve(tools, data, durability) as broker:
            (data / "bridge.properties").write_text(SETTINGS.format(kafka=broker.endpoint, port=port))
            command = [f"{os.environ[VARIABLE]}/bin/kafka_bridge_run.sh"]
            command.append(f"--config-file={data / 'bridge.properties'}")
            with running(f"{broker.endpoint}:{port}", [command], data) as bridge:
                yield bridge.with_also(broker)

    @asynccontextmanager
    async def client(self, endpoint: str) -> AsyncIterator[Client]:
        host, broker_port, port = endpoint.split(":")
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            kafka.PEERS[0].client(f"{host}:{broker_port}") as broker,
        ):
            yield _Client(session, f"http://{host}:{port}", broker)

    def single(self, topic: str) -> Request | None:
        body = orjson.dumps({"records": [{"value": "x" * 100}]})
        return Request("POST", f"/topics/{topic}", {"Content-Type": JSON_TYPE}, body)

    def url(self, endpoint: str) -> str:
        parts = endpoint.split(":")
        return f"http://{parts[0]}:{parts[2]}"


PEERS = (Bridge(),)
