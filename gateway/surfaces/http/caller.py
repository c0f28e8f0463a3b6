"""Whose request this is: the rights that admission found, kept with the request."""

from __future__ import annotations

from aiohttp import web

from gateway.auth.access import NOBODY, Access

_ACCESS = web.RequestKey("mq.access", Access)


def access_of(request: web.BaseRequest) -> Access:
    """The rights of whoever sent a request; none when nobody has asked who that is."""
    access: Access = request.get(_ACCESS, NOBODY)
    return access


def grant(request: web.BaseRequest, access: Access) -> None:
    """Remember whose request this is. Called once, before the handler."""
    request[_ACCESS] = access
