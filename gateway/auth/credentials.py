"""Where in a request credentials are, and what they are. Pure: nothing is checked here.

    Authorization: Bearer TOKEN             a static token or a JWT
    Authorization: Basic base64(ID:SECRET)  a static token by its two halves, or anything:TOKEN; for people
    X-Api-Key: TOKEN
    ?ticket=TICKET                          GET only: a one-time ticket
    ?token=TOKEN                            GET only, where the operator allows it: URLs end up in logs
    Sec-WebSocket-Protocol: mq.v1.json, mq.bearer.BASE64URL(TOKEN)  or  mq.ticket.TICKET

More than one of them is refused: two parts of a system must not see two callers in one request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from multidict import istr

from gateway.auth.tokens import token_of

AUTHORIZATION = istr("Authorization")
API_KEY = istr("X-Api-Key")
SUBPROTOCOLS = istr("Sec-WebSocket-Protocol")

TICKET_PARAMETER = "ticket"
TOKEN_PARAMETER = "token"
IN_QUERY = (TICKET_PARAMETER, TOKEN_PARAMETER)
"""Parameters that say who asks, and nothing of what is asked for."""

BEARER_SUBPROTOCOL = "mq.bearer."
TICKET_SUBPROTOCOL = "mq.ticket."


class Credential(NamedTuple):
    """A credential: a token, or a ticket."""

    text: str
    is_ticket: bool = False


class Malformed(ValueError):
    """Credentials that cannot be read, or too many. The text never repeats them."""


class Headers(Protocol):
    """Headers, of which one name may come more than once."""

    def get(self, key: str, /) -> str | None:
        """The first value of a header; None when it is not there."""
        ...

    def getall(self, key: str, default: list[str], /) -> list[str]:
        """All values of a header."""
        ...

    def __contains__(self, key: object, /) -> bool: ...


def in_headers(headers: Headers) -> Credential | None:
    """The credential of the ordinary headers; None when there is none. Raises Malformed."""
    if AUTHORIZATION in headers:
        values = headers.getall(AUTHORIZATION, [])
        if len(values) > 1 or API_KEY in headers:
            raise Malformed("more than one set of credentials")
        return _authorization(values[0])
    if API_KEY in headers:
        values = headers.getall(API_KEY, [])
        if len(values) > 1 or not values[0]:
            raise Malformed("more than one X-Api-Key, or an empty one")
        return Credential(values[0])
    return None


def of_browser(headers: Headers, query: Mapping[str, str], *, token_in_query: bool) -> Credential | None:
    """The credential in a GET request's query or subprotocols; None when there is none. Raises Malformed."""
    found = [Credential(query[TICKET_PARAMETER], True)] if TICKET_PARAMETER in query else []
    if token_in_query and TOKEN_PARAMETER in query:
        found.append(Credential(query[TOKEN_PARAMETER]))
    for value in headers.getall(SUBPROTOCOLS, []):
        for name in value.split(","):
            name = name.strip()
            if name.startswith(TICKET_SUBPROTOCOL):
                found.append(Credential(name.removeprefix(TICKET_SUBPROTOCOL), True))
            elif name.startswith(BEARER_SUBPROTOCOL):
                found.append(Credential(_unbase64(name.removeprefix(BEARER_SUBPROTOCOL))))
    if len(found) > 1:
        raise Malformed("more than one set of credentials")
    return found[0] if found else None


def _authorization(value: str) -> Credential:
    scheme, _, rest = value.partition(" ")
    rest = rest.strip(" ")
    match scheme.lower():
        case "bearer" if rest:
            return Credential(rest)
        case "basic" if rest:
            user, colon, password = _unbase64(rest).partition(":")
            if not colon:
                raise Malformed("Basic credentials without a colon")
            return Credential(token_of(user, password))
        case _:
            raise Malformed("Authorization must be Bearer or Basic")


def _unbase64(text: str) -> str:
    """Base64 of either alphabet, padded or not. Raises Malformed."""
    try:
        padded = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
        return base64.b64decode(padded, validate=True).decode("utf-8")
    except (binascii.Error, ValueError) as error:
        raise Malformed("credentials that are no base64") from error
