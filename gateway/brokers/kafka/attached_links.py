"""What attached topics ask of a Kafka cluster beside what `port.py` has: the port, and the links to a cluster.

All reads are of what is committed: up to the last stable offset, with the transactions that were aborted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from gateway.brokers.kafka.codes import NONE, NOT_LEADER, OF_THE_MOMENT, REFUSALS
from gateway.brokers.kafka.links import EARLIEST, LATEST, Links
from gateway.brokers.kafka.port import Kafka, Refused, Unreached
from store.errors import BrokerRefuses
from store.types import Buffer

READ_COMMITTED = 1
OF_GROUPS = 0
NO_GENERATION = NO_RETENTION = -1
FIRST_BATCH = 1
"""Bytes that are asked for where only the first batch counts, or nothing but the end."""


class Committed(NamedTuple):
    """Batches behind each other, the last perhaps cut short; the first offset that the log has, and the last stable
    one; the producer and the first offset of each transaction in it that was aborted."""

    batches: Buffer
    start: int
    end: int
    aborted: Sequence[tuple[int, int]]


class Limits(NamedTuple):
    """What a topic takes: batches of so many bytes, and, when it is compacted, only records with a key."""

    batch_bytes_max: int
    needs_keys: bool


class SharedKafka(Kafka, Protocol):
    """A Kafka cluster in which others write too. Every method raises Unreached or Refused."""

    async def partition_count(self, topic: str) -> int:
        """How many partitions a topic has. It is not made."""
        ...

    async def limits(self, topic: str) -> Limits:
        """What a topic takes."""
        ...

    async def fetch_committed(self, topic: str, partition: int, offset: int, *, max_bytes: int) -> Committed:
        """As `fetch`, without a wait."""
        ...

    async def starts(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        """The first offset of each partition's log."""
        ...

    async def stable_ends(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        """The last stable offset of each partition: that of the first record of the oldest transaction that is open,
        else the one behind the last record."""
        ...

    async def committed_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """The first offset of a record of a time or later; None: there is none."""
        ...

    async def by_leader(self, topic: str, partitions: Sequence[int]) -> Sequence[Sequence[int]]:
        """The partitions, those together that have one leader."""
        ...

    async def wait_for_more(self, topic: str, ends: Mapping[int, int], *, wait_ms: int) -> Mapping[int, int]:
        """The last stable offsets of partitions with one leader, when one of them is behind those that are known, or
        after a time. Raises Refused when they have several leaders now: see `by_leader`."""
        ...

    async def leave(self, topic: str) -> None:
        """Nothing of a topic is waited for any more."""
        ...

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit a group's offsets, by partition, as one who is no member of it."""
        ...


class SharedLinks(Links):
    """`SharedKafka` over aiokafka."""

    async def partition_count(self, topic: str) -> int:
        """See `SharedKafka`."""
        client = await self._client("reads")
        answer = await self._asked(client, client.get_random_node(), MetadataRequest([topic], False))
        [(code, _, _, partitions, *_)] = [tuple(row) for row in answer.topics]
        if code != NONE:
            raise Refused(code, f"topic {topic}")
        return len(partitions)

    async def limits(self, topic: str) -> Limits:
        """See `SharedKafka`."""
        found = await self._settings_of(await self._administrator(), topic)
        return Limits(int(found["max.message.bytes"]), "compact" in found["cleanup.policy"])

    async def fetch_committed(self, topic: str, partition: int, offset: int, *, max_bytes: int) -> Committed:
        """See `SharedKafka`."""
        row = await self._fetch(topic, partition, offset, max_bytes, 0, READ_COMMITTED)
        return Committed(row.batches, row.start, row.stable, row.aborted)

    async def starts(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        """See `SharedKafka`."""
        return await self._offsets(topic, partitions, EARLIEST)

    async def stable_ends(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        """See `SharedKafka`."""
        return await self._offsets(topic, partitions, LATEST)

    async def committed_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """See `SharedKafka`."""
        found = (await self._offsets(topic, [partition], max(0, time_ms)))[partition]
        return None if found < 0 else found

    async def by_leader(self, topic: str, partitions: Sequence[int]) -> Sequence[Sequence[int]]:
        """See `SharedKafka`."""
        client = await self._client("reads")
        return list((await self._led(client, topic, partitions)).values())

    async def wait_for_more(self, topic: str, ends: Mapping[int, int], *, wait_ms: int) -> Mapping[int, int]:
        """See `SharedKafka`. On connections of the topic's own: a node answers those of one connection in order."""
        client = await self._client(_tails_of(topic))
        node, *others = await self._led(client, topic, list(ends))
        wanted = [(partition, end, FIRST_BATCH) for partition, end in ends.items()]
        request = FetchRequest(wait_ms, 1, FIRST_BATCH, READ_COMMITTED, [(topic, wanted)])
        try:
            if others:
                raise Refused(NOT_LEADER, f"topic {topic}, of which partitions had one leader")
            rows = _rows_of(await self._asked(client, node, request), topic)
        except Refused as error:
            if error.code in OF_THE_MOMENT:
                await self._refreshed(client)  # no other request refreshes the metadata of this client
            raise
        return {row[0]: row[3] for row in rows}

    async def leave(self, topic: str) -> None:
        """See `SharedKafka`."""
        if (client := self._clients.pop(_tails_of(topic), None)) is not None:
            await client.close()

    async def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """See `SharedKafka`."""
        client = await self._client("reads")
        found = await self._asked(client, client.get_random_node(), FindCoordinatorRequest(group, OF_GROUPS))
        if found.error_code != NONE:
            raise Unreached(f"group {group} has no coordinator: Kafka's error {found.error_code}")
        rows = [(partition, offset, "") for partition, offset in offsets.items()]
        request = OffsetCommitRequest(group, NO_GENERATION, "", NO_RETENTION, [(topic, rows)])
        [(_, answers)] = (await self._asked(client, found.coordinator_id, request)).topics
        for _, code in answers:
            if code != NONE:
                raise Refused(code, f"offsets of group {group}")

    async def _offsets(self, topic: str, partitions: Sequence[int], time_ms: int) -> Mapping[int, int]:
        client = await self._client("reads")
        for is_last in (False, True):
            try:
                found: dict[int, int] = {}
                for node, led in (await self._led(client, topic, partitions)).items():
                    wanted = [(partition, time_ms) for partition in led]
                    answer = await self._asked(client, node, OffsetRequest(-1, READ_COMMITTED, [(topic, wanted)]))
                    found |= {row[0]: row[3] for row in _rows_of(answer, topic)}
                return found
            except Refused as error:
                if is_last or error.code not in OF_THE_MOMENT:
                    raise
                await self._refreshed(client)
        raise AssertionError

    async def _led(self, client: AIOKafkaClient, topic: str, partitions: Sequence[int]) -> Mapping[int, Sequence[int]]:
        """The partitions that each node leads. Raises Unreached, Refused for a topic that is not there."""
        by_node: dict[int, list[int]] = {}
        for partition in partitions:
            if (node := await self._leader(client, topic, partition)) is None:
                count = await self.partition_count(topic)  # whether it is there
                raise Unreached(f"partition {partition} of topic {topic}, which has {count}, has no leader")
            by_node.setdefault(node, []).append(partition)
        return by_node


def refusal(topic: str, code: int) -> BrokerRefuses:
    """What is said of a topic when Kafka says no."""
    said = REFUSALS.get(code, "Kafka refuses it")
    return BrokerRefuses(f"topic {topic} in Kafka: {said} (Kafka's error {code})", code)


def _tails_of(topic: str) -> str:
    return f"tails of {topic}"


def _rows_of(answer: Any, topic: str) -> Sequence[Any]:
    """The rows of an answer's partitions. Raises Refused for the first that is an error."""
    [(_, rows)] = answer.topics
    for row in rows:
        if row[1] != NONE:
            raise Refused(row[1], f"topic {topic}, partition {row[0]}")
    return list(rows)
