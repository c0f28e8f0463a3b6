"""One read of a consumer instance: gather what is there, and wait for more while it is not enough.

A wait ends with the next record of any partition, at the deadline, or when `must_stop` says so, which is asked every
`LOOK_S` and whenever the poll is stirred.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from gateway.api.read import Consumer, Tail
from gateway.api.schemas import Schemas
from gateway.api.tasks import when_set
from gateway.api.turns import in_turns
from gateway.brokers.base import BrokerUnreachable
from gateway.codec.filters import TagFilter
from gateway.codec.schema_parts import SchemaFormat
from gateway.groups.machines.strategies.base import Partition
from gateway.routing.patience import AGAIN_S
from gateway.settings.limits import Limits
from gateway.surfaces.http.media import schemas_for
from gateway.surfaces.rest_v2.instances.gathering import Gathering, Reserve
from gateway.surfaces.rest_v2.instances.instance import Instance
from gateway.surfaces.rest_v2.instances.settings import REQUEST_TIMEOUT_MS_DEFAULT, InstanceSettings
from gateway.surfaces.rest_v2.schema_records import deserialized
from store.errors import UnknownQueue
from store.limits import MiB
from store.types import ReadStatus
from store.waits import is_set_within

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often a waiting read looks whether its client is still there."""

LOOKS_A_TURN = 100
"""Partitions that are looked at between two turns of the event loop: 25 us each."""

_FETCH_BYTES = 1 * MiB


async def turn_of_others(number: int) -> None:
    """Called with the number of each partition of a request. There may be thousands, and a look at one that has nothing
    waits for nothing."""
    if number % LOOKS_A_TURN == LOOKS_A_TURN - 1:
        await asyncio.sleep(0)


class Poll(NamedTuple):
    """What one read asks for. None: what the instance or the server says."""

    timeout_ms: int | None = None
    bytes_max: int | None = None
    count_max: int | None = None
    tag_filter: TagFilter | None = None


class Poller:
    """Reads for all instances of one server. Errors are StoreErrors, and those of `Gathering.take`."""

    def __init__(
        self, consumer: Consumer, limits: Limits, *, monotonic_s: Callable[[], float], schemas: Schemas | None = None
    ) -> None:
        self._consumer = consumer
        self._schemas = schemas
        self._limits = limits
        self._monotonic_s = monotonic_s

    async def gather(
        self,
        instance: Instance,
        poll: Poll,
        *,
        reserve: Reserve,
        stirred: asyncio.Event,
        must_stop: Callable[[], bool],
        look_around: Callable[[Gathering], Awaitable[None]],
    ) -> Gathering:
        """Records from the instance's positions on. `look_around` is called when `stirred` was set: the
        instance may have other partitions then, and what was gathered from lost ones is to be dropped."""
        gathering = self._gathering(instance.settings, poll, reserve)
        wanted_bytes = min(instance.settings.fetch_min_bytes, gathering.bytes_max)
        ends: dict[Partition, int] = {}  # of the partitions, when they were last read
        away: dict[Partition, BrokerUnreachable] = {}
        deadline_s = self._monotonic_s() + _timeout_ms(poll, instance.settings, self._limits) / 1000
        while True:
            for number, topic_partition in enumerate(instance.reading_order()):
                await turn_of_others(number)
                try:
                    while not gathering.is_full and not await self._gather_from(
                        instance, topic_partition, gathering, ends
                    ):
                        pass
                except BrokerUnreachable as error:  # its node restarts: the others go on
                    away[topic_partition] = error
                    ends.pop(topic_partition, None)
                else:
                    away.pop(topic_partition, None)
            if gathering.is_full or (gathering.count and gathering.size_bytes >= wanted_bytes):
                return gathering
            tails = [Tail(one.topic, one.partition, ends[one]) for one in instance.reading_order() if one in ends]
            look_s = self._monotonic_s() + AGAIN_S if away else deadline_s
            if not await self._woken(tails, min(look_s, deadline_s), stirred, must_stop):
                if look_s < deadline_s and not must_stop():
                    continue
                for first in away.values():
                    if not gathering.count:
                        raise first
                return gathering
            if stirred.is_set():
                stirred.clear()
                await look_around(gathering)

    def _gathering(self, settings: InstanceSettings, poll: Poll, reserve: Reserve) -> Gathering:
        limits = self._limits
        counts = (poll.count_max, settings.poll_records_max, limits.fetch_records_max)
        return Gathering(
            settings.format,
            settings.on_decode_error,
            bytes_max=min(poll.bytes_max or limits.fetch_bytes_default, limits.fetch_bytes_max),
            count_max=min(count for count in counts if count is not None),
            tag_filter=poll.tag_filter,
            reserve=reserve,
        )

    async def _gather_from(
        self, instance: Instance, topic_partition: Partition, gathering: Gathering, ends: dict[Partition, int]
    ) -> bool:
        """One fetch of one partition; whether it has come to its end, which is noted."""
        start = _next_offset(instance, topic_partition, gathering)
        tag_filter = gathering.tag_filter
        try:
            fetched = await self._consumer.fetch(
                topic_partition.topic,
                topic_partition.partition,
                start,
                max_bytes=min(gathering.bytes_left, _FETCH_BYTES),
                tag_hashes=None if tag_filter is None else tag_filter.hashes,
            )
        except UnknownQueue:  # deleted; the next look at group and topics takes the partition away
            ends.pop(topic_partition, None)
            return True
        ends[topic_partition] = fetched.max_offset
        if fetched.status is ReadStatus.TOO_LARGE:  # committed there: the record that gets this offset is waited for
            return True
        if fetched.status is ReadStatus.TOO_SMALL:
            # What retention took is gone; a reader of the last records still wants all that are left.
            offset = fetched.min_offset
            log.info(
                "position out of range group=%s instance=%s topic=%s partition=%s offset=%s new_offset=%s",
                instance.group,
                instance.name,
                topic_partition.topic,
                topic_partition.partition,
                start,
                offset,
            )
            instance.seek(topic_partition, offset)
            gathering.passed(topic_partition, offset)
            return offset >= fetched.max_offset
        if fetched.entries:
            fmt = instance.settings.format
            if isinstance(fmt, SchemaFormat):
                shown = await deserialized(
                    schemas_for(self._schemas, fmt), fmt, fetched.entries, start,
                    count_max=gathering.count_left, tag_filter=tag_filter,
                )  # fmt: skip
                await in_turns(gathering.take_in_steps(topic_partition, start, fetched.entries, shown))
                if shown.stop < fetched.entries[-1].next_offset:
                    return False
            else:
                await in_turns(gathering.take_in_steps(topic_partition, start, fetched.entries))
            await asyncio.sleep(0)  # others' turn: a megabyte was rendered
        if not gathering.is_full:
            gathering.passed(topic_partition, max(start, fetched.next_offset))
        return fetched.next_offset >= fetched.max_offset

    async def _woken(
        self, tails: Sequence[Tail], deadline_s: float, stirred: asyncio.Event, must_stop: Callable[[], bool]
    ) -> bool:
        """Wait until there may be more to gather; False when this read is to end."""
        woken = asyncio.Event()
        async with self._consumer.watching(tails, woken.set):
            with when_set(stirred, woken.set):
                while (left_s := deadline_s - self._monotonic_s()) > 0 and not must_stop():
                    if await is_set_within(woken, min(left_s, LOOK_S)):
                        return not must_stop()
        return False


def _next_offset(instance: Instance, topic_partition: Partition, gathering: Gathering) -> int:
    offset = gathering.ends.get(topic_partition)
    return instance.positions[topic_partition].next_offset if offset is None else offset


def _timeout_ms(poll: Poll, settings: InstanceSettings, limits: Limits) -> int:
    """How long a read waits: what it says, within what the instance and the server allow."""
    own_ms = settings.request_timeout_ms
    if poll.timeout_ms is None:
        wanted_ms = REQUEST_TIMEOUT_MS_DEFAULT if own_ms is None else own_ms
    else:
        wanted_ms = poll.timeout_ms if own_ms is None else min(poll.timeout_ms, own_ms)
    return min(wanted_ms, limits.timeout_ms_max)
