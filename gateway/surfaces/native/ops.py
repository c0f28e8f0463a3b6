"""Whether the server lives, can take records, and what it counts; its limits and its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest
from prometheus_client.registry import Collector

from gateway.api.shapes import answers
from gateway.surfaces.http.answers import json_answer
from gateway.surfaces.http.context import Gateway


async def healthz(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The process runs and its event loop turns."""
    return json_answer(request, answers.Health())


async def readyz(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Whether this server should be sent traffic; 503 with reasons when not."""
    reasons = [*gateway.admin.ready()]
    if gateway.leaving.is_set() or gateway.draining.is_set():
        reasons.append("draining: the server is about to stop")
    if reasons:
        return json_answer(request, answers.NotReady(reasons), status=503)
    return json_answer(request, answers.Ready())


async def metrics(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """All counters in the Prometheus text format."""
    collected = _Collected(gateway.metrics.collect())
    body = await asyncio.to_thread(generate_latest, collected)  # of 10,000 partitions' lag it takes 50 ms
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})


class _Collected(Collector):
    """What was counted at one moment."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        return self._metrics


async def limits(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """What this server accepts, by name."""
    return json_answer(request, gateway.limits)


async def info(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """What this server is, and whose data it has. `cluster_id` is made with a data directory and never changes; a
    topic's epoch, which every answer with offsets names, is its `topic_id`."""
    kafka = list(gateway.kafka_addresses)
    return json_answer(request, answers.Info(gateway.version, gateway.cluster_id, gateway.started_ms, kafka))
