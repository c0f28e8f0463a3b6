"""Tokens and rules: who may come in, and do what. For those with the right `access`, who grant no more than they have.

A token is shown once, in the answer to the request that makes it. With `If-Match` a change is made only if no other
client has made one since the ETag was read; rules, which are replaced as a whole, ask for it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import hdrs, web

from gateway.api.pages import page_of
from gateway.api.shapes import server
from gateway.api.shapes.access import NewTokenBody, RulesBody
from gateway.api.shapes.queries import PAGE_ROWS_DEFAULT, ListQuery, NoQuery
from gateway.auth.access import Permission
from gateway.auth.acl import Rule
from gateway.auth.administration import AccessFiles, Changed, Tagged, TooMuch, UnknownToken
from gateway.auth.scopes import Rights
from gateway.auth.tokens import TokenFileError, TokenRecord
from gateway.errors import (
    ACCESS_FIXED,
    CONDITION_MISSING,
    DISK_FULL,
    FORBIDDEN,
    OFFSET_MOVED,
    TOKEN_NOT_FOUND,
    RequestError,
    invalid,
)
from gateway.surfaces.http.answers import check_accept, json_answer, packed
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import read_query, read_shape

ACCESS_FILES = web.AppKey("access_files", AccessFiles)
CONDITION_MOVED = OFFSET_MOVED

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


async def list_tokens(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """A page of the tokens, the newest first: ids and scopes, never the tokens."""
    query = read_query(ListQuery, request, gateway)
    with _refusals():
        tokens, tag = await _files(request).tokens()
    part = (query.q or "").lower()
    page = page_of(
        [record for record in tokens if part in record.principal.lower() or part in record.id],
        lambda record: (record.created_ms, record.id),
        sort="created",
        order="desc",
        cursor=query.cursor,
        limit=query.limit or PAGE_ROWS_DEFAULT,
    )
    rows = [server.Token(*_kept(record)) for record in page.rows]
    response = json_answer(request, server.TokenPage(next_cursor=page.next_cursor, total=page.total, tokens=rows))
    return await packed(request, _tagged(response, tag))


async def create_token(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Make a token: 201, and the only answer that has it. Durable, and good, when answered."""
    check_accept(request)
    asked = read_shape(NewTokenBody, body, gateway)
    expires_ms = None if asked.expires_in_ms is None else gateway.clock.now_ms() + asked.expires_in_ms
    with _refusals():
        token, record = await _files(request).create_token(
            _rights(request), asked.principal, asked.scopes, expires_ms, tag=_condition(request)
        )
    response = json_answer(request, server.NewToken(*_kept(record), token=token), status=201)
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    return response


async def revoke_token(_: Gateway, request: web.Request, __: bytes) -> web.Response:
    """End a token: 204. Its requests are refused from now on, its sockets and streams end."""
    with _refusals():
        await _files(request).revoke_token(request.match_info["token"], tag=_condition(request))
    return web.Response(status=204)


async def get_rules(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """All rules, in the order of their file."""
    read_query(NoQuery, request, gateway)
    with _refusals():
        return await packed(request, _shown(request, await _files(request).rules()))


async def put_rules(gateway: Gateway, request: web.Request, body: bytes) -> web.StreamResponse:
    """Replace all rules, if `If-Match` has the ETag of those there are. Durable, and in force, when answered. Comments
    in their file stay."""
    check_accept(request)
    asked = read_shape(RulesBody, body, gateway)
    tag = _condition(request)
    if tag is None:
        raise RequestError(CONDITION_MISSING, "If-Match: send the ETag of the rules that you have seen.")
    rules = [Rule(rule.principal, tuple(rule.allow), tuple(rule.deny)) for rule in asked.rules]
    with _refusals():
        return await packed(request, _shown(request, await _files(request).put_rules(_rights(request), rules, tag)))


def _files(request: web.Request) -> AccessFiles:
    """Raises RequestError where authentication is disabled."""
    files = request.app.get(ACCESS_FILES)
    if files is None:
        raise RequestError(
            ACCESS_FIXED, "Authentication is disabled (auth.enabled is off): there are no tokens and rules to change."
        )
    return files


def _rights(request: web.Request) -> Rights:
    access = access_of(request)
    access.check(Permission.ACCESS)
    return Rights(*access.scopes())


def _condition(request: web.Request) -> str | None:
    """The tag that a request asks for. Raises RequestError."""
    text = request.headers.get(hdrs.IF_MATCH)
    if text is None:
        return None
    return text.strip().strip('"')


def _tagged(response: web.Response, tag: str) -> web.Response:
    response.headers[hdrs.ETAG] = f'"{tag}"'
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    return response


def _shown(request: web.Request, tagged: Tagged) -> web.Response:
    rules = [server.ShownRule(rule.principal, list(rule.allow), list(rule.deny)) for rule in tagged.rules]
    return _tagged(json_answer(request, server.Rules(rules)), tagged.tag)


def _kept(record: TokenRecord) -> tuple[str, str, list[str], int, int | None]:
    return record.id, record.principal, list(record.scopes), record.created_ms, record.expires_ms


@contextmanager
def _refusals() -> Iterator[None]:
    """What can go wrong with the files, in words of the API."""
    try:
        yield
    except TooMuch as error:
        raise RequestError(FORBIDDEN, f"Not allowed: {error}.") from error
    except Changed:
        raise RequestError(
            CONDITION_MOVED, "It was changed meanwhile: read it again. Nothing was changed by this request."
        ) from None
    except UnknownToken:
        raise RequestError(TOKEN_NOT_FOUND, "No such token.") from None
    except (TokenFileError, ValueError) as error:
        raise invalid(str(error)) from error
    except OSError as error:
        if error.errno in _FULL:
            raise RequestError(DISK_FULL, "The disk is full: nothing was changed.", retriable=True) from error
        if error.errno in _NOT_OURS:
            message = f"This server may not write the file: {error.strerror}. Change it where it comes from."
            raise RequestError(ACCESS_FIXED, message) from error
        raise
