"""This node's light queues, for the other nodes: the server of gateway/cluster/peer_light.py and of the light queues of
`PeerBroker`. Where the broker has none, NoLightQueues says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from gateway.brokers.base import Broker, LightQueues
from gateway.cluster import peer_wire
from gateway.cluster.peer_link import MESSAGE_BYTES_MAX
from gateway.cluster.peer_wire import Batches, Head, Message
from store.errors import StoreError
from store.limits import KiB
from store.turns import others_turn
from store.types import QueueKey

NEWS_BYTES = 256 * KiB
"""Of the entries whose names one answer has."""

ASKED_A_TURN = 50
"""Light queues that are looked at between two turns of the event loop: some 20 us each."""


def light_operations(
    broker: Broker, queue_of: Callable[[Head], Awaitable[QueueKey]]
) -> Mapping[str, Callable[[Head, Batches], Awaitable[Message]]]:
    """By name. `queue_of`: the queue that a request names, when its topic is known."""
    light = cast(LightQueues, broker)

    async def bounds(head: Head, _: Batches) -> Message:
        return peer_wire.pack({"bounds": await light.light_bounds(await queue_of(head), head["name"].encode())})

    async def read(head: Head, _: Batches) -> Message:
        found = await light.read_light(
            await queue_of(head),
            head["name"].encode(),
            head["offset"],
            max_records=head["records"],
            max_bytes=min(head["bytes"], MESSAGE_BYTES_MAX),
        )
        return peer_wire.light_message(found)

    async def names(head: Head, _: Batches) -> Message:
        found = await light.light_names(
            await queue_of(head), head["prefix"].encode(), after=head["after"].encode(), count=head["count"]
        )
        return peer_wire.pack({"names": [name.decode() for name in found]})

    async def ends(head: Head, _: Batches) -> Message:
        """Whether each light queue has a record at or behind an offset; yes where that cannot be told."""
        more = []
        for number, (queue, name, end) in enumerate(head["asked"], 1):
            try:
                low, high = await light.light_bounds(await queue_of({"queue": queue}), name.encode())
                more.append(end is None or max(low, end) < high)
            except StoreError:
                more.append(True)
            if number % ASKED_A_TURN == 0:
                await others_turn()
        return peer_wire.pack({"more": more})

    async def news(head: Head, _: Batches) -> Message:
        """The names of the records from an offset on, and where the next answer begins."""
        found = await broker.read(await queue_of(head), head["offset"], max_bytes=NEWS_BYTES)
        named = {name for entry in found.entries if entry.light is not None for name in entry.light.names}
        return peer_wire.pack({"next": found.next_offset, "names": [name.decode() for name in named]})

    return {"light_bounds": bounds, "read_light": read, "light_names": names, "light_ends": ends, "light_news": news}
