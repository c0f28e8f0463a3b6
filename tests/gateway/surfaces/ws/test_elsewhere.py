"""gateway.surfaces.ws.elsewhere: what a session with groups of two other nodes is told when it goes on, and in which
order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson

from gateway.surfaces.ws.elsewhere import Elsewhere, Kept
from tests.waiting import PATIENCE_S, until


class Socket:
    """To another node, which answers hello, and pushes right behind that."""

    close_code = None

    def __init__(self, node: str) -> None:
        self._node = node
        self.pushes = [{"op": "messages", "sub": node, "seq": 4}]

    async def send_str(self, _: str) -> None:
        pass

    async def receive_str(self) -> str:
        return orjson.dumps({"id": 0, "ok": True, "session": "s", "subs": {self._node: {"seq": 3}}}).decode()

    async def __aiter__(self) -> AsyncIterator[Any]:
        for push in self.pushes:
            yield SimpleNamespace(type=aiohttp.WSMsgType.TEXT, data=orjson.dumps(push).decode())
        await asyncio.Event().wait()

    async def close(self, **_: object) -> None:
        pass


async def test_nothing_of_other_nodes_comes_before_the_client_knows_how_things_are() -> None:
    """One node pushes while another one is still being asked: to the client, these records would come before the state
    that says that it goes on with them, and it would drop them."""
    sent: list[bytes] = []
    running: list[asyncio.Task[None]] = []

    async def connect(node: str, _: str | None) -> Socket:
        await asyncio.sleep(0.01)
        return Socket(node)

    async def send(text: bytes) -> None:
        sent.append(text)

    def start(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        running.append(asyncio.create_task(work))
        return running[-1]

    outbox: Any = SimpleNamespace(send=send)
    cluster: Any = SimpleNamespace()
    elsewhere = Elsewhere(cluster, connect, outbox, start, token=None, is_open=True)  # type: ignore[arg-type]
    kept = {node: Kept("s", {node}) for node in ("n2", "n3")}
    subs, ended = await asyncio.wait_for(elsewhere.resume(kept, {}, binary=False), PATIENCE_S)
    assert (subs, ended) == ({"n2": {"seq": 3}, "n3": {"seq": 3}}, {})
    await asyncio.sleep(0.01)
    assert sent == []
    elsewhere.go_on()
    await until(lambda: len(sent) == 2)
    assert {orjson.loads(text)["sub"] for text in sent} == {"n2", "n3"}
    for task in running:
        task.cancel()
    await asyncio.wait(running)
