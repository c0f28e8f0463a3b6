"""Whose request this is: the rights that admission found, kept with the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from aiohttp import web

from gateway.auth.access import NOBODY, OPEN, Access, Permission
from gateway.routing.base import TopicView
from gateway.surfaces.http.answer_memory import Allowance
from gateway.surfaces.http.context import Gateway

TOPICS_A_TURN = 500
"""Topics shown, or judged by rights, between two turns of the event loop: 5 us each."""


class Caller(NamedTuple):
    """Who has sent a request, whichever way it takes through the server."""

    access: Access
    remote: str | None
    """Its address."""

    allowance: Allowance
    """What the answer may hold."""

    is_there: Callable[[], bool]
    """Whether its connection is still open."""

    lost: Callable[[], asyncio.Future[None]]
    """Done when that has ended."""

    @property
    def name(self) -> str:
        """For people who look."""
        return f"{self.access.principal}@{self.remote}"


_ACCESS = web.RequestKey("mq.access", Access)


def access_of(request: web.BaseRequest) -> Access:
    """The rights of a request's sender; none before it was authenticated."""
    access: Access = request.get(_ACCESS, NOBODY)
    return access


def grant(request: web.BaseRequest, access: Access) -> None:
    """Remember whose request this is. Called once, before the handler."""
    request[_ACCESS] = access
    note = getattr(request.protocol, "note_caller", None)  # a test's server has connections of its own kind
    if note is not None:
        note(access)


def is_visible(request: web.Request, topic: str) -> bool:
    """Whether the caller may describe a topic: lists show no other, whatever else they are of."""
    return access_of(request).allows(Permission.DESCRIBE, topic=topic)


async def visible_topics(gateway: Gateway, request: web.Request, part: str = "") -> list[TopicView]:
    """The topics that the caller may describe and whose name has this part, in lower case; by name. In turns of the
    event loop, where it takes a look at each."""
    access = access_of(request)
    views = gateway.routes_table.topics()
    if access is OPEN and not part:
        return views
    found: list[TopicView] = []
    for number, view in enumerate(views, 1):
        if part in view.name.lower() and access.allows(Permission.DESCRIBE, topic=view.name):
            found.append(view)
        if number % TOPICS_A_TURN == 0:
            await asyncio.sleep(0)
    return found
