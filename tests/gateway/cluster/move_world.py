"""Three nodes that move one partition between embedded brokers and Kafka partitions, one step after the other, chosen
by a `Random`: messages are late, lost and sent twice, clients send records again, nodes crash, Kafka forgets its
fence, strangers write, retention takes records. The decisions are those of gateway.cluster.move and
gateway.brokers.kafka.fencing; `Rules` lets a test break one.

After each step these hold (`check`), and `finish` shows 8:

    1  the chain is without a gap, and only its last segment is open
    2  an acknowledged record stays at its offset for ever, until it expires
    3  what any reader has seen at an offset, however old its view, never changes
    4  no record is in the chain twice, however often its client sends it
    5  a segment holds batches of its own epoch and no others, and no two segments have the same
    6  epochs rise, and what is said of a sealed segment never changes
    7  an append that reaches a queue behind its seal is never acknowledged
    8  from every state any node can finish the move, and records are acknowledged again
    9  trimming takes expired records only

What it does not model: records of more than one batch, several partitions, loss of a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from gateway.brokers.kafka.fencing import Batch, Sent, Tenure, own_end
from gateway.cluster import move
from gateway.cluster.record import PartitionRecord, PartitionState, SegmentRecord, check

NODES = ("n1", "n2", "n3")
KAFKA = ("k1", "k2")
BROKERS = ("n1", "n2", *KAFKA)
REPEATS_KNOWN = 5
"""Kafka knows the last five batches of a producer."""


def tenure_of(record: PartitionRecord, node: str) -> int | None:
    """The epoch in which a node may append now; None when it may not."""
    return record.epoch if record.owner == node and record.state is PartitionState.NORMAL else None


class Refused(Exception):
    """A broker does not do what it is asked to."""


class Item(NamedTuple):
    """A batch in a log: its record (None: a fence or a stranger's batch), and the epoch of who wrote it."""

    record: int | None
    epoch: int | None


@dataclass
class Queue:
    """An embedded broker's queue, made for one epoch."""

    log: list[Item] = field(default_factory=list)
    min_offset: int = 0
    is_sealed: bool = False

    def append(self, epoch: int, sequence: int, record: int) -> int:
        if self.is_sealed:
            raise Refused
        self.log.append(Item(record, epoch))
        return len(self.log) - 1

    def seal(self) -> int:
        self.is_sealed = True
        return len(self.log)


@dataclass
class KafkaPartition:
    """A partition of a Kafka cluster, and what it knows of its one idempotent producer."""

    log: list[Item] = field(default_factory=list)
    min_offset: int = 0
    epoch: int = -1
    next_sequence: int | None = None

    def forget(self) -> None:
        self.epoch, self.next_sequence = -1, None

    def append(self, epoch: int, sequence: int, record: int | None) -> int:
        if epoch < self.epoch:
            raise Refused
        if epoch == self.epoch and self.next_sequence is not None and sequence != self.next_sequence:
            raise Refused
        if epoch > self.epoch >= 0 and sequence != 0:
            raise Refused
        self.epoch, self.next_sequence = max(epoch, self.epoch), sequence + 1
        self.log.append(Item(record, epoch))
        return len(self.log) - 1

    def fence(self, epoch: int) -> int:
        """Offset of the fence of an epoch; a repeat finds the one that is there."""
        for offset in range(len(self.log) - 1, -1, -1):
            if self.log[offset] == Item(None, epoch) and self.epoch == epoch:
                if sum(item.epoch == epoch for item in self.log[offset + 1 :]) >= REPEATS_KNOWN:
                    raise Refused
                return offset
        return self.append(epoch, 0, None)


def batches_of(log: Sequence[Item], first: int, end: int) -> list[Batch]:
    return [Batch(offset, 1, None if log[offset].record is None else log[offset].epoch) for offset in range(first, end)]


@dataclass
class Rules:
    """Each rule by itself; a mutant replaces one."""

    intent: Callable[[PartitionRecord, str], PartitionRecord] = move.intent
    commit: Callable[..., PartitionRecord] = move.commit
    trim: Callable[[PartitionRecord, Sequence[int]], PartitionRecord] = move.trim
    tenure: Callable[[int], Tenure[int]] = Tenure
    sealed_end: Callable[[Sequence[Batch], int, int], int] = own_end
    shown_end: Callable[[Sequence[Batch], int, int], int] = own_end
    queue: Callable[[], Queue] = Queue
    open_kafka: Callable[[KafkaPartition, int], int] = lambda kafka, epoch: kafka.fence(epoch) + 1
    has_compare: bool = True
    waits_for_commit: bool = True
    tells_ids: bool = True  # of the old segment, before its seal
    tells_later_ids: bool = True  # of what came between that and the seal
    passes_ids_on: bool = True  # those that the old segment's owner was told itself
    queue_id: Callable[[int, int], int] = move.queue_id_for


@dataclass(frozen=True)
class View:
    """What a node knows: a record and its revision."""

    revision: int
    record: PartitionRecord


@dataclass
class Serving:
    """An owner's tenure."""

    epoch: int
    tenure: Tenure[int]
    sequence: int
    known: set[int] = field(default_factory=set)  # records that are stored, or on their way


@dataclass(frozen=True)
class Append:
    node: str
    segment: SegmentRecord
    epoch: int
    record: int
    sent: Sent
    sequence: int


@dataclass(frozen=True)
class Step:
    """A step of a move on its way."""

    kind: str
    node: str
    view: View
    end: int = 0
    physical: int = 0
    queue: tuple[int | str, int] = (0, 0)
    ids: frozenset[int] = frozenset()  # records that the new owner is told to be stored


class MoveWorld:
    """See the module. `random` may be Hypothesis's, which then shrinks what fails."""

    def __init__(self, random: Random, rules: Rules | None = None) -> None:
        self.random = random
        self.rules = rules or Rules()
        self.kafka = {name: KafkaPartition() for name in KAFKA}
        self.queues: dict[tuple[str, tuple[int | str, int]], Queue] = {}
        broker = random.choice(BROKERS)
        first = SegmentRecord(start=0, broker=broker, queue=self.queue_of(broker, 0))
        if broker in KAFKA:
            self.kafka[broker].epoch = 0
        else:
            self.queues[broker, first.queue] = self.rules.queue()
        self.meta = View(1, PartitionRecord(epoch=0, owner="n1", segments=(first,)))
        self.views = dict.fromkeys(NODES, self.meta)
        self.serving: dict[str, Serving] = {"n1": Serving(0, self.rules.tenure(0), 0)}
        self.flight: list[Append | Step] = []
        self.ends: dict[int, tuple[int, int, int | None]] = {}  # of sealed segments, by epoch
        self.highest_epoch = 0
        self.late: set[tuple[int, int]] = set()  # records that reached a queue behind its seal, and its epoch
        self.told: dict[int, frozenset[int]] = {}  # records, by the epoch whose owner was told that they are stored
        self.acknowledged: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.trimmed_until = 0
        self.record = 0
        self.counts = dict.fromkeys(
            ("acknowledged", "moves", "strangers", "forgotten", "trimmed", "reads", "repeats"), 0
        )

    def queue_of(self, broker: str, epoch: int) -> tuple[int | str, int]:
        return ("t", 0) if broker in KAFKA else (16, self.rules.queue_id(0, epoch))

    def log_of(self, segment: SegmentRecord) -> Queue | KafkaPartition | None:
        """None: it was deleted, or never made."""
        if segment.broker in KAFKA:
            return self.kafka[segment.broker]
        return self.queues.get((segment.broker, segment.queue))

    # ---- steps -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        steps = (
            (7, self.send), (9, self.deliver), (4, self.read), (1, self.begin_move), (0.3, self.crash),
            (1, lambda: self.refresh(self.random.choice(NODES))), (0.4, self.forget), (0.2, self.stranger),
            (1, self.expire), (1, self.trim),
        )  # fmt: skip
        at = self.random.random() * sum(weight for weight, _ in steps)
        chosen = steps[0][1]
        for weight, step in steps:
            at -= weight
            if at < 0:
                chosen = step
                break
        chosen()
        self.check()

    def send(self) -> None:
        is_again = self.record > 0 and self.random.random() < 0.3
        self.send_from(self.random.choice(NODES), self.random.randint(1, self.record) if is_again else None)

    def send_from(self, node: str, again: int | None = None) -> None:
        """A client sends a new record, or one that it has sent before."""
        serving, record = self.serving.get(node), self.views[node].record
        if serving is None or record.owner != node or record.open_segment.epoch != serving.epoch:
            return
        if again is None:
            self.record += 1
        elif again in serving.known:
            self.counts["repeats"] += 1
            return  # it is answered as the first one is
        value = again or self.record
        serving.known.add(value)
        sent = serving.tenure.send(1)
        self.flight.append(Append(node, record.open_segment, serving.epoch, value, sent, serving.sequence))
        serving.sequence += 1

    def deliver(self) -> None:
        if not self.flight:
            return
        message = self.flight.pop(self.random.randrange(min(len(self.flight), 4)))
        if isinstance(message, Append):
            self.append(message)
            return
        with suppress(Refused):
            self.move_on(message)
        if self.random.random() < 0.1:
            self.flight.append(message)

    def append(self, message: Append) -> None:
        segment = message.segment
        log = self.log_of(segment)
        if self.is_sealed(segment):
            self.late.add((message.record, segment.epoch))
        serving = self.serving.get(message.node)
        if serving is not None and serving.epoch != message.epoch:
            serving = None
        try:
            if log is None:
                raise Refused
            offset = log.append(message.epoch, message.sequence, message.record)
        except Refused:
            if serving is not None:
                del self.serving[message.node]
            return
        if serving is None:
            return  # nobody waits for the answer any more
        ready = serving.tenure.stored(message.sent, offset, message.record)
        if serving.tenure.is_in_doubt:
            del self.serving[message.node]
        for record in ready:
            if self.random.random() < 0.8:  # else the answer is lost
                at = next(i for i in range(len(log.log) - 1, -1, -1) if log.log[i] == Item(record, segment.epoch))
                self.acknowledged[segment.start + at - segment.physical] = record
                self.counts["acknowledged"] += 1
                assert (record, segment.epoch) not in self.late, f"7: record {record} came behind the seal"

    def is_sealed(self, segment: SegmentRecord) -> bool:
        log = self.log_of(segment)
        if isinstance(log, KafkaPartition):
            return any(
                item.record is None and (item.epoch or -1) > segment.epoch for item in log.log[segment.physical :]
            )
        return log is None or log.is_sealed

    def read(self) -> None:
        node = self.random.choice(NODES)
        segment = self.random.choice(self.views[node].record.segments)
        log = self.log_of(segment)
        if log is None:
            self.refresh(node)
            return
        end = len(log.log) if segment.end is None else min(segment.end, len(log.log))
        if isinstance(log, KafkaPartition) and segment.end is None:
            end = self.rules.shown_end(batches_of(log.log, segment.physical, end), segment.physical, segment.epoch)
        for offset in range(max(segment.physical, log.min_offset), end):
            record = log.log[offset].record
            if record is None:
                continue
            at = segment.start + offset - segment.physical
            before = self.seen.get(at, self.acknowledged.get(at, record))
            assert before == record, f"3: a reader saw {record} at {at}, where {before} was"
            self.seen[at] = record
        self.counts["reads"] += 1

    def refresh(self, node: str) -> None:
        self.views[node] = self.meta
        serving = self.serving.get(node)
        if serving is not None and tenure_of(self.meta.record, node) != serving.epoch:
            del self.serving[node]

    def crash(self) -> None:
        """A node loses what it knows, and perhaps what it has sent."""
        node = self.random.choice(NODES)
        self.serving.pop(node, None)
        if self.random.random() < 0.5:
            self.flight = [each for each in self.flight if each.node != node or self.random.random() < 0.5]
        self.views[node] = self.meta

    def forget(self) -> None:
        self.kafka[self.random.choice(KAFKA)].forget()
        self.counts["forgotten"] += 1

    def stranger(self) -> None:
        self.kafka[self.random.choice(KAFKA)].log.append(Item(None, None))
        self.counts["strangers"] += 1

    def expire(self) -> None:
        logs: list[Queue | KafkaPartition] = [*self.queues.values(), *self.kafka.values()]
        log = self.random.choice(logs)
        log.min_offset = self.random.randrange(log.min_offset, len(log.log) + 1)

    def trim(self) -> None:
        node = self.random.choice(NODES)
        self.refresh(node)
        view = self.views[node]
        logs = [self.log_of(segment) for segment in view.record.segments]
        trimmed = self.rules.trim(view.record, [10**9 if log is None else log.min_offset for log in logs])
        gone = view.record.segments[: len(view.record.segments) - len(trimmed.segments)]
        if not gone or not self.compare_and_set(node, view, trimmed):
            return
        for segment, log in zip(gone, logs, strict=False):
            assert log is not None
            assert segment.end is not None
            assert log.min_offset >= segment.end, f"9: {segment} has not expired"
            self.queues.pop((segment.broker, segment.queue), None)
            self.counts["trimmed"] += 1
        self.trimmed_until = trimmed.segments[0].start

    def compare_and_set(self, node: str, view: View, record: PartitionRecord) -> bool:
        if self.rules.has_compare and self.meta.revision != view.revision:
            return False
        self.meta = View(self.meta.revision + 1, record)
        self.views[node] = self.meta
        return True

    # ---- moves -----------------------------------------------------------------------------------------------------

    def begin_move(self) -> None:
        node = self.random.choice(NODES)
        self.refresh(node)
        view = self.views[node]
        ids = self.ids_of(view.record.open_segment, None) if self.rules.tells_ids else frozenset()
        if self.compare_and_set(node, view, self.rules.intent(view.record, self.random.choice(BROKERS))):
            if self.random.random() < 0.5:
                self.serving.pop(node, None)
            self.flight.append(Step("seal", node, self.views[node], ids=ids))

    def move_on(self, step: Step) -> None:
        record = step.view.record
        last, epoch, to = record.open_segment, record.epoch, record.to
        assert to is not None
        if step.kind == "seal":
            end, physical = self.seal(last, epoch)
            if self.rules.tells_later_ids:
                step = replace(step, ids=step.ids | self.ids_of(last, end))
            if to in KAFKA and to == last.broker:  # one fence does both
                self.flight.append(replace(step, kind="commit", end=end, physical=physical, queue=last.queue))
            else:
                self.flight.append(replace(step, kind="open", end=end))
        elif step.kind == "open":
            queue = self.queue_of(to, epoch)
            if to in KAFKA:
                physical = self.rules.open_kafka(self.kafka[to], epoch)
            else:
                physical = 0
                if (to, queue) not in self.queues:
                    self.queues[to, queue] = self.rules.queue()
            self.flight.append(replace(step, kind="commit", physical=physical, queue=queue))
        else:
            committed = self.rules.commit(
                record, end=step.end, owner=step.node, queue=step.queue, physical=step.physical, now_ms=0
            )
            if self.compare_and_set(step.node, step.view, committed):
                self.counts["moves"] += 1
            elif not self.rules.waits_for_commit:
                self.views[step.node] = View(step.view.revision + 1, committed)
            else:
                return
            self.told[committed.epoch] = step.ids
            self.served(step.node)

    def seal(self, segment: SegmentRecord, epoch: int) -> tuple[int, int]:
        """Where the segment ends, and where the next one may begin in the same Kafka partition."""
        log = self.log_of(segment)
        if log is None:
            raise Refused
        if isinstance(log, Queue):
            return log.seal(), 0
        fence = log.fence(epoch)
        batches = batches_of(log.log, segment.physical, fence)
        return self.rules.sealed_end(batches, segment.physical, segment.epoch), fence + 1

    def served(self, node: str) -> None:
        """Begin a tenure, if the node's view says that it has one."""
        record = self.views[node].record
        if tenure_of(record, node) is None:
            return
        segment = record.open_segment
        sequence = 1 if segment.broker in KAFKA else 0  # behind the fence
        known = set(self.told.get(segment.epoch, ()))
        self.serving[node] = Serving(segment.epoch, self.rules.tenure(segment.physical), sequence, known)

    def ids_of(self, segment: SegmentRecord, end: int | None) -> frozenset[int]:
        """The records that are known to be stored by those who look at a segment, None: while it may be open."""
        told = self.told.get(segment.epoch, frozenset()) if self.rules.passes_ids_on else frozenset()
        log = self.log_of(segment)
        if log is None:
            return told
        items = log.log[segment.physical : end]
        return told | {item.record for item in items if item.record is not None and item.epoch == segment.epoch}

    def finish(self) -> None:
        """8: all messages are lost, all nodes but one are gone; that one takes the partition over and serves."""
        for to in BROKERS:
            self.flight.clear()
            self.serving.clear()
            self.refresh("n2")
            view = self.views["n2"]
            assert self.compare_and_set("n2", view, self.rules.intent(view.record, to)), "8: no intent"
            ids = self.ids_of(view.record.open_segment, None)
            self.flight.append(Step("seal", "n2", self.views["n2"], ids=ids))
            for _ in range(3):
                step = self.flight.pop()
                assert isinstance(step, Step)
                try:
                    self.move_on(step)
                except Refused:
                    raise AssertionError(f"8: {step.kind} of a move to {to} was refused") from None
                if not self.flight:
                    break
            assert self.meta.record.state is PartitionState.NORMAL, "8: not committed"
            self.check()
            self.send_from("n2")
            self.append(self.flight.pop())  # type: ignore[arg-type]
            assert "n2" in self.serving, "8: nothing is acknowledged"
            self.check()

    # ---- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        record = self.meta.record
        try:
            check(record)
        except ValueError as error:
            raise AssertionError(f"1, 6: {error}") from error
        assert record.epoch >= self.highest_epoch, "6: the epoch fell"
        self.highest_epoch = record.epoch
        chain: list[int] = []
        for segment in record.segments:
            assert segment.start == self.trimmed_until + len(chain), "1: a gap"
            self.check_end(segment)
            log = self.log_of(segment)
            assert log is not None, f"9: the queue of {segment} is gone"
            end = segment.end
            if end is None:
                batches = batches_of(log.log, segment.physical, len(log.log))
                end = own_end(batches, segment.physical, segment.epoch)
            for offset in range(segment.physical, end):
                item = log.log[offset]
                assert item.record is not None, f"5: {item} at {offset} of {segment}"
                assert item.epoch == segment.epoch, f"5: {item} at {offset} of {segment}"
                chain.append(item.record)
        assert len(set(chain)) == len(chain), "4: a record twice"
        self.check_kept("2: acknowledged", self.acknowledged, chain)
        self.check_kept("3: seen", self.seen, chain)

    def check_end(self, segment: SegmentRecord) -> None:
        if segment.end is not None:
            said = (segment.start, segment.physical, segment.end)
            assert self.ends.setdefault(segment.epoch, said) == said, f"6: {said}, before {self.ends[segment.epoch]}"

    def check_kept(self, what: str, known: dict[int, int], chain: list[int]) -> None:
        for at, record in known.items():
            if at >= self.trimmed_until:
                index = at - self.trimmed_until
                assert index < len(chain), f"{what}: {record} at {at} is gone"
                assert chain[index] == record, f"{what}: {record} at {at} is {chain[index]} now"
