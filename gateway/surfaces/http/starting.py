"""What a server answers while its store recovers: alive, not ready, and how far it has come.

It listens from the first moment, so that an orchestrator sees "starting" and not "dead", and takes requests for
nothing else: they get 503 with Retry-After.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import hdrs, web

from gateway.errors import READ_ONLY, RequestError
from gateway.surfaces.http.answers import REQUEST_ID, RequestIds, error_answer

RETRY_AFTER_MS = 1000
HEALTH_PATHS = ("/healthz", "/healthy", "/_health")
READY_PATHS = ("/readyz", "/ready", "/status/ready")
_JSON = {hdrs.CONTENT_TYPE: "application/json"}


@dataclass(slots=True)
class RecoveryProgress:
    """How much of the log has been looked at; written by the thread that recovers."""

    done_bytes: int = 0
    total_bytes: int = 0
    waits_for: str | None = None
    """What the start waits for when the store is open."""

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """See `store.log.recovery.Progress`."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes

    def __str__(self) -> str:
        if self.waits_for is not None:
            return f"waiting for {self.waits_for}"
        if not self.total_bytes:
            return "recovering: opening the store"
        return f"recovering: {self.done_bytes} of at most {self.total_bytes} bytes of the log read"


def build_starting_application(progress: RecoveryProgress) -> web.Application:
    """The application of a server that is not ready yet."""

    request_ids = RequestIds()

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps({"status": "ok"}), headers=_JSON)

    async def readyz(_: web.Request) -> web.Response:
        body = {"status": "unavailable", "reasons": [str(progress)]}
        return web.Response(status=503, body=orjson.dumps(body), headers=_JSON)

    async def anything_else(request: web.Request) -> web.Response:
        message = f"The server is starting; {progress}."
        refusal = RequestError(READ_ONLY, message, retriable=True, retry_after_ms=RETRY_AFTER_MS)
        return error_answer(refusal, request_ids.fixed(request))

    async def finish_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[REQUEST_ID] = request_ids.of(request)
        response.headers.pop(hdrs.SERVER, None)

    application = web.Application()
    for path in HEALTH_PATHS:
        application.router.add_get(path, healthz)
    for path in READY_PATHS:
        application.router.add_get(path, readyz)
    application.router.add_route("*", "/{anything:.*}", anything_else)
    application.on_response_prepare.append(finish_headers)
    return application
