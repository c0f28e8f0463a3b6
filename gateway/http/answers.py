"""Building answers: JSON bodies by orjson, errors in the one shape, headers that every answer has."""

from __future__ import annotations

import itertools
import secrets

import orjson
from aiohttp import hdrs, web
from multidict import istr

from gateway.http.errors import RequestError
from gateway.http.media import JSON_TYPE, V2_TYPE, json_type

REQUEST_ID = istr("X-Request-Id")
_REQUEST_ID_KEY = web.RequestKey("mq.request_id", str)
_REQUEST_ID_CHARS_MAX = 128
_ANYTHING = "*/*"


class RequestIds:
    """Ids of requests whose client sent none: unique among processes by a random prefix, cheap by a counter."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count(1)

    def of(self, request: web.BaseRequest) -> str:
        """The id of this request, the client's own if it is fit to be repeated; the same at every call."""
        known: str | None = request.get(_REQUEST_ID_KEY)
        if known is not None:
            return known
        sent = request.headers.get(REQUEST_ID)
        if sent is not None and len(sent) <= _REQUEST_ID_CHARS_MAX and sent.isascii() and sent.isprintable():
            return sent
        return f"{self._prefix}-{next(self._numbers):x}"

    def fixed(self, request: web.BaseRequest) -> str:
        """As `of`, and remembered, for answers that name the id in their body too."""
        request[_REQUEST_ID_KEY] = request_id = self.of(request)
        return request_id


def json_answer(
    request: web.BaseRequest,
    body: object,
    *,
    status: int = 200,
    default_type: str = JSON_TYPE,
) -> web.Response:
    """An answer with a JSON body, in the type the client prefers. Raises RequestError 406; see `check_accept`."""
    content_type = json_type(request.headers.get(hdrs.ACCEPT, _ANYTHING), default_type)
    return web.Response(body=orjson.dumps(body), status=status, headers={hdrs.CONTENT_TYPE: content_type})


def v2_answer(request: web.BaseRequest, body: object) -> web.Response:
    """An answer of the REST Proxy's surface."""
    return json_answer(request, body, default_type=V2_TYPE)


def check_accept(request: web.BaseRequest) -> str:
    """The type of a JSON answer. Called before anything is changed: a 406 must not follow a write."""
    return json_type(request.headers.get(hdrs.ACCEPT, _ANYTHING), V2_TYPE)


def error_answer(error: RequestError, request_id: str) -> web.Response:
    """The answer to a refused request."""
    response = web.Response(
        body=orjson.dumps(error.body(request_id)), status=error.status, headers={hdrs.CONTENT_TYPE: JSON_TYPE}
    )
    if error.retry_after_ms is not None:
        response.headers[hdrs.RETRY_AFTER] = str(-(-error.retry_after_ms // 1000))
    return response
