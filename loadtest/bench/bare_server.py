"""The limit of an HTTP server in Python: the same aiohttp and uvloop, parsing the same JSON, storing nothing.

    POST /topics/{topic}   JSON is parsed, other bodies are read; answers a constant; pushes the body to every socket
    PUT  /fixed            keeps a body in memory; GET /fixed answers with it
    GET  /ws/v1            a socket that gets every posted body
    GET  /ws/frames        a socket that gets `count` frames of `size` bytes
    GET  /ws/echo          a socket that gets back what it sends

`python -m loadtest.bench.bare_server` prints its URL and runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal

import orjson
import uvloop
from aiohttp import web

_ANSWER = orjson.dumps({"offsets": [{"partition": 0, "offset": 0, "error_code": None, "error": None}]})
_BODY_BYTES_MAX = 64 * 1024 * 1024


class BareServer:
    """The handlers and the little they share."""

    def __init__(self) -> None:
        self._fixed = b""
        self._sockets: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.add_routes(
            [
                web.post("/topics/{topic}", self._post),
                web.put("/fixed", self._keep),
                web.get("/fixed", self._give),
                web.get("/ws/v1", self._socket),
                web.get("/ws/frames", self._frames),
                web.get("/ws/echo", self._echo),
            ]
        )
        return app

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers["Content-Type"].endswith("+json"):
            orjson.loads(body)
        for socket in self._sockets:
            await socket.send_bytes(body)
        return web.Response(body=_ANSWER, headers={"Content-Type": "application/json"})

    async def _keep(self, request: web.Request) -> web.Response:
        self._fixed = await request.read()
        return web.Response()

    async def _give(self, _: web.Request) -> web.Response:
        return web.Response(body=self._fixed, headers={"Content-Type": "application/octet-stream"})

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            async for _ in socket:
                pass
        finally:
            self._sockets.discard(socket)
        return socket

    async def _frames(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        frame = bytes(int(request.query["size"]))
        for _ in range(int(request.query["count"])):
            await socket.send_bytes(frame)
        async for _ in socket:
            pass
        return socket

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data)
        return socket


async def serve() -> None:
    """Listen on a free port of this machine until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    runner = web.AppRunner(BareServer().application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await stopping.wait()
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve())
