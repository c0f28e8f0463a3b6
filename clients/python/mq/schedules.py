"""Delayed records that have not been delivered yet: listed, shown, cancelled, moved and fired, with an exact answer.

A schedule is named by its id (`Receipt.schedule_id`), or by its topic and the sender's own `schedule_key`:

    await client.schedules.cancel(receipt.schedule_id)
    await client.schedules.cancel("orders", "order-77-reminder")

Every method raises Refused: 40950 (409) when the record was delivered already, 40450 (404) when there is no such
schedule. Every change is durable when it returns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import msgspec

from mq.errors import MqError
from mq.http import Http, segment
from mq.message import Receipt
from mq.values import Duration, Instant, epoch_ms, instant, milliseconds

_PAGE = 1_000


class Schedule(msgspec.Struct, frozen=True):
    """A delayed record that waits."""

    schedule_id: str
    topic: str | None
    """None when the topic has been deleted."""
    deliver_at_ms: int = msgspec.field(name="deliver_at")
    partition: int | None = None
    schedule_key: str | None = None
    key: Any = None
    tag: str | None = None
    value: Any = None
    """Only from `get`."""

    @property
    def deliver_at(self) -> datetime:
        """When it is due."""
        return instant(self.deliver_at_ms)


class Schedules:
    """`client.schedules`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(
        self, topic: str | None = None, *, since: Instant | None = None, until: Instant | None = None
    ) -> AsyncIterator[Schedule]:
        """Those that are pending, of a topic and due in [since, until) if these are given. Iterate with `async for`."""
        cursor: str | None = None
        while True:
            query: dict[str, object] = {
                "topic": topic,
                "from": None if since is None else epoch_ms(since, "since"),
                "to": None if until is None else epoch_ms(until, "until"),
                "limit": _PAGE,
                "cursor": cursor,
            }
            page = await self._http.call("GET", "/mq/v1/schedules", query)
            for one in page["schedules"]:
                yield msgspec.convert(one, Schedule)
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    async def get(self, name: str, key: str | None = None) -> Schedule:
        """One schedule, with its value."""
        path, query = _place(name, key)
        return msgspec.convert(await self._http.call("GET", path, {**query, "include": "value"}), Schedule)

    async def cancel(self, name: str, key: str | None = None) -> None:
        """It will not be delivered."""
        path, query = _place(name, key)
        await self._http.call("DELETE", path, query)

    async def move(
        self, name: str, key: str | None = None, *, delay: Duration | None = None, at: Instant | None = None
    ) -> Receipt:
        """Deliver it at another time. A moved schedule has a new id, which the receipt says; its key stays."""
        if (delay is None) == (at is None):
            raise MqError("move: say either delay (from now) or at")
        path, query = _place(name, key)
        body = (
            {"delay_ms": milliseconds(delay, "delay")}
            if delay is not None
            else {"deliver_at": epoch_ms(at, "at") if at is not None else None}
        )
        return msgspec.convert(await self._http.call("PATCH", path, query, body), Receipt)

    async def fire(self, name: str, key: str | None = None) -> Receipt:
        """Deliver it now; where it is stored."""
        path, query = _place(name, key)
        return msgspec.convert(await self._http.call("POST", path + ":fire", query), Receipt)


def _place(name: str, key: str | None) -> tuple[str, dict[str, object]]:
    """`name` is a schedule id, or with a key the topic that the key is of."""
    if key is None:
        return f"/mq/v1/schedules/{segment(name)}", {}
    return f"/mq/v1/schedules/{segment(key)}", {"topic": name}
