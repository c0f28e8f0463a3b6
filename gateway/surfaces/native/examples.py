"""`/examples/`: a page to try the server with, a chat over light queues, and the JavaScript client that they are
written with.

All are files of the package (`gateway/examples/`), read once. `mq.js` is the bundle that `make build-js` makes of
`clients/js`; it is kept in the repository so that a server needs no Node, and a test compares it with a
fresh build. Nothing else can be asked for: a name is looked up, never opened.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from aiohttp import hdrs, web

from gateway.errors import RequestError
from gateway.surfaces.http.answers import packed
from gateway.surfaces.http.context import Gateway

HTML = "text/html"
PAGE = "index.html"
CHAT = "chat.html"
MEDIA_TYPES = {
    PAGE: f"{HTML}; charset=utf-8",
    CHAT: f"{HTML}; charset=utf-8",
    "mq.js": "text/javascript; charset=utf-8",
}
"""What is served below `/examples/`."""

_INLINE = re.compile(rb"<(script|style)[^>]*>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is served."""

    body: bytes
    headers: dict[str, str]


async def examples(_: Gateway, request: web.Request, __: bytes) -> web.StreamResponse:
    """A page to try the server with: a live feed, a form to send, now or later."""
    if not request.path.endswith("/"):  # the page's links are relative
        query = f"?{request.query_string}" if request.query_string else ""
        return web.Response(status=308, headers={hdrs.LOCATION: f"examples/{query}"})
    return await _answer(request, PAGE)


async def example_file(_: Gateway, request: web.Request, __: bytes) -> web.StreamResponse:
    """One of the page's files, by its name."""
    return await _answer(request, request.match_info["file"])


async def _answer(request: web.Request, name: str) -> web.StreamResponse:
    """Raises RequestError 404."""
    if name not in MEDIA_TYPES:
        raise RequestError(404, "HTTP 404 Not Found")
    return await packed(request, _response(name))


def _response(name: str) -> web.Response:
    file = file_of(name)
    return web.Response(body=file.body, headers=file.headers)


@cache
def file_of(name: str) -> File:
    """A file, and the headers that allow it what it needs and nothing else: its own scripts and styles, this server."""
    body = (files("gateway") / "examples" / name).read_bytes()
    headers = {
        hdrs.CONTENT_TYPE: MEDIA_TYPES[name],
        hdrs.CACHE_CONTROL: "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    if name in (PAGE, CHAT):
        headers["Content-Security-Policy"] = _policy(body)
    return File(body, headers)


def _policy(page: bytes) -> str:
    """Browsers run and show what has one of these hashes, and what comes from here."""
    hashes: dict[bytes, list[str]] = {b"script": [], b"style": []}
    for kind, text in _INLINE.findall(page):
        hashes[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'")
    return (
        f"default-src 'none'; script-src 'self' {' '.join(hashes[b'script'])}; style-src {' '.join(hashes[b'style'])}; "
        "connect-src 'self' ws: wss:; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
