"""The one reader of JSON that a client sent."""

from __future__ import annotations

import orjson

from gateway.errors import bad_request


def parse_json(text: bytes, what: str = "body") -> object:
    """The JSON value of a whole text. Raises RequestError MALFORMED, which names `what` it was and where it breaks."""
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The {what} is not JSON: {error}") from error
    return value
