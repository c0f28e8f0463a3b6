"""Subscriptions of one socket to groups that other nodes have: passed on, over one socket to each of these nodes.

A node opens a socket to the group's node as its client would, with the client's token, and passes on what concerns such
a subscription as it came; what the other node says of it goes to the client as it came, so receipts, numbers of frames
and errors are that node's. Frames wait nowhere here: the next one is read when the client has taken the one before.

    sends, and subscriptions to this node's groups      stay here
    hello, auth                                         are said anew to each node
    the client's connection is lost                     so is each relay's, whose session waits there; `resume` resumes
                                                        them all
    the client says goodbye                             so do the relays
    a relay is lost, or its node stops                  the socket closes as when the server stops: its client comes
                                                        back, and finds the group where it is then

A one-time ticket is no token: who came with one is told which node to connect to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from gateway.api.cluster import GROUPS, Cluster
from gateway.errors import OVERLOADED, RequestError
from gateway.surfaces.ws import protocol
from gateway.surfaces.ws.in_flight import StartTask
from gateway.surfaces.ws.outbox import Closing, Outbox
from gateway.surfaces.ws.protocol import CloseCode

log = logging.getLogger(__name__)

RELAYS_MAX = 16
"""Nodes to which one socket is passed on."""

HELLO_TIMEOUT_S = 5.0
_PASSED = (b'{"op":"messages"', b'{"op":"caught_up"', b'{"op":"assigned"', b'{"op":"revoked"')
"""How pushes of a subscription begin. Other pushes are about the connection, which is not the client's."""

Connect = Callable[[str, str | None], Awaitable[aiohttp.ClientWebSocketResponse]]
"""Opens a socket to a node, by its name, with a token. Raises RequestError."""


@dataclass(slots=True)
class Kept:
    """What a session keeps of a relay while its client's connection is lost."""

    session: str
    subs: set[str] = field(default_factory=set)


class _Relay:
    """One socket to another node, for one client's socket."""

    def __init__(self, node: str, socket: aiohttp.ClientWebSocketResponse, kept: Kept) -> None:
        self.node = node
        self.kept = kept
        self._socket = socket
        self._subscribing: dict[int, str] = {}  # by id
        self.is_leaving = False
        """Nothing is pushed to the client any more; answers are."""

    async def send(self, command: Mapping[str, Any]) -> None:
        """Pass a command on. Raises Closing when the other node is gone."""
        sub, id_ = command.get("sub"), command.get("id")
        if isinstance(sub, str) and command["op"] == "subscribe":
            self.kept.subs.add(sub)
            if isinstance(id_, int):
                self._subscribing[id_] = sub
        elif isinstance(sub, str) and command["op"] == "unsubscribe":
            self.kept.subs.discard(sub)
        try:
            await self._socket.send_str(orjson.dumps(command).decode())
        except ConnectionError:
            raise Closing(CloseCode.SHUTDOWN) from None

    async def run(self, outbox: Outbox) -> None:
        """Pass on what the other node says, until it ends. Raises Closing then, and OutboxClosed."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                text = message.data.encode()
                if self._is_passed(text):
                    await outbox.send(text)
            elif message.type is aiohttp.WSMsgType.BINARY:
                await outbox.send(message.data, is_binary=True)
        log.info("socket to node %s has ended code=%s", self.node, self._socket.close_code)
        raise Closing(CloseCode.SHUTDOWN)

    def _is_passed(self, text: bytes) -> bool:
        if text.startswith(_PASSED):
            return not self.is_leaving
        said = orjson.loads(text)
        if (id_ := said.get("id")) is not None:
            sub = self._subscribing.pop(id_, None)
            if sub is not None and not said["ok"]:
                self.kept.subs.discard(sub)
            return True
        sub = said.get("sub")
        if said.get("op") == "error" and sub is not None:
            self.kept.subs.discard(sub)
        return sub is not None or said.get("op") == "error"

    async def end(self, *, said_goodbye: bool) -> None:
        """End the socket; without a goodbye the other node keeps its session for a while."""
        code = aiohttp.WSCloseCode.OK if said_goodbye else aiohttp.WSCloseCode.SERVICE_RESTART
        with suppress(ConnectionError, TimeoutError):
            await self._socket.close(code=code)


class Elsewhere:
    """The relays of one client's socket. `close` closes that socket."""

    def __init__(
        self,
        cluster: Cluster,
        connect: Connect,
        outbox: Outbox,
        start_task: StartTask,
        *,
        token: str | None,
        is_open: bool,
    ) -> None:
        """`token`: what the client has authenticated by; None where it has not, or by a ticket. `is_open`: no client is
        asked for one."""
        self._cluster = cluster
        self._connect = connect
        self._outbox = outbox
        self._start = start_task
        self._relays: dict[str, _Relay] = {}
        self._resumed: list[_Relay] = []  # that do not pass anything on yet
        self._token = token
        self._is_open = is_open

    def node_of(self, group: str) -> str | None:
        """The other node that has a group; None when none has. Raises RequestError 409, with its name, when nothing can
        be passed on to it."""
        owner = self._cluster.owner(GROUPS, group)
        if owner is None or owner == self._cluster.name:
            return None
        if not self._is_open and self._token is None:
            member = self._cluster.members.get(owner)
            where = "" if member is None else f": connect to {member.url}"
            raise RequestError(
                409, f"Group {group} belongs to node {owner}, to which a one-time ticket is not passed on{where}."
            )
        return owner

    def of(self, sub: object) -> _Relay | None:
        """The relay that has a subscription; None: it is here, or nowhere."""
        return next((relay for relay in self._relays.values() if sub in relay.kept.subs), None)

    @property
    def count(self) -> int:
        """Subscriptions elsewhere."""
        return sum(len(relay.kept.subs) for relay in self._relays.values())

    async def to(self, node: str, *, binary: bool) -> _Relay:
        """The relay to a node, made when there is none. Raises RequestError."""
        if (relay := self._relays.get(node)) is None:
            if len(self._relays) >= RELAYS_MAX:
                raise RequestError(protocol.TOO_MANY, f"A socket may use groups of {RELAYS_MAX} other nodes at once.")
            relay, _ = await self._opened(node, binary=binary)
            self._start(relay.run(self._outbox))
        return relay

    async def resume(
        self, kept: Mapping[str, Kept], seen: Mapping[str, int], *, binary: bool
    ) -> tuple[dict[str, object], dict[str, object]]:
        """Go on with the relays of a session; the states of their subscriptions, and why some have ended. Nothing is
        passed on before `go_on`: the client is to know those states first."""
        subs: dict[str, object] = {}
        ended: dict[str, object] = {}
        for node, one in kept.items():
            try:
                of_node = {name: seq for name, seq in seen.items() if name in one.subs}
                relay, said = await self._opened(node, binary=binary, resume=one.session, seen=of_node)
            except RequestError as error:
                ended |= {name: protocol.error_fields(error) for name in one.subs}
                continue
            self._resumed.append(relay)
            states = said.get("subs", {})
            relay.kept.subs |= states.keys()
            subs |= states
            ended |= said.get("ended", {})
            gone = RequestError(protocol.CANNOT_RESUME, f"Node {node} has forgotten the session.", retriable=True)
            ended |= {name: protocol.error_fields(gone) for name in one.subs - states.keys() - ended.keys()}
        return subs, ended

    def go_on(self) -> None:
        """The client was told what `resume` has found."""
        for relay in self._resumed:
            self._start(relay.run(self._outbox))
        self._resumed.clear()

    async def renew(self, token: str) -> None:
        """Have all relays go on with the rights of a token. Raises Closing."""
        self._token = token
        for relay in self._relays.values():
            await relay.send({"op": "auth", "token": token})

    async def seen(self, subs: Mapping[str, int]) -> None:
        """Tell each relay what its client has seen. Raises Closing."""
        for relay in self._relays.values():
            if own := {name: seq for name, seq in subs.items() if name in relay.kept.subs}:
                await relay.send({"op": "seen", "subs": own})

    def kept(self) -> dict[str, Kept]:
        """What a session keeps of them."""
        return {node: relay.kept for node, relay in self._relays.items()}

    def leave(self) -> None:
        """Push nothing more, as the server stops."""
        for relay in self._relays.values():
            relay.is_leaving = True

    async def end(self, *, said_goodbye: bool) -> None:
        """End them all."""
        await asyncio.gather(*[relay.end(said_goodbye=said_goodbye) for relay in self._relays.values()])
        self._relays.clear()

    async def _opened(
        self, node: str, *, binary: bool, resume: str | None = None, seen: Mapping[str, int] | None = None
    ) -> tuple[_Relay, dict[str, Any]]:
        socket = await self._connect(node, self._token)
        try:
            hello = {"op": "hello", "id": 0, "binary": binary}
            if resume is not None:
                hello |= {"resume": resume, "seen": seen}
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await socket.send_str(orjson.dumps(hello).decode())
                said = orjson.loads(await socket.receive_str())
            relay = _Relay(node, socket, Kept(said["session"]))
        except (ConnectionError, TimeoutError, TypeError, ValueError, KeyError) as error:
            await socket.close()
            message = f"Node {node}, which has the group, does not answer."
            raise RequestError(OVERLOADED, message, retriable=True, retry_after_ms=1000) from error
        except BaseException:
            await socket.close()
            raise
        self._relays[node] = relay
        return relay, said
