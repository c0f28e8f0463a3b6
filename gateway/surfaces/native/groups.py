"""Consumer groups: what they are, how far they are, and queue mode, in which records are handed out one by one.

    messages:receive   records on lease, each with a receipt, to whoever asks; no instance, no membership
    messages:ack       done               messages:extend   needs more time; new receipts
    messages:nack      again, later       messages:reject   never again: to the dead-letter topic

Receipts are settled one by one, and answered so: `{"results": [{"receipt", "ok", ...}]}`, 200 whatever became of each.
With `Accept: application/octet-stream` and `max_messages` 1 a receive answers the bytes of the record, the rest of it
in `Mq-*` headers, and 204 when there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from aiohttp import hdrs, web

from gateway.api.render import delivered_as_json, settled_as_json
from gateway.auth.access import Permission
from gateway.codec.filters import parse_filter
from gateway.codec.message_ids import MessageId
from gateway.codec.records import render_parts, unrecognized
from gateway.codec.times import parse_time_ms
from gateway.errors import DELAY_ILLEGAL, LIMIT_ILLEGAL, RequestError, invalid
from gateway.groups.machines.config import INVISIBLE_MS_MAX, GroupConfig
from gateway.groups.machines.copies import (
    DEAD_LETTERED_AT,
    REASON,
    REASON_BYTES_MAX,
    check_group_name,
    dead_letter_topic,
    origin_of,
    shown_headers,
)
from gateway.groups.machines.leases import ATTEMPT_ID_BYTES_MAX
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import (
    RECEIPTS_MAX,
    RECEIVE_BYTES_MAX,
    RECEIVE_MESSAGES_MAX,
    REDRIVE_MAX,
    Delivered,
    GroupView,
    MemberView,
    PartitionLag,
    Receive,
    ResetTo,
    Settled,
    StartSpec,
    TopicPartition,
)
from gateway.surfaces.http.answers import check_accept, json_answer
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import preferred_types
from gateway.surfaces.http.reading import Query, json_object
from gateway.surfaces.http.rights import while_allowed
from gateway.surfaces.native.raw import OCTETS, RawRecord, raw_answer
from store import record_batch
from store.errors import UnknownQueue
from store.limits import MiB
from store.types import RECORD_OFFSET_MAX

TEXT_BYTES_MAX = ATTEMPT_ID_BYTES_MAX
"""Of `attempt_id` and `consumer`."""

DEAD_LETTERS_MAX = 1000
"""Dead letters of one page."""

LAG_QUERY = ("topics",)
DEAD_LETTERS_QUERY = ("offset", "limit")

_RECEIVE = (
    "topics",
    "max_messages",
    "max_bytes",
    "wait_ms",
    "invisible_ms",
    "filter",
    "attempt_id",
    "consumer",
    "start",
)
_STARTS = {"earliest": Start.FIRST, "latest": Start.LAST}


# Groups


async def list_groups(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """All groups the caller may describe."""
    access = access_of(request)
    views = [view for view in gateway.groups.groups() if access.allows(Permission.DESCRIBE, group=view.group)]
    return json_answer(request, {"groups": [_group(view) for view in views]})


async def describe_group(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One group with its settings and its members."""
    described = gateway.groups.describe(request.match_info["group"])
    body = {
        **_group(described.view),
        "config": _config(described.config),
        "members": [_member(view) for view in described.members],
    }
    return json_answer(request, body)


async def delete_group(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Forget a group, its offsets and leases: 204. Refused with 409 while it has members."""
    group = request.match_info["group"]
    await gateway.groups.delete(group)
    for forget in gateway.on_group_deleted:
        forget(group)
    return web.Response(status=204)


async def configure_group(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Change a group's settings; null takes one back to its default. Answers all of them, durably changed."""
    check_accept(request)
    changes = _object(body)
    if "backoff" in changes:
        changes["backoff_ms"] = changes.pop("backoff")
    return json_answer(request, _config(await gateway.groups.configure(request.match_info["group"], changes)))


async def group_lag(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """How far the group is in each partition, and in total. `?topics=a,b` shows some topics only."""
    group = request.match_info["group"]
    topics = Query(request, known=LAG_QUERY).text("topics")
    rows = await gateway.groups.lag(group, None if topics is None else topics.split(","))
    body = {
        "group": group,
        "total_lag": sum(row.lag for row in rows),
        "in_flight": sum(row.in_flight for row in rows),
        "partitions": [_lag(row) for row in rows],
    }
    return json_answer(request, body)


async def reset_offsets(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Move the group to another place in a topic: what was committed, and what is committed now (or would be)."""
    check_accept(request)
    wanted = _object(body, ("topic", "to", "partitions", "dry_run", "force"))
    topic = _topic(request, wanted.get("topic"), "topic")
    partitions = wanted.get("partitions")
    if partitions is not None and not (
        isinstance(partitions, list) and partitions and all(_is_whole(number) for number in partitions)
    ):
        raise invalid("partitions: must be an array of partition numbers")
    dry_run = _flag(wanted, "dry_run")
    moves = await gateway.groups.reset(
        request.match_info["group"],
        topic,
        _reset_to(wanted.get("to")),
        partitions=partitions,
        dry_run=dry_run,
        force=_flag(wanted, "force"),
    )
    rows = [{"partition": move.partition, "from": move.before, "to": move.after} for move in moves]
    return json_answer(request, {"topic": topic, "dry_run": dry_run, "partitions": rows})


# Queue mode


async def receive(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Take records on lease: those there are, or the first ones that come within `wait_ms`."""
    wants_raw = _wants_raw(request)
    if not wants_raw:
        check_accept(request)
    asked = _receive(gateway, request, _object(body, _RECEIVE))
    if wants_raw and asked.max_messages != 1:
        raise RequestError(LIMIT_ILLEGAL, "max_messages: must be 1 for an answer without JSON")
    group = request.match_info["group"]
    gateway.stats.long_poll_count += 1
    try:
        async with while_allowed(gateway, request):  # who is cancelled gives back what it had leased
            received = await gateway.groups.receive(group, asked)
    finally:
        gateway.stats.long_poll_count -= 1
    access = access_of(request)
    is_allowed = all(access.allows(Permission.RECEIVE, topic=topic, group=group) for topic in asked.topics)
    if received.messages and not (is_allowed and request.transport is not None):  # who asked has gone, or may no more
        await gateway.groups.give_back(group, [message.receipt for message in received.messages])
    for topic in asked.topics:
        access.check(Permission.RECEIVE, topic=topic, group=group)
    gateway.stats.fetched_record_count += len(received.messages)
    if wants_raw:
        return _raw(gateway, received.messages[0]) if received.messages else web.Response(status=204)
    shown = [delivered_as_json(message, _topic_id(gateway, message.topic)) for message in received.messages]
    return json_answer(request, {"messages": shown, "backlog": received.backlog})


async def ack(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Done with records: by receipt, or all that are on lease in a partition up to an offset. Durable when answered."""
    check_accept(request)
    wanted = _object(body, ("receipts", "up_to"))
    group = _group_named(request)
    if "up_to" not in wanted:
        acked = await gateway.groups.ack(group, _receipts(wanted))
        gateway.leases.settled(group, acked)
        return _settled(request, acked)
    up_to = wanted["up_to"]
    if "receipts" in wanted or not isinstance(up_to, dict) or not up_to.keys() == {"topic", "partition", "offset"}:
        raise invalid('Say what is done: {"receipts": [...]}, or {"up_to": {"topic", "partition", "offset"}}.')
    topic = _topic(request, up_to["topic"], "up_to.topic")
    partition, offset = up_to["partition"], up_to["offset"]
    if not _is_whole(partition) or not _is_whole(offset):
        raise invalid("up_to: partition and offset must be whole numbers")
    count = await gateway.groups.ack_up_to(group, TopicPartition(topic, partition), offset)
    gateway.leases.settled_up_to(group, topic, partition, offset)
    return json_answer(request, {"acked": count})


async def nack(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Give records back: to be handed out again after `delay_ms`, or as the group's back-off table says."""
    check_accept(request)
    wanted = _object(body, ("receipts", "delay_ms", "reason"))
    delay_ms = wanted.get("delay_ms")
    delay_ms_max = gateway.limits.delay_ms_max
    if not isinstance(delay_ms, int | None) or isinstance(delay_ms, bool) or not 0 <= (delay_ms or 0) <= delay_ms_max:
        raise RequestError(DELAY_ILLEGAL, f"delay_ms: must be an integer from 0 to {delay_ms_max}")
    receipts = _receipts(wanted)
    group = _group_named(request)
    nacked = await gateway.groups.nack(group, receipts, delay_ms=delay_ms, reason=_reason(wanted) or "")
    gateway.leases.settled(group, nacked)
    return _settled(request, nacked)


async def reject(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Never hand records out again: they go to the dead-letter topic. Durable when answered."""
    check_accept(request)
    wanted = _object(body, ("receipts", "reason"))
    receipts = _receipts(wanted)
    group = _group_named(request)
    rejected = await gateway.groups.reject(group, receipts, _reason(wanted) or "rejected")
    gateway.leases.settled(group, rejected)
    return _settled(request, rejected)


async def extend(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Keep records longer: the leases end `invisible_ms` from now, under new receipts."""
    check_accept(request)
    wanted = _object(body, ("receipts", "invisible_ms"))
    if wanted.get("invisible_ms") is None:
        raise invalid("invisible_ms: must be given")
    invisible_ms = _whole(wanted, "invisible_ms", 0, least=1, most=INVISIBLE_MS_MAX)
    receipts = _receipts(wanted)
    group = _group_named(request)
    extended = await gateway.groups.extend(group, receipts, invisible_ms)
    gateway.leases.extended(group, extended, gateway.clock.now_ms() + invisible_ms)
    return _settled(request, extended)


# Dead letters


async def dead_letters(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One page of the group's dead letters, with where they came from and why. From `offset` on, else from the first
    that was not sent back."""
    query = Query(request, known=DEAD_LETTERS_QUERY)
    limit = query.integer("limit", 100, least=1, most=DEAD_LETTERS_MAX)
    group = request.match_info["group"]
    topic_partition = TopicPartition(dead_letter_topic(group), 0)
    try:
        bounds = await gateway.consumer.bounds(*topic_partition)
    except UnknownQueue:
        gateway.groups.describe(group)  # an unknown group is told apart from one without dead letters
        return json_answer(request, {"messages": [], "next_offset": None, "total": 0})
    (committed,) = await gateway.groups.committed(group, [topic_partition])
    first = max(bounds.min_offset, committed.offset or 0)
    start = max(query.integer("offset", first, least=0, most=RECORD_OFFSET_MAX), bounds.min_offset)
    shown: list[dict[str, object]] = []
    while start < bounds.max_offset and len(shown) < limit:
        fetched = await gateway.consumer.fetch(*topic_partition, start, max_bytes=gateway.limits.fetch_bytes_default)
        for entry in fetched.entries:
            for record in record_batch.decode(entry.batch):
                if record.offset >= start and len(shown) < limit:
                    shown.append(_dead_letter(record, json_values=entry.json_values))
                    start = record.offset + 1
        if not fetched.entries or sum(entry.size for entry in fetched.entries) >= gateway.limits.fetch_bytes_default:
            break
    body = {
        "messages": shown,
        "next_offset": start if start < bounds.max_offset else None,
        "total": bounds.max_offset - first,
    }
    return json_answer(request, body)


async def redrive(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Hand dead letters out to the group again, the oldest first, as if never delivered. Durable when answered."""
    check_accept(request)
    wanted = _object(body, ("max_messages",))
    count = _whole(wanted, "max_messages", REDRIVE_MAX, least=1, most=REDRIVE_MAX)
    group = request.match_info["group"]
    try:
        redriven = await gateway.groups.redrive(group, count)
    except UnknownQueue:
        gateway.groups.describe(group)
        redriven = 0
    return json_answer(request, {"redriven": redriven})


# Rendering


def _raw(gateway: Gateway, message: Delivered) -> web.Response:
    topic_id = _topic_id(gateway, message.topic)
    topic_partition = MessageId(topic_id or 0, message.partition, message.offset)
    response = raw_answer(
        RawRecord(
            topic_partition, message.key, message.value, message.headers, message.timestamp_ms, message.store_time_ms
        )
    )
    if topic_id is None:
        del response.headers["Mq-Message-Id"]
    response.headers["Mq-Topic"] = message.topic
    response.headers["Mq-Receipt"] = message.receipt
    response.headers["Mq-Delivery-Attempt"] = str(message.attempt)
    response.headers["Mq-Visible-Until"] = str(message.until_ms)
    return response


def _topic_id(gateway: Gateway, topic: str) -> int | None:
    """None for a topic that has been deleted meanwhile."""
    try:
        return gateway.routes_table.topic(topic).topic_id
    except UnknownQueue:
        return None


def _group(view: GroupView) -> dict[str, object]:
    return {
        "group": view.group,
        "state": view.state,
        "generation": view.generation,
        "member_count": view.member_count,
        "topics": view.topics,
    }


def _config(config: GroupConfig) -> dict[str, object]:
    return asdict(config)


def _member(view: MemberView) -> dict[str, object]:
    wish = view.member.subscription
    return {
        "member_id": view.member.member_id,
        "topics": sorted(wish.topics),
        "topic_pattern": wish.pattern,
        "session_timeout_ms": view.member.session_timeout_ms,
        "heard_ago_ms": view.heard_ago_ms,
        "assigned": _partitions(view.share.assigned),
        "revoking": _partitions(view.share.revoking),
    }


def _partitions(partitions: Sequence[Partition]) -> list[dict[str, object]]:
    return [{"topic": topic_partition.topic, "partition": topic_partition.partition} for topic_partition in partitions]


def _lag(row: PartitionLag) -> dict[str, object]:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "committed": row.committed,
        "metadata": row.metadata,
        "beginning": row.beginning,
        "end": row.end,
        "lag": row.lag,
        "lost": row.lost,
        "in_flight": row.in_flight,
        "delayed": row.waiting,
        "oldest_unacked_ms": row.oldest_unacked_ms,
        "owner": row.owner,
    }


def _settled(request: web.Request, outcomes: Sequence[Settled]) -> web.Response:
    results = [settled_as_json(outcome) for outcome in outcomes]
    return json_answer(request, {"results": results})


def _dead_letter(record: record_batch.DecodedRecord, *, json_values: bool) -> dict[str, object]:
    headers = {name: value for name, value in record.headers if name in (REASON, DEAD_LETTERED_AT)}
    origin = origin_of(record.headers)
    at = headers.get(DEAD_LETTERED_AT)
    reason = headers.get(REASON)
    return {
        "offset": record.offset,
        "topic": None if origin is None else origin.topic,
        "partition": None if origin is None else origin.partition,
        "topic_offset": None if origin is None else origin.offset,
        "delivery_attempts": None if origin is None else origin.attempts,
        "reason": None if reason is None else reason.decode("utf-8", "replace"),
        "dead_lettered_at": int(at) if at is not None and at.isdigit() and len(at) < 16 else None,
        "timestamp": record.timestamp,
        **render_parts(record.key, record.value, shown_headers(record.headers), None, json_values=json_values),
    }


# Reading requests


def _group_named(request: web.Request) -> str:
    """The group of the path. Raises IllegalRequest for a name that no group can have."""
    group = request.match_info["group"]
    check_group_name(group)
    return group


def _wants_raw(request: web.Request) -> bool:
    return next(iter(preferred_types(request.headers.get(hdrs.ACCEPT, "*/*"))), "") == OCTETS


def _receive(gateway: Gateway, request: web.Request, wanted: dict[str, object]) -> Receive:
    topics = wanted.get("topics")
    if not isinstance(topics, list) or not 1 <= len(topics) <= TOPICS_MAX:
        raise invalid(f'topics: must be an array of 1 to {TOPICS_MAX} names, as in {{"topics": ["orders"]}}')
    names = tuple(dict.fromkeys(_topic(request, topic, "topics") for topic in topics))
    tag_filter = parse_filter(_text(wanted, "filter"))
    invisible_ms = None
    if wanted.get("invisible_ms") is not None:
        invisible_ms = _whole(wanted, "invisible_ms", 0, least=1, most=INVISIBLE_MS_MAX)
    return Receive(
        topics=names,
        max_messages=_whole(wanted, "max_messages", 32, least=1, most=RECEIVE_MESSAGES_MAX),
        max_bytes=_whole(wanted, "max_bytes", 1 * MiB, least=1, most=RECEIVE_BYTES_MAX),
        wait_ms=_whole(wanted, "wait_ms", 0, least=0, most=gateway.limits.timeout_ms_max),
        invisible_ms=invisible_ms,
        tags=None if tag_filter is None else tag_filter.tags,
        attempt_id=_text(wanted, "attempt_id"),
        consumer=_text(wanted, "consumer"),
        start=_start(wanted.get("start")),
    )


def _object(body: bytes, known: Sequence[str] | None = None) -> dict[str, object]:
    """The JSON object of a body; no body is an empty one."""
    wanted = json_object(body) if body.strip() else {}
    if known is not None:
        for name in wanted:
            if name not in known:
                raise unrecognized(name)
    return wanted


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= RECORD_OFFSET_MAX


def _whole(wanted: dict[str, object], name: str, default: int, *, least: int, most: int) -> int:
    value = wanted.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"{name}: must be an integer")
    if not least <= value <= most:
        raise RequestError(LIMIT_ILLEGAL, f"{name}: must be between {least} and {most}")
    return value


def _flag(wanted: dict[str, object], name: str) -> bool:
    value = wanted.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"{name}: must be true or false")
    return value


def _text(wanted: dict[str, object], name: str) -> str | None:
    value = wanted.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or (name != "filter" and not 1 <= len(value.encode()) <= TEXT_BYTES_MAX):
        raise invalid(f"{name}: must be a string of 1 to {TEXT_BYTES_MAX} bytes")
    return value


def _reason(wanted: dict[str, object]) -> str | None:
    value = wanted.get("reason")
    if value is None:
        return None
    if not isinstance(value, str) or len(value.encode()) > REASON_BYTES_MAX:
        raise invalid(f"reason: must be a string of at most {REASON_BYTES_MAX} bytes")
    return value


def _receipts(wanted: dict[str, object]) -> list[str]:
    receipts = wanted.get("receipts")
    if not isinstance(receipts, list) or not receipts or not all(isinstance(receipt, str) for receipt in receipts):
        raise invalid('receipts: must be an array of receipts, as in {"receipts": ["r1..."]}')
    if len(receipts) > RECEIPTS_MAX:
        raise invalid(f"receipts: has {len(receipts)} entries; the limit is {RECEIPTS_MAX}")
    return receipts


def _topic(request: web.Request, value: object, field: str) -> str:
    """A topic's name the caller may read. Raises RequestError 403, 422."""
    if not isinstance(value, str) or not value:
        raise invalid(f"{field}: must be the name of a topic")
    access_of(request).check(Permission.RECEIVE, topic=value)
    return value


def _start(value: object) -> StartSpec:
    if value is None:
        return Start.FIRST
    if isinstance(value, str) and value in _STARTS:
        return _STARTS[value]
    return _at_time(value, 'start: must be "earliest", "latest" or {"timestamp": ...}')


def _reset_to(value: object) -> ResetTo:
    if isinstance(value, str) and value in _STARTS:
        return _STARTS[value]
    if _is_whole(value):
        assert isinstance(value, int)
        return value
    return _at_time(value, 'to: must be "earliest", "latest", an offset or {"timestamp": ...}')


def _at_time(value: object, rule: str) -> StartTime:
    if not isinstance(value, dict) or value.keys() != {"timestamp"}:
        raise invalid(rule)
    try:
        return StartTime(parse_time_ms(value["timestamp"]))
    except ValueError as error:
        raise invalid(f"timestamp: {error}") from error
