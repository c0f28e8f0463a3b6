"""The whole server in this process with a Kafka cluster in memory as its only broker of records: what the tests with a
real one (MQ_E2E_BROKER=kafka, tests/kafka_only.py) do at length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.main import clustering
from gateway.settings.config import ConfigError
from store import record_batch
from store.clock import SystemClock
from tests.gateway.brokers.kafka.fake import FakeKafka
from tests.gateway.main.test_wiring import config_of, serving
from tests.waiting import WOKEN_S


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka()
    made.clock = SystemClock()  # type: ignore[assignment]
    monkeypatch.setattr(clustering, "SharedLinks", lambda _: made)
    return made


def settings_of(root: Path, default: str = "kafka1") -> Any:
    more = {"cluster.kafka": ("kafka1=kafka://127.0.0.1:1?prefix=mq.",), "cluster.default_broker": default}
    return config_of(root, **{"kafka.enabled": False, **more})


async def done(client: aiohttp.ClientSession, method: str, path: str, body: object = None, **headers: str) -> Any:
    data = None if body is None else orjson.dumps(body)
    async with client.request(method, path, data=data, headers=headers) as answer:
        assert answer.status < 300, await answer.text()
        return orjson.loads(await answer.read() or b"null")


async def test_records_groups_repeats_delays_and_sockets_with_all_topics_on_kafka(
    kafka: FakeKafka, tmp_path: Path
) -> None:
    body = {"records": [{"key": f"k{n}", "value": n} for n in range(8)]}
    async with serving(settings_of(tmp_path)) as client:
        await done(client, "PUT", "/mq/v1/topics/orders", {"partitions": 2})
        first = await done(client, "POST", "/topics/orders", body, **{"Idempotency-Key": "once"})
        again = await done(client, "POST", "/topics/orders", body, **{"Idempotency-Key": "once"})
        assert [one["offset"] for one in again["offsets"]] == [one["offset"] for one in first["offsets"]]
        assert all(one["duplicate"] for one in again["offsets"])

        receive = {"topics": ["orders"], "start": "earliest", "max_messages": 5}
        taken = (await done(client, "POST", "/mq/v1/groups/g/messages:receive", receive))["messages"]
        receipts = {"receipts": [one["receipt"] for one in taken]}
        acked = await done(client, "POST", "/mq/v1/groups/g/messages:ack", receipts)
        assert [one["ok"] for one in acked["results"]] == [True] * len(taken)

        sent = {"records": [{"value": "later", "partition": 0, "delay_ms": 50}]}
        await done(client, "POST", "/topics/orders", sent)
        end = len([one for one in first["offsets"] if one["partition"] == 0])
        path = f"/topics/orders/partitions/0/records?timeout=20000&offset={end}"
        assert [one["value"] for one in await done(client, "GET", path)] == ["later"]
    async with serving(settings_of(tmp_path)) as client:
        routes = (await done(client, "GET", "/mq/v1/topics/orders/routes"))["partitions"]
        assert [one["owner"] for one in routes] == ["kafka1"] * 2
        assert {segment["broker"] for one in routes for segment in one["segments"]} == {"kafka1"}
        again = await done(client, "POST", "/topics/orders", body, **{"Idempotency-Key": "once"})
        assert all(one["duplicate"] for one in again["offsets"]), "also by the next process"
        values = {one["value"] for one in taken}
        async with client.ws_connect("/ws/v1/consume?topic=orders&group=g&mode=queue&auto_ack=true") as socket:
            while len(values) < 9:
                message = await socket.receive(timeout=WOKEN_S)
                assert message.type is aiohttp.WSMsgType.TEXT, message
                pushed = [one["value"] for one in orjson.loads(message.data).get("messages", ())]
                assert values.isdisjoint(pushed), "what was acknowledged does not come again"
                values.update(pushed)
    assert values == {*range(8), "later"}
    stored = [
        record.value
        for (topic, _), log in kafka.logs.items()
        for _, batch in log.batches
        for record in record_batch.decode(batch)
        if topic == "mq.orders" and record.value in (b'"later"', *(b"%d" % n for n in range(8)))
    ]
    assert len(stored) == 9, "each once, on Kafka"


async def test_a_default_broker_that_is_none_is_refused_at_the_start(kafka: FakeKafka, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.default_broker: kafka2 is no broker of cluster\.kafka \(kafka1\)"):
        async with serving(settings_of(tmp_path, "kafka2")):
            pass
