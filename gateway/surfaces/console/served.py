"""`/`, the web console for browsers and JSON for programs, and the console's files.

All are files of the package (`static/`), read once; they are kept in the repository so that no Node is needed to run a
server. Nothing else can be asked for: a name is looked up, never opened. The page holds no script and no style of its
own, so browsers run and show nothing but these files, ask only this server, and make no script of a text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from aiohttp import hdrs, web

from gateway.errors import RequestError
from gateway.surfaces.http.answers import packed, v2_answer
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import JSON_TYPE, V2_TYPE, prefers

HTML = "text/html"
PAGE = "index.html"
MEDIA_TYPES = {
    "html": f"{HTML}; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}
"""By the end of a name; files with another are not served."""

LINKS = {
    "console": "/",
    "examples": "/examples/",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "asyncapi": "/asyncapi.json",
    "ready": "/readyz",
    "limits": "/mq/v1/limits",
    "metrics": "/metrics",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
YEAR_S = 31_536_000

_HASHED = re.compile(r"[.-][0-9a-zA-Z]{8,}\.\w+")


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is served."""

    body: bytes
    headers: dict[str, str]


async def home(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """What this server is and where to go on: the web console for browsers, JSON for others."""
    response: web.StreamResponse
    if prefers(request.headers.get(hdrs.ACCEPT, ""), HTML, JSON_TYPE, V2_TYPE) == HTML:
        response = await _answer(request, PAGE)
    else:
        response = v2_answer(request, {"name": "mq", "version": gateway.version, **LINKS})
    response.headers.add(hdrs.VARY, hdrs.ACCEPT)
    return response


async def console_file(_: Gateway, request: web.Request, __: bytes) -> web.StreamResponse:
    """One of the console's files, by its name."""
    return await _answer(request, request.match_info["file"])


async def _answer(request: web.Request, name: str) -> web.StreamResponse:
    """Raises RequestError 404."""
    file = console_files().get(name)
    if file is None:
        raise RequestError(404, "HTTP 404 Not Found")
    tags = request.headers.get(hdrs.IF_NONE_MATCH, "")
    if file.headers[hdrs.ETAG] in (tag.strip().removeprefix("W/") for tag in tags.split(",")):
        kept = {header: text for header, text in file.headers.items() if header != hdrs.CONTENT_TYPE}
        return web.Response(status=304, headers=kept)
    return await packed(request, web.Response(body=file.body, headers=file.headers))


@cache
def console_files() -> dict[str, File]:
    """All files, by name. One whose name has a hash of its content may be kept for good; others are asked for anew."""
    found: dict[str, File] = {}
    for path in (files(__package__) / "static").iterdir():
        media_type = MEDIA_TYPES.get(path.name.rpartition(".")[2])
        if media_type is None or not path.is_file():
            continue
        body = path.read_bytes()
        headers = {
            hdrs.CONTENT_TYPE: media_type,
            hdrs.CACHE_CONTROL: f"public, max-age={YEAR_S}, immutable" if _HASHED.search(path.name) else "no-cache",
            hdrs.ETAG: f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Content-Security-Policy": POLICY,
        }
        found[path.name] = File(body, headers)
    return found
