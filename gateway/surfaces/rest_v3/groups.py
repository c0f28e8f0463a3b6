"""Consumer groups in the REST Proxy's v3 API: groups, consumers, lags. Nothing here moves a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

from aiohttp import web
from msgspec import to_builtins

from gateway.api.cluster import own_number
from gateway.api.shapes.v3 import (
    V3Assignment,
    V3Assignments,
    V3Consumer,
    V3Consumers,
    V3Group,
    V3Groups,
    V3Lag,
    V3Lags,
    V3LagSummary,
)
from gateway.api.turns import few_a_turn
from gateway.auth.access import Permission
from gateway.errors import RequestError
from gateway.groups.machines.errors import UnknownGroup
from gateway.groups.protocol import GroupDescription, GroupState, GroupView, MemberView, PartitionLag
from gateway.surfaces.http.answers import json_answer, list_answer
from gateway.surfaces.http.caller import access_of, is_visible
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import partition_in
from gateway.surfaces.rest_v3.resources import Links, links

ROWS_PER_TURN = 500

_STATES: dict[GroupState, Literal["EMPTY", "STABLE", "PREPARING_REBALANCE"]] = {
    "empty": "EMPTY",
    "stable": "STABLE",
    "rebalancing": "PREPARING_REBALANCE",
}


async def list_groups(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """All consumer groups that the caller may describe."""
    to = links(gateway, request)
    access = access_of(request)
    rows = []
    async for name in few_a_turn(gateway.groups.names()):
        if access.allows(Permission.DESCRIBE, group=name):
            with suppress(UnknownGroup):  # it was deleted meanwhile
                rows.append(_group_row(gateway, to, gateway.groups.describe(name)))
    return json_answer(request, V3Groups(to.page("consumer-groups"), rows))


async def get_group(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One consumer group."""
    to = links(gateway, request)
    return json_answer(request, _group_row(gateway, to, _described(gateway, request)))


async def list_consumers(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The members of a group."""
    to = links(gateway, request)
    group = _described(gateway, request)
    name = group.view.group
    rows = [_consumer_row(to, name, member) for member in group.members]
    return json_answer(request, V3Consumers(to.page("consumer-groups", name, "consumers"), rows))


async def get_consumer(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One member of a group."""
    to = links(gateway, request)
    group = _described(gateway, request)
    return json_answer(request, _consumer_row(to, group.view.group, _member(group, request)))


async def list_assignments(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The partitions that a member owns, of topics that the caller may describe."""
    to = links(gateway, request)
    group = _described(gateway, request)
    name, member = group.view.group, _member(group, request)
    member_id = member.member.member_id
    path = ["consumer-groups", name, "consumers", member_id, "assignments"]
    rows = [
        V3Assignment(
            *to.at(
                [*path, topic, "partitions", number],
                f"/consumer-group={name}/consumer={member_id}/assignment={topic}/partition={number}",
            ),
            consumer_group_id=name,
            consumer_id=member_id,
            topic_name=topic,
            partition_id=number,
            partition=to.related("topics", topic, "partitions", number),
            lag=to.related("consumer-groups", name, "lags", topic, "partitions", number),
        )
        for topic, number in _owned(member)
        if is_visible(request, topic)
    ]
    return json_answer(request, V3Assignments(to.page(*path), rows))


async def lag_summary(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The largest lag of a group, and the sum of all."""
    to = links(gateway, request)
    name = request.match_info["group"]
    lags = await _lags(gateway, request)
    if not lags:
        raise _no_lag()
    largest = max(lags, key=lambda one: one.lag)
    owner = largest.owner or ""
    path = ["consumer-groups", name]
    summary = V3LagSummary(
        *to.at([*path, "lag-summary"], f"/consumer-group={name}/lag-summary"),
        consumer_group_id=name,
        max_lag_consumer_id=owner,
        max_lag_client_id=owner,
        max_lag_topic_name=largest.topic,
        max_lag_partition_id=largest.partition,
        max_lag=largest.lag,
        total_lag=sum(one.lag for one in lags),
        max_lag_consumer=to.related(*path, "consumers", owner),
        max_lag_partition=to.related("topics", largest.topic, "partitions", largest.partition),
    )
    return json_answer(request, summary)


async def list_lags(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The lag of a group in every partition."""
    to = links(gateway, request)
    name = request.match_info["group"]
    lags = await _lags(gateway, request)
    rows = (_lag_row(to, name, one) for one in lags)
    fields = to_builtins(V3Lags(to.page("consumer-groups", name, "lags"), []))
    return await list_answer(request, fields, "data", rows)


async def get_lag(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The lag of a group in one partition."""
    to = links(gateway, request)
    name, topic, number = request.match_info["group"], request.match_info["topic"], partition_in(request)
    for one in await _lags(gateway, request, [topic]):
        if one.partition == number:
            return json_answer(request, _lag_row(to, name, one))
    raise _no_lag()


def _described(gateway: Gateway, request: web.Request) -> GroupDescription:
    return gateway.groups.describe(request.match_info["group"])


async def _lags(gateway: Gateway, request: web.Request, topics: Sequence[str] | None = None) -> list[PartitionLag]:
    """The lags in topics that the caller may describe."""
    lags = await gateway.groups.lag(request.match_info["group"], topics)
    return [one async for one in few_a_turn(lags, per_turn=ROWS_PER_TURN) if is_visible(request, one.topic)]


def _member(group: GroupDescription, request: web.Request) -> MemberView:
    wanted = request.match_info["consumer"]
    for member in group.members:
        if member.member.member_id == wanted:
            return member
    raise RequestError(404, "Consumer not found.")


def _owned(member: MemberView) -> Iterable[tuple[str, int]]:
    for partition in (*member.share.assigned, *member.share.revoking):
        yield partition.topic, partition.partition


def _no_lag() -> RequestError:
    return RequestError(404, "Consumer group lag not found: nothing is committed there.")


def _group_row(gateway: Gateway, to: Links, group: GroupDescription) -> V3Group:
    view: GroupView = group.view
    path = ["consumer-groups", view.group]
    return V3Group(
        *to.at(path, f"/consumer-group={view.group}"),
        consumer_group_id=view.group,
        is_simple=view.member_count == 0,
        partition_assignor=group.config.strategy or "",
        state=_STATES[view.state],
        coordinator=to.related("brokers", own_number(gateway.cluster)),
        consumer=to.related(*path, "consumers"),
        consumers=to.related(*path, "consumers"),
        lag_summary=to.related(*path, "lag-summary"),
    )


def _consumer_row(to: Links, name: str, member: MemberView) -> V3Consumer:
    member_id = member.member.member_id
    path = ["consumer-groups", name, "consumers", member_id]
    return V3Consumer(
        *to.at(path, f"/consumer-group={name}/consumer={member_id}"),
        consumer_group_id=name,
        consumer_id=member_id,
        client_id=member_id,
        assignments=to.related(*path, "assignments"),
    )


def _lag_row(to: Links, name: str, one: PartitionLag) -> V3Lag:
    path = ["consumer-groups", name, "lags", one.topic, "partitions", one.partition]
    owner = one.owner or ""
    return V3Lag(
        *to.at(path, f"/consumer-group={name}/lag={one.topic}/partition={one.partition}"),
        consumer_group_id=name,
        consumer_id=owner,
        client_id=owner,
        topic_name=one.topic,
        partition_id=one.partition,
        current_offset=one.beginning if one.committed is None else one.committed,
        log_end_offset=one.end,
        lag=one.lag,
    )
