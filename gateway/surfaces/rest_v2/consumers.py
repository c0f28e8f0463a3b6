"""Consumer instances, as the REST Proxy has them: create, subscribe or assign, read, commit, seek, delete.

The state is in `gateway/surfaces/rest_v2/instances/`; this file is the shape of requests and answers. Bodies are read
on GET and DELETE too, where old clients send them, and whatever their Content-Type; every GET that has a body has a
query form, as most clients cannot send one. REST Proxy v1, of which old clients remain: `GET
…/instances/{i}/topics/{t}` subscribes and reads, `GET /topics/{t}/partitions/{p}/messages` reads without an instance.

Two dialects of one commit: 200 with an empty list, or 204 for instances created with Strimzi's `enable.auto.commit`.
A commit names the last record done, and the offset after it is stored; positions name the next record to come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from urllib.parse import quote

from aiohttp import hdrs, web

from gateway.api.shapes import answers
from gateway.api.shapes.base import AnyShape, load, time_ms
from gateway.api.shapes.consumers import (
    CommitBody,
    OfPartition,
    PartitionsBody,
    PatternBody,
    PositionsBody,
    TopicsBody,
)
from gateway.api.shapes.queries import CommittedQuery, PollQuery, V1MessagesQuery
from gateway.auth.access import Permission
from gateway.codec.filters import parse_filter
from gateway.codec.schema_parts import SchemaFormat
from gateway.errors import PARTITION_NOT_FOUND, SCHEMA_FORMAT, RequestError, invalid
from gateway.groups.machines.progress import Start
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import OffsetCommit, TopicPartition
from gateway.surfaces.http.admission import allowance_of
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR
from gateway.surfaces.http.answers import check_accept, v2_answer
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import AnyFormat, kafka_records_type, preferred_types, records_type, schemas_for
from gateway.surfaces.http.reading import json_object, partition_in, read_query, read_shape
from gateway.surfaces.http.rights import ended
from gateway.surfaces.http.routes import SMALL_BODY_BYTES_MAX
from gateway.surfaces.rest_v2.fetch import fetch_messages
from gateway.surfaces.rest_v2.instances.polling import Poll, turn_of_others
from gateway.surfaces.rest_v2.instances.service import Instances
from gateway.surfaces.rest_v2.instances.settings import parse_settings
from store.limits import MiB

READ_BYTES_MAX = 16 * MiB
"""Memory of the answer to one read, which is made as a whole: what does not fit comes with the next one."""

FORMAT_DIFFERS = 40601
SUBSCRIPTION_CONFLICT = 40903

INSTANCES = web.AppKey("consumer_instances", Instances)


def install_instances(application: web.Application, gateway: Gateway, instances: Instances) -> None:
    """Give an application its consumer instances; those of a group that is deleted are forgotten."""
    application[INSTANCES] = instances
    gateway.on_group_deleted.append(instances.forget_group)


_HOST = re.compile(
    r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\.?)(:[0-9]{1,5})?", re.ASCII
)
_NEUTRAL = ("*/*", "application/*", "*/json", "application/json")
_WITHOUT_FORMAT = ("application/vnd.kafka+json", "application/vnd.kafka.v1+json", "application/vnd.kafka.v2+json")


# Instances


async def create(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Create a consumer instance in a group; its name and where it is. Durable when answered."""
    check_accept(request)
    name, settings = parse_settings(_object(body))
    if isinstance(settings.format, SchemaFormat):
        schemas_for(gateway.schemas, settings.format)
    group = request.match_info["group"]
    name = await request.app[INSTANCES].create(group, name, settings)
    path = f"/consumers/{quote(group, safe='')}/instances/{quote(name, safe='')}"
    return v2_answer(request, answers.Instance(name, f"{request.scheme}://{_host_of(request)}{path}"))


async def delete(_gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Forget a consumer instance: 204. With auto commit, what its client has read is committed first."""
    await request.app[INSTANCES].delete(*_instance(request))
    return web.Response(status=204)


# Subscription and assignment


async def subscribe(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Consume topics by name, or those that match a pattern: 204. Replaces what was subscribed to."""
    wanted = _object(body) if len(body) <= SMALL_BODY_BYTES_MAX else {}
    if wanted.get("topics") and wanted.get("topic_pattern") is not None:
        raise RequestError(
            SUBSCRIPTION_CONFLICT,
            "Illegal state: subscribe either to topics by name or to a pattern, not to both.",
        )
    if wanted.get("topic_pattern") is not None:
        pattern = load(PatternBody, wanted, gateway.limits).topic_pattern
        wish = Subscription(frozenset(), pattern, access_of(request).topics(Permission.RECEIVE))
    else:
        named = load(TopicsBody, wanted, gateway.limits) if wanted else _read(TopicsBody, gateway, body)
        wish = Subscription(frozenset(named.topics))
    _check_topics(request, wish.topics)
    await request.app[INSTANCES].subscribe(*_instance(request), wish)
    return web.Response(status=204)


async def subscription(_gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The topics subscribed to that the caller may read; for a pattern, those that match now."""
    access = access_of(request)
    topics = await request.app[INSTANCES].topics(*_instance(request))
    shown = [topic for topic in topics if access.allows(Permission.RECEIVE, topic=topic)]
    return v2_answer(request, answers.SubscribedTopics(shown))


async def unsubscribe(_gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """End the subscription, or the assignment: 204."""
    await request.app[INSTANCES].unsubscribe(*_instance(request))
    return web.Response(status=204)


async def assign(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Consume these partitions, whatever the rest of the group does: 204. An empty list ends it."""
    topic_partitions = _topic_partitions(gateway, body)
    _check_topics(request, {topic_partition.topic for topic_partition in topic_partitions})
    await request.app[INSTANCES].assign(*_instance(request), topic_partitions)
    return web.Response(status=204)


async def assignments(_gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The partitions the instance has, assigned or by its subscription, of topics that the caller may read."""
    access = access_of(request)
    owned = await request.app[INSTANCES].owned(*_instance(request))
    shown = [answers.TopicPartition(*one) for one in owned if access.allows(Permission.RECEIVE, topic=one.topic)]
    return v2_answer(request, answers.AssignedPartitions(shown))


# Records


async def records(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Records from where the instance is, in its format; waits for the first one up to `timeout`."""
    return await _polled(gateway, request, _poll(gateway, request), topic=None)


async def v1_records(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Records of one topic, as REST Proxy v1 has it: the first call subscribes to it."""
    topic = request.match_info["topic"]
    return await _polled(gateway, request, _poll(gateway, request), topic=topic)


async def v1_messages(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """So many records of one partition from an offset on, as REST Proxy v1 has it."""
    query = read_query(V1MessagesQuery, request, gateway)
    kind = records_type(request.headers.get(hdrs.ACCEPT, "*/*"), has_schemas=gateway.schemas is not None)
    if kind.fmt is None and kind.schema_format is None:
        raise RequestError(406, "HTTP 406 Not Acceptable: raw batches are read at …/records.")
    topic = request.match_info["topic"]
    partition = partition_in(request)
    assert partition is not None
    count = min(query.count, gateway.limits.fetch_records_max)
    return await fetch_messages(gateway, request, kind, topic, partition, query.offset, count)


async def _polled(gateway: Gateway, request: web.Request, poll: Poll, *, topic: str | None) -> web.Response:
    instances = request.app[INSTANCES]
    group, name = _instance(request)
    fmt = instances.settings(group, name).format
    content_type = _records_type(request, fmt, has_schemas=gateway.schemas is not None)
    access = access_of(request)
    allowance = allowance_of(gateway, request)
    allowance.must_send = True  # the next read confirms it
    gateway.stats.long_poll_count += 1
    try:
        shown = await instances.read(
            group,
            name,
            poll,
            reserve=lambda wanted: allowance.reserve(min(wanted * RENDERED_FACTOR, READ_BYTES_MAX)) // RENDERED_FACTOR,
            is_client_gone=lambda: request.transport is None or access.is_over,
            may_read=lambda topic: access.allows(Permission.RECEIVE, topic=topic),
            visible=access.topics(Permission.RECEIVE),
            topic=topic,
        )
    finally:
        gateway.stats.long_poll_count -= 1
    if access.is_over:
        raise ended()
    body = b"[%b]" % b",".join(shown)
    gateway.stats.fetched_record_count += len(shown)
    gateway.stats.fetched_byte_count += len(body)
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})


# Progress


async def commit(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Commit offsets, or without any, all that was read. Durable when answered, `?async=true` or not."""
    check_accept(request)
    offsets = _read(CommitBody, gateway, body).offsets
    commits = (
        None
        if offsets is None
        else [OffsetCommit(one.topic, one.partition, one.offset + 1, one.metadata or "") for one in offsets]
    )
    instances = request.app[INSTANCES]
    group, name = _instance(request)
    settings = instances.settings(group, name)
    _check_topics(request, {one.topic for one in commits or ()})
    await instances.commit(group, name, commits)
    return web.Response(status=204) if settings.is_strimzi else v2_answer(request, [])


async def committed(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """The committed offsets of partitions: named in the body, or in the query."""
    query = read_query(CommittedQuery, request, gateway)
    if query.topic is not None and query.partition is not None:
        topic_partitions = [TopicPartition(query.topic, query.partition)]
    elif body.strip():
        topic_partitions = _topic_partitions(gateway, body)
    else:
        raise RequestError(
            PARTITION_NOT_FOUND,
            "Partition not found: name one with ?topic=orders&partition=0, or several in a POST to offsets:query.",
        )
    return await _committed(request, topic_partitions)


async def query_committed(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """The committed offsets of partitions, for clients that cannot send a body with GET."""
    return await _committed(request, _topic_partitions(gateway, body))


async def _committed(request: web.Request, topic_partitions: Sequence[TopicPartition]) -> web.Response:
    _check_topics(request, {topic_partition.topic for topic_partition in topic_partitions})
    found = await request.app[INSTANCES].committed(*_instance(request), topic_partitions)
    rows = [
        answers.CommittedOffset(one.topic, one.partition, one.offset, one.metadata)
        for one in found
        if one.offset is not None
    ]
    return v2_answer(request, answers.CommittedOffsets(rows))


async def seek(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Go on at offsets, or at the first records from times on: 204. Past the end, where `auto.offset.reset` says."""
    wanted = _read(PositionsBody, gateway, body)
    offsets = [(_named(one), one.offset) for one in wanted.offsets or ()]
    times = [
        (_named(one), time_ms(one.timestamp, f"timestamps[{number}].timestamp"))
        for number, one in enumerate(wanted.timestamps or ())
    ]
    if not offsets and not times:
        raise invalid('Say where to go on: {"offsets": [...]} or {"timestamps": [...]}.')
    await _check_own(request, [topic_partition for topic_partition, _ in (*offsets, *times)])
    reset = request.app[INSTANCES].settings(*_instance(request)).start
    for index, (topic_partition, offset) in enumerate(offsets):
        await turn_of_others(index)
        low, high = await gateway.consumer.bounds(*topic_partition)
        if offset > high:
            offsets[index] = topic_partition, low if reset is Start.FIRST else high
    for index, (topic_partition, at_ms) in enumerate(times):
        await turn_of_others(index)
        offsets.append((topic_partition, await gateway.consumer.offset_for_time(*topic_partition, at_ms)))
    await request.app[INSTANCES].seek(*_instance(request), offsets)
    return web.Response(status=204)


async def seek_to_beginning(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Go on at the first records there are: 204."""
    return await _seek_to_bound(gateway, request, body, 0)


async def seek_to_end(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Go on behind the last records there are: 204."""
    return await _seek_to_bound(gateway, request, body, 1)


async def _seek_to_bound(gateway: Gateway, request: web.Request, body: bytes, bound: int) -> web.Response:
    topic_partitions = _topic_partitions(gateway, body)
    await _check_own(request, topic_partitions)
    offsets = []
    for index, topic_partition in enumerate(topic_partitions):
        await turn_of_others(index)
        offsets.append((topic_partition, (await gateway.consumer.bounds(*topic_partition))[bound]))
    await request.app[INSTANCES].seek(*_instance(request), offsets)
    return web.Response(status=204)


async def _check_own(request: web.Request, topic_partitions: Sequence[TopicPartition]) -> None:
    """Raises RequestError 409/40903 for partitions the instance does not have, whether they exist or not."""
    owned = frozenset(await request.app[INSTANCES].owned(*_instance(request)))
    for topic, partition in topic_partitions:
        if (topic, partition) not in owned:
            raise RequestError(
                SUBSCRIPTION_CONFLICT,
                f"Illegal state: no current assignment for partition {partition} of topic {topic}.",
            )


# Reading requests


def _instance(request: web.Request) -> tuple[str, str]:
    return request.match_info["group"], request.match_info["instance"]


def _check_topics(request: web.Request, topics: AbstractSet[str]) -> None:
    """Raises RequestError 403 unless the caller may read all of them."""
    access = access_of(request)
    for topic in sorted(topics):
        access.check(Permission.RECEIVE, topic=topic)


def _host_of(request: web.Request) -> str:
    """Where the client found this server: its Host header, if that is nothing but a host and a port."""
    host = request.headers.get(hdrs.HOST, "")
    if _HOST.fullmatch(host):
        return host
    address = None if request.transport is None else request.transport.get_extra_info("sockname")
    if not isinstance(address, tuple):
        return "localhost"
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def _records_type(request: web.Request, fmt: AnyFormat, *, has_schemas: bool) -> str:
    """The Content-Type of records. Raises RequestError 406: 40601 when the client wants another format; 42202 when it
    wants a schema format of a server that has no schema registry."""
    own = kafka_records_type(fmt).content_type
    refusal = RequestError(406, f"HTTP 406 Not Acceptable: this consumer instance answers {own}.")
    for media in preferred_types(request.headers.get(hdrs.ACCEPT, "*/*")):
        if media in _NEUTRAL or media in _WITHOUT_FORMAT:
            return own
        try:
            kind = records_type(media, has_schemas=has_schemas)
        except RequestError as error:
            if error.error_code == SCHEMA_FORMAT and refusal.error_code == 406:
                refusal = error
            continue
        if fmt in (kind.fmt, kind.schema_format):
            return own
        refusal = RequestError(
            FORMAT_DIFFERS,
            "The requested embedded data format does not match the deserializer for this consumer instance: "
            f"accept {own}.",
        )
    raise refusal


def _poll(gateway: Gateway, request: web.Request) -> Poll:
    query, limits = read_query(PollQuery, request, gateway), gateway.limits
    return Poll(
        None if query.timeout < 0 else min(query.timeout, limits.timeout_ms_max),
        None if query.max_bytes < 0 else min(max(query.max_bytes, 1), limits.fetch_bytes_max),
        min(query.max_records, limits.fetch_records_max),
        parse_filter(query.filter),
    )


def _object(body: bytes) -> dict[str, object]:
    """The JSON object of a body; an empty one when there is none."""
    return {} if body.strip() in (b"", b"null") else json_object(body)


def _read(shape: type[AnyShape], gateway: Gateway, body: bytes) -> AnyShape:
    """As `read_shape`, of a body that may be null."""
    return read_shape(shape, b"" if body.strip() == b"null" else body, gateway)


def _topic_partitions(gateway: Gateway, body: bytes) -> list[TopicPartition]:
    return [_named(one) for one in _read(PartitionsBody, gateway, body).partitions]


def _named(one: OfPartition) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)
