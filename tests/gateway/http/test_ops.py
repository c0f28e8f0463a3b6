"""gateway/http/ops.py and metrics.py, through HTTP."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from prometheus_client.parser import text_string_to_metric_families

from gateway.http.context import Gateway
from gateway.http.metrics import histogram_buckets, integers_of
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker


async def test_health_readiness_and_what_the_server_is(client: Client, gateway: Gateway) -> None:
    for path, body in (
        ("/healthz", {"status": "ok"}),
        ("/readyz", {"status": "ok", "reasons": []}),
        ("/mq/v1/info", {"name": "mq", "version": "1.2.3", "cluster_id": "unknown", "started_ms": 0}),
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
