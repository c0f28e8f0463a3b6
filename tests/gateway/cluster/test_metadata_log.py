"""The metadata as a log of commands: what repeats, conditions, sessions and snapshots come to, on logs in any order.

Covers gateway.cluster.metadata_log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random

import orjson
import pytest

from gateway.cluster import metadata_log
from gateway.cluster.metadata import ABSENT, Changes, Value
from gateway.cluster.metadata_log import (
    PART_BYTES,
    WRITERS_MAX,
    Action,
    Applied,
    Beat,
    Change,
    Command,
    End,
    LogState,
    Part,
    Read,
    Silence,
    Snapshot,
    SnapshotReader,
    Suspect,
    Verdict,
    decode_command,
    encode_command,
)
from tests.gateway.cluster.metadata_world import content_of

DONE, UNMET, REPEATED, UNKNOWN = Verdict.DONE, Verdict.UNMET, Verdict.REPEATED, Verdict.UNKNOWN
ACTIONS: list[Action] = [
    Change({"a": 0, "\u00fc": 7}, {"a": b"\x00\xff", "\u00fc": None}),
    Change({"a": 0}, {"a": b""}, "s", 5_000),
    Beat("s"),
    Suspect("s", 4),
    End("s"),
    End("s", 4),
    Part(9, 1, '{"a":[1,"\u00fc"]}', 2, 77),
    Read(),
]


class OneWriter:
    """Appends to a log that one state applies at once."""

    def __init__(self) -> None:
        self.state = LogState()
        self._numbers: dict[str, int] = {}

    def does(self, action: Action, writer: str = "w") -> Applied:
        number = self._numbers[writer] = self._numbers.get(writer, 0) + 1
        return self.puts(Command(writer, number, self.state.next_offset, action))

    def puts(self, command: Command) -> Applied:
        return self.state.apply(self.state.next_offset, command)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_command_is_what_its_record_says(action: Action) -> None:
    command = Command("w1", 3, 17, action)
    assert decode_command(encode_command(command)) == command


@pytest.mark.parametrize(
    "changed", [{"v": 2}, {"do": "else"}, {"more": 1}, {"changes": {"a": "?"}}, {"changes": None}, {"n": ...}]
)
def test_what_is_not_understood_is_not_skipped(changed: dict[str, object]) -> None:
    fields = orjson.loads(encode_command(Command("w1", 3, 17, Change({"a": 0}, {"a": b"1"}))))
    fields = {name: value for name, value in {**fields, **changed}.items() if value is not ...}
    with pytest.raises(ValueError, match="newer version"):
        decode_command(orjson.dumps(fields))
    for value in (None, b"", b"[]", b"\xff"):
        with pytest.raises(ValueError, match="newer version"):
            decode_command(value)


def test_a_change_is_made_where_it_lies_if_its_expectations_hold_there() -> None:
    log = OneWriter()
    assert log.does(Change({"a": ABSENT}, {"a": b"1"})) == Applied(DONE, Changes(1, {"a": Value(b"1", 1)}))
    assert log.does(Change({"a": ABSENT}, {"a": b"2"})) == Applied(UNMET)
    assert log.does(Read()) == Applied(DONE)
    assert log.does(Change({"a": 1}, {"a": None})) == Applied(DONE, Changes(4, {"a": None}))
    assert log.does(Change({"a": ABSENT, "b": ABSENT}, {})) == Applied(DONE, Changes(5, {}))
    assert log.state.keyspace.values == {}


def test_a_repeated_command_has_no_effect_wherever_it_lies() -> None:
    log = OneWriter()
    made = Command("w", 1, 0, Change({"a": ABSENT}, {"a": b"1"}))
    assert log.puts(made).verdict is DONE
    assert log.puts(made).verdict is REPEATED
    log.does(Change({"a": 1}, {"a": None}), "other")
    assert log.puts(made).verdict is REPEATED, "its expectation holds again"
    assert log.puts(Command("w", 2, 0, Read())).verdict is DONE
    assert log.puts(Command("w", 4, 0, Read())).verdict is UNKNOWN, "one is missing"
    assert log.puts(Command("w", 3, 0, Read())).verdict is DONE


@pytest.mark.parametrize("others", [WRITERS_MAX - 1, WRITERS_MAX])
def test_a_writer_that_was_forgotten_is_not_admitted_again(others: int) -> None:
    log = OneWriter()
    made = Command("w", 1, 0, Change({"a": ABSENT}, {"a": b"1"}))
    log.puts(made)
    log.does(Change({"a": 1}, {"a": None}), "0")
    for other in range(1, others):
        log.does(Read(), str(other))
    is_known = others < WRITERS_MAX
    assert len(log.state.writers) == min(others + 1, WRITERS_MAX)
    assert log.puts(made).verdict is (REPEATED if is_known else UNKNOWN)
    assert log.puts(Command("w", 2, 0, Read())).verdict is (DONE if is_known else UNKNOWN)
    assert log.state.keyspace.values == {}


@pytest.mark.parametrize("behind", [WRITERS_MAX, WRITERS_MAX + 1])
def test_a_first_command_lies_near_to_what_its_writer_had_seen(behind: int) -> None:
    log = OneWriter()
    for _ in range(behind):
        log.does(Read())
    assert log.puts(Command("new", 1, 0, Read())).verdict is (DONE if behind == WRITERS_MAX else UNKNOWN)


def test_a_session_ends_only_as_of_its_last_beat() -> None:
    log = OneWriter()
    log.does(Change({"n/1": ABSENT}, {"n/1": b"p"}, "s", 5_000))
    assert log.does(Suspect("s", 0)).verdict is DONE
    assert log.state.sessions["s"].is_suspected
    assert log.does(Beat("s")).verdict is DONE
    assert not log.state.sessions["s"].is_suspected
    assert log.does(Suspect("s", 0)).verdict is UNMET
    assert log.does(End("s", 0)).verdict is UNMET, "a beat lies before it"
    assert log.does(End("s", 2)) == Applied(DONE, Changes(6, {"n/1": None}))
    for action in (Beat("s"), Suspect("s", 2), End("s", 2), End("s")):
        assert log.does(action).verdict is UNMET, "it is over"
    assert log.state.sessions == {}


def test_a_key_that_is_written_anew_belongs_to_no_session() -> None:
    log = OneWriter()
    both: dict[str, bytes | None] = {"a": b"1", "b": b"1"}
    log.does(Change({"a": ABSENT, "b": ABSENT}, both, "s", 5_000))
    log.does(Change({"a": 1}, {"a": b"mine"}))
    assert log.does(End("s")) == Applied(DONE, Changes(3, {"b": None}))
    log.does(Change({"b": ABSENT}, {"b": b"1"}, "t", 5_000))
    log.does(Change({"b": 4}, {"b": None}))
    assert log.state.sessions == {}
    assert log.state.keyspace.values == {"a": Value(b"mine", 2)}


@pytest.mark.parametrize(("size", "parts"), [(PART_BYTES // 8 * 3 - 3, 2), (PART_BYTES // 8 * 3, 3)])
def test_a_snapshot_has_parts_of_bounded_size_and_all_of_the_state(size: int, parts: int) -> None:
    log = OneWriter()
    for number, key in enumerate(("a", "b")):
        log.does(Change({key: ABSENT}, {key: bytes([number]) * size}, "s" if number else None, 5_000))
    log.does(Suspect("s", 1))
    log.does(Part(3, 0, "begun"), "other")
    made = list(Snapshot(log.state).parts())
    assert len(made) == parts
    assert max(len(part.content) for part in made) <= PART_BYTES + 100
    reader = SnapshotReader()
    for part in made[:-1]:
        assert reader.take(Command("w", 9, 9, part)) is None
    found = reader.take(Command("w", 9, 9, made[-1]))
    assert found is not None
    assert content_of(found) == content_of(log.state)
    assert found.next_offset == log.state.next_offset
    next_part = Command("other", 2, 9, Part(3, 1, "end", 2))
    assert found.apply(found.next_offset, next_part) == log.puts(next_part) == Applied(DONE)


def test_a_snapshot_is_done_only_when_all_its_parts_lie_before_the_last() -> None:
    log = OneWriter()
    assert log.does(Part(5, 1, "x")).verdict is UNMET
    assert log.does(Part(5, 0, "x")).verdict is DONE
    assert log.does(Part(5, 2, "x", 3)).verdict is UNMET
    assert log.does(Part(6, 1, "x", 2)).verdict is UNMET
    assert log.does(Part(5, 1, "x", 2), "another").verdict is UNMET
    assert log.does(Part(5, 1, "x", 2)).verdict is DONE
    assert log.does(Part(5, 1, "x", 2)).verdict is UNMET


def test_a_damaged_snapshot_is_refused() -> None:
    log = OneWriter()
    log.does(Change({"a": ABSENT}, {"a": b"1"}))
    head, values = Snapshot(log.state).parts()
    for content in (values.content.replace("MQ==", "Mg=="), '{"a":1}', "[]", "?"):
        reader = SnapshotReader()
        assert reader.take(Command("w", 1, 0, head)) is None
        with pytest.raises(ValueError, match="damaged"):
            reader.take(Command("w", 2, 0, Part(values.at, 1, content, values.count, values.crc)))
        assert reader.take(Command("w", 3, 0, values)) is None


# ---- logs in any order -----------------------------------------------------------------------------------------------


@dataclass
class Process:
    """Applies the log up to somewhere, and appends what it decides on that."""

    name: str
    state: LogState = field(default_factory=LogState)
    number: int = 0
    unsent: list[Command] = field(default_factory=list)
    told: dict[int, Applied] = field(default_factory=dict)
    saving: list[Part] = field(default_factory=list)

    def decide(self, action: Action) -> None:
        self.number += 1
        self.unsent.append(Command(self.name, self.number, self.state.next_offset, action))


class World:
    """A log, and processes that come and go. Everything that was ever sent may come again."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.log: list[Command] = []
        self.sent: list[Command] = []
        self.names = map(str, count())
        self.processes: list[Process] = []
        self.whole = LogState()
        self.verdicts: list[Applied] = []
        self.start = 0
        for _ in range(3):
            self.come()

    def append(self, command: Command) -> None:
        self.verdicts.append(self.whole.apply(len(self.log), command))
        self.log.append(command)
        if isinstance(command.action, Part) and command.action.count and self.verdicts[-1].verdict is DONE:
            self.start = max(self.start, command.action.at)

    def come(self) -> None:
        """One that begins as every process does: with the first whole snapshot behind the log's start."""
        process = Process(next(self.names))
        if self.start:
            reader = SnapshotReader()
            found = (reader.take(command) for command in self.log[self.start :])
            process.state = next(state for state in found if state is not None and state.next_offset >= self.start)
        self.processes.append(process)

    def read(self, process: Process, until: int) -> None:
        while process.state.next_offset < until:
            offset = process.state.next_offset
            command = self.log[offset]
            applied = process.state.apply(offset, command)
            assert applied == self.verdicts[offset], "all processes come to the same"
            if command.writer == process.name:
                told = process.told.setdefault(command.number, applied)
                assert told is applied or applied.verdict in (REPEATED, UNKNOWN), "what it is told first holds"

    def action(self, process: Process) -> Action:
        """What may be decided on what a process knows."""
        random, state = self.random, process.state
        if process.saving:
            return process.saving.pop(0)
        key = random.choice("abc")
        known = state.keyspace.values.get(key)
        revision = ABSENT if known is None else known.revision
        session = random.choice([*state.sessions, "none"])
        held = state.sessions.get(session)
        beat = 0 if held is None else held.beat
        match random.randrange(8):
            case 0:
                process.saving = list(Snapshot(state).parts())
                return process.saving.pop(0)
            case 1:
                return Change({key: revision}, {key: b"held"}, f"{process.name}-{process.number}", 5_000)
            case 2:
                return Beat(session)
            case 3:
                return Suspect(session, beat)
            case 4:
                return End(session, random.choice([beat, None]))
            case 5:
                return Change({key: revision}, {key: None})
            case _:
                number = 0 if known is None or known.data == b"held" else int(known.data)
                return Change({key: revision}, {key: str(number + 1).encode()})

    def step(self) -> None:
        random = self.random
        process = random.choice(self.processes)
        match random.randrange(12):
            case 0 | 1 | 2 | 3:
                process.decide(self.action(process))
            case 4 | 5 | 6 if process.unsent:
                self.sent.append(process.unsent.pop(0))
                self.append(self.sent[-1])
            case 7 if self.sent:
                self.append(random.choice(self.sent))  # any of them, once more
            case 8 if random.random() < 0.2:
                self.processes.remove(process)  # killed; what it has sent may arrive yet
                self.sent += process.unsent[: random.randrange(2)]
                self.come()
            case _:
                self.read(process, random.randint(process.state.next_offset, len(self.log)))


@pytest.mark.seeds(range(40), 1_000)
def test_all_processes_come_to_the_same_state_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "PART_BYTES", 10)
    monkeypatch.setattr(metadata_log, "WRITERS_MAX", Random(seed).choice([4, 1_000]))
    world = World(seed)
    for _ in range(600):
        world.step()
    world.come()
    for process in world.processes:
        world.read(process, len(world.log))
        assert content_of(process.state) == content_of(world.whole)
    effects: set[tuple[str, int]] = set()
    values: dict[str, Value] = {}
    for offset, (command, applied) in enumerate(zip(world.log, world.verdicts, strict=True)):
        if applied.verdict is DONE:
            assert (command.writer, command.number) not in effects, "an effect once"
            effects.add((command.writer, command.number))
            if isinstance(command.action, Change):
                revisions = {key: values[key].revision if key in values else ABSENT for key in command.action.expected}
                assert revisions == command.action.expected, "on what it was decided on"
        if applied.changes is not None:
            assert applied.changes.revision == offset + 1
            for key, value in applied.changes.values.items():
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
    assert values == world.whole.keyspace.values
    assert {verdict.verdict for verdict in world.verdicts} >= {DONE, UNMET, REPEATED}


# ---- sessions and clocks ---------------------------------------------------------------------------------------------

TTL_MS = 3_000
STEP_S = 0.05


@dataclass
class Holder:
    """A process with a session, which it beats for; it looks after those of others as well."""

    name: str
    clock_s: float
    state: LogState = field(default_factory=LogState)
    silence: Silence = field(default_factory=Silence)
    number: int = 0
    beats: dict[int, float] = field(default_factory=dict)
    next_beat_s: float = 0.0
    held_until_s: float = 0.0
    frozen_until_s: float = 0.0
    losses: int = 0
    is_dead: bool = False


class Clocked:
    """Holders with clocks that agree in nothing but their rate; appends take their time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_s = 0.0
        self.log: list[Command] = []
        self.whole = LogState()
        self.on_their_way: list[tuple[float, Command]] = []
        self.writable_from_s = 0.0
        self.holders = [Holder(str(number), self.random.random() * 1000) for number in range(3)]
        self.ended: list[str] = []
        for holder in self.holders:
            self.send(holder, Change({holder.name: ABSENT}, {holder.name: b"here"}, holder.name, TTL_MS))

    def send(self, holder: Holder, action: Action) -> None:
        holder.number += 1
        at_s = max(self.now_s, self.writable_from_s) + self.random.random() * 0.2
        earlier_s = max((at for at, command in self.on_their_way if command.writer == holder.name), default=0.0)
        command = Command(holder.name, holder.number, holder.state.next_offset, action)
        self.on_their_way.append((max(at_s, earlier_s + 1e-6), command))  # a process sends one behind the other
        if isinstance(action, Beat | Change):
            holder.beats[holder.number] = self.now_s

    def arrive(self) -> None:
        self.on_their_way.sort(key=lambda one: one[0])
        while self.on_their_way and self.on_their_way[0][0] <= self.now_s:
            command = self.on_their_way.pop(0)[1]
            applied = self.whole.apply(len(self.log), command)
            self.log.append(command)
            if isinstance(command.action, End) and applied.verdict is DONE:
                name = command.action.session
                holder = self.holders[int(name)]
                assert holder.is_dead or holder.held_until_s <= self.now_s, "its holder takes it for held"
                self.ended.append(name)

    def run(self, holder: Holder) -> None:
        if holder.is_dead or self.now_s < holder.frozen_until_s:
            return
        if self.random.random() < 0.3:
            return  # it has not read yet
        while holder.state.next_offset < len(self.log):
            command = self.log[holder.state.next_offset]
            applied = holder.state.apply(holder.state.next_offset, command)
            if command.writer == holder.name and (asked_s := holder.beats.pop(command.number, None)) is not None:
                if applied.verdict is DONE:
                    holder.held_until_s = asked_s + TTL_MS / 1000
                else:
                    holder.losses += 1
        if holder.name in holder.state.sessions and self.now_s >= holder.next_beat_s and not holder.beats:
            holder.next_beat_s = self.now_s + TTL_MS / 3000
            self.send(holder, Beat(holder.name))
        if not any(command.writer == holder.name for _, command in self.on_their_way):
            for action in holder.silence.due(holder.state.sessions, self.now_s + holder.clock_s):
                self.send(holder, action)

    def pass_s(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += STEP_S
            self.arrive()
            for holder in self.holders:
                self.run(holder)


@pytest.mark.seeds(range(40), 1_000)
def test_no_session_ends_that_its_holder_takes_for_held(seed: int) -> None:
    world = Clocked(seed)
    for _ in range(30):
        world.pass_s(world.random.random() * 2)
        match world.random.randrange(4):
            case 0:
                world.random.choice(world.holders).frozen_until_s = world.now_s + world.random.random() * 8
            case 1:
                world.writable_from_s = world.now_s + world.random.random() * 8
            case _:
                pass
    world.pass_s(20)
    world.holders[0].is_dead = True
    world.pass_s(3 * TTL_MS / 1000)
    assert "0" in world.ended, "who is dead is given up"


@pytest.mark.parametrize("seed", range(20))
def test_a_kafka_that_takes_no_appends_for_long_ends_no_session(seed: int) -> None:
    world = Clocked(seed)
    for _ in range(5):
        world.pass_s(2 + world.random.random())
        world.writable_from_s = world.now_s + 30
        world.pass_s(31)
    assert world.ended == []
    assert all(holder.losses == 0 for holder in world.holders)
    world.holders[1].is_dead = True
    died_s = world.now_s
    while not world.ended:
        world.pass_s(STEP_S)
        assert world.now_s < died_s + 2 * TTL_MS / 1000
    assert world.ended == ["1"]
