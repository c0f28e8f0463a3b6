"""Recurring schedules as events: decide, write, apply. What they are, when the next is due, what is still owed. Pure.

An event is one JSON record of system topic `__recurring` (gateway/brokers/event_log.py):

    {"event": "put", "recurring": {...}}                          it is there from now on, in place of one of its name
    {"event": "deleted", "name": "nightly"}
    {"event": "paused", "name": "nightly", "paused": true, "from_ms": 1767225600000}
    {"event": "fired", "name": "nightly", "due_ms": 1767225600000, "missed_count": 0, "partition": 3}
    {"event": "delivered", "name": "nightly", "count": 1, "partition": 3, "offset": 17, "dropped": false}
    {"event": "versions", "next_version": 12}                     in snapshots: versions are never used twice
    {"event": "barrier"}                                          nothing has happened

`partition` of `fired` is written in shards of `__recurring` on Kafka alone (gateway/main/recurring_shards.py).

`fired` is the firing and the step to the next due time in one: after it the record is *owed* to its topic, and the next
due time is later. The delivered entry names the place of its `fired` event as its source (store/log/entry.py), as what
the timer delivers names the copy that it consumes. So a restart learns from the log whether an owed record was
delivered, and `delivered` only shortens the search.

    crash                                           what a restart finds
    before `fired` is durable                       nothing has happened: the due time is still to come, or was missed
    after it, before the delivery is durable        an owed record, and no entry that names it: it is delivered now
    after the delivery, before `delivered` is       an owed record, and the entry that names it: it counts as delivered
    after `delivered`                               nothing is owed

Invariants
    V1  A schedule has one next due time, or none (paused, or never again): the first of its rule behind `from_ms`.
    V2  `from_ms` and `last_due_ms` never fall, whatever the clock and new definitions do. So no due time fires twice.
    V3  While a record of a schedule is owed, it fires no other one: what comes due then is missed, as `missed` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from gateway.brokers.event_log import EventKind
from gateway.codec.records import ProduceRecord
from gateway.recurring.errors import TooManyRecurring, UnknownRecurring
from gateway.recurring.rule import Rule
from store.topics import RECURRING_QUEUE
from store.types import Source

MISSED_MAX = 1_000
"""Most records that `missed: all` delivers at a time; the others, which are older, are counted."""

Missed = Literal["once", "all"]


class RecurringRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is sent. `json_values`: key and value are JSON or null. `queues`: light queues that it is in as well."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    tag: str | None = None
    message_group: str | None = None
    json_values: bool = False
    queues: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Key, value, headers, tag and queues."""
        texts = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        texts += sum(len(name.encode()) for name in (self.tag or "", *self.queues))
        return len(self.key or b"") + len(self.value or b"") + texts

    def at(self, due_ms: int) -> ProduceRecord:
        """The record of one due time, which is its timestamp."""
        return ProduceRecord(
            self.key, self.value, list(self.headers), due_ms, self.partition, self.tag, None, None,
            message_group=self.message_group, queues=[name.encode() for name in self.queues] or None,
        )  # fmt: skip


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client says a schedule is to be."""

    topic: str
    record: RecurringRecord
    rule: Rule
    missed: Missed = "once"


class Owed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A record that has fired and is not known to be delivered. `position` and `index`: of its `fired` event.
    `partition`: as there."""

    position: int
    index: int
    due_ms: int
    missed_count: int
    partition: int | None = None

    @property
    def source(self) -> Source:
        """What the delivered entry names."""
        return Source(self.position, self.index)


class Recurring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One recurring schedule, and how far it is. `missed_count`: due times that no record was delivered for.
    `partition` and `offset`: of the last one, None when a crash came between its delivery and the note of it."""

    name: str
    version: int
    definition: Definition
    created_ms: int
    updated_ms: int
    from_ms: int
    paused: bool = False
    last_due_ms: int | None = None
    delivered_count: int = 0
    missed_count: int = 0
    partition: int | None = None
    offset: int | None = None
    owed: tuple[Owed, ...] = ()

    def next_due_ms(self) -> int | None:
        """When it is due next (V1)."""
        return None if self.paused else self.definition.rule.due_after(self.from_ms)


class _Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="event"):
    pass


class Put(_Event, frozen=True, tag="put"):
    """A schedule is there, in place of one of its name."""

    recurring: Recurring


class Deleted(_Event, frozen=True, tag="deleted"):
    """A schedule is gone, and what it owed with it."""

    name: str


class Paused(_Event, frozen=True, tag="paused"):
    """A schedule rests, or goes on with what is due behind `from_ms`."""

    name: str
    paused: bool
    from_ms: int


class Fired(_Event, frozen=True, tag="fired", omit_defaults=True):
    """A due time has come. `missed_count`: due times before it that get no record. `partition`: the one that its record
    goes to; None: it is chosen when the record is delivered."""

    name: str
    due_ms: int
    missed_count: int
    partition: int | None = None


class Delivered(_Event, frozen=True, tag="delivered"):
    """The first `count` owed records were delivered, the last one there if that is known; or they were `dropped`, as
    their topic cannot have them."""

    name: str
    count: int
    partition: int | None = None
    offset: int | None = None
    dropped: bool = False


class Versions(_Event, frozen=True, tag="versions"):
    """The version that the next definition gets."""

    next_version: int


class Barrier(_Event, frozen=True, tag="barrier"):
    """Nothing."""


Event = Put | Deleted | Paused | Fired | Delivered | Versions | Barrier
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def decode_events(values: Iterable[bytes | None]) -> list[Event]:
    """Raises ValueError: an unknown event must not be skipped."""
    try:
        return [_decoder.decode(value or b"") for value in values]
    except msgspec.MsgspecError as error:
        reason = f"a record of recurring schedules is not understood ({error}); was it written by a newer version?"
        raise ValueError(reason) from error


RECURRING_EVENTS: EventKind[Event] = EventKind(
    whose="recurring schedules",
    snapshot_name="recurring",
    queue=RECURRING_QUEUE,
    encode=_encoder.encode,
    decode=decode_events,
    barrier=Barrier(),
)


class RecurringTable:
    """All recurring schedules, by name. Changes only through `apply`. `changed`: names whose next due time may be
    another one; its reader empties it. `owing`: names with owed records."""

    def __init__(self) -> None:
        self._by_name: dict[str, Recurring] = {}
        self._next_version = 1
        self.changed: set[str] = set()
        self.owing: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Recurring:
        """Raises UnknownRecurring."""
        if (found := self._by_name.get(name)) is None:
            raise UnknownRecurring(f"there is no recurring schedule {name}")
        return found

    def find(self, name: str) -> Recurring | None:
        """The one of this name, if there is one."""
        return self._by_name.get(name)

    def names(self, *, after: str = "") -> list[str]:
        """The names behind one, sorted."""
        return sorted(name for name in self._by_name if name > after)

    def decide_put(
        self, name: str, definition: Definition, paused: bool | None, *, now_ms: int, count_max: int
    ) -> Put | None:
        """The event to write; None when nothing would change. What was due before is not missed by a new rule.
        `paused` None: as it is. Raises TooManyRecurring."""
        old = self._by_name.get(name)
        if old is None:
            if len(self._by_name) >= count_max:
                raise TooManyRecurring(f"there are {count_max} recurring schedules; delete one first")
            return Put(Recurring(name, self._next_version, definition, now_ms, now_ms, now_ms, bool(paused)))
        is_paused = old.paused if paused is None else paused
        if definition == old.definition and is_paused == old.paused:
            return None
        goes_on = definition.rule == old.definition.rule and is_paused == old.paused
        return Put(
            replace(
                old,
                version=self._next_version,
                definition=definition,
                updated_ms=now_ms,
                from_ms=old.from_ms if goes_on else max(now_ms, old.from_ms),
                paused=is_paused,
                missed_count=old.missed_count + len(old.owed),
                owed=(),
            )
        )

    def decide_pause(self, name: str, paused: bool, now_ms: int) -> Paused | None:
        """The event to write; None when it is so already. Nothing is missed in a pause. Raises UnknownRecurring."""
        old = self.get(name)
        return None if old.paused is paused else Paused(name, paused, max(now_ms, old.from_ms))

    def decide_delete(self, name: str) -> Deleted:
        """The event to write. Raises UnknownRecurring."""
        return Deleted(self.get(name).name)

    @staticmethod
    def decide_fire(name: str, dues_ms: Sequence[int], due_count: int, partition: int | None = None) -> list[Fired]:
        """The events to write when `due_count` due times have come, of which the last ones get a record each."""
        missed_count = due_count - len(dues_ms)
        return [Fired(name, due_ms, 0 if number else missed_count, partition) for number, due_ms in enumerate(dues_ms)]

    def apply(self, event: Event, at: Source) -> None:
        """Change the table. Events of a name that is not there (its first one was lost and repaired) do nothing."""
        match event:
            case Put(recurring):
                self._next_version = max(self._next_version, recurring.version + 1)
                self._set(recurring)
            case Versions(next_version):
                self._next_version = max(self._next_version, next_version)
            case Deleted(name):
                self._by_name.pop(name, None)
                self.owing.pop(name, None)
                self.changed.add(name)
            case Paused() | Fired() | Delivered():
                if (old := self._by_name.get(event.name)) is not None:
                    self._set(_changed(old, event, at))
            case Barrier():
                pass

    def snapshot(self) -> Iterator[Event]:
        """Events that lead an empty table here. To be gone through later, in another thread."""
        recurrings, next_version = list(self._by_name.values()), self._next_version
        return iter((Versions(next_version), *map(Put, recurrings)))

    def _set(self, recurring: Recurring) -> None:
        self._by_name[recurring.name] = recurring
        self.changed.add(recurring.name)
        if recurring.owed:
            self.owing[recurring.name] = None
        else:
            self.owing.pop(recurring.name, None)


def _changed(old: Recurring, event: Paused | Fired | Delivered, at: Source) -> Recurring:
    match event:
        case Paused(_, paused, from_ms):
            return replace(old, paused=paused, from_ms=from_ms)
        case Fired(_, due_ms, missed_count, partition):
            return replace(
                old,
                from_ms=due_ms,
                last_due_ms=due_ms,
                missed_count=old.missed_count + missed_count,
                owed=(*old.owed, Owed(at.position, at.record_index, due_ms, missed_count, partition)),
            )
        case Delivered(_, count, partition, offset, dropped):
            left = old.owed[count:]
            if dropped:
                return replace(old, owed=left, missed_count=old.missed_count + count)
            delivered_count = old.delivered_count + count
            return replace(old, owed=left, delivered_count=delivered_count, partition=partition, offset=offset)
