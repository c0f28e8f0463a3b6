"""Reading a partition for a request: at once, or with a wait that ends with the server or the caller's rights."""

from __future__ import annotations

import asyncio

from aiohttp import web
from multidict import istr

from gateway.api.consumer import Fetched
from gateway.auth.access import Permission
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.rights import while_allowed

NEXT_OFFSET = istr("Mq-Next-Offset")
BEGINNING_OFFSET = istr("Mq-Beginning-Offset")
END_OFFSET = istr("Mq-End-Offset")
EPOCH = istr("Mq-Epoch")


async def fetch_or_wait(
    gateway: Gateway,
    request: web.Request,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int,
    timeout_ms: int,
    end_offset: int | None = None,
    tag_hashes: frozenset[int] | None = None,
) -> Fetched:
    """What is there; when nothing is, wait up to `timeout_ms` for the first record, or until the server drains.

    Raises RequestError 401, 403 when the caller's rights end before the answer, else as `Consumer.fetch`.
    """
    fetch = gateway.consumer.fetch
    fetched = await fetch(topic, partition, offset, max_bytes=max_bytes, end_offset=end_offset, tag_hashes=tag_hashes)
    if fetched.entries or timeout_ms == 0 or offset != fetched.max_offset or gateway.draining.is_set():
        return fetched
    waiting = asyncio.ensure_future(
        fetch(
            topic,
            partition,
            offset,
            max_bytes=max_bytes,
            wait_ms=timeout_ms,
            end_offset=end_offset,
            tag_hashes=tag_hashes,
        )
    )
    stopping = asyncio.ensure_future(gateway.draining.wait())
    gateway.stats.long_poll_count += 1
    try:
        async with while_allowed(gateway, request):
            await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
        access_of(request).check(Permission.RECEIVE, topic=topic)
        return await waiting if waiting.done() else fetched
    finally:
        gateway.stats.long_poll_count -= 1
        waiting.cancel()
        stopping.cancel()
