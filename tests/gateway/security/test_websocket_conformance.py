"""The Autobahn cases, run by kosoku, against an echo behind our connections and our socket's options.

Beside it in the same run: a bare aiohttp echo. No case may come out worse than there. The cases on throughput (9) and
on compression (12, 13) take minutes: `make test-matrix` runs them.
"""

from __future__ import annotations

import kosoku
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from gateway.surfaces.ws.endpoint import CLOSE_TIMEOUT_S
from gateway.surfaces.ws.protocol import SUBPROTOCOL
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import serving

SLOW = ["9.*", "12.*", "13.*"]
FRAME_BYTES_MAX = 16 * 1024 * 1024
CONFORMS = {"OK", "INFORMATIONAL", "NON-STRICT", "UNIMPLEMENTED"}


async def _echo(socket: web.WebSocketResponse) -> None:
    while True:
        message = await socket.receive()
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
        elif message.type is WSMsgType.PING:
            await socket.pong(message.data)
        elif message.type is not WSMsgType.PONG:
            return


async def _ours(request: web.Request) -> web.WebSocketResponse:
    """As gateway/surfaces/ws/endpoint.py makes its socket."""
    socket = web.WebSocketResponse(
        protocols=(SUBPROTOCOL,),
        autoping=False,
        max_msg_size=FRAME_BYTES_MAX + 1,
        compress=True,
        timeout=CLOSE_TIMEOUT_S,
    )
    await socket.prepare(request)
    await _echo(socket)
    return socket


async def _bare(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(max_msg_size=FRAME_BYTES_MAX + 1)
    await socket.prepare(request)
    await _echo(socket)
    return socket


def _application(handler: object) -> web.Application:
    application = web.Application()
    application.router.add_get("/", handler)  # type: ignore[arg-type]
    return application


async def verdicts(url: str, exclude: list[str] | None) -> dict[str, tuple[str, str]]:
    """What came out of each case: the exchange, and the closing handshake."""
    try:
        results = await kosoku.run_fuzzingclient(url, exclude_cases=exclude, concurrency=4)
    except kosoku.FailureError as failure:
        results = failure.results
    return {result.case_id: (result.behavior.value, result.behavior_close.value) for result in results}


@pytest.mark.parametrize(
    "exclude", [pytest.param(SLOW, id="quick"), pytest.param(None, id="all", marks=pytest.mark.matrix)]
)
async def test_no_case_comes_out_worse_than_with_bare_aiohttp(exclude: list[str] | None) -> None:
    gateway, _ = fake_gateway(FakeClock())
    async with serving(_application(_ours), gateway) as port, TestServer(_application(_bare)) as bare:
        ours = await verdicts(f"ws://127.0.0.1:{port}/", exclude)
        theirs = await verdicts(f"ws://127.0.0.1:{bare.port}/", exclude)
    assert len(ours) >= 200
    worse = {
        case: (verdict, theirs[case])
        for case, verdict in ours.items()
        if any(mine not in CONFORMS and other in CONFORMS for mine, other in zip(verdict, theirs[case], strict=True))
    }
    assert worse == {}
