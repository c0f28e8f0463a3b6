"""The recurring schedules of a server in memory. Its clock never jumps over a due time, so nothing is ever missed.

Cron expressions need cronsim (`pip install "mq-py[cron]"`), which the real server has.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from mq.clock import Timer
from mq.errors import Refused

Fields = dict[str, Any]
Fire = Callable[[str, bytes | None, bytes | None, Fields], tuple[int, int]]
"""Appends a record to a topic: key, value and other fields; its partition and offset."""

_NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(slots=True)
class _One:
    """A recurring schedule: as it is shown, and the call that fires it."""

    row: Fields
    timer: Timer | None = None


class FakeRecurring:
    """Keeps and fires them. `check_topic` raises Refused for one that is not there."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        later: Callable[[float, Callable[[], object]], Timer],
        check_topic: Callable[[str], object],
        fire: Fire,
    ) -> None:
        self._now_ms = now_ms
        self._later = later
        self._check_topic = check_topic
        self._fire = fire
        self._by_name: dict[str, _One] = {}
        self._next_version = 1

    def put(self, name: str, body: Fields) -> Fields:
        """Create or replace one."""
        self._check_topic(body["topic"])
        if (body.get("every_ms") is None) == (body.get("cron") is None):
            raise Refused("every_ms, cron: one of the two must be given", 422)
        now_ms, old = self._now_ms(), self._by_name.get(name)
        is_cron = body.get("cron") is not None
        anchor_ms = None if is_cron else body.get("anchor", now_ms)
        if not is_cron and "anchor" not in body and old is not None and old.row["every_ms"] == body["every_ms"]:
            anchor_ms = old.row["anchor"]
        paused = body.get("paused")
        row: Fields = {
            "name": name, "topic": body["topic"], "record": _shown(body["record"]), "every_ms": body.get("every_ms"),
            "anchor": anchor_ms, "cron": body.get("cron"), "tz": body.get("tz", "UTC") if is_cron else None,
            "missed": body.get("missed", "once"),
            "paused": (old is not None and old.row["paused"]) if paused is None else paused,
        }  # fmt: skip
        _due_after(row, now_ms)  # raises for a rule that is none
        if old is not None and all(old.row[field] == given for field, given in row.items()):
            return old.row
        kept = {"delivered_count": 0, "last_at": None} if old is None else old.row
        row |= {field: kept[field] for field in ("delivered_count", "last_at")}
        row |= {"missed_count": 0, "version": self._next_version}
        self._next_version += 1
        self._stop(old)
        one = self._by_name[name] = _One(row)
        self._set_out(one)
        return one.row

    def get(self, name: str) -> Fields:
        """One of them."""
        return self._one(name).row

    def list(self, topic: str | None) -> Fields:
        """All of them, without their records."""
        rows = [one.row for _, one in sorted(self._by_name.items()) if topic in (None, one.row["topic"])]
        shown = [{field: given for field, given in row.items() if field != "record"} for row in rows]
        return {"recurring": shown, "next_cursor": None}

    def pause(self, name: str, paused: bool) -> Fields:
        """Let one rest, or go on."""
        one = self._one(name)
        if one.row["paused"] is not paused:
            one.row["paused"] = paused
            self._stop(one)
            self._set_out(one)
        return one.row

    def delete(self, name: str) -> None:
        """Forget one."""
        self._stop(self._one(name))
        del self._by_name[name]

    def _one(self, name: str) -> _One:
        if name not in self._by_name:
            raise Refused("There is no such recurring schedule.", 40452)
        return self._by_name[name]

    def _set_out(self, one: _One) -> None:
        now_ms = self._now_ms()
        next_ms = None if one.row["paused"] else _due_after(one.row, now_ms)
        one.row["next_at"] = next_ms
        if next_ms is not None:
            one.timer = self._later((next_ms - now_ms) / 1000, lambda: self._due(one, next_ms))

    @staticmethod
    def _stop(one: _One | None) -> None:
        if one is not None and one.timer is not None:
            one.timer.cancel()
            one.timer = None

    def _due(self, one: _One, due_ms: int) -> None:
        row, record = one.row, one.row["record"]
        own = [{"key": "mq-recurring", "value": b64encode(row["name"].encode()).decode()}]
        fields = {field: record[field] for field in ("partition", "tag", "message_group") if field in record}
        fields |= {"headers": [*record.get("headers", ()), *own], "timestamp": due_ms, "deliver_at": due_ms}
        row["last_partition"], row["last_offset"] = self._fire(
            row["topic"], _bytes_of(record, "key"), _bytes_of(record, "value"), fields
        )
        row["last_at"] = due_ms
        row["delivered_count"] += 1
        self._set_out(one)


def _due_after(row: Fields, after_ms: int) -> int | None:
    if (every_ms := row["every_ms"]) is not None:
        return int(row["anchor"] + max(0, (after_ms - row["anchor"]) // every_ms + 1) * every_ms)
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise Refused('cron: the server in memory needs cronsim: pip install "mq-py[cron]"', 422) from None
    try:
        zone = UTC if row["tz"] == "UTC" else ZoneInfo(row["tz"])
    except (KeyError, ValueError, OSError):
        raise Refused(f"tz: {row['tz']!r} is not a time zone such as Europe/Berlin", 422) from None
    cron: str = row["cron"]
    try:
        for moment in CronSim(_NAMES.get(cron, cron), datetime.fromtimestamp(after_ms / 1000, zone)):
            if (due_ms := round(moment.timestamp()) * 1000) > after_ms:
                return due_ms
    except CronSimError as error:
        raise Refused(f"cron: {row['cron']!r} is not a cron expression: {error}", 422) from None
    return None


def _bytes_of(record: Fields, name: str) -> bytes | None:
    if (encoded := record.get(f"{name}_b64")) is not None:
        return b64decode(encoded)
    given = record.get(name)
    if given is None:
        return None
    return given.encode() if name == "key" and isinstance(given, str) else msgspec.json.encode(given)


def _shown(record: Fields) -> Fields:
    """A record as the server shows it: headers in base64."""
    headers = [
        {"key": header["key"], "value": b64encode(header["text"].encode()).decode()} if "text" in header else header
        for header in record.get("headers", ())
    ]
    return record | ({"headers": headers} if headers else {})
