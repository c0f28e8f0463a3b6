"""Recurring schedules: records that the server sends by itself, every so long or by a cron expression.

Every change is durable before it is answered. A recurring schedule is where its records go: what a caller may do to it
is what it may do to that topic, and to who may not see the topic there is no such schedule.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Protocol

import msgspec
from aiohttp import web

from gateway.api.shapes import recurring as shapes
from gateway.api.shapes.queries import ListRecurringQuery
from gateway.api.shapes.recurring import NAME_CHARS_MAX, NAME_PATTERN, RecurringBody
from gateway.auth.access import Permission
from gateway.codec.native import parse_objects
from gateway.codec.records import ProduceRecord, render_parts
from gateway.errors import FORBIDDEN, RECORD_TOO_LARGE, RECURRING_NOT_FOUND, RequestError, invalid
from gateway.recurring.definitions import Definition, Recurring, RecurringRecord
from gateway.surfaces.http.answers import check_accept, json_answer
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import read_query, read_shape
from store.errors import UnknownQueue

_NAME = re.compile(NAME_PATTERN, re.ASCII)
_ROWS_PER_TURN = 50
"""A next due time of cron takes up to 0.15 ms."""

_NOT_OF_RECURRING = ("timestamp", "delay_ms", "deliver_at", "msg_id", "schedule_key")


class Table(Protocol):
    """The recurring schedules that are here; `gateway.recurring.definitions.RecurringTable` is one."""

    def find(self, name: str) -> Recurring | None:
        """The one of this name, if there is one. Raises Overloaded while that is not known."""
        ...

    def names(self, *, after: str = "") -> list[str]:
        """The names behind one, sorted."""
        ...


class RecurringAdmin(Protocol):
    """What clients do with recurring schedules; `gateway.recurring.service.RecurringSchedules` is one. Errors are
    StoreErrors."""

    @property
    def table(self) -> Table:
        """What there is."""
        ...

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why a schedule that is due does not fire, by name."""
        ...

    async def put(self, name: str, definition: Definition, paused: bool | None) -> tuple[Recurring, bool]:
        """Have one of this name; whether it is new. Durable on return."""
        ...

    async def pause(self, name: str, paused: bool) -> Recurring:
        """Have one rest, or go on. Durable on return."""
        ...

    async def delete(self, name: str) -> None:
        """Have none of this name. Durable on return."""
        ...


RECURRING = web.AppKey("recurring", RecurringAdmin)


async def put_recurring(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Create or replace a recurring schedule: 201, or 200 when there was one. The same definition again changes
    nothing. Due times of a rule that is replaced do not count as missed."""
    check_accept(request)
    name = request.match_info["recurring"]
    if not _NAME.fullmatch(name):
        raise invalid(f"recurring: a name is 1 to {NAME_CHARS_MAX} of the characters A-Z a-z 0-9 . _ % -")
    shape = read_shape(RecurringBody, body, gateway)
    access, admin = access_of(request), request.app[RECURRING]
    access.check(Permission.SEND, topic=shape.topic)
    old = admin.table.find(name)
    if old is not None and not access.allows(Permission.SEND, topic=old.definition.topic):
        raise RequestError(FORBIDDEN, f"Not allowed: replace the recurring schedule {name}.")
    rule = shape.rule(None if old is None else old.definition.rule, gateway.clock.now_ms())
    definition = Definition(shape.topic, _record(gateway, shape), rule, shape.missed)
    recurring, is_new = await admin.put(name, definition, shape.paused)
    return json_answer(request, _row(gateway, request, recurring, True), status=201 if is_new else 200)


async def get_recurring(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One recurring schedule, its record, and when it is due next."""
    return json_answer(request, _row(gateway, request, _found(request, Permission.RECEIVE), True))


async def list_recurring(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One page of the recurring schedules, by name."""
    asked = read_query(ListRecurringQuery, request, gateway)
    access, table = access_of(request), request.app[RECURRING].table
    needed = [Permission.DESCRIBE] if asked.include is None else [Permission.DESCRIBE, Permission.RECEIVE]
    if asked.topic is not None:
        for permission in needed:
            access.check(permission, topic=asked.topic)
    rows: list[dict[str, object]] = []
    next_cursor = None
    for name in table.names(after=asked.cursor or ""):
        if (recurring := table.find(name)) is None:
            continue  # deleted in one of the pauses below
        topic = recurring.definition.topic
        if asked.topic not in (None, topic) or not all(access.allows(one, topic=topic) for one in needed):
            continue
        if len(rows) == asked.limit:
            next_cursor = rows[-1]["name"]
            break
        rows.append(_row(gateway, request, recurring, asked.include is not None))
        if len(rows) % _ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
    return json_answer(request, {"recurring": rows, "next_cursor": next_cursor})


async def delete_recurring(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Delete a recurring schedule: 204. What it has sent stays."""
    await request.app[RECURRING].delete(_found(request, Permission.SEND).name)
    return web.Response(status=204)


async def pause_recurring(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Let a recurring schedule rest. What would be due meanwhile is neither sent nor missed."""
    return await _paused(gateway, request, True)


async def resume_recurring(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Let a recurring schedule go on with the next due time from now on."""
    return await _paused(gateway, request, False)


async def _paused(gateway: Gateway, request: web.Request, paused: bool) -> web.Response:
    check_accept(request)
    recurring = await request.app[RECURRING].pause(_found(request, Permission.SEND).name, paused)
    is_shown = access_of(request).allows(Permission.RECEIVE, topic=recurring.definition.topic)
    return json_answer(request, _row(gateway, request, recurring, is_shown))


def _found(request: web.Request, needed: Permission) -> Recurring:
    """The recurring schedule of the path. Raises RequestError."""
    recurring = request.app[RECURRING].table.find(request.match_info["recurring"])
    access = access_of(request)
    if recurring is not None:
        topic = recurring.definition.topic
        if access.allows(Permission.DESCRIBE, topic=topic):
            access.check(needed, topic=topic)
        if access.allows(needed, topic=topic):
            return recurring
    raise RequestError(RECURRING_NOT_FOUND, "There is no such recurring schedule.")


def _record(gateway: Gateway, shape: RecurringBody) -> RecurringRecord:
    """The record of a body. Raises RequestError, UnknownQueue."""
    view = gateway.routes_table.topic(shape.topic)
    given = shape.record
    if isinstance(given, dict):
        for name in _NOT_OF_RECURRING:
            if given.get(name) is not None:
                raise invalid(f"record.{name}: a recurring record has none; its timestamp is its due time")
    parsed = parse_objects([given], raw_keys=view.raw_keys)
    record = parsed.records[0]
    if not isinstance(record, ProduceRecord):
        raise RequestError(record.error_code, f"record: {record.message}")
    kept = RecurringRecord(
        record.key, record.value, tuple(record.headers), record.partition, record.tag, record.message_group,
        parsed.json_values, tuple(name.decode() for name in record.queues or ()),
    )  # fmt: skip
    bytes_max = gateway.limits.recurring_record_bytes_max
    if kept.size_bytes > bytes_max:
        raise RequestError(RECORD_TOO_LARGE, f"record: has {kept.size_bytes} bytes; a recurring one takes {bytes_max}")
    for refused in gateway.producer.refusals(shape.topic, (record,)).values():
        raise refused
    gateway.producer.check_light(shape.topic, record)
    return kept


def _row(gateway: Gateway, request: web.Request, recurring: Recurring, with_record: bool) -> dict[str, object]:
    definition = recurring.definition
    rule = definition.rule
    is_cron = rule.cron is not None
    row: dict[str, object] = msgspec.to_builtins(
        shapes.Recurring(
            name=recurring.name,
            topic=definition.topic,
            every_ms=rule.every_ms,
            anchor=None if is_cron else rule.anchor_ms,
            cron=rule.cron,
            tz=rule.zone if is_cron else None,
            missed=definition.missed,
            paused=recurring.paused,
            version=recurring.version,
            next_at=recurring.next_due_ms(),
            last_at=recurring.last_due_ms,
            last_partition=recurring.partition,
            last_offset=recurring.offset,
            delivered_count=recurring.delivered_count,
            missed_count=recurring.missed_count,
            created_at=recurring.created_ms,
            updated_at=recurring.updated_ms,
            error=request.app[RECURRING].troubles.get(recurring.name),
        )
    )
    return row | {"record": _shown(gateway, definition)} if with_record else row


def _shown(gateway: Gateway, definition: Definition) -> dict[str, object]:
    """The record in the form in which it may be sent."""
    record = definition.record
    try:
        raw_keys = gateway.routes_table.topic(definition.topic).raw_keys
    except UnknownQueue:
        raw_keys = False
    shown = render_parts(
        record.key, record.value, record.headers, None, json_values=record.json_values, raw_keys=raw_keys
    )
    chosen: dict[str, object] = {
        "partition": record.partition,
        "tag": record.tag,
        "message_group": record.message_group,
        "queues": list(record.queues) or None,
    }
    return shown | {name: given for name, given in chosen.items() if given is not None}
