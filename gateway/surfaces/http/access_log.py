"""One line for every request that was answered, when the operator wants that (`access_log`).

Of the query only names are kept: values may be credentials, or people's data.
"""

from __future__ import annotations

import logging

from aiohttp import web

from gateway.surfaces.http.caller import access_of

log = logging.getLogger(__name__)

PATH_CHARS_MAX = 500


def log_access(request: web.BaseRequest, status: int, elapsed_s: float, request_id: str) -> None:
    """Write the line."""
    path, mark, query = request.raw_path.partition("?")
    names = "&".join(part.partition("=")[0] for part in query.split("&"))
    log.info(
        "request method=%s path=%s status=%d ms=%.1f principal=%s address=%s request_id=%s",
        request.method,
        f"{path}{mark}{names}"[:PATH_CHARS_MAX],
        status,
        elapsed_s * 1000,
        access_of(request).principal,
        request.remote,
        request_id,
    )
