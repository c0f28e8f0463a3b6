"""Hooks around sends and around the handlers of workers. Each is an async function that gets what passes and
`following`, which goes on: call it once, and return what it returns.

    async def timed(message, following):
        began = time.monotonic()
        try:
            return await following(message)
        finally:
            histogram.observe(time.monotonic() - began)

    mq.connect(url, middleware=[timed_send])                 # gets (Outgoing, following); the result is the receipts
    @mq.worker("mails", group="mailers", middleware=[timed])  # gets (Message, following)

The first of a list is the outermost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, TypeAlias, TypeVar

from mq.message import Message, Receipt
from mq.record import Record


@dataclass(slots=True)
class Outgoing:
    """Records on their way to one topic. Middleware may change them, for example add headers."""

    topic: str
    records: list[Record]
    acks: Literal["flushed", "written"] | None = None


P = TypeVar("P")
R = TypeVar("R")
SendMiddleware: TypeAlias = Callable[
    [Outgoing, Callable[[Outgoing], Awaitable[list[Receipt]]]], Awaitable[list[Receipt]]
]
HandlerMiddleware: TypeAlias = Callable[[Message[Any], Callable[[Message[Any]], Awaitable[object]]], Awaitable[object]]


def wrapped(
    middleware: Sequence[Callable[[P, Callable[[P], Awaitable[R]]], Awaitable[R]]], inner: Callable[[P], Awaitable[R]]
) -> Callable[[P], Awaitable[R]]:
    """`inner` with the middleware around it."""

    def around(
        following: Callable[[P], Awaitable[R]], one: Callable[[P, Callable[[P], Awaitable[R]]], Awaitable[R]]
    ) -> Callable[[P], Awaitable[R]]:
        async def call(passing: P) -> R:
            return await one(passing, following)

        return call

    return reduce(around, reversed(middleware), inner)
