"""`spark.readStream.format("mq")`: a topic as a stream, exactly once into a checkpoint.

The offset Spark keeps in the checkpoint is JSON of this form, with sorted keys, because Spark compares it as text:

    {"#epochs": {"orders": "7"}, "orders": {"0": 100, "1": 88}}

Each number is the next offset to read; "#" cannot begin a topic name. The epochs tell a topic that was deleted and
created again from the one the query has been reading.

Which process calls what: Spark keeps one reader in one process on the driver for `initialOffset`, `latestOffset`,
`partitions` and `commit`, so these share state; `read` runs on copies on the executors and sees only its Task. A call
that fails here ends the query, so all requests are retried (client.py).

Invariants
    S1  batch 0 ends no later than where partitions ended when its beginning was looked up. After a crash in batch 0
        Spark plans it again from a *new* initialOffset, which of a partition that begins at its end (latest, -1, a time
        that no record matches) is a later one: records between them would be lost
    S2  `latestOffset` moves no partition back, and under AvailableNow goes no further than what was there when the
        query started
    S3  an answer names exactly the partitions that exist, so that a new one can be told from one that vanished
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_mq.catalog import Catalog
from pyspark_mq.client import Client
from pyspark_mq.compat import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from pyspark_mq.errors import OptionError
from pyspark_mq.json_values import JsonValues
from pyspark_mq.lag import LagReporter
from pyspark_mq.offsets import (
    Latest,
    Offsets,
    Range,
    Topics,
    backlog,
    clamp,
    counted,
    ends,
    limited,
    outside,
    plan,
    resolve_start,
    uncounted,
)
from pyspark_mq.options import Options
from pyspark_mq.reading import Task, read, report_loss

_EPOCHS = "#epochs"

_Json = dict[str, dict[str, int | str]]


class StreamOffset(NamedTuple):
    """How far a stream is: the next offset of each partition, and the epoch of each topic."""

    epochs: Mapping[str, str]
    offsets: Offsets

    def to_json(self) -> _Json:
        """The form Spark keeps: sorted, so that equal offsets are equal text."""
        document: _Json = {_EPOCHS: {topic: self.epochs[topic] for topic in sorted(self.epochs)}}
        for topic in sorted(self.offsets):
            document[topic] = {str(p): self.offsets[topic][p] for p in sorted(self.offsets[topic])}
        return document

    @classmethod
    def from_json(cls, document: _Json) -> StreamOffset:
        """The inverse of `to_json`."""
        epochs = {topic: str(epoch) for topic, epoch in document[_EPOCHS].items()}
        return cls(epochs, {t: {int(p): int(o) for p, o in document[t].items()} for t in document if t != _EPOCHS})


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. Spark drives it from one thread; see the module's docstring for what runs where."""

    def __init__(
        self,
        options: Options,
        columns: tuple[str, ...],
        values: JsonValues | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if options.ending is not None:
            raise OptionError("endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch reads only")
        self._options = options
        self._columns = columns
        self._values = values
        self._monotonic = monotonic
        self._catalog = Catalog(Client(options.endpoint), options.selection)
        self._seen: Topics | None = None  # what the last look-up found
        self._frozen: Topics | None = None  # under AvailableNow: what was there when the query started
        self._initial: StreamOffset | None = None
        self._first: Topics | None = None  # what `_initial` was looked up in, until batch 0 is planned
        self._last_trigger_s: float | None = None
        self._lag: LagReporter | None = None

    def __reduce__(self) -> tuple[type[StreamReader], tuple[Options, tuple[str, ...], JsonValues | None]]:
        """Executors get a reader in its first state: they only call `read`."""
        return StreamReader, (self._options, self._columns, self._values)

    def initialOffset(self) -> _Json:
        """Where a new query begins. Asked more than once, it answers the same."""
        if self._initial is None:
            if self._first is None:
                self._first = self._frozen if self._frozen is not None else self._catalog.existing()
            topics = self._catalog.complete(self._first)
            offsets = resolve_start(
                self._options.starting or Latest(),
                topics,
                self._catalog.times(),
                no_match_is_latest=self._options.no_match_is_latest,
            )
            self._initial = _stream_offset(topics, offsets)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark passes to `latestOffset`, unless the trigger reads all there is."""
        if self._options.records_per_trigger_max is not None:
            return ReadMaxRows(self._options.records_per_trigger_max)
        if self._options.records_per_trigger_min is not None:
            return ReadMinRows(self._options.records_per_trigger_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, act as if nothing more arrived."""
        self._frozen = self._catalog.all()

    def latestOffset(self, start: _Json | None = None, limit: ReadLimit | None = None) -> _Json:
        """Where the next batch ends. pyspark before 4.2 passes neither argument."""
        if start is None:
            return self._latest_without_start()
        position = StreamOffset.from_json(start)
        self._report(position)  # Spark asks for a batch when the one before is done, and commits none after the last
        topics = self._seen = self._look_up(position)
        begin = self._continued(position, topics)
        end = ends(topics)
        places, last = counted(topics, begin), counted(topics, end)
        is_limited = limit is not None and not isinstance(limit, ReadAllAvailable)
        if is_limited and self._waits_for_more(backlog(places, last)):
            return start
        if self._frozen is not None and self._lag is not None and end == position.offsets:
            self._lag.wait()  # the query ends now, and Spark may kill this process before a report is under way
        if isinstance(limit, ReadMaxRows):
            reached = uncounted(topics, limited(places, last, limit.max_rows))
            end = {t: {p: max(offset, begin[t][p]) for p, offset in ps.items()} for t, ps in reached.items()}
        return _stream_offset(topics, end).to_json()

    def reportLatestOffset(self) -> _Json | None:
        """What the last look-up saw, for the progress report."""
        return None if self._seen is None else _stream_offset(self._seen, ends(self._seen)).to_json()

    def partitions(self, start: _Json, end: _Json) -> list[Task]:
        """The tasks of one batch. After a restart Spark calls this first, with offsets from the checkpoint."""
        begin, until = StreamOffset.from_json(start), StreamOffset.from_json(end)
        topics = self._seen if self._seen is not None else self._catalog.existing()
        ranges = [r for topic in until.offsets for r in self._ranges(topic, begin, until, topics)]
        return [Task(task) for task in plan(ranges, self._options.split)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor; see `reading.read`."""
        return read(self._options, self._columns, partition, self._values)

    def commit(self, end: _Json) -> None:
        """Progress lives in Spark's checkpoint; the server is told only for the lag of `groupId`."""
        self._report(StreamOffset.from_json(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._lag is not None:
            self._lag.close()

    def _report(self, position: StreamOffset) -> None:
        """Everything before it is done."""
        if self._options.group is not None:
            if self._lag is None:
                self._lag = LagReporter(Client(self._options.endpoint), self._options.group)
            self._lag.report(position.offsets)

    def _latest_without_start(self) -> _Json:
        """For pyspark 4.0 and 4.1, where this comes before `initialOffset`; both go by one look-up (S1)."""
        topics = self._seen = self._first = self._catalog.existing()
        return _stream_offset(topics, ends(topics)).to_json()

    def _look_up(self, position: StreamOffset) -> Topics:
        """The topics as they are for a batch that begins at a position."""
        if position == self._initial and self._first is not None:
            topics, self._first = self._first, None  # batch 0 (S1)
            return topics
        return self._frozen if self._frozen is not None else self._catalog.existing()

    def _continued(self, position: StreamOffset, topics: Topics) -> Offsets:
        """Where each partition that exists goes on: its position, or its beginning when it is new."""
        begin: Offsets = {}
        for topic, state in topics.items():
            known = position.offsets.get(topic, {})
            if topic in position.epochs and position.epochs[topic] != state.epoch:
                self._lost(f"topic {topic} was deleted and created again since the last batch")
                known = {}
            begin[topic] = {}
            for partition, bounds in state.partitions.items():
                offset = known.get(partition, bounds.beginning)
                if offset > bounds.end:
                    self._lost(f"{topic}/{partition} now ends at {bounds.end}, but the stream is at {offset}")
                    offset = bounds.end
                begin[topic][partition] = offset
        for topic, partitions in position.offsets.items():
            vanished = sorted(partitions.keys() - begin.get(topic, {}).keys())
            if vanished:
                self._lost(f"partitions {vanished} of topic {topic} no longer exist")
        return begin

    def _waits_for_more(self, waiting_count: int) -> bool:
        """Whether minOffsetsPerTrigger holds the next batch back; maxTriggerDelay bounds for how long."""
        least = self._options.records_per_trigger_min
        if least is None or self._frozen is not None:
            return False
        now_s = self._monotonic()
        if (
            waiting_count < least
            and self._last_trigger_s is not None
            and now_s - self._last_trigger_s < self._options.trigger_delay_max_ms / 1000
        ):
            return True
        self._last_trigger_s = now_s
        return False

    def _ranges(self, topic: str, begin: StreamOffset, until: StreamOffset, topics: Topics) -> Iterator[Range]:
        """What one batch reads of one topic."""
        state = topics.get(topic)
        epoch = until.epochs[topic]
        if state is None or state.epoch != epoch:
            self._lost(f"topic {topic} (epoch {epoch}) no longer exists")
            return
        known = begin.offsets.get(topic, {}) if begin.epochs.get(topic) == epoch else {}
        for partition, end in until.offsets[topic].items():
            if partition not in state.partitions:
                self._lost(f"{topic}/{partition} no longer exists")
                continue
            start = known.get(partition, 0)  # a new partition counts from its first record, read or lost
            if start > end:
                if begin != self._initial:  # else: batch 0 planned again (S1), and there is nothing in it
                    self._lost(f"{topic}/{partition} went back from {start} to {end}")
                continue
            kept, lost = clamp(Range(topic, partition, start, end, epoch), state.partitions[partition])
            if lost:
                self._lost(lost)
            yield from outside(kept, state.partitions[partition].gaps)

    def _lost(self, message: str) -> None:
        report_loss(message, fail=self._options.fail_on_data_loss)


def _stream_offset(topics: Topics, offsets: Offsets) -> StreamOffset:
    return StreamOffset({topic: state.epoch for topic, state in topics.items()}, offsets)
