"""The one reader of JSON that a client sent, and how a part of it is written again."""

from __future__ import annotations

import orjson

from gateway.errors import RequestError, bad_request, invalid


def parse_json(text: bytes, what: str = "body") -> object:
    """The JSON value of a whole text. Raises RequestError MALFORMED, which names `what` it was and where it breaks."""
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The {what} is not JSON: {error}") from error
    return value


def json_again(value: object, what: str) -> bytes:
    """The compact JSON of a value that was read from JSON. Raises RequestError INVALID, which names `what` it was: more
    deeply nested values can be read (1,024) than written (254)."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise unwritable(what, error) from error


def unwritable(what: str, error: TypeError) -> RequestError:
    """See `json_again`."""
    return invalid(f"{what} cannot be stored as JSON: {error}")
