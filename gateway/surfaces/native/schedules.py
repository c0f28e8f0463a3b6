"""Delayed records that have not fired yet: list, look at, cancel, move, fire now.

Every change is durable before it is answered, and the answer is exact: done, 409/40950 (delivered already), or
404/40450 (no such schedule: cancelled, moved to another id, or never accepted). A moved schedule has a new id; the
answer names it. With `?topic=` what the path names is no id but the schedule key of a schedule of that topic, which a
move does not change; once the schedule is over nothing has the key (404).

A schedule is where its record will go: what a caller may do to it is what it may do to that topic, and that is asked
before anything is told of it. To who may not see the topic there is no such schedule. Lists and counts are of topics
the caller may see.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import orjson
from aiohttp import web
from msgspec.structs import asdict

from gateway.api.errors import error_of
from gateway.api.merged import AT
from gateway.api.shapes import answers
from gateway.api.shapes.base import load
from gateway.api.shapes.queries import (
    BUCKETS_DEFAULT,
    BUCKETS_MAX,
    CancelSchedulesQuery,
    GetScheduleQuery,
    HistogramQuery,
    ListSchedulesQuery,
    OneScheduleQuery,
)
from gateway.api.shapes.schedules import BatchBody, MoveBy, MoveTo
from gateway.auth.access import OPEN, Permission
from gateway.cluster.timer_shard import shard_at
from gateway.codec.json_text import parse_json
from gateway.codec.records import stored_forms
from gateway.codec.schedule_ids import split_node, with_node
from gateway.codec.tags import QUEUES_HEADER, SCHEDULE_KEY_HEADER, TAG_HEADER
from gateway.codec.times import TIME_MS_MAX
from gateway.errors import DELAY_ILLEGAL, LIMIT_ILLEGAL, OVERLOADED, RequestError, bad_request, invalid
from gateway.routing.base import TopicView
from gateway.surfaces.http.answers import check_accept, json_answer, packed
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.forwarding import for_node
from gateway.surfaces.http.reading import read_query, read_shape
from store.errors import StoreError, UnknownQueue
from timer.changes import Standing
from timer.changing import Outcome
from timer.schedule import ScheduleId, decode_schedule_id
from timer.schedules import Census, DuePage, DuePosition, Page, Schedule
from timer.schedules import Query as ScheduleQuery

CURSOR_ILLEGAL = 40050
SCHEDULE_NOT_FOUND = 40450
SCHEDULE_DELIVERED = 40950

BATCH_MS = 10_000
"""How long schedules of a batch are looked for: those that have rolled or moved take a search each."""

_HISTOGRAM_SPAN_MS = 3_600_000
_BOUNDS = re.compile("(?:(?P<count>[0-9]{1,18})x)?(?P<ms>[0-9]{1,18})")


class ScheduleAdmin(Protocol):
    """What a timer lets clients do with its schedules; `timer.service.TimerService` is one. Errors are StoreErrors."""

    @property
    def pending_count(self) -> int:
        """How many schedules are pending."""
        ...

    def pending_counts(self) -> Mapping[int, int]:
        """How many are pending, by topic id."""
        ...

    async def named(self, topic_id: int, key: bytes) -> ScheduleId | None:
        """The pending schedule of a topic that has a schedule key."""
        ...

    async def find(self, schedule: ScheduleId) -> tuple[Standing, Schedule | None]:
        """What has become of a schedule, and the schedule while it is pending."""
        ...

    async def topic_of(self, schedule: ScheduleId) -> int | None:
        """The topic of a schedule, pending or not; None when nothing is known of it."""
        ...

    async def page(self, query: ScheduleQuery, *, cursor: int = 0, limit: int) -> Page:
        """Pending schedules, in the order of acceptance."""
        ...

    async def page_by_due(self, query: ScheduleQuery, *, after: DuePosition | None, limit: int) -> DuePage:
        """Pending schedules, the first due first."""
        ...

    async def census(self, query: ScheduleQuery, bounds_ms: Sequence[int]) -> Census:
        """How many are due between each two of the bounds."""
        ...

    async def count(self, query: ScheduleQuery) -> int:
        """How many are pending and meant, whatever their key."""
        ...

    async def cancel(self, schedule: ScheduleId) -> Outcome:
        """Consume a schedule without delivering it; durable on return."""
        ...

    async def cancel_all(self, query: ScheduleQuery) -> int:
        """Cancel what a query finds; how many."""
        ...

    async def move(self, schedule: ScheduleId, due_ms: int) -> Outcome:
        """Give a schedule another due time; durable on return."""
        ...

    async def fire(self, schedule: ScheduleId) -> Outcome:
        """Deliver a schedule now; durable on return."""
        ...


SCHEDULES = web.AppKey("schedules", ScheduleAdmin)


async def list_schedules(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """One page of pending schedules, in the order of acceptance, or with `order=due` the first due first.

    A `key` needs its `topic`: there is no index of keys. What is accepted while a client turns pages in the order of
    due times may show some seconds later. `total` is exact; null where it would be counted anew for each page: when
    there is more than one page of a key, and behind the first page of a time range.
    A page may be short, even empty, and still have a `next_cursor`.
    """
    asked = read_query(ListSchedulesQuery, request, gateway)
    with_value = asked.include is not None
    needed = (Permission.DESCRIBE, Permission.RECEIVE) if with_value else (Permission.DESCRIBE,)
    if asked.key is not None and asked.topic is None:
        raise invalid("key: needs a topic")
    query = _schedule_query(gateway, request, asked, needed)
    timer = request.app[SCHEDULES]
    if asked.order == "due":
        by_due = await timer.page_by_due(query, after=_due_position(asked.cursor), limit=asked.limit)
        schedules, after = by_due.schedules, by_due.next_after
        stand_at = [f"{due_ms}.{position}" for due_ms, position in by_due.positions]
        next_cursor = None if after is None else f"{after.due_ms}.{after.position}"
    else:
        page = await timer.page(query, cursor=_cursor(asked.cursor), limit=asked.limit)
        schedules = page.schedules
        stand_at = list(map(str, page.positions))
        next_cursor = None if page.next_cursor is None else str(page.next_cursor)
    is_first = asked.cursor is None
    rows = [_row(gateway, schedule, with_value) for schedule in schedules]
    if for_node(request):
        rows = [row | {AT: at} for row, at in zip(rows, stand_at, strict=True)]
    body = {
        "schedules": rows,
        "next_cursor": next_cursor,
        "total": len(schedules) if is_first and next_cursor is None else await _total(timer, query, is_first=is_first),
    }
    return await packed(request, json_answer(request, body))


async def get_schedule(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One pending schedule, with `include=value` its value too."""
    asked = read_query(GetScheduleQuery, request, gateway)
    schedule_id = await _schedule_id(gateway, request, asked.topic, Permission.RECEIVE)
    standing, schedule = await request.app[SCHEDULES].find(schedule_id)
    if schedule is None:
        raise _gone(standing)
    return json_answer(request, _row(gateway, schedule, asked.include is not None))


async def cancel_schedule(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Cancel one schedule: 204."""
    _done(await request.app[SCHEDULES].cancel(await _changeable(gateway, request)))
    return web.Response(status=204)


async def cancel_schedules(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Cancel the schedules of a topic, or those of them that are due in a time range or have a key."""
    check_accept(request)
    asked = read_query(CancelSchedulesQuery, request, gateway)
    cancelled_count = await request.app[SCHEDULES].cancel_all(
        _schedule_query(gateway, request, asked, (Permission.SEND,))
    )
    return json_answer(request, answers.Cancelled(cancelled_count))


async def move_schedule(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Give a schedule another due time; it gets another id."""
    check_accept(request)
    schedule = await _changeable(gateway, request)
    due_ms = _due_ms(gateway, body)
    moved = _done(await request.app[SCHEDULES].move(schedule, due_ms)).schedule
    return json_answer(request, answers.Moved(_text(gateway, moved), moved.due_ms))


async def fire_schedule(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Deliver a schedule now; answered when it is in its partition."""
    check_accept(request)
    fired = _done(await request.app[SCHEDULES].fire(await _changeable(gateway, request)))
    return json_answer(request, _fired(gateway, fired))


def _fired(gateway: Gateway, fired: Outcome) -> answers.Fired:
    assert fired.target is not None
    view = _topic_of(gateway, fired.target.topic_id)
    return answers.Fired(None if view is None else view.name, fired.target.partition, fired.offset)


async def histogram(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """How many schedules are due in each of `buckets` equal parts of [from, to): by default of the next hour.

    Or between each two of some `bounds`, which need not be equally far apart.
    """
    asked = read_query(HistogramQuery, request, gateway)
    query = ScheduleQuery(_topic_ids(gateway, request, asked.topic, (Permission.DESCRIBE,)))
    timer = request.app[SCHEDULES]
    if asked.bounds is not None:
        if asked.from_ is not None or asked.to is not None or asked.buckets is not None:
            raise invalid("bounds: come instead of from, to and buckets")
        bounds_ms = _bounds_ms(asked.bounds)
        counts, overdue, rolled = await timer.census(query, bounds_ms)
        between = answers.HistogramOfBounds(
            counts=counts, total=sum(counts), overdue=overdue, rolled=rolled, bounds=bounds_ms
        )
        return json_answer(request, between)
    bucket_count = BUCKETS_DEFAULT if asked.buckets is None else asked.buckets
    from_ms = gateway.clock.now_ms() if asked.from_ is None else asked.from_
    to_ms = from_ms + _HISTOGRAM_SPAN_MS if asked.to is None else asked.to
    if to_ms <= from_ms:
        raise invalid("to: must be after from")
    bucket_ms = -(-(to_ms - from_ms) // bucket_count)
    bounds_ms = [min(from_ms + number * bucket_ms, to_ms) for number in range(bucket_count + 1)]
    counts, overdue, rolled = await timer.census(query, bounds_ms)
    body = answers.Histogram(
        counts=counts, total=sum(counts), overdue=overdue, rolled=rolled, from_=from_ms, bucket_ms=bucket_ms
    )
    return json_answer(request, body)


async def change_schedules(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Cancel, move or fire up to 1,000 schedules; what became of each, in the order asked. What is done is durable when
    answered; the changes share their writes. What takes longer than 10 s is left undone, and says so."""
    check_accept(request)
    asked = read_shape(BatchBody, body, gateway)
    now_ms = gateway.clock.now_ms()
    due_ms = asked.due_ms(now_ms)
    if due_ms is not None:
        _check_due(gateway, due_ms, now_ms)
    timer = request.app[SCHEDULES]
    by_ = asyncio.get_running_loop().time() + BATCH_MS / 1000

    async def change(named: str) -> dict[str, object]:
        try:
            async with asyncio.timeout_at(by_):
                schedule = await _named_id(gateway, request, named, Permission.SEND)
            if asyncio.get_running_loop().time() > by_:
                raise TimeoutError
            match asked.action:
                case "cancel":
                    _done(await timer.cancel(schedule))
                    shown: dict[str, object] = {}
                case "move":
                    assert due_ms is not None
                    moved = _done(await timer.move(schedule, due_ms)).schedule
                    shown = {"new_schedule_id": _text(gateway, moved), "deliver_at": moved.due_ms}
                case _:
                    shown = asdict(_fired(gateway, _done(await timer.fire(schedule))))
        except TimeoutError:
            return _undone(named, RequestError(OVERLOADED, "Not looked at: the others took too long. Try again."))
        except (RequestError, StoreError) as error:
            return _undone(named, error_of(error))
        return {"schedule_id": named, "ok": True, **shown}

    results = await asyncio.gather(*map(change, asked.schedule_ids))
    return json_answer(request, {"results": results})


def _undone(named: str, error: RequestError) -> dict[str, object]:
    return {"schedule_id": named, "ok": False, "error_code": error.error_code, "error": error.message}


def _bounds_ms(text: str) -> list[int]:
    """Raises RequestError unless these are 2 to BUCKETS_MAX + 1 times none of which is before the one before it."""
    first, *rest = text.split(",")
    parts = [_BOUNDS.fullmatch(part) for part in rest]
    if not _is_number(first) or not all(parts):
        raise bad_request("bounds: must be epoch milliseconds, or steps on as in 24x3600000, with commas between them")
    runs = [(part["count"], int(part["ms"])) for part in parts if part]
    if not 2 <= 1 + sum(int(count or 1) for count, _ in runs) <= BUCKETS_MAX + 1:
        raise RequestError(LIMIT_ILLEGAL, f"bounds: must be from 2 to {BUCKETS_MAX + 1}")
    bounds_ms = [int(first)]
    for count, ms in runs:
        if count is None:
            bounds_ms.append(ms)
        else:
            bounds_ms += [bounds_ms[-1] + ms * number for number in range(1, int(count) + 1)]
    if bounds_ms[-1] > TIME_MS_MAX or any(one > other for one, other in pairwise(bounds_ms)):
        raise invalid("bounds: must not fall, and be times")
    return bounds_ms


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


async def _schedule_id(gateway: Gateway, request: web.Request, topic: str | None, needed: Permission) -> ScheduleId:
    """The schedule of the path: its id or, with `?topic=`, its key in that topic. Raises RequestError, UnknownQueue."""
    named = request.match_info["schedule"]
    if topic is not None:
        access_of(request).check(needed, topic=topic)
        topic_id = gateway.routes_table.topic(topic).topic_id
        if (found := await request.app[SCHEDULES].named(topic_id, named.encode("utf-8", "surrogateescape"))) is None:
            raise _gone(Standing.UNKNOWN)
        return found
    return await _named_id(gateway, request, named, needed)


async def _named_id(gateway: Gateway, request: web.Request, named: str, needed: Permission) -> ScheduleId:
    """The schedule of an id, if the caller may do this to it. Raises RequestError."""
    node, named = split_node(named)
    if node is not None and (gateway.cluster is None or node != gateway.cluster.name):
        raise RequestError(SCHEDULE_NOT_FOUND, f"This schedule belongs to node {node}: ask it by its own path.")
    try:
        schedule_id = decode_schedule_id(named)
    except ValueError:
        raise _gone(Standing.UNKNOWN) from None
    if access_of(request) is not OPEN:
        await _check(gateway, request, schedule_id, needed)
    return schedule_id


async def _changeable(gateway: Gateway, request: web.Request) -> ScheduleId:
    """The schedule of the path, which the caller may change as it may send to its topic."""
    topic = read_query(OneScheduleQuery, request, gateway).topic
    return await _schedule_id(gateway, request, topic, Permission.SEND)


async def _check(gateway: Gateway, request: web.Request, schedule_id: ScheduleId, needed: Permission) -> None:
    """Raises RequestError unless the caller may do this to the schedule's topic, whatever became of the schedule."""
    timer, access = request.app[SCHEDULES], access_of(request)
    topic_id = await timer.topic_of(schedule_id)
    if topic_id is None:
        _, schedule = await timer.find(schedule_id)  # one that has rolled so often that its first entry is gone
        if schedule is None:
            raise _gone(Standing.UNKNOWN)
        topic_id = schedule.topic_id
    view = _topic_of(gateway, topic_id)
    if view is None:  # deleted: no client has rights on it, nor is to learn that it was there
        if not access.allows(Permission.OPERATE):
            raise _gone(Standing.UNKNOWN)
    elif access.allows(Permission.DESCRIBE, topic=view.name):
        access.check(needed, topic=view.name)
    elif not access.allows(needed, topic=view.name):
        raise _gone(Standing.UNKNOWN)


def _gone(standing: Standing) -> RequestError:
    if standing is Standing.DELIVERED:
        return RequestError(SCHEDULE_DELIVERED, "The schedule has been delivered already.")
    return RequestError(SCHEDULE_NOT_FOUND, "Schedule not found: cancelled, moved, or never accepted.")


def _done(outcome: Outcome) -> Outcome:
    if outcome.standing is not Standing.PENDING:
        raise _gone(outcome.standing)
    return outcome


def _schedule_query(
    gateway: Gateway,
    request: web.Request,
    asked: ListSchedulesQuery | CancelSchedulesQuery,
    needed: Sequence[Permission],
) -> ScheduleQuery:
    keys: frozenset[bytes] | None = None
    topic_ids = _topic_ids(gateway, request, asked.topic, needed)
    if asked.key is not None:
        raw_keys = asked.topic is not None and gateway.routes_table.topic(asked.topic).raw_keys
        keys = stored_forms(asked.key, raw_keys=raw_keys)
    return ScheduleQuery(topic_ids, asked.from_ or 0, asked.to, keys)


def _topic_ids(
    gateway: Gateway, request: web.Request, name: str | None, needed: Sequence[Permission]
) -> frozenset[int] | None:
    """The topic that is asked for, or those that the caller may ask for; None: all. Raises UnknownQueue, or 403."""
    access = access_of(request)
    if name is not None:
        for permission in needed:
            access.check(permission, topic=name)
        return frozenset((gateway.routes_table.topic(name).topic_id,))
    if access is OPEN:
        return None
    return frozenset(
        view.topic_id
        for view in gateway.routes_table.topics()
        if all(access.allows(permission, topic=view.name) for permission in needed)
    )


def _topic_of(gateway: Gateway, topic_id: int) -> TopicView | None:
    try:
        return gateway.routes_table.by_id(topic_id)
    except UnknownQueue:
        return None


def _cursor(text: str | None) -> int:
    if text is None:
        return 0
    if not _is_number(text):
        raise RequestError(CURSOR_ILLEGAL, "cursor: not one that a page has named")
    return int(text)


def _due_position(text: str | None) -> DuePosition | None:
    if text is None:
        return None
    due_ms, dot, position = text.partition(".")
    if not dot:
        raise RequestError(CURSOR_ILLEGAL, "cursor: not one that a page in this order has named")
    return DuePosition(_cursor(due_ms), _cursor(position))


async def _total(timer: ScheduleAdmin, query: ScheduleQuery, *, is_first: bool) -> int | None:
    if query.keys is not None:
        return None
    if query.from_ms == 0 and query.to_ms is None:
        if query.topic_ids is None:
            return timer.pending_count
        counts = timer.pending_counts()
        return sum(counts.get(topic_id, 0) for topic_id in query.topic_ids)
    if not is_first:
        return None
    return await timer.count(query)


def _text(gateway: Gateway, schedule: ScheduleId) -> str:
    """The id as clients know it: of one that is in a shard it names no node."""
    is_of_node = gateway.cluster is not None and shard_at(schedule.position) is None
    return with_node(gateway.cluster.name if is_of_node and gateway.cluster is not None else None, schedule.text)


def _row(gateway: Gateway, schedule: Schedule, with_value: bool) -> dict[str, object]:
    picked = schedule.record
    record = picked.record
    tag, schedule_key, queues = (
        next((content for own, content in record.headers if own == name), None)
        for name in (TAG_HEADER, SCHEDULE_KEY_HEADER, QUEUES_HEADER)
    )
    view = _topic_of(gateway, schedule.topic_id)
    row: dict[str, object] = {
        "schedule_id": _text(gateway, schedule.id),
        "topic": None if view is None else view.name,
        "partition": schedule.partition,
        **(
            _shown_raw(record.key)
            if view is not None and view.raw_keys
            else _shown("key", record.key, picked.json_values)
        ),
        "tag": None if tag is None else tag.decode(),
        "schedule_key": None if schedule_key is None else schedule_key.decode(),
        "deliver_at": schedule.id.due_ms,
        "created_at": schedule.accepted_ms,
        "timestamp": record.timestamp_ms,
        "size": schedule.size_bytes,
        "state": "pending",
    }
    if queues is not None:
        row["queues"] = orjson.Fragment(queues)
    return row | _shown("value", record.value, picked.json_values) if with_value else row


def _shown_raw(key: bytes | None) -> dict[str, object]:
    try:
        return {"key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        return _shown("key", key, False)


def _shown(name: str, content: bytes | None, is_json: bool) -> dict[str, object]:
    """JSON as it is, other bytes in base64 under a name that says so."""
    if content is None or is_json:
        return {name: None if content is None else orjson.Fragment(content)}
    return {f"{name}_base64": base64.b64encode(content).decode("ascii")}


def _due_ms(gateway: Gateway, body: bytes) -> int:
    """The due time that a move asks for."""
    asked = parse_json(body)
    if not isinstance(asked, dict) or len(asked) != 1 or not asked.keys() <= {"deliver_at", "delay_ms"}:
        raise bad_request('The body must be {"deliver_at": ...} or {"delay_ms": ...}.')
    now_ms, limits = gateway.clock.now_ms(), gateway.limits
    shape: type[MoveTo] | type[MoveBy] = MoveTo if "deliver_at" in asked else MoveBy
    due_ms = load(shape, asked, limits).due_ms(now_ms)
    _check_due(gateway, due_ms, now_ms)
    return due_ms


def _check_due(gateway: Gateway, due_ms: int, now_ms: int) -> None:
    """Raises RequestError for a time that is too far."""
    if due_ms - now_ms > gateway.limits.delay_ms_max:
        raise RequestError(DELAY_ILLEGAL, f"a delay must be between 0 and {gateway.limits.delay_ms_max} ms")
