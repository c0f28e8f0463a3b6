"""Recurring schedules: what is to be sent and when, and how they are shown."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from gateway.api.shapes.answers import Answer, Count, TimeMs
from gateway.api.shapes.base import (
    TIME_SCHEMA,
    NextOffset,
    PartitionNumber,
    Shape,
    chars,
    judged,
    one_of,
    time_ms,
    whole,
)
from gateway.api.shapes.schema import Schema
from gateway.api.shapes.topics import TopicName
from gateway.errors import INVALID, invalid
from gateway.recurring.rule import CRON_CHARS_MAX, EVERY_MS_MAX, EVERY_MS_MIN, ZONE_CHARS_MAX, Rule

NAME_CHARS_MAX = 249
NAME_PATTERN = rf"^[A-Za-z0-9._%-]{{1,{NAME_CHARS_MAX}}}$"

_RECORD: Schema = {
    "allOf": [{"$ref": "#/components/schemas/LineRecord"}],
    "description": "The record that is sent each time, without a time, delay or id of its own: its timestamp is the "
    "due time.",
}

_ANCHOR: Schema = {
    "anyOf": [*TIME_SCHEMA["anyOf"], {"type": "null"}],
    "description": "With every_ms: a due time, from which the others are counted. Without it: as it was, or now.",
}

EveryMs = Annotated[int, whole(EVERY_MS_MIN, EVERY_MS_MAX, "Milliseconds from one due time to the next.")]
Cron = Annotated[
    str,
    chars(CRON_CHARS_MAX, "Five fields (minute hour day month weekday) as Debian's cron reads them, or `@daily` etc."),
]
Zone = Annotated[str, chars(ZONE_CHARS_MAX, "With cron: an IANA time zone; UTC.")]
Missed = Annotated[
    Literal["once", "all"],
    one_of(
        "once",
        "all",
        said="When several due times have passed at once: one record that counts the others, or a record each.",
    ),
]


class RecurringBody(Shape):
    """A recurring schedule: `every_ms` or `cron`."""

    codes = {"every_ms": INVALID}
    more = {
        "examples": [
            {"topic": "reports", "record": {"value": {"kind": "daily"}}, "cron": "30 2 * * *", "tz": "Europe/Berlin"},
            {"topic": "jobs", "record": {"key": "poll", "value": {}}, "every_ms": 3_600_000, "missed": "all"},
        ]
    }

    topic: TopicName
    record: Annotated[object, judged(_RECORD)]
    every_ms: EveryMs | None = None
    anchor: Annotated[object, judged(_ANCHOR)] = None
    cron: Cron | None = None
    tz: Zone | None = None
    missed: Missed = "once"
    paused: Annotated[bool | None, Meta(description="It rests. Without it: as it was; not at first.")] = None

    def rule(self, old: Rule | None, now_ms: int) -> Rule:
        """When it is due. Without an anchor it keeps that of the old rule, or begins now. Raises RequestError."""
        if (self.every_ms is None) == (self.cron is None):
            raise invalid("every_ms, cron: one of the two must be given")
        if self.every_ms is not None:
            if self.tz is not None:
                raise invalid("tz: goes with cron; every_ms is elapsed time")
            anchor_ms = None if self.anchor is None else time_ms(self.anchor, "anchor")
            if anchor_ms is None:
                is_same = old is not None and old.every_ms == self.every_ms
                # One interval from now is the first due time: now itself is none.
                anchor_ms = old.anchor_ms if is_same and old is not None else now_ms
            return Rule(every_ms=self.every_ms, anchor_ms=anchor_ms)
        if self.anchor is not None:
            raise invalid("anchor: goes with every_ms; cron has its own times")
        rule = Rule(cron=self.cron, zone=self.tz or "UTC")
        try:
            rule.check(now_ms)
        except ValueError as error:
            raise invalid(str(error)) from None
        return rule


class Recurring(Answer):
    """A recurring schedule, and how far it is. The record is stored JSON, which the handler adds."""

    name: str
    topic: str
    every_ms: EveryMs | None
    anchor: TimeMs | None
    cron: Cron | None
    tz: Zone | None
    missed: Missed
    paused: bool
    version: Annotated[int, Meta(ge=1, description="Each definition has another one, greater than all before.")]
    next_at: Annotated[TimeMs | None, Meta(description="null: it is paused, or is never due again.")]
    last_at: Annotated[TimeMs | None, Meta(description="The last due time that has come.")]
    last_partition: PartitionNumber | None
    last_offset: Annotated[NextOffset | None, Meta(description="Where its record was delivered, if that is known.")]
    delivered_count: Count
    missed_count: Annotated[int, Meta(ge=0, description="Due times without a record of their own.")]
    created_at: TimeMs
    updated_at: TimeMs
    error: Annotated[str | None, Meta(description="Why it does not fire although it is due.")]
    record: (
        Annotated[
            dict[str, object],
            judged(
                {
                    "$ref": "#/components/schemas/RecurringRecord",
                    "description": "For callers who may receive from the topic.",
                }
            ),
        ]
        | UnsetType
    ) = UNSET
