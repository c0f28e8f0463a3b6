"""Cluster metadata as a log of commands: every node applies the same log in the same order, and so has the same keys.
Pure; gateway/cluster/kafka_metadata.py writes and reads the log, one partition in Kafka.

A command says under which conditions it has an effect. Any node appends one at any time; its outcome is decided where
it lies in the log, so the writer reads its own command back to learn it. No node leads, and none has to be fenced: a
command of a node that was away fails by its own conditions.

    change     write keys, if every expectation holds. With a session: the keys are removed when that ends
    beat       the holder of a session is alive
    suspect    no beat of a session was read for half its time to live
    end        remove a session and its keys, if `beat` is the offset of its last beat (null: by its holder)
    snapshot   one part of the state as of an offset
    read       no effect: whoever reads it back has applied all that was acknowledged before

Record: key `mq`, value JSON, one record a command. Records without that key are not ours, and are skipped.

    {"v": 1, "w": "5f0c2a9b11d4e6f7", "n": 7, "seen": 812, "do": "change",
     "expected": {"topics/orders": 0}, "changes": {"topics/orders": "eyJ2Ijox...", "x": null}, "session": null,
     "ttl_ms": 0}

    w, n     the writer, a process, and the number of its command: 1, 2, ...
    seen     the offset up to which the writer had applied the log when it sent the command
    changes  values in base64; null deletes. The revision of a change is the offset of its command + 1

The writer appends again what may not have been stored, so a command may lie in the log more than once.

Invariants
    M1  a command has an effect at most once: the first time it lies in the log. A writer's numbers have no gaps, and a
        lower one has no effect. A writer that WRITERS_MAX others have pushed out of memory is not admitted again: its
        first command must lie within WRITERS_MAX records of what it had seen
    M2  the state is a function of the log alone: no clock, nothing of the process that applies it
    M3  the last part of a snapshot is done only if all parts before it lie in the log, so what is before the
        snapshot's offset can be deleted then
    M4  a session ends by `end` only if its holder has appended no beat since the one that `end` names
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from gateway.cluster.memory import Keyspace, Written
from gateway.cluster.metadata import Changes, Value
from store.limits import KiB

KEY = b"mq"
VERSION = 1
WRITERS_MAX = 1_000
"""Processes of which repeated commands are recognised; see M1."""

PART_BYTES = 256 * KiB
"""Of a snapshot's part, about: a part has one key at least."""


@dataclass(frozen=True, slots=True)
class Change:
    """See the module. `session`, `ttl_ms`: to which the written keys belong."""

    expected: Mapping[str, int]
    changes: Mapping[str, bytes | None]
    session: str | None = None
    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """See the module."""

    session: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """See the module. `beat`: the offset of the session's last beat."""

    session: str
    beat: int


@dataclass(frozen=True, slots=True)
class End:
    """See the module."""

    session: str
    beat: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number`, from 0, of the state before offset `at`. `count`, `crc`: of all parts, in the last one; 0 before.
    `crc` is the CRC-32 of their contents, one behind the other."""

    at: int
    number: int
    content: str
    count: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """See the module."""


Action = Change | Beat | Suspect | End | Part | Read
_ACTIONS: dict[str, type[Action]] = {
    "change": Change, "beat": Beat, "suspect": Suspect, "end": End, "snapshot": Part, "read": Read,
}  # fmt: skip
_NAMES = {kind: name for name, kind in _ACTIONS.items()}


class Command(NamedTuple):
    """An action of a writer; see the module."""

    writer: str
    number: int
    seen: int
    action: Action


def encode_command(command: Command) -> bytes:
    """The JSON of a record's value."""
    action = command.action
    more: dict[str, Any] = {field.name: getattr(action, field.name) for field in fields(action)}
    if isinstance(action, Change):
        more["changes"] = {key: _text(data) for key, data in action.changes.items()}
    head = {"v": VERSION, "w": command.writer, "n": command.number, "seen": command.seen, "do": _NAMES[type(action)]}
    return orjson.dumps({**head, **more})


def decode_command(value: bytes | None) -> Command:
    """The command of a record with our key. Raises ValueError: what is unknown must not be skipped, as nodes that know
    it would have another state then."""
    try:
        found = orjson.loads(value or b"")
        if found.pop("v") != VERSION:
            raise ValueError("of another version")
        writer, number, seen = found.pop("w"), found.pop("n"), found.pop("seen")
        kind = _ACTIONS[found.pop("do")]
        if kind is Change:
            found["changes"] = {key: _data(text) for key, text in found["changes"].items()}
        return Command(writer, number, seen, kind(**found))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"a command of the metadata log is not understood ({error!r}); was it written by a newer version?"
        raise ValueError(reason) from error


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)


class Verdict(Enum):
    """What a command has come to."""

    DONE = "done"
    UNMET = "a condition of it does not hold"
    REPEATED = "it lies in the log before"
    UNKNOWN = "its writer is not known, or not any more: it has no effect, wherever it lies"


class Applied(NamedTuple):
    """`changes`: what watchers are told, if it has changed keys."""

    verdict: Verdict
    changes: Changes | None = None


@dataclass(slots=True)
class HeldKeys:
    """A session: the offset of its last beat, whether it was suspected since, and the keys that go with it."""

    ttl_ms: int
    beat: int
    is_suspected: bool
    keys: set[str]


@dataclass(slots=True)
class Writer:
    """The number of its last command; of the snapshot that it writes the offset and the next part (-1: of none)."""

    last: int = 0
    at: int = -1
    part: int = 0


class LogState:
    """What a log has led to. Changes only through `apply` and `skip`."""

    def __init__(self) -> None:
        self.keyspace = Keyspace()
        self.next_offset = 0
        """The offset up to which the log is applied."""
        self.sessions: dict[str, HeldKeys] = {}
        self.writers: dict[str, Writer] = {}
        """The one that was heard of least recently is first."""
        self._session_of: dict[str, str] = {}

    def skip(self, offset: int) -> None:
        """Apply a record that is not ours."""
        self.next_offset = offset + 1

    def apply(self, offset: int, command: Command) -> Applied:
        """Apply the command at an offset."""
        self.next_offset = offset + 1
        verdict, writer = self._admit(offset, command)
        if verdict is not Verdict.DONE:
            return Applied(verdict)
        action = command.action
        if isinstance(action, Change):
            return self._change(offset, action)
        if isinstance(action, Part):
            return _done(self._continues(writer, action))
        if isinstance(action, Read):
            return _done(True)
        held = self.sessions.get(action.session)
        if held is None:
            return _done(False)
        if isinstance(action, Beat):
            held.beat, held.is_suspected = offset, False
            return _done(True)
        if action.beat not in (None, held.beat):
            return _done(False)
        if isinstance(action, Suspect):
            held.is_suspected = True
            return _done(True)
        return self._write(Written(offset + 1, dict.fromkeys(sorted(held.keys))))

    def _admit(self, offset: int, command: Command) -> tuple[Verdict, Writer]:
        """Whether a command may have an effect (M1)."""
        writer = self.writers.pop(command.writer, None)
        if writer is None:
            writer = Writer()
            if command.number != 1 or offset - command.seen > WRITERS_MAX:
                return Verdict.UNKNOWN, writer
        self.writers[command.writer] = writer
        if len(self.writers) > WRITERS_MAX:
            del self.writers[next(iter(self.writers))]
        if command.number != writer.last + 1:
            return Verdict.REPEATED if command.number <= writer.last else Verdict.UNKNOWN, writer
        writer.last = command.number
        return Verdict.DONE, writer

    def _change(self, offset: int, action: Change) -> Applied:
        event = self.keyspace.decide(action.expected, action.changes)
        if event is None:
            return _done(False)
        applied = self._write(replace(event, revision=offset + 1))
        if action.session is not None:
            held = self.sessions.setdefault(action.session, HeldKeys(action.ttl_ms, offset, False, set()))
            held.keys.update(key for key, data in action.changes.items() if data is not None)
            self._session_of.update(dict.fromkeys(held.keys, action.session))
        return applied

    def _write(self, event: Written) -> Applied:
        """Change keys. One that is written anew belongs to no session any more, and one without keys is over."""
        for key in event.changes:
            if (session := self._session_of.pop(key, None)) is not None:
                held = self.sessions[session]
                held.keys.discard(key)
                if not held.keys:
                    del self.sessions[session]
        return Applied(Verdict.DONE, self.keyspace.apply(event))

    def _continues(self, writer: Writer, part: Part) -> bool:
        """Whether a part is the first of a snapshot, or the next one (M3)."""
        if part.number and (part.at, part.number) != (writer.at, writer.part):
            return False
        writer.at, writer.part = (-1, 0) if part.count else (part.at, part.number + 1)
        return True


def _done(is_done: bool) -> Applied:
    return Applied(Verdict.DONE if is_done else Verdict.UNMET)


class Snapshot:
    """The state of a moment, which may change while it is written down."""

    def __init__(self, state: LogState) -> None:
        self.at = state.next_offset
        self._values = dict(state.keyspace.values)
        self._head = {
            "revision": state.keyspace.revision,
            "sessions": {
                session: [held.ttl_ms, held.beat, held.is_suspected, sorted(held.keys)]
                for session, held in state.sessions.items()
            },
            "writers": {name: [writer.last, writer.at, writer.part] for name, writer in state.writers.items()},
        }

    def parts(self) -> Iterator[Part]:
        """What is written to the log, in this order."""
        crc = 0
        number = -1
        content = orjson.dumps(self._head)
        for number, following in enumerate(self._contents()):
            yield Part(self.at, number, content.decode())
            crc = crc32(content, crc)
            content = following
        yield Part(self.at, number + 1, content.decode(), number + 2, crc32(content, crc))

    def _contents(self) -> Iterator[bytes]:
        """The keys, some at a time."""
        some: dict[str, tuple[int, str]] = {}
        size = 0
        for key, value in self._values.items():
            text = b64encode(value.data).decode()
            if some and size + len(text) > PART_BYTES:
                yield orjson.dumps(some)
                some, size = {}, 0
            some[key] = value.revision, text
            size += len(key) + len(text)
        if some:
            yield orjson.dumps(some)


@dataclass(slots=True)
class _Unfinished:
    state: LogState
    crc: int = 0
    count: int = 0


class SnapshotReader:
    """Finds a whole snapshot in the log, among other commands and parts of snapshots that were never finished."""

    def __init__(self) -> None:
        self._unfinished: dict[str, _Unfinished] = {}

    def take(self, command: Command) -> LogState | None:
        """The state, with the part that makes it whole; None before. Raises ValueError for one that is damaged."""
        part = command.action
        if not isinstance(part, Part):
            return None
        found = self._unfinished.get(command.writer)
        if part.number == 0:
            if found is not None and (found.state.next_offset, found.count) >= (part.at, 1):
                return None  # a repeat
            found = self._unfinished[command.writer] = _Unfinished(LogState())
            found.state.next_offset = part.at
        if found is None or (found.state.next_offset, found.count) != (part.at, part.number):
            return None
        content = part.content.encode()
        found.crc = crc32(content, found.crc)
        found.count += 1
        try:
            _put(found.state, orjson.loads(content), is_head=part.number == 0)
            if not part.count:
                return None
            if (part.count, part.crc) != (found.count, found.crc):
                raise ValueError(f"{found.count} parts, CRC {found.crc:08x}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            del self._unfinished[command.writer]
            raise ValueError(f"the snapshot of the metadata before offset {part.at} is damaged: {error!r}") from error
        return found.state


def _put(state: LogState, content: dict[str, Any], *, is_head: bool) -> None:
    """Add a part's content to a state."""
    if not is_head:
        state.keyspace.values.update((key, Value(b64decode(text), rev)) for key, (rev, text) in content.items())
        return
    state.keyspace.revision = content["revision"]
    for session, (ttl_ms, beat, is_suspected, keys) in content["sessions"].items():
        state.sessions[session] = HeldKeys(ttl_ms, beat, is_suspected, set(keys))
        state._session_of.update(dict.fromkeys(keys, session))
    state.writers = {name: Writer(*numbers) for name, numbers in content["writers"].items()}


@dataclass(slots=True)
class _Heard:
    """Of a session, by this process's monotonic clock, seconds: when its last beat was first seen, when its suspicion
    was, and when either was last proposed."""

    beat: int
    since_s: float
    suspected_s: float | None = None
    proposed_s: float | None = None


class Silence:
    """Which sessions to suspect, and to end: those without a beat for half their time to live, then for as long once
    more. The suspicion lies in the log, and its writer has read it back: so the log took appends for the second half,
    and a holder that could not append its beat before could do so in it. Clocks only propose; the log decides (M4)."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def due(self, sessions: Mapping[str, HeldKeys], now_s: float) -> list[Suspect | End]:
        """What to append now. Call it often, with all sessions as of the end of the log."""
        for gone in self._heard.keys() - sessions.keys():
            del self._heard[gone]
        proposed: list[Suspect | End] = []
        for session, held in sessions.items():
            heard = self._heard.get(session)
            if heard is None or heard.beat != held.beat:
                heard = self._heard[session] = _Heard(held.beat, now_s)
            if held.is_suspected and heard.suspected_s is None:
                heard.suspected_s, heard.proposed_s = now_s, None
            since_s = heard.since_s if heard.suspected_s is None else heard.suspected_s
            last_s = since_s if heard.proposed_s is None else heard.proposed_s
            if now_s < last_s + held.ttl_ms / 2000:
                continue
            heard.proposed_s = now_s
            proposed.append((End if held.is_suspected else Suspect)(session, held.beat))
        return proposed
