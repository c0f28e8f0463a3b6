"""Brokers, and where partitions are: each is a chain of segments over queues of brokers, the last of which is open."""

from __future__ import annotations

import asyncio
from time import perf_counter

from aiohttp import web

from gateway.api.pages import read_cursor, write_cursor
from gateway.api.shapes import server
from gateway.api.shapes.queries import PAGE_ROWS_DEFAULT, ListRoutesQuery, NoQuery, TopicRoutesQuery
from gateway.api.shapes.topics import BrokerBody, MovePartitionBody
from gateway.cluster.mover import UnknownBroker
from gateway.routing.base import Route, TopicView, UnknownPartition
from gateway.surfaces.http.answers import check_accept, json_answer, packed
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import partition_in, read_query, read_shape, topic_in
from store.errors import UnknownQueue

PARTITIONS_A_TURN = 2_000
"""Partitions looked at between two turns of the event loop."""


async def list_brokers(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """All brokers: what each is, whether it takes records, how quickly it answers, and how many partitions are open on
    it."""
    read_query(NoQuery, request, gateway)
    return json_answer(request, server.BrokerList(await _brokers(gateway)))


async def change_broker(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Have no partition begin on a broker from now on (`draining`), or have them begin there again. What is on it stays
    until it is moved."""
    check_accept(request)
    draining = read_shape(BrokerBody, body, gateway).draining
    name = request.match_info["broker"]
    if gateway.cluster is None:
        raise UnknownBroker("this server is no node of a cluster")
    await gateway.cluster.set_draining(name, draining)
    return json_answer(request, next(row for row in await _brokers(gateway) if row.broker == name))


async def _brokers(gateway: Gateway) -> list[server.ShownBroker]:
    routes = gateway.routes_table
    counts: dict[str, int] = {}
    seen = 0
    for view in routes.topics():
        try:
            for partition in range(view.partitions):
                name = routes.writable(view.name, partition).broker.name
                counts[name] = counts.get(name, 0) + 1
                seen += 1
                if seen % PARTITIONS_A_TURN == 0:
                    await asyncio.sleep(0)
        except UnknownQueue:  # deleted meanwhile
            continue
    now_ms = perf_counter() * 1000
    rows = []
    cluster = gateway.cluster
    for name in sorted({*counts, *gateway.admin.brokers(), *(() if cluster is None else cluster.members)}):
        left_ms, latency_ms = routes.avoided_ms(name, now_ms), routes.latency_ms(name)
        own_reasons = list(gateway.admin.ready()) if name in gateway.admin.brokers() else []
        state: server.BrokerState = "stopped" if own_reasons else "avoided" if left_ms else "up"
        member = None if cluster is None else cluster.members.get(name)
        if member is not None and member.draining and not own_reasons:
            state = "draining"
        if cluster is not None and not cluster.is_there(name):
            state = "offline"
        excluded_until_ms = round(gateway.clock.now_ms() + left_ms) if left_ms else None
        rows.append(
            server.ShownBroker(
                broker=name,
                kind="embedded",
                state=state,
                reasons=own_reasons,
                latency_ms=latency_ms,
                excluded_until_ms=excluded_until_ms,
                partitions=counts.get(name, 0),
                url=None if member is None else member.url,
            )
        )
    return rows


async def list_routes(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """A page of partitions, by topic and number, with the segments of each: which broker has which of its offsets."""
    query = read_query(ListRoutesQuery, request, gateway)
    return await _routes(gateway, request, query.topic, query.limit, query.cursor)


async def list_topic_routes(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """A page of a topic's partitions, with the segments of each: which broker has which of its offsets."""
    query = read_query(TopicRoutesQuery, request, gateway)
    return await _routes(gateway, request, request.match_info["topic"], query.limit, query.cursor)


async def move_partition(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Move a partition to a broker. Records that are sent meanwhile wait; offsets go on without a gap. Answered when it
    is there; one that is there already stays."""
    check_accept(request)
    to = read_shape(MovePartitionBody, body, gateway).to
    view, partition = topic_in(gateway, request), partition_in(request)
    assert partition is not None
    if partition >= view.partitions:
        raise UnknownPartition
    if gateway.cluster is not None:
        await gateway.cluster.move(view.name, partition, to)
    elif to not in gateway.admin.brokers():
        raise UnknownBroker(f"there is no broker {to} here")
    return json_answer(request, _route(gateway, view, partition))


async def _routes(
    gateway: Gateway, request: web.Request, topic: str | None, rows_max: int | None, cursor: str | None
) -> web.StreamResponse:
    routes = gateway.routes_table
    after_key = read_cursor(cursor, (str, int))
    views = routes.topics() if topic is None else [routes.topic(topic)]
    total = sum(view.partitions for view in views)
    limit = rows_max or PAGE_ROWS_DEFAULT
    rows: list[server.ShownRoute] = []
    is_last = True
    for view in views:
        if after_key is not None and view.name < str(after_key[0]):
            continue
        first = int(after_key[1]) + 1 if after_key is not None and view.name == after_key[0] else 0
        for partition in range(first, view.partitions):
            if len(rows) == limit:
                is_last = False
                break
            rows.append(_route(gateway, view, partition))
        if not is_last:
            break
    next_cursor = None if is_last else write_cursor((rows[-1].topic, rows[-1].partition))
    return await packed(
        request, json_answer(request, server.RoutePage(next_cursor=next_cursor, total=total, partitions=rows))
    )


def _route(gateway: Gateway, view: TopicView, partition: int) -> server.ShownRoute:
    chain = gateway.routes_table.chain(view.name, partition)
    return server.ShownRoute(view.name, partition, chain[-1].broker.name, [_segment(one) for one in chain])


def _segment(segment: Route) -> server.ShownSegment:
    end = None if segment.physical_end is None else segment.to_logical(segment.physical_end)
    return server.ShownSegment(segment.broker.name, segment.logical_start, end, "open" if end is None else "sealed")
