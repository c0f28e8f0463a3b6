"""Records that the server sends by itself, every so long or by a cron expression. It fires them whether clients are
there or not, each due time once, also over crashes.

    await client.recurring.put("daily", "reports", {"kind": "daily"}, cron="30 2 * * *", tz="Europe/Berlin")
    await client.recurring.put("poll", "jobs", {}, every="5m", missed="all")

Every method but `put` and `list` raises Refused 40452 (404) when there is no schedule of this name. Every change is
durable when it returns.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from mq.errors import MqError
from mq.http import Http, segment
from mq.record import BYTES
from mq.values import Duration, Instant, encode_headers, epoch_ms, instant, milliseconds

_PATH = "/mq/v1/recurring"
_PAGE = 1_000


class Recurring(msgspec.Struct, frozen=True):
    """A recurring schedule, and how far it is."""

    name: str
    topic: str
    paused: bool
    missed: str
    version: int
    every_ms: int | None = None
    cron: str | None = None
    tz: str | None = None
    next_at_ms: int | None = msgspec.field(name="next_at", default=None)
    last_at_ms: int | None = msgspec.field(name="last_at", default=None)
    last_partition: int | None = None
    last_offset: int | None = None
    delivered_count: int = 0
    missed_count: int = 0
    """Due times without a record of their own."""
    error: str | None = None
    """Why it does not fire although it is due."""
    record: dict[str, Any] | None = None
    """What is sent, as the server's API has it. Not in `list`."""

    @property
    def next_at(self) -> datetime | None:
        """When it is due next; None while it rests."""
        return None if self.next_at_ms is None else instant(self.next_at_ms)

    @property
    def last_at(self) -> datetime | None:
        """The last due time that has come."""
        return None if self.last_at_ms is None else instant(self.last_at_ms)


class RecurringSchedules:
    """`client.recurring`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def put(
        self,
        name: str,
        topic: str,
        value: Any,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = None,
        anchor: Instant | None = None,
        missed: Literal["once", "all"] = "once",
        paused: bool | None = None,
        key: Any = None,
        headers: Mapping[str, str | bytes | None] | None = None,
        tag: str | None = None,
        partition: int | None = None,
        message_group: str | None = None,
    ) -> Recurring:
        """Have a schedule of this name, in place of one that is there; the same again changes nothing. `every` counts
        from `anchor`, or from now; `cron` is read in time zone `tz`. Due times that have passed (the server was down)
        get one record that counts them, or with `missed="all"` one each. `paused` None: as it is."""
        if (every is None) == (cron is None):
            raise MqError('recurring.put: say either every="1h" or cron="30 2 * * *"')
        record: dict[str, object] = {
            **_part("key", key),
            **_part("value", value),
            "headers": None if headers is None else encode_headers(headers),
            "tag": tag,
            "partition": partition,
            "message_group": message_group,
        }
        body = {
            "topic": topic,
            "record": {name: given for name, given in record.items() if given is not None},
            "every_ms": None if every is None else milliseconds(every, "every"),
            "anchor": None if anchor is None else epoch_ms(anchor, "anchor"),
            "cron": cron,
            "tz": tz,
            "missed": missed,
            "paused": paused,
        }
        given = {name: one for name, one in body.items() if one is not None}
        return msgspec.convert(await self._http.call("PUT", _place(name), body=given), Recurring)

    async def list(self, topic: str | None = None) -> AsyncIterator[Recurring]:
        """All of them, or those of a topic, by name. Iterate with `async for`."""
        cursor: str | None = None
        while True:
            page = await self._http.call("GET", _PATH, {"topic": topic, "limit": _PAGE, "cursor": cursor})
            for one in page["recurring"]:
                yield msgspec.convert(one, Recurring)
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    async def get(self, name: str) -> Recurring:
        """One of them, with its record."""
        return msgspec.convert(await self._http.call("GET", _place(name)), Recurring)

    async def pause(self, name: str) -> Recurring:
        """Let it rest: nothing is sent, and nothing missed."""
        return msgspec.convert(await self._http.call("POST", _place(name) + ":pause"), Recurring)

    async def resume(self, name: str) -> Recurring:
        """Let it go on with the next due time."""
        return msgspec.convert(await self._http.call("POST", _place(name) + ":resume"), Recurring)

    async def delete(self, name: str) -> None:
        """It is gone; what it has sent stays."""
        await self._http.call("DELETE", _place(name))


def _place(name: str) -> str:
    return f"{_PATH}/{segment(name)}"


def _part(name: str, given: object) -> dict[str, object]:
    """A key or value in the form in which the server's API takes it."""
    if isinstance(given, BYTES):
        return {f"{name}_b64": b64encode(given).decode()}
    return {name: given}
