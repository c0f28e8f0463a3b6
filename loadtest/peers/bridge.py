"""Strimzi's HTTP bridge over the Kafka of this scoreboard: the direct peer of our REST API.

Its releases are archives, not Maven artifacts, so it is measured where one was unpacked: MQ_KAFKA_BRIDGE
names that directory (with bin/kafka_bridge_run.sh). Only sending is its own: reading would be Kafka's client.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.request import Request
from loadtest.peers import replay
from loadtest.peers.mq import JSON_TYPE, SINGLE_BODY
from loadtest.peers.peer import Level, Numbers, Options, Peer, Unavailable, Way
from loadtest.peers.registry import peer_of
from loadtest.peers.servers import Server, free_port, running

VARIABLE = "MQ_KAFKA_BRIDGE"
SETTINGS = """bridge.id=scoreboard
kafka.bootstrap.servers={kafka}
kafka.producer.acks=all
http.host=127.0.0.1
http.port={port}
"""


async def _single(url: str, topic: str, options: Options) -> Numbers:
    """Kafka makes the topic when it is first sent to, with one partition."""
    request = Request("POST", f"/topics/{topic}", {"Content-Type": JSON_TYPE}, SINGLE_BODY)
    return await replay.single(url, request, **options)


class Bridge(Peer):
    """See the module."""

    name = "strimzi bridge"
    about = "Strimzi's HTTP bridge over the Kafka above"
    warm_up_s = 20.0

    def __init__(self) -> None:
        self._kafka = peer_of("kafka")
        self.levels = self._kafka.levels

    def prepare(self, tools: Path) -> str:
        home = os.environ.get(VARIABLE)
        if home is None or not (Path(home) / "bin" / "kafka_bridge_run.sh").exists():
            raise Unavailable(f"no package registry has it; unpack a release and name its directory in {VARIABLE}")
        self._kafka.prepare(tools)
        return Path(home).resolve().name

    @contextmanager
    def serve(self, tools: Path, data: Path, level: Level) -> Iterator[Server]:
        url = f"http://127.0.0.1:{free_port()}"
        with self._kafka.serve(tools, data, level) as broker:
            settings = SETTINGS.format(kafka=broker.endpoint, port=url.rpartition(":")[2])
            (data / "bridge.properties").write_text(settings)
            command = [f"{os.environ[VARIABLE]}/bin/kafka_bridge_run.sh"]
            command.append(f"--config-file={data / 'bridge.properties'}")
            with running(url, [command], data) as bridge:
                yield bridge.with_also(broker)

    def ways(self, work: str) -> Sequence[Way]:
        return (Way("wrk", _single),) if work == "single" else ()


PEERS = (Bridge(),)
