"""gateway/main/wiring.py: the whole server in this process, on a real store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.brokers.local import LocalBroker
from gateway.cluster.embedded import EmbeddedMetadata
from gateway.cluster.metadata import ABSENT
from gateway.cluster.mover import key_of
from gateway.cluster.record import PartitionRecord, SegmentRecord, encode
from gateway.groups.coordinator.service import Coordinator
from gateway.main import joined
from gateway.main.wiring import _all_kept, run
from gateway.recurring.service import RecurringSchedules
from gateway.settings.config import ConfigError, GatewayConfig, build
from store import Store, record_batch
from store.clock import SystemClock
from store.errors import StoreLocked
from store.files import OsFiles
from store.record_batch import Record
from tests.gateway.groups.coordinator.world import PlainTimer
from tests.waiting import PATIENCE_S, WOKEN_S
from timer.service import TimerService

JSON = {"Content-Type": "application/vnd.kafka.json.v2+json", "Accept": "application/vnd.kafka.json.v2+json"}
MiB = 1024 * 1024


def config_of(root: Path, **settings: object) -> GatewayConfig:
    small = {"store.commit_log_file_bytes": 16 * MiB, "store.extent_bytes": 1 * MiB}
    return build({"data": root, "port": 0, "shutdown_timeout_ms": 2000, **small, **settings})


@asynccontextmanager
async def serving(config: GatewayConfig) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a running server; the server is stopped as SIGTERM would, and must end well."""
    stopping = asyncio.Event()
    announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    begin = joined.run if config.cluster.join else run
    server = asyncio.ensure_future(begin(config, announce=announced.set_result, stopping=stopping))
    await asyncio.wait((server, announced), return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        await server
    try:
        async with aiohttp.ClientSession(base_url=announced.result(), headers=JSON) as session:
            yield session
    finally:
        stopping.set()
        await asyncio.wait_for(server, WOKEN_S)


async def test_records_and_topics_survive_a_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with serving(config) as client:
        assert (await client.put("/mq/v1/topics/orders", json={"partitions": 1})).status == 201
        response = await client.post("/topics/orders", data=b'{"records":[{"key":"a","value":{"n":1}},{"value":2}]}')
        assert response.status == 200, await response.text()
        assert response.headers["Mq-Acks"] == "flushed"
    async with serving(config) as client:
        response = await client.get("/topics/orders/partitions/0/records")
        records = await response.json(content_type=None)
        assert [(record["key"], record["value"], record["offset"]) for record in records] == [
            ("a", {"n": 1}, 0),
            (None, 2, 1),
        ]
        assert await (await client.get("/topics")).json(content_type=None) == ["orders"]


async def test_nothing_of_the_log_expires_before_all_that_is_read_of_it_says_from_where_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read may take longer than retention waits."""
    needed: list[int] = []

    def noted(start: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def noting(self: Any) -> None:
            needed.append(min(lowest() for lowest in stores[0]._pins))
            await start(self)

        return noting

    stores: list[Store] = []
    opened = Store.open

    async def remembered(*given: Any, **named: Any) -> Store:
        stores.append(await opened(*given, **named))
        return stores[-1]

    config = config_of(tmp_path)
    async with serving(config) as client:
        await client.put("/mq/v1/topics/orders", json={"partitions": 1})
        assert (await client.post("/topics/orders", data=b'{"records":[{"value":1}]}')).status == 200
    monkeypatch.setattr(Store, "open", remembered)
    for kind in (TimerService, Coordinator, RecurringSchedules):
        monkeypatch.setattr(kind, "start", noted(kind.start))
    async with serving(config) as client:
        assert needed == [0, 0, 0]
        with _all_kept(stores[0]):
            assert stores[0]._pins[-1]() == 0
        assert stores[0]._pins[-1]() == stores[0].end_position > 0, "from then on it needs nothing"


async def test_a_delayed_record_is_delivered_when_due_and_wakes_a_long_poll(tmp_path: Path) -> None:
    async with serving(config_of(tmp_path)) as client:
        await client.put("/mq/v1/topics/orders", json={"partitions": 1})
        response = await client.post("/topics/orders", data=b'{"records":[{"value":1,"tag":"t","delay_ms":50}]}')
        (receipt,) = (await response.json(content_type=None))["offsets"]
        response = await client.get("/topics/orders/partitions/0/records?timeout=20000")
        (record,) = await response.json(content_type=None)
        assert record["deliver_at"] == receipt["deliver_at"] <= record["store_timestamp"]
        assert (record["tag"], record["schedule_id"]) == ("t", receipt["schedule_id"])


async def test_raw_batches_are_delivered_when_their_delay_is_over(tmp_path: Path) -> None:
    batch = bytes(record_batch.encode([Record(b'"k"', b'{"n":%d}' % n, 5, [("mq-tag", b"t")]) for n in range(3)]))
    async with serving(config_of(tmp_path)) as client:
        await client.put("/mq/v1/topics/orders", json={"partitions": 4})
        headers = {"Content-Type": "application/vnd.mq.batch", "Mq-Delay-Ms": "50"}
        response = await client.post("/topics/orders", data=batch, headers=headers)
        receipts = (await response.json(content_type=None))["offsets"]
        [partition] = {receipt["partition"] for receipt in receipts}
        path = f"/topics/orders/partitions/{partition}/records?timeout=20000&format=json&filter=tag:t&offset="
        records: list[dict[str, object]] = []
        while len(records) < 3:
            response = await client.get(f"{path}{len(records)}")
            records += await response.json(content_type=None)
        assert [(record["value"], record["tag"], record["timestamp"]) for record in records] == [
            ({"n": n}, "t", 5) for n in range(3)
        ]
        assert [record["schedule_id"] for record in records] == [receipt["schedule_id"] for receipt in receipts]


@pytest.mark.parametrize("more", [{}, {"workers": 1}])
async def test_of_a_deleted_topic_no_count_is_kept(tmp_path: Path, more: dict[str, int]) -> None:
    async with serving(config_of(tmp_path, **more)) as client:
        await client.put("/mq/v1/topics/job-17", json={"partitions": 1})
        assert (await client.post("/topics/job-17", data=b'{"records":[{"value":1}]}')).status == 200
        await metrics_when(client, lambda shown: 'mq_produce_records_total{topic="job-17"} 1.0' in shown)
        assert (await client.delete("/mq/v1/topics/job-17")).status == 204
        assert "mq_produce_bytes_total 0" not in await metrics_when(client, lambda shown: "job-17" not in shown)


async def metrics_when(client: aiohttp.ClientSession, is_so: Callable[[str], bool]) -> str:
    """The metrics once they are so: workers tell theirs later."""
    async with asyncio.timeout(PATIENCE_S):
        for _ in count():
            async with client.get("/metrics") as response:
                shown = await response.text()
            if is_so(shown):
                break
            await asyncio.sleep(0.01)
    return shown


async def test_a_group_has_as_many_records_in_flight_as_the_settings_say(tmp_path: Path) -> None:
    async with serving(config_of(tmp_path, **{"limits.group_in_flight_max": 2})) as client:
        await client.put("/mq/v1/topics/orders", json={"partitions": 1})
        await client.post("/topics/orders", data=b'{"records":[{"value":1},{"value":2},{"value":3}]}')
        receive = {"topics": ["orders"], "start": "earliest", "max_messages": 3}
        response = await client.post("/mq/v1/groups/g/messages:receive", json=receive)
        assert [message["value"] for message in (await response.json(content_type=None))["messages"]] == [1, 2]


async def test_a_server_with_a_kafka_cluster_and_no_etcd_is_a_cluster_of_its_own(tmp_path: Path) -> None:
    kafka = {"cluster.kafka": "kafka1=kafka://127.0.0.1:1"}
    async with serving(config_of(tmp_path)) as client:
        await client.put("/mq/v1/topics/orders", json={"partitions": 1})
        delayed = await client.post("/topics/orders", data=b'{"records":[{"value":1},{"value":2,"delay_ms":3600000}]}')
        schedule = (await delayed.json(content_type=None))["offsets"][1]["schedule_id"]
    for settings in (kafka, {}):  # such a data directory is that of a node, whatever is set
        async with serving(config_of(tmp_path, **settings)) as client:
            assert (await client.post("/topics/orders", data=b'{"records":[{"value":3}]}')).status == 200
            async with client.get("/mq/v1/topics/orders/routes") as response:
                [route] = (await response.json())["partitions"]
            assert [one["broker"] for one in route["segments"]] == ["local"]
            async with client.get("/mq/v1/brokers") as response:
                brokers = {one["broker"]: one["kind"] for one in (await response.json())["brokers"]}
            assert brokers == {"local": "embedded"} | ({"kafka1": "kafka"} if settings else {})
            assert (await client.get(f"/mq/v1/schedules/{schedule}")).status == 200, "its id is of the time before"
            assert (await client.post("/mq/v1/groups/g/messages:receive", json={"topics": ["orders"]})).status == 200
    with pytest.raises(ConfigError, match="two brokers of this name"):
        await run(
            config_of(tmp_path / "other", **{"cluster.kafka": "local=kafka://127.0.0.1:1"}),
            announce=lambda _: None, stopping=asyncio.Event(),
        )  # fmt: skip


async def test_a_server_whose_records_are_on_a_kafka_cluster_that_it_is_not_told_of_does_not_start(
    tmp_path: Path,
) -> None:
    config = config_of(tmp_path, **{"cluster.kafka": "kafka1=kafka://127.0.0.1:1"})
    async with serving(config) as client:
        await client.put("/mq/v1/topics/orders", json={"partitions": 1})
    elsewhere = SegmentRecord(start=0, broker="kafka1", queue=("orders", 0), pid=1, epoch=1)
    record = PartitionRecord(epoch=1, owner="local", segments=(elsewhere,))
    store = await Store.open(config.store, files=OsFiles(), clock=SystemClock())
    timer = PlainTimer(store, SystemClock())
    broker = LocalBroker(store, timer, name="local", on_topic=lambda _: None, on_deleted=lambda _: None)
    metadata = EmbeddedMetadata(tmp_path, OsFiles(), broker, SystemClock())
    await metadata.start()
    writing = asyncio.create_task(metadata.run())
    await metadata.compare_and_set({key_of(16, 0): ABSENT}, {key_of(16, 0): encode(record)})
    writing.cancel()
    await asyncio.wait([writing])
    await metadata.close()
    await store.close()
    with pytest.raises(ConfigError, match="partitions have records on kafka1"):
        await run(config_of(tmp_path), announce=lambda _: None, stopping=asyncio.Event())


async def test_system_topics_are_out_of_reach(tmp_path: Path) -> None:
    async with serving(config_of(tmp_path)) as client:
        for name in ("__meta", "__timer", "__offsets"):
            assert (await client.post(f"/topics/{name}", data=b'{"records":[{"value":1}]}')).status == 404
            assert (await client.get(f"/topics/{name}/partitions/0/records")).status == 404
            assert (await client.put(f"/mq/v1/topics/{name}", json={"partitions": 1})).status == 422


async def test_a_stop_answers_long_polls(tmp_path: Path) -> None:
    stopping = asyncio.Event()
    announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.ensure_future(run(config_of(tmp_path), announce=announced.set_result, stopping=stopping))
    async with aiohttp.ClientSession(base_url=await announced, headers=JSON) as client:
        await client.put("/mq/v1/topics/orders", json={"partitions": 1})
        waiting = asyncio.ensure_future(client.get("/topics/orders/partitions/0/records?timeout=60000"))
        while b"mq_long_polls 1.0" not in await (await client.get("/metrics", headers={"Accept": "*/*"})).read():
            pass
        stopping.set()
        response = await asyncio.wait_for(waiting, WOKEN_S)
        assert (response.status, await response.json(content_type=None)) == (200, [])
        await asyncio.wait_for(server, WOKEN_S)


async def test_metrics_name_every_part(tmp_path: Path) -> None:
    async with serving(config_of(tmp_path)) as client:
        text = await (await client.get("/metrics", headers={"Accept": "*/*"})).text()
        for name in ("mq_http_requests_total", "mq_store_sync_total", "mq_schedule_pending", "mq_ws_sockets"):
            assert name in text


async def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with serving(config):
        with pytest.raises(StoreLocked):
            async with serving(config):
                pass


async def test_malformed_requests_are_one_counted_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(config_of(tmp_path)) as client:
            url = client._base_url
            assert url is not None
            for garbage in (b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"\x16\x03\x01\r\n\r\n"):
                reader, writer = await asyncio.open_connection(url.host, url.port)
                writer.write(garbage)
                assert (await asyncio.wait_for(reader.readline(), WOKEN_S)).split()[1:2] == [b"400"]
                writer.close()
            text = await (await client.get("/metrics", headers={"Accept": "*/*"})).text()
    assert "mq_http_malformed_requests_total 3.0" in text
    lines = [record for record in caplog.records if record.getMessage().startswith("malformed")]
    assert [record.levelname for record in lines] == ["WARNING"]
    assert "Traceback" not in caplog.text
