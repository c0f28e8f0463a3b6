"""Whose request this is: the rights that admission found, kept with the request."""

from __future__ import annotations

from aiohttp import web

from gateway.auth.access import NOBODY, Access, Permission
from gateway.routing.base import TopicView
from gateway.surfaces.http.context import Gateway

_ACCESS = web.RequestKey("mq.access", Access)


def access_of(request: web.BaseRequest) -> Access:
    """The rights of a request's sender; none before it was authenticated."""
    access: Access = request.get(_ACCESS, NOBODY)
    return access


def grant(request: web.BaseRequest, access: Access) -> None:
    """Remember whose request this is. Called once, before the handler."""
    request[_ACCESS] = access


def is_visible(request: web.Request, topic: str) -> bool:
    """Whether the caller may describe a topic: lists show no other, whatever else they are of."""
    return access_of(request).allows(Permission.DESCRIBE, topic=topic)


def visible_topics(gateway: Gateway, request: web.Request) -> list[TopicView]:
    """The topics that the caller may describe, by name."""
    access = access_of(request)
    return [view for view in gateway.routes_table.topics() if access.allows(Permission.DESCRIBE, topic=view.name)]
