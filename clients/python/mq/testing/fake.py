"""A client of a server in memory. All of the client is the real one: only the network and the clock are not.

Time stands still unless `advance` moves it: delays, leases, retries and back-off happen when they are due, in order,
however long they are.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mq.client import PENDING_MAX, Client
from mq.message import Message
from mq.middleware import SendMiddleware
from mq.testing.server import Server
from mq.values import Duration, milliseconds

QUIET_TURNS = 12
"""Turns of the event loop without a frame, after which everything that could happen has."""


class Fake(Client):
    """`async with Fake("orders", "mails") as client`: with these topics, of `partitions` partitions each. Clients of
    one server: `other = Fake(server=client.server)`."""

    def __init__(
        self,
        *topics: str,
        partitions: int = 1,
        server: Server | None = None,
        idempotent: bool = True,
        pending_max: int = PENDING_MAX,
        middleware: tuple[SendMiddleware, ...] = (),
    ) -> None:
        self.server = Server() if server is None else server
        for topic in topics:
            self.server.create_topic(topic, partitions)
        super().__init__(
            lambda: self.server, idempotent=idempotent, pending_max=pending_max, middleware=middleware,
            clock=lambda: self.server.clock,
        )  # fmt: skip

    async def advance(self, by: Duration) -> None:
        """Let time pass: whatever falls due in it happens in its order, and what follows from that too."""
        clock = self.server.clock
        await self.settle()
        until_ms = clock.exact_ms + milliseconds(by, "by")
        while clock.run_next(until_ms):
            await self.settle()
        clock.exact_ms = until_ms
        await self.settle()

    async def settle(self) -> None:
        """Wait until everything that can happen without time passing has happened. Work outside of the event loop, in
        threads and files, is not waited for."""
        quiet, seen = 0, self.server.activity
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.server.activity == seen else 0
            seen = self.server.activity

    def stored(self, topic: str) -> list[Message[Any]]:
        """What a topic holds, in the order of partitions and offsets."""
        return [record.as_message(topic) for records in self.server.topic(topic).partitions for record in records]
