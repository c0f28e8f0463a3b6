"""By what the server knows a batch that is sent again. Pure.

    stream, or writeId    Mq-Producer: <query id or writeId>/<Spark partition>     one number a batch:
                          Mq-Sequence: epoch 31 bits | batch of the lane 16 bits | digest 16 bits
    other batch jobs      Idempotency-Key: <id of the job>/<Spark partition>/<batch of the lane>
    delayed rows          Idempotency-Key in both cases, with the epoch in it where there is one

A lane is the rows of one task for one partition of a topic; the server keeps numbers and keys of each apart. The epoch
is Spark's number of the micro-batch. The digest covers all rows of the lane so far in this epoch: when a repeat brings
other rows, or the same in another order, its numbers are not those the server has seen, and it refuses them. (Only the
newest stored batch of a lane may be followed by a higher number with another digest: then rows are stored twice, never
lost.) The server remembers the newest numbers of a lane, and takes all below them for repeats: so a task has failed if
the last batch of a lane is one of those (sending.py). With a key the server compares the bodies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark_mq.errors import MqError

EPOCH_BITS, BATCH_BITS, DIGEST_BITS = 31, 16, 16
assert EPOCH_BITS + BATCH_BITS + DIGEST_BITS <= 63, "what the server takes"
EPOCH_MAX = (1 << EPOCH_BITS) - 1
LANE_BATCHES_MAX = 1 << BATCH_BITS

WRITE_ID_CHARS_MAX = 96
_WRITE_ID = re.compile(r"[!#-\[\]-~]+")


def is_write_id(text: str) -> bool:
    """Whether a text can name a write: visible ASCII without quotes and backslashes, at most WRITE_ID_CHARS_MAX."""
    return len(text) <= WRITE_ID_CHARS_MAX and _WRITE_ID.fullmatch(text) is not None


class Identity(Protocol):
    """By what a repeat of a batch is known."""

    @property
    def stamp_ms(self) -> int | None:
        """The timestamp of rows without one; None: the time they are sent."""
        ...

    @property
    def first_turn(self) -> int:
        """Which partition is the first to get rows without a key."""
        ...

    def of_batch(self, number: int, digest: int) -> Mapping[str, str]:
        """Headers for a batch of a lane. `digest` is of all rows of the lane so far."""
        ...

    def of_delayed(self, number: int) -> Mapping[str, str]:
        """Headers for a request with delayed rows of a topic."""
        ...


@dataclass(frozen=True, slots=True)
class Numbered:
    """Repeats are known for days (`store.producer_expiry_ms` of the server), whatever happens in between."""

    name: str
    spark_partition: int
    epoch: int

    @property
    def stamp_ms(self) -> int | None:
        return None

    @property
    def first_turn(self) -> int:
        return self.spark_partition + self.epoch

    def of_batch(self, number: int, digest: int) -> Mapping[str, str]:
        if number >= LANE_BATCHES_MAX:
            raise MqError(
                f"one task writes more than {LANE_BATCHES_MAX} batches into one partition: cut the DataFrame into more "
                "parts with repartition"
            )
        sequence = (self.epoch << BATCH_BITS | number) << DIGEST_BITS | digest & (1 << DIGEST_BITS) - 1
        return {"Mq-Producer": f"{self.name}/{self.spark_partition}", "Mq-Sequence": str(sequence)}

    def of_delayed(self, number: int) -> Mapping[str, str]:
        return {"Idempotency-Key": f'"{self.name}/{self.spark_partition}/{self.epoch}/{number}"'}


@dataclass(frozen=True, slots=True)
class Keyed:
    """Repeats are known for `store.dedup_window_ms` of the server, which then forgets the job."""

    name: str
    spark_partition: int
    started_ms: int

    @property
    def stamp_ms(self) -> int | None:
        return self.started_ms  # the same at every attempt, because bodies are compared

    @property
    def first_turn(self) -> int:
        return self.spark_partition

    def of_batch(self, number: int, digest: int) -> Mapping[str, str]:
        return self.of_delayed(number)

    def of_delayed(self, number: int) -> Mapping[str, str]:
        return {"Idempotency-Key": f'"{self.name}/{self.spark_partition}/{number}"'}
