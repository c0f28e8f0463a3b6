"""Brokers, and where partitions are: each is a chain of segments over queues of brokers, the last of which is open."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from time import perf_counter
from typing import TypeAlias

from aiohttp import web

from gateway.api.cluster import GROUPS, Cluster, MoveView, listed
from gateway.api.pages import read_cursor, write_cursor
from gateway.api.shapes import server
from gateway.api.shapes.queries import (
    PAGE_ROWS_DEFAULT,
    BrokerPlanQuery,
    ListRoutesQuery,
    MovesQuery,
    NoQuery,
    TopicRoutesQuery,
)
from gateway.api.shapes.topics import BrokerBody, MovePartitionBody, TakeoverBody, TakePartitionBody
from gateway.cluster.balance import NoTaker, Partition, plan_drain, plan_share
from gateway.cluster.mover import StillThere, UnknownBroker
from gateway.errors import invalid
from gateway.routing.base import Route, TopicView, UnknownPartition
from gateway.surfaces.http.answers import check_accept, json_answer, packed
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import partition_in, read_query, read_shape, topic_in
from store.data_format import VERSION as DATA_VERSION
from store.errors import UnknownQueue

Moves: TypeAlias = Mapping[tuple[int, int], MoveView]

PARTITIONS_A_TURN = 2_000
"""Partitions looked at between two turns of the event loop."""


async def list_brokers(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """All brokers: what each is, whether it takes records, how quickly it answers, and what is on it. Nodes without a
    store are among them as long as they are there, or own something on a Kafka cluster."""
    read_query(NoQuery, request, gateway)
    return json_answer(request, server.BrokerList(await _brokers(gateway)))


async def change_broker(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Have a broker drain (`draining`), or take partitions again. It moves its partitions and groups to the others, or
    its share of the partitions to itself, in the background: `GET /mq/v1/brokers` shows how many it has."""
    check_accept(request)
    draining = read_shape(BrokerBody, body, gateway).draining
    name = request.match_info["broker"]
    await _cluster(gateway).set_draining(name, draining)
    return json_answer(request, next(row for row in await _brokers(gateway, name) if row.broker == name))


async def _brokers(gateway: Gateway, *more: str) -> list[server.ShownBroker]:
    """Those that are listed, and `more`."""
    routes = gateway.routes_table
    counts: Counter[str] = Counter()
    sealed_counts: Counter[str] = Counter()
    async for name, topic, partition in _owners(gateway):
        counts[name] += 1
        sealed_counts.update(one.broker.name for one in routes.chain(topic, partition)[:-1])
    now_ms = perf_counter() * 1000
    rows = []
    cluster = gateway.cluster
    group_counts = {} if cluster is None else cluster.owned_counts(GROUPS)
    on_kafka = {} if cluster is None else cluster.owned_on_kafka()
    kafka = () if cluster is None else cluster.kafka
    members = [] if cluster is None else [member.name for member in listed(cluster, routes)]
    for name in sorted({*counts, *gateway.admin.brokers(), *kafka, *members, *more}):
        left_ms, latency_ms = routes.avoided_ms(name, now_ms), routes.latency_ms(name)
        own_reasons = list(gateway.admin.ready()) if name in gateway.admin.brokers() else []
        state: server.BrokerState = "stopped" if own_reasons else "avoided" if left_ms else "up"
        member = None if cluster is None else cluster.members.get(name)
        if member is not None and member.draining and not own_reasons:
            is_any = counts[name] or group_counts.get(name) or on_kafka.get(name)
            state = "draining" if is_any else "drained"
        trouble = None if cluster is None else cluster.trouble(name)
        if cluster is not None and (trouble is not None or not cluster.is_there(name)):
            state = "offline"
        excluded_until_ms = round(gateway.clock.now_ms() + left_ms) if left_ms else None
        rows.append(
            server.ShownBroker(
                broker=name,
                kind="embedded" if name in gateway.admin.brokers() else "kafka" if name in kafka else "peer",
                state=state,
                reasons=[*own_reasons, *([trouble] if trouble else []), *_reasons(gateway, name, counts, group_counts)],
                latency_ms=latency_ms,
                excluded_until_ms=excluded_until_ms,
                partitions=counts[name],
                sealed_segments=sealed_counts[name],
                balancing=member is not None and member.balancing,
                groups=None if cluster is None else group_counts.get(name, 0),
                on_kafka=None if cluster is None else on_kafka.get(name, 0),
                url=None if member is None else member.url,
                room=routes.room_of(name) or None,
            )
        )
    return rows


def _reasons(gateway: Gateway, name: str, counts: Counter[str], group_counts: Mapping[str, int]) -> list[str]:
    """Why partitions move off a broker of a cluster, to it, or do not."""
    cluster = gateway.cluster
    if cluster is None or (member := cluster.members.get(name)) is None:
        return []
    takers = [
        other
        for other, one in cluster.members.items()
        if cluster.is_there(other) and not one.draining and not one.storeless
    ]
    reasons = []
    if cluster.is_gone(name):
        reasons.append("its node has not been heard of, and has no store: other nodes go on with what it had")
    elif not cluster.is_there(name):
        reasons.append("its node has not been heard of for some seconds: what is on it waits for it, or for a takeover")
    if member.draining and (left := counts[name] + group_counts.get(name, 0)):
        whither = "they go to the brokers with the fewest" if set(takers) - {name} else "no other broker takes any"
        reasons.append(f"it is to have nothing, and has {left} partitions and groups: {whither}")
    if member.draining and (on_kafka := cluster.owned_on_kafka().get(name)):
        reasons.append(f"it owns {on_kafka} partitions and shards on Kafka clusters: other nodes take them over")
    if member.balancing and member.storeless:
        reasons.append("it takes its share of what others own on Kafka clusters")
    elif member.balancing:
        share = sum(counts.values()) // max(len({*takers, name}), 1)
        reasons.append(f"it takes its share from those with the most: {counts[name]} of {share} partitions")
    if name == cluster.name and cluster.blocked is not None:
        reasons.append(cluster.blocked)
    if name in gateway.routes_table.lacking(DATA_VERSION):
        reasons.append("its program is older than this one: what needs a newer data format waits until it is upgraded")
    return reasons


async def _owners(gateway: Gateway) -> AsyncIterator[tuple[str, str, int]]:
    """On which broker each partition is, by topic and number; the event loop has its turns. Where a node's route leads
    to the owner of a partition on a Kafka cluster, it is on that cluster all the same."""
    routes, cluster = gateway.routes_table, gateway.cluster
    seen = 0
    for view in routes.topics():
        try:
            for partition in range(view.partitions):
                name = routes.writable(view.name, partition).broker.name
                kafka = None if cluster is None else cluster.kafka_of(view.topic_id, partition)
                yield kafka or name, view.name, partition
                seen += 1
                if seen % PARTITIONS_A_TURN == 0:
                    await asyncio.sleep(0)
        except UnknownQueue:  # deleted meanwhile
            continue


async def plan_broker(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Which partitions to move so that a broker has none (`draining`), or its share of them. Nothing is moved, and no
    plan is kept: ask again when these moves are made, until there are none."""
    query = read_query(BrokerPlanQuery, request, gateway)
    draining, limit = query.draining in ("true", "1"), query.limit or PAGE_ROWS_DEFAULT
    name = request.match_info["broker"]
    on: dict[str, list[Partition]] = {}
    async for owner, topic, partition in _owners(gateway):
        on.setdefault(owner, []).append((topic, partition))
    takers = set()
    members = {} if gateway.cluster is None else gateway.cluster.members
    for row in await _brokers(gateway):
        is_storeless = (member := members.get(row.broker)) is not None and member.storeless
        if row.kind == "kafka" or is_storeless:  # what is on a Kafka cluster is no node's share
            on.pop(row.broker, None)
        if row.kind == "kafka":
            continue
        is_up = row.state in ("up", "avoided") or (row.broker == name and row.state in ("draining", "drained"))
        if is_up and not is_storeless:
            takers.add(row.broker)
        if row.broker == name:
            on.setdefault(name, [])
    if name not in on:
        raise UnknownBroker(f"there is no broker {name} in this cluster")
    if draining:
        plan = plan_drain(on, name, takers, limit)
    elif name in takers:
        plan = plan_share(on, name, takers, limit)
    else:
        raise NoTaker(f"{name} takes no partitions now")
    moves = [server.PlannedMove(*move) for move in plan.moves]
    return await packed(request, json_answer(request, server.BrokerPlan(moves, plan.total)))


async def list_moves(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """A page of the moves that are under way, by topic and partition. One that was left half way is finished by the
    nodes, as soon as both brokers are there; to call it off is to move the partition back."""
    query = read_query(MovesQuery, request, gateway)
    place = read_cursor(query.cursor, (str, int))
    limit = query.limit or PAGE_ROWS_DEFAULT
    found = []
    for (topic_id, partition), move in _moves(gateway).items():
        with suppress(UnknownQueue):  # deleted meanwhile
            topic = gateway.routes_table.by_id(topic_id).name
            found.append(server.ShownMove(topic, partition, move.source, move.to, move.step, move.since_ms))
    found.sort(key=_place_of)
    first = 0 if place is None else bisect_right(found, (str(place[0]), int(place[1])), key=_place_of)
    rows = found[first : first + limit]
    next_cursor = write_cursor(_place_of(rows[-1])) if first + limit < len(found) else None
    return await packed(
        request, json_answer(request, server.MovePage(next_cursor=next_cursor, total=len(found), moves=rows))
    )


def _place_of(move: server.ShownMove) -> Partition:
    return move.topic, move.partition


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
    return json_answer(request, _route(gateway, view, partition, _moves(gateway)))


async def take_over_partition(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Go on with a partition whose broker is not there, on another one. Its offsets make a jump, so that none is given
    twice; older ones are an error until the broker is back, and can be read then."""
    check_accept(request)
    wanted = read_shape(TakePartitionBody, body, gateway)
    _check_accepted(wanted)
    view, partition = topic_in(gateway, request), partition_in(request)
    assert partition is not None
    await _cluster(gateway).take_over(view.name, partition, wanted.to or None)
    return json_answer(request, _route(gateway, view, partition, _moves(gateway)))


async def take_over_broker(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """The same of all partitions whose open segment is on a broker that is not there. Its groups belong to this node
    from then on, without their offsets, leases and settings, which only the broker has."""
    check_accept(request)
    _check_accepted(read_shape(TakeoverBody, body, gateway))
    cluster, routes, name = _cluster(gateway), gateway.routes_table, request.match_info["broker"]
    if name not in cluster.members:
        raise UnknownBroker(f"there is no broker {name} in this cluster")
    if cluster.is_there(name):
        raise StillThere(f"broker {name} is there: drain it")
    count = 0
    for view in routes.topics():
        for partition in range(view.partitions):
            is_on = routes.writable(view.name, partition).broker.name == name
            if is_on and cluster.kafka_of(view.topic_id, partition) is None:  # else others take it over by themselves
                await cluster.take_over(view.name, partition, None)
                count += 1
    groups = sorted(cluster.owned(GROUPS, name))
    for group in groups:
        await cluster.take_over_owned(GROUPS, group)
    return json_answer(request, server.TakenOver(name, count, groups))


def _check_accepted(wanted: TakeoverBody) -> None:
    if not wanted.accept_offline:
        raise invalid("accept_offline must be true: what a takeover means is in docs/cluster.md")


def _cluster(gateway: Gateway) -> Cluster:
    if gateway.cluster is None:
        raise UnknownBroker("this server is no node of a cluster")
    return gateway.cluster


async def _routes(
    gateway: Gateway, request: web.Request, topic: str | None, rows_max: int | None, cursor: str | None
) -> web.StreamResponse:
    routes = gateway.routes_table
    after_key = read_cursor(cursor, (str, int))
    views = routes.topics() if topic is None else [routes.topic(topic)]
    total = sum(view.partitions for view in views)
    limit = rows_max or PAGE_ROWS_DEFAULT
    moves = _moves(gateway)
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
            rows.append(_route(gateway, view, partition, moves))
        if not is_last:
            break
    next_cursor = None if is_last else write_cursor((rows[-1].topic, rows[-1].partition))
    return await packed(
        request, json_answer(request, server.RoutePage(next_cursor=next_cursor, total=total, partitions=rows))
    )


def _moves(gateway: Gateway) -> Moves:
    return {} if gateway.cluster is None else gateway.cluster.moves()


def _route(gateway: Gateway, view: TopicView, partition: int, moves: Moves) -> server.ShownRoute:
    chain = gateway.routes_table.chain(view.name, partition)
    move = moves.get((view.topic_id, partition))
    segments = [_segment(one, is_moving=move is not None) for one in chain]
    return server.ShownRoute(view.name, partition, chain[-1].broker.name, segments, None if move is None else move.to)


def _segment(segment: Route, *, is_moving: bool) -> server.ShownSegment:
    end = None if segment.physical_end is None else segment.to_logical(segment.physical_end)
    state: server.SegmentState = "sealed" if end is not None else "moving" if is_moving else "open"
    return server.ShownSegment(segment.broker.name, segment.logical_start, end, state)
