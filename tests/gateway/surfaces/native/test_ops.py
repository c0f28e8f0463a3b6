"""gateway/surfaces/native/ops.py, metrics.py, gateway.surfaces.ws.metrics and access_log.py, through HTTP."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.main.logs import JsonFormatter, TextFormatter
from gateway.main.metrics import histogram_buckets, integers_of
from gateway.surfaces.http.context import Gateway
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker
from tests.gateway.main.test_wiring import config_of, serving

OPERATIONS = Path(__file__).resolve().parents[4] / "docs" / "operations.md"

PROMISED = {
    "mq_http_requests_total": {"route", "code"},
    "mq_http_request_seconds_bucket": {"route", "le"},
    "mq_produce_records_total": {"topic"},
    "mq_consume_records_total": {"way"},
    "mq_group_lag": {"group", "topic", "partition"},
    "mq_inflight": {"group"},
    "mq_ws_sessions": {"state"},
    "mq_ws_credit": {"mode"},
    "mq_schedule_pending": set(),
    "mq_schedule_fire_lateness_seconds_bucket": {"le"},
    "mq_store_waiting_bytes": set(),
    "mq_store_log_end_bytes": set(),
    "mq_store_failed": set(),
}
"""Names and labels that dashboards and alerts are built on."""


async def test_health_readiness_and_what_the_server_is(client: Client, gateway: Gateway) -> None:
    for path, body in (
        ("/healthz", {"status": "ok"}),
        ("/readyz", {"status": "ok", "reasons": []}),
        ("/mq/v1/info", {"name": "mq", "version": "1.2.3", "cluster_id": "unknown", "started_ms": 0, "kafka": []}),
        ("/mq/v1/limits", asdict(gateway.limits)),
    ):
        response = await client.get(path)
        assert (response.status, await response.json()) == (200, body)


async def test_not_ready_says_why(client: Client, gateway: Gateway, broker: FakeBroker) -> None:
    broker.reasons = ["the disk failed"]
    gateway.draining.set()
    response = await client.get("/readyz")
    answer = await response.json()
    assert response.status == 503
    assert answer["reasons"] == ["the disk failed", "draining: the server is about to stop"]
    assert (await client.get("/healthz")).status == 200


async def test_metrics_count_requests_and_records(client: Client) -> None:
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    await client.post("/topics/orders", data=b'{"records":[{"value":1},{"value":2,"delay_ms":5}]}', headers=headers)
    await client.post("/topics/orders", data=b"{", headers=headers)
    await client.get("/nowhere")
    text = await (await client.get("/metrics")).text()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["mq_http_requests_total", "200", "produce"] == 1
    assert samples["mq_http_requests_total", "400", "produce"] == 1
    assert samples["mq_http_requests_total", "404", "unmatched"] == 1
    assert samples["mq_http_request_seconds_count", "produce"] == 2
    assert samples["mq_produce_records_total", "orders"] == 2
    assert samples["mq_produce_delayed_records_total",] == 1


async def test_a_whole_server_has_every_metric_that_is_promised(tmp_path: Path) -> None:
    async with serving(config_of(tmp_path)) as session:
        await session.put("/mq/v1/topics/orders", json={"partitions": 1})
        await session.post("/mq/v1/topics/orders/messages", data=b"1")
        await session.post("/mq/v1/topics/orders/messages?delay_ms=60000", data=b"1")
        received = await session.post(
            "/mq/v1/groups/billing/messages:receive", json={"topics": ["orders"], "start": "earliest"}
        )
        assert len((await received.json())["messages"]) == 1
        async with session.ws_connect("/ws/v1") as socket:
            await socket.send_json({"id": 1, "op": "subscribe", "sub": "s1", "topics": ["orders"], "credit": 7})
            await socket.receive_json()
            text = await (await session.get("/metrics")).text()
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    # Lags are looked at every few seconds; there may be none yet.
    labels = {"mq_group_lag": {"group", "topic", "partition"}} | {one.name: set(one.labels) for one in samples}
    assert {name: labels.get(name) for name in PROMISED} == PROMISED
    assert "mq_group_lag" in {family.name for family in families}
    values = {(one.name, *sorted(one.labels.values())): one.value for one in samples}
    assert values["mq_inflight", "billing"] == 1
    assert values["mq_consume_records_total", "http"] == 1
    assert values["mq_schedule_pending",] == 1
    assert values["mq_ws_sessions", "attached"] == 1
    assert values["mq_ws_credit", "reader"] == 7
    assert all(family.name.startswith(("mq_", "process_")) and family.documentation for family in families)


def test_the_guide_names_every_metric_that_is_promised() -> None:
    text = OPERATIONS.read_text()
    assert [name for name in PROMISED if name.removesuffix("_bucket") not in text] == []


async def test_a_request_is_one_json_line_with_its_id_its_caller_and_no_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="gateway.surfaces.http.access_log"):
        async with serving(config_of(tmp_path, access_log=True)) as session:
            response = await session.get("/topics?ticket=secret", headers={"X-Request-Id": "abc-1"})
            assert response.headers["X-Request-Id"] == "abc-1"
    (record,) = [record for record in caplog.records if record.name == "gateway.surfaces.http.access_log"]
    line = orjson.loads(JsonFormatter().format(record))
    assert {"level", "logger", "message"} <= line.keys()
    assert re.fullmatch(
        r"request method=GET path=/topics\?ticket status=200 ms=[0-9.]+ "
        r"principal=anonymous address=\S+ request_id=abc-1",
        line["message"],
    )
    assert (line["method"], line["path"], line["status"], line["request_id"]) == ("GET", "/topics?ticket", 200, "abc-1")


async def test_what_no_route_answers_is_logged_and_its_id_forges_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forged = 'a status=200 principal=admin "x"'
    with caplog.at_level(logging.INFO, logger="gateway.surfaces.http.access_log"):
        async with serving(config_of(tmp_path, access_log=True)) as session:
            for method, path in (("GET", "/no/such=200 path"), ("PUT", "/topics"), ("OPTIONS", "/topics")):
                response = await session.request(method, path, headers={"X-Request-Id": forged})
                assert response.status in (404, 405)
    records = [record for record in caplog.records if record.name == "gateway.surfaces.http.access_log"]
    assert [orjson.loads(JsonFormatter().format(record))["status"] for record in records] == [404, 405, 405]
    for record in records:
        line = TextFormatter().format(record)
        assert line.endswith(r'request_id="a status=200 principal=admin \"x\""')
        assert line.count(" status=") == 2  # one of them within the quotes
        assert orjson.loads(JsonFormatter().format(record))["request_id"] == forged


def test_buckets_are_cumulative() -> None:
    assert histogram_buckets([0.1, 1.0], [3, 0, 2]) == [("0.1", 3.0), ("1.0", 3.0), ("+Inf", 5.0)]


def test_the_integers_of_a_part_become_metrics() -> None:
    @dataclass
    class Stats:
        sync_count: int = 3
        late_max_ms: int = 7
        late_counts: tuple[int, ...] = ()

    families = {family.name: (family.type, family.samples[0].value) for family in integers_of(Stats(), "mq_x")}
    assert families == {"mq_x_sync": ("counter", 3), "mq_x_late_max_ms": ("gauge", 7)}
