"""Consumer groups: what they are, how far they are, and queue mode, in which records are leased one by one.

    messages:receive   records on lease, each with a receipt, to any caller; no instance, no membership
    messages:ack       done               messages:extend   needs more time; new receipts
    messages:nack      again, later       messages:reject   never again: to the dead-letter topic

Receipts are settled one by one, and answered so: `{"results": [{"receipt", "ok", ...}]}`, 200 whatever became of each.
With `Accept: application/octet-stream` and `max_messages` 1 a receive answers the bytes of the record, the rest of it
in `Mq-*` headers, and 204 when there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import orjson
from aiohttp import hdrs, web
from msgspec import convert
from msgspec.structs import asdict

from gateway.api.acks import begin_ack
from gateway.api.figures import GROUP_STEP_MS, MINUTE_MS
from gateway.api.lease import settle
from gateway.api.light import check_receives
from gateway.api.pages import SORTED_IN_LOOP, decode_after, encode_after, page_of, read_cursor, write_cursor
from gateway.api.render import delivered_as_list, settled_as_list
from gateway.api.shapes import answers
from gateway.api.shapes.base import load
from gateway.api.shapes.groups import (
    AckReceipts,
    AckUpTo,
    ExtendBody,
    NackBody,
    ReceiveBody,
    RedriveBody,
    RejectBody,
    ResetBody,
    SettleLettersBody,
)
from gateway.api.shapes.queries import (
    PAGE_ROWS_DEFAULT,
    DeadLettersQuery,
    LagQuery,
    ListGroupsQuery,
    ListLeasesQuery,
    ListLightQuery,
    PointsQuery,
)
from gateway.api.turns import aside, few_a_turn
from gateway.auth.access import OPEN, Permission
from gateway.codec.message_ids import MessageId
from gateway.codec.records import render_parts
from gateway.errors import LIMIT_ILLEGAL, MESSAGE_NOT_FOUND, RequestError
from gateway.groups.machines.copies import (
    DEAD_LETTERED_AT,
    REASON,
    check_group_name,
    dead_letter_topic,
    origin_of,
    shown_headers,
)
from gateway.groups.machines.errors import UnknownGroup
from gateway.groups.machines.strategies.base import Partition
from gateway.groups.protocol import (
    REDRIVE_MAX,
    Delivered,
    Groups,
    GroupView,
    LagKey,
    LeaseKey,
    MemberView,
    Receive,
    Received,
    Run,
    Settled,
    TopicPartition,
    cut,
    receipts_of,
)
from gateway.routing.base import topic_id_of
from gateway.surfaces.http.admission import caller_of
from gateway.surfaces.http.answer_memory import PAGE_BYTES_MAX, RENDERED_FACTOR, no_room, size_of
from gateway.surfaces.http.answers import check_accept, json_answer, list_answer, packed
from gateway.surfaces.http.caller import Caller, access_of, is_visible
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import preferred_types
from gateway.surfaces.http.reading import json_object, read_query, read_shape
from gateway.surfaces.http.rights import while_allowed
from gateway.surfaces.http.routes import SMALL_BODY_BYTES_MAX
from gateway.surfaces.native.raw import OCTETS, RawRecord, raw_answer
from store import record_batch
from store.errors import UnknownQueue
from store.limits import MiB
from store.turns import others_turn
from store.uncancelled import uncancelled

RECEIVED_BYTES_MAX = 16 * MiB
"""Memory of the answer to one receive, which is made as a whole: what does not fit comes with the next one."""

RENDERED_A_TURN = 500
"""Records of a receive, or partitions of a lag, between two turns of the event loop: 4 us each."""

GROUPS_A_TURN = 250
"""Groups looked at between two turns of the event loop."""

# Groups


async def list_groups(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """The groups that the caller may describe: all of them, or, with any parameter, one page of them with how much each
    has before it. Lags are those of up to 5 s ago."""
    query = read_query(ListGroupsQuery, request, gateway)
    groups = gateway.groups
    names = await _visible_groups(gateway, request, (query.q or "").lower())
    if not request.query_string:
        views = (view for name in names if (view := _view_of(groups, name)) is not None)
        shown = (_summary(request, view) for view in views)
        return await packed(request, await list_answer(request, {}, "groups", shown))
    sort = query.sort or "name"
    figures = await _figures_of(gateway, names, sort)
    paged = partial(
        page_of,
        names,
        lambda name: (figures.get(name, 0), name),
        sort=sort,
        order=query.order or ("asc" if sort == "name" else "desc"),
        cursor=query.cursor,
        limit=query.limit or PAGE_ROWS_DEFAULT,
        is_sorted=sort == "name",
    )
    page = await aside(paged, is_long=len(names) > SORTED_IN_LOOP and sort != "name")
    rows: list[answers.ListedGroup] = []
    for name in page.rows:
        if (view := _view_of(groups, name)) is not None:
            counts, lag = await groups.counts(name), gateway.figures.group_lag(name)
            summary = asdict(_summary(request, view))
            rows.append(answers.ListedGroup(**summary, lag=lag, in_flight=counts.in_flight, dead=counts.dead))
        await asyncio.sleep(0)
    body = answers.GroupPage(next_cursor=page.next_cursor, total=page.total, groups=rows)
    return await packed(request, json_answer(request, body))


def _view_of(groups: Groups, name: str) -> GroupView | None:
    try:
        return groups.view(name)
    except UnknownGroup:  # it was deleted meanwhile
        return None


async def _visible_groups(gateway: Gateway, request: web.Request, part: str) -> list[str]:
    """The groups that the caller may describe and whose name has this part, in lower case; by name."""
    access = access_of(request)
    names: list[str] = []
    for number, name in enumerate(gateway.groups.names(), 1):
        if part in name.lower() and access.allows(Permission.DESCRIBE, group=name):
            names.append(name)
        if number % GROUPS_A_TURN == 0 and access is not OPEN:
            await asyncio.sleep(0)
    return names


async def _figures_of(gateway: Gateway, names: Sequence[str], sort: str) -> dict[str, int]:
    """What groups are sorted by; what is not known counts as nothing."""
    if sort == "lag":
        return {name: gateway.figures.group_lag(name) or 0 for name in names}
    figures: dict[str, int] = {}
    if sort != "name":
        for number, name in enumerate(names, 1):
            with suppress(UnknownGroup):
                counts = await gateway.groups.counts(name)
                figures[name] = {"dead": counts.dead, "in_flight": counts.in_flight}.get(sort, counts.member_count)
            if number % GROUPS_A_TURN == 0:
                await asyncio.sleep(0)
    return figures


async def group_leases(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """One page of the records that the group has out in queue mode: who has which, until when, for which attempt. Those
    of topics that the caller may describe."""
    query = read_query(ListLeasesQuery, request, gateway)
    group = request.match_info["group"]
    key = read_cursor(query.cursor, (str, int, str, int))

    def shows(topic: str) -> bool:
        return query.topic in (None, topic) and is_visible(request, topic)

    after = None if key is None else LeaseKey(*key)  # type: ignore[arg-type]  # of these types, as asked
    found, total = gateway.groups.leases(
        group, after=after, limit=query.limit + 1, shows=shows, held=gateway.leases.held(group)
    )
    now_ms = gateway.clock.now_ms()
    rows = [
        answers.LeaseRow(
            topic=one.topic,
            partition=one.partition,
            offset=one.offset,
            consumer=one.consumer if one.is_leased and one.until_ms > now_ms else None,
            attempt=one.attempt,
            until_ms=one.until_ms,
            state="leased" if one.is_leased and one.until_ms > now_ms else "delayed",
            queue=one.queue or None,
        )
        for one in found[: query.limit]
    ]
    next_cursor = write_cursor(LeaseKey(*found[len(rows) - 1][:4])) if len(found) > len(rows) else None
    body = answers.LeasePage(next_cursor=next_cursor, total=total, leases=rows)
    return await packed(request, json_answer(request, body))


async def describe_group(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One group with its settings, its members, and in queue mode who has how many records. Of topics those that the
    caller may describe, here and in lags."""
    described = gateway.groups.describe(request.match_info["group"])
    workers = gateway.leases.workers(described.view.group, gateway.clock.now_ms())
    body = answers.Group(
        **asdict(_summary(request, described.view)),
        config=described.config,
        members=[_member(request, view) for view in described.members],
        workers=workers,
        warnings=list(described.warnings),
        light_offset_count=gateway.groups.light_offsets.count(described.view.group),
    )
    return json_answer(request, body)


async def list_light_groups(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Groups that have offsets in light queues, whatever else they are: a page by name. Those that the caller may
    describe. One that is only this is in no other list."""
    query = read_query(ListLightQuery, request, gateway)
    after = "" if query.cursor is None else decode_after(query.cursor)
    found = await gateway.groups.light_offsets.groups(query.prefix or "", after=after, count=query.limit + 1)
    page, access = found[: query.limit], access_of(request)
    body = answers.LightGroupPage(
        groups=[
            answers.LightGroup(name, count) for name, count in page if access.allows(Permission.DESCRIBE, group=name)
        ],
        next_cursor=encode_after(page[-1][0]) if len(found) > len(page) else None,
    )
    return json_answer(request, body)


async def delete_group(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Forget a group, its offsets and leases: 204. Refused with 409 while it has members."""
    group = request.match_info["group"]
    await gateway.groups.delete(group)
    gateway.leases.forget(group)
    for forget in gateway.on_group_deleted:
        forget(group)
    return web.Response(status=204)


async def configure_group(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Change a group's settings; null takes one back to its default. Answers all of them, durably changed."""
    check_accept(request)
    changes = json_object(body) if body.strip() else {}
    if "backoff" in changes:
        changes["backoff_ms"] = changes.pop("backoff")
    return json_answer(request, await gateway.groups.configure(request.match_info["group"], changes))


async def group_lag(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """How far the group is in each partition, and in total. `?topics=a,b` shows some topics only. With `limit` or
    `cursor` a page of the partitions, by topic and number, and the sums of these."""
    group = request.match_info["group"]
    query = read_query(LagQuery, request, gateway)
    topics = query.topics
    if query.limit is not None or query.cursor is not None:
        return await _lag_page(gateway, request, query)
    asked = None if topics is None else [topic for topic in topics.split(",") if is_visible(request, topic)]
    lags = few_a_turn(await gateway.groups.lag(group, asked), per_turn=RENDERED_A_TURN)
    rows = [row async for row in lags if is_visible(request, row.topic)]
    shown = (convert(row, answers.PartitionLag, from_attributes=True) for row in rows)
    total_lag, in_flight = sum(row.lag for row in rows), sum(row.in_flight for row in rows)
    fields = {"group": group, "total_lag": total_lag, "in_flight": in_flight}
    return await packed(request, await list_answer(request, fields, "partitions", shown))


async def _lag_page(gateway: Gateway, request: web.Request, query: LagQuery) -> web.StreamResponse:
    group = request.match_info["group"]
    asked = None if query.topics is None else frozenset(query.topics.split(","))
    key = read_cursor(query.cursor, (str, int, str))
    rows, last = await gateway.groups.lag_page(
        group,
        after=None if key is None else LagKey(*key),  # type: ignore[arg-type]  # of these types, as asked
        limit=query.limit or PAGE_ROWS_DEFAULT,
        shows=lambda topic: (asked is None or topic in asked) and is_visible(request, topic),
    )
    body = answers.GroupLagPage(
        group=group,
        total_lag=sum(row.lag for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        partitions=[convert(row, answers.PartitionLag, from_attributes=True) for row in rows],
        next_cursor=None if last is None else write_cursor(last),
    )
    return await packed(request, json_answer(request, body))


async def lag_history(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """The lag of the group over the last 15 minutes, every 5 s, or over the last day, every minute.

    Kept since the server started, for 1,000 groups; none for the others.
    """
    points = read_query(PointsQuery, request, gateway).points
    group = request.match_info["group"]
    gateway.groups.view(group)
    history = gateway.figures.group_history(group, points)
    step_ms = GROUP_STEP_MS if points == "seconds" else MINUTE_MS
    body = answers.LagHistory(
        group, step_ms, 0 if history is None else history.end_ms, [] if history is None else history.series["lag"]
    )
    return await packed(request, json_answer(request, body))


async def reset_offsets(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Move the group to other offsets of a topic: what was committed, and what is committed now (or would be)."""
    check_accept(request)
    wanted = read_shape(ResetBody, body, gateway)
    access_of(request).check(Permission.RECEIVE, topic=wanted.topic)
    moves = await gateway.groups.reset(
        request.match_info["group"],
        wanted.topic,
        wanted.target(),
        partitions=wanted.partitions,
        dry_run=wanted.dry_run,
        force=wanted.force,
    )
    rows = [answers.Move(move.partition, move.before, move.after) for move in moves]
    return json_answer(request, answers.Moves(wanted.topic, wanted.dry_run, rows))


# Queue mode


async def receive(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Take records on lease: those there are, or the first ones that come within `wait_ms`."""
    is_raw = wants_raw(request.headers)
    if not is_raw:
        check_accept(request)
    asked = read_shape(ReceiveBody, body, gateway).request()
    if is_raw and asked.max_messages != 1:
        raise RequestError(LIMIT_ILLEGAL, "max_messages: must be 1 for an answer without JSON")
    group, caller = request.match_info["group"], caller_of(gateway, request)
    gateway.stats.long_poll_count += 1
    try:
        async with while_allowed(gateway, request):  # who is cancelled gives back what it had leased
            received = await leased(gateway, group, asked, caller)
    finally:
        gateway.stats.long_poll_count -= 1
    text = b"" if is_raw else await leased_as_json(gateway, group, received)
    await check_still(group, asked, caller, gateway.groups, received)
    if not is_raw:
        response = json_answer(request, orjson.Fragment(text))
    else:
        response = _raw(gateway, received.messages[0]) if received.runs else web.Response(status=204)
    await hand_out(gateway, group, asked, caller, received, size_of(response))
    return response


async def leased(gateway: Gateway, group: str, asked: Receive, caller: Caller) -> Received:
    """What a caller gets on lease, of as many bytes as there is room for its answer. Raises as `Groups.receive`, and
    RequestError 403 where it may not receive from all of the topics."""
    return await gateway.groups.receive(group, admitted(gateway, group, asked, caller))


def admitted(gateway: Gateway, group: str, asked: Receive, caller: Caller) -> Receive:
    """What a caller may receive, of as many bytes as there is room for its answer. Raises RequestError 403."""
    check_receives(caller.access, asked.topics, asked.queue)
    gateway.leases.pollers(group).heard(asked.consumer or caller.name, gateway.clock.now_ms())
    room_bytes = caller.allowance.share(min(asked.max_bytes * RENDERED_FACTOR, RECEIVED_BYTES_MAX))
    max_bytes = max(room_bytes // RENDERED_FACTOR, 1)
    return asked if max_bytes == asked.max_bytes else replace(asked, max_bytes=max_bytes)


async def leased_as_json(gateway: Gateway, group: str, received: Received) -> bytes:
    """The answer that tells of leased records. Who is cancelled gives them back."""
    return _as_json(await _shown(gateway, group, received.runs), received.backlog)


def few_as_json(gateway: Gateway, received: Received) -> bytes:
    """The same of RENDERED_A_TURN records at most."""
    return _as_json(delivered_as_list(received.runs, partial(topic_id_of, gateway.routes_table)), received.backlog)


def _as_json(shown: bytes, backlog: int) -> bytes:
    return b'{"messages":[%b],"backlog":%d}' % (shown, backlog)


def check_may_have(group: str, asked: Receive, caller: Caller) -> None:
    """Raises RequestError 403 where a caller may not have what was leased for it any more."""
    check_receives(caller.access, asked.topics, asked.queue)
    caller.access.check(Permission.RECEIVE, group=group)


async def check_still(group: str, asked: Receive, caller: Caller, groups: Groups, received: Received) -> None:
    """What was leased is given back when who asked has gone, or may not receive it any more. Raises RequestError 403
    then."""
    try:
        check_may_have(group, asked, caller)
    except RequestError:
        if received.runs:
            await groups.give_back(group, receipts_of(received.runs))
        raise
    if received.runs and not caller.is_there():
        await groups.give_back(group, receipts_of(received.runs))


async def hand_out(
    gateway: Gateway, group: str, asked: Receive, caller: Caller, received: Received, size_bytes: int
) -> None:
    """Note that a caller is given leased records in an answer of this size. Raises RequestError 503, and they are given
    back, when there is no room for it."""
    if not caller.allowance.hold(size_bytes):
        await gateway.groups.give_back(group, receipts_of(received.runs))
        raise no_room()
    note_handed_out(gateway, group, asked, caller, received, size_bytes)


def note_handed_out(
    gateway: Gateway, group: str, asked: Receive, caller: Caller, received: Received, size_bytes: int
) -> None:
    """A caller is given leased records in an answer of this size, for which there is room."""
    gateway.stats.fetched_byte_count += size_bytes
    if received.runs:
        consumer, pollers, now_ms = asked.consumer or caller.name, gateway.leases.pollers(group), gateway.clock.now_ms()
        for run in received.runs:
            gateway.stats.fetched_record_count += len(run.receipts)
            pollers.took(consumer, run.receipts, run.until_ms, now_ms)


async def _shown(gateway: Gateway, group: str, runs: Sequence[Run]) -> bytes:
    """What was leased, rendered in turns of the event loop, with commas between. Who is cancelled gives it back."""
    id_of = partial(topic_id_of, gateway.routes_table)
    count = sum([len(run.receipts) for run in runs])
    if count <= RENDERED_A_TURN:
        return delivered_as_list(runs, id_of)
    shown: list[bytes] = []
    for first in range(0, count, RENDERED_A_TURN):
        if first:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                await gateway.groups.give_back(group, receipts_of(runs))
                raise
        shown.append(delivered_as_list(cut(runs, first, first + RENDERED_A_TURN), id_of))
    return b",".join(shown)


async def ack(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Done with records: by receipt, or all that are on lease in a partition up to an offset. Durable when answered."""
    check_accept(request)
    group = _group_named(request)
    if len(body) > SMALL_BODY_BYTES_MAX:  # receipts: what is "up_to" somewhere is short
        return await _acked(gateway, request, group, read_shape(AckReceipts, body, gateway))
    wanted = json_object(body) if body.strip() else {}
    if "up_to" not in wanted:
        return await _acked(gateway, request, group, load(AckReceipts, wanted, gateway.limits))
    up_to = load(AckUpTo, wanted, gateway.limits).up_to
    access_of(request).check(Permission.RECEIVE, topic=up_to.topic)
    count = await gateway.groups.ack_up_to(group, TopicPartition(up_to.topic, up_to.partition), up_to.offset)
    gateway.leases.settled_up_to(group, up_to.topic, up_to.partition, up_to.offset)
    return json_answer(request, answers.Acked(count))


async def nack(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Give records back: to be delivered again after `delay_ms`, or as the group's back-off table says."""
    check_accept(request)
    return await _settled(gateway, request, read_shape(NackBody, body, gateway))


async def reject(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Never hand records out again: they go to the dead-letter topic. Durable when answered."""
    check_accept(request)
    return await _settled(gateway, request, read_shape(RejectBody, body, gateway))


async def extend(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Keep records longer: the leases end `invisible_ms` from now, under new receipts."""
    check_accept(request)
    return await _settled(gateway, request, read_shape(ExtendBody, body, gateway))


# Dead letters


async def dead_letters(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One page of the group's dead letters, with where they came from and why. From `offset` on, else from the first
    that was not sent back. A page ends early when it is large. For those who may receive from every topic that they
    came from."""
    query = read_query(DeadLettersQuery, request, gateway)
    limit = query.limit
    group = request.match_info["group"]
    topic_partition = TopicPartition(dead_letter_topic(group), 0)
    access_of(request).check(Permission.RECEIVE, topic=topic_partition.topic)
    try:
        bounds = await gateway.consumer.bounds(*topic_partition)
    except UnknownQueue:
        gateway.groups.describe(group)  # an unknown group is told apart from one without dead letters
        return json_answer(request, {"messages": [], "next_offset": None, "total": 0})
    (committed,) = await gateway.groups.committed(group, [topic_partition])
    first = max(bounds.min_offset, committed.offset or 0)
    settled = gateway.groups.settled_letters(group)
    start = max(first if query.offset is None else query.offset, bounds.min_offset)
    shown: list[dict[str, object]] = []
    size = 0
    while start < bounds.max_offset and len(shown) < limit and size < PAGE_BYTES_MAX:
        fetched = await gateway.consumer.fetch(*topic_partition, start, max_bytes=gateway.limits.fetch_bytes_default)
        access_of(request).check(Permission.RECEIVE, topic=topic_partition.topic)  # see `fetch_or_wait`
        for entry in fetched.entries:
            for piece in record_batch.decode_in_pieces(entry.batch):
                for record in piece:
                    if record.offset >= start and len(shown) < limit and size < PAGE_BYTES_MAX:
                        start = record.offset + 1
                        if record.offset in settled:
                            continue
                        size += len(record.value or b"")
                        shown.append(_dead_letter(record, json_values=entry.json_values))
                await others_turn()
        if not fetched.entries or sum(entry.size for entry in fetched.entries) >= gateway.limits.fetch_bytes_default:
            break
    body = {
        "messages": shown,
        "next_offset": start if start < bounds.max_offset else None,
        "total": bounds.max_offset - first - settled.count(first, bounds.max_offset),
    }
    return json_answer(request, body)


async def redrive(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Hand dead letters out to the group again, the oldest first, as if never delivered. Durable when answered."""
    check_accept(request)
    wanted = read_shape(RedriveBody, body, gateway)
    count = REDRIVE_MAX if wanted.max_messages is None else wanted.max_messages
    group = request.match_info["group"]
    access_of(request).check(Permission.RECEIVE, topic=dead_letter_topic(group))
    try:
        redriven = await gateway.groups.redrive(group, count)
    except UnknownQueue:
        gateway.groups.describe(group)
        redriven = 0
    return json_answer(request, answers.Redriven(redriven))


async def settle_letters(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Send dead letters back to the group, or have them gone, by their offsets; what became of each, in the order
    asked. Durable when answered. To have them gone takes the right to delete the group, too."""
    check_accept(request)
    wanted = read_shape(SettleLettersBody, body, gateway)
    group = request.match_info["group"]
    access_of(request).check(Permission.RECEIVE, topic=dead_letter_topic(group))
    if wanted.action == "purge":
        access_of(request).check(Permission.DELETE, group=group)
    settled = await gateway.groups.settle_letters(group, wanted.offsets, redrive=wanted.action == "redrive")
    rows = [
        answers.LetterResult(offset, True)
        if ok
        else answers.LetterResult(offset, False, MESSAGE_NOT_FOUND, "No such dead letter, or it is settled already.")
        for offset, ok in zip(wanted.offsets, settled, strict=True)
    ]
    return json_answer(request, answers.LetterResults(rows))


# Rendering


def _raw(gateway: Gateway, message: Delivered) -> web.Response:
    topic_id = topic_id_of(gateway.routes_table, message.topic)
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


def _summary(request: web.Request, view: GroupView) -> answers.GroupSummary:
    topics = [topic for topic in view.topics if is_visible(request, topic)]
    return answers.GroupSummary(view.group, view.state, view.generation, view.member_count, topics)


def _member(request: web.Request, view: MemberView) -> answers.GroupMember:
    wish = view.member.subscription
    return answers.GroupMember(
        member_id=view.member.member_id,
        topics=sorted(topic for topic in wish.topics if is_visible(request, topic)),
        topic_pattern=wish.pattern,
        session_timeout_ms=view.member.session_timeout_ms,
        heard_ago_ms=view.heard_ago_ms,
        room=view.member.room or None,
        assigned=_partitions(request, view.share.assigned),
        revoking=_partitions(request, view.share.revoking),
    )


def _partitions(request: web.Request, partitions: Sequence[Partition]) -> list[answers.TopicPartition]:
    return [answers.TopicPartition(one.topic, one.partition) for one in partitions if is_visible(request, one.topic)]


async def _acked(gateway: Gateway, request: web.Request, group: str, wanted: AckReceipts) -> web.Response:
    results = await uncancelled(begin_ack(gateway.groups, gateway.leases, group, wanted.receipts))
    return json_answer(request, orjson.Fragment(results_as_answer(results)))


async def _settled(gateway: Gateway, request: web.Request, wanted: NackBody | RejectBody | ExtendBody) -> web.Response:
    results = await settle(gateway.groups, gateway.clock, gateway.leases, _group_named(request), wanted)
    return json_answer(request, orjson.Fragment(results_as_answer(results)))


def results_as_answer(results: Sequence[Settled]) -> bytes:
    """What became of receipts, in the order asked."""
    return b'{"results":%b}' % settled_as_list(results)


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
        "queue": None if origin is None else origin.queue,
        "delivery_attempts": None if origin is None else origin.attempts,
        "reason": None if reason is None else reason.decode("utf-8", "replace"),
        "dead_lettered_at": int(at) if at is not None and at.isdigit() and len(at) < 16 else None,
        "timestamp": record.timestamp,
        **render_parts(
            record.key,
            record.value,
            shown_headers(record.headers),
            None,
            json_values=json_values,
            raw_keys=origin is not None and origin.raw_keys,
        ),
    }


# Reading requests


def _group_named(request: web.Request) -> str:
    """The group of the path. Raises IllegalRequest for a name that no group can have."""
    group = request.match_info["group"]
    check_group_name(group)
    return group


def wants_raw(headers: Mapping[str, str]) -> bool:
    """Whether who receives wants the bytes of a record rather than JSON."""
    return next(iter(preferred_types(headers.get(hdrs.ACCEPT, "*/*"))), "") == OCTETS
