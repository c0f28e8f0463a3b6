"""Reading a partition for a request: at once, or with a wait that ends with the server or the caller's rights."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from multidict import istr

from gateway.api.read import Fetched, Tail
from gateway.api.tasks import when_set
from gateway.auth.access import Permission
from gateway.brokers.base import BrokerUnreachable
from gateway.routing.patience import patiently
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR, SMALL_BYTES
from gateway.surfaces.http.caller import Caller
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.rights import while_there
from store.waits import is_set_within

NEXT_OFFSET = istr("Mq-Next-Offset")
BEGINNING_OFFSET = istr("Mq-Beginning-Offset")
END_OFFSET = istr("Mq-End-Offset")
EPOCH = istr("Mq-Epoch")


class Sought(NamedTuple):
    """What a request reads of a partition."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    wanted_bytes: int = SMALL_BYTES
    """Of the answer's memory, which is reserved when the records are read; no more is read than fits, but for one
    entry."""

    is_rendered: bool = True
    end_offset: int | None = None
    tag_hashes: frozenset[int] | None = None


async def fetch_or_wait(gateway: Gateway, caller: Caller, sought: Sought, *, timeout_ms: int) -> Fetched:
    """What is there; when nothing is, wait up to `timeout_ms` for the first record, or until the server drains.

    Raises RequestError 401, 403 when the caller's rights end before the answer, ConnectionError when the client goes
    while it waits, else as `Consumer.fetch`.
    """
    consumer, draining, allowance = gateway.consumer, gateway.draining, caller.allowance
    topic, partition, offset, max_bytes, wanted_bytes, is_rendered, end_offset, tag_hashes = sought

    async def look() -> Fetched:
        room_bytes = await allowance.begin(wanted_bytes)
        if is_rendered:
            room_bytes //= RENDERED_FACTOR
        try:
            return await consumer.fetch(
                topic, partition, offset,
                max_bytes=max(1, min(max_bytes, room_bytes)), end_offset=end_offset, tag_hashes=tag_hashes,
            )  # fmt: skip
        except BrokerUnreachable:
            allowance.release()  # others are not to wait with this one
            raise

    async def fetch() -> Fetched:
        try:
            return await look()
        except BrokerUnreachable as error:
            async with while_there(gateway, caller.access, caller.lost()):
                return await patiently(look, error)

    fetched = await fetch()
    # After the read: where the records of a group's own topic came from, and so who may read it, changes before them.
    caller.access.check(Permission.RECEIVE, topic=topic)
    if fetched.entries or timeout_ms == 0 or offset != fetched.max_offset or draining.is_set():
        return fetched
    allowance.release()
    woken = asyncio.Event()
    gateway.stats.long_poll_count += 1
    try:
        async with (
            while_there(gateway, caller.access, caller.lost()),
            consumer.watching([Tail(topic, partition, offset)], woken.set),
        ):
            with when_set(draining, woken.set):
                await is_set_within(woken, timeout_ms / 1000)
    finally:
        gateway.stats.long_poll_count -= 1
    fetched = await fetch()
    caller.access.check(Permission.RECEIVE, topic=topic)
    return fetched
