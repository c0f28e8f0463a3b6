"""All sessions of a server: which sockets have one, which wait for their clients to come back, and for how long.

    open      a socket begins with a new session
    lost      its connection is lost: it waits for `ws_session_grace_ms`, then ends, and its leases and members go
    resume    another socket of the same principal takes it up; a socket that still has it is told to go
    end       its client has said goodbye

Invariants
    R1  a session is attached to one socket at most
    R2  at most WAITING_MAX sessions wait; beyond that the one that waits longest ends
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.api.light import LightReader
from gateway.api.shapes.server import ShownSession
from gateway.api.tasks import Tasks
from gateway.auth.access import NOBODY, Access
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.ws.feed import Partitions, Sources
from gateway.surfaces.ws.frame_cache import FrameCache
from gateway.surfaces.ws.heartbeats import Heartbeats
from gateway.surfaces.ws.protocol import CloseCode
from gateway.surfaces.ws.session import Session
from gateway.surfaces.ws.turn_sends import turn_batches

log = logging.getLogger(__name__)

WAITING_MAX = 10_000
"""Sessions that wait for their clients."""

SHOWN_CHARS = 12
"""Of a session's name: the whole of it is what its client resumes it by."""

REFRESH_S = 5.0
"""How often topics and rights are looked at again."""

_SESSIONS_A_TURN = 100


@dataclass(slots=True)
class _Held:
    """A session, and how to tell its socket to go (attached) or when it ends (waiting)."""

    session: Session
    evict: Callable[[CloseCode], None] | None
    grace: asyncio.TimerHandle | None = None
    gone: asyncio.Event | None = None
    """Of those who wait: set when the socket that had it is through with it."""

    address: str = ""
    """Where its client comes from."""

    since_ms: int = 0


class Sessions:
    """The sessions of one gateway."""

    def __init__(self, gateway: Gateway, *, waiting_max: int = WAITING_MAX) -> None:
        self._gateway = gateway
        self._waiting_max = waiting_max
        self._tasks = Tasks(lambda error: log.error("sockets failed", exc_info=error))
        routes = gateway.routes_table
        frame_cache = FrameCache(gateway.consumer, lambda name: routes.topic(name).topic_id)
        partitions = Partitions(frame_cache, gateway.consumer)
        self._sources = Sources(partitions, LightReader(routes), gateway.light_rendering, gateway.stats)
        self._held: dict[str, _Held] = {}
        self._waiting: dict[str, _Held] = {}  # the longest first
        self.turn_batches = turn_batches(gateway.producer)
        """Of what sockets send."""

        self.heartbeats = Heartbeats(gateway.config.ws_ping_ms / 1000)
        """Of the sockets."""

        self._go_away: dict[Callable[[], None], None] = {}  # in order; a set has none
        self._has_started = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[Session]:
        """The sessions there are now."""
        return [held.session for held in self._held.values()]

    @property
    def waiting_count(self) -> int:
        """Sessions without a socket."""
        return len(self._waiting)

    @property
    def stranger_count(self) -> int:
        """Sockets whose clients have not said who they are."""
        return sum(held.session.access is NOBODY for held in self._held.values())

    def open(self, access: Access, evict: Callable[[CloseCode], None], address: str = "") -> Session:
        """A new session for a socket from this address. `evict` closes that socket."""
        session = Session(self._gateway, self._sources, access)
        now_ms = self._gateway.clock.now_ms()
        self._held[session.name] = _Held(session, evict, address=address, since_ms=now_ms)
        if not self._has_started:
            self._has_started = True
            self._tasks.start(self._refresh())
            self._tasks.start(self._drain())
        return session

    def when_draining(self, go_away: Callable[[], None]) -> None:
        """Call `go_away` once when the server is about to stop, until `not_when_draining`."""
        self._go_away[go_away] = None
        if self._gateway.draining.is_set():  # it came in while the others were told
            asyncio.get_running_loop().call_soon(self._call_go_away, go_away)

    def not_when_draining(self, go_away: Callable[[], None]) -> None:
        """Its socket has ended."""
        self._go_away.pop(go_away, None)

    async def resume(
        self, name: str, access: Access, evict: Callable[[CloseCode], None], address: str = ""
    ) -> Session | None:
        """Take up a session; it is not attached. None when it is not known, or another principal's."""
        held = self._held.get(name)
        if (
            held is None
            or held.session.is_broken
            or not held.session.is_resumable
            or held.session.access.principal != access.principal
        ):
            return None
        if held.grace is None:
            if held.evict is not None:
                held.evict(CloseCode.TAKEN_OVER)
            if held.gone is None:
                held.gone = asyncio.Event()
            await held.gone.wait()
            if self._held.get(name) is not held or held.grace is None:
                return None  # ended or taken up meanwhile
        held.grace.cancel()
        del self._waiting[name]
        session = held.session
        session.access = access
        self._held[name] = _Held(session, evict, address=address, since_ms=held.since_ms)
        return session

    def shown(self) -> list[ShownSession]:
        """All sessions, for people who look."""
        return [
            ShownSession(
                session=name[:SHOWN_CHARS],
                principal=held.session.access.principal,
                address=held.address,
                since_ms=held.since_ms,
                state="waiting" if held.evict is None else "open",
                subscriptions=len(subscriptions := held.session.subscriptions),
                groups=sorted({one.group for one in subscriptions if one.group is not None}),
            )
            for name, held in self._held.items()
        ]

    def kick(self, shown_name: str) -> bool:
        """End a session and its socket, by the part of its name that is shown; False when there is none."""
        name = next((name for name in self._held if name[:SHOWN_CHARS] == shown_name), None)
        if name is None:
            return False
        held = self._held[name]
        if held.evict is not None:
            held.evict(CloseCode.FORBIDDEN)
        elif name in self._waiting:
            self._expire(name)
        return True

    async def leave(self, session: Session, code: CloseCode | None, *, said_goodbye: bool) -> None:
        """A socket is through with its session: it waits for its client, or ends."""
        held = self._held.get(session.name)
        if held is None or held.session is not session:
            return
        await session.detach()
        grace_ms = self._gateway.config.ws_session_grace_ms
        keeps = (
            (code is None or code.keeps_session)
            and not said_goodbye
            and session.is_resumable
            and not session.is_broken
            and grace_ms > 0
        )
        if self._is_closed or code is CloseCode.SHUTDOWN:
            del self._held[session.name]
            await session.close(leave=False)
        elif keeps:
            held.evict = None
            loop = asyncio.get_running_loop()
            held.grace = loop.call_later(grace_ms / 1000, self._expire, session.name)
            self._waiting[session.name] = held
            while len(self._waiting) > self._waiting_max:
                self._expire(next(iter(self._waiting)))
        else:
            del self._held[session.name]
            await session.close(leave=True)
        if held.gone is not None:
            held.gone.set()

    async def close(self) -> None:
        """The server stops. Members and leases stay in their groups for clients that come back after the restart."""
        self._is_closed = True
        for held in self._waiting.values():
            if held.grace is not None:
                held.grace.cancel()
        for held in list(self._held.values()):
            await held.session.close(leave=False)
        self._held.clear()
        self._waiting.clear()
        await self._tasks.close()

    def _expire(self, name: str) -> None:
        held = self._waiting.pop(name)
        del self._held[name]
        if held.grace is not None:
            held.grace.cancel()
        log.info("socket=%s did not come back", name[:12])
        self._tasks.finish(held.session.close(leave=True))

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for number, held in enumerate(list(self._held.values()), 1):
                held.session.refresh_soon()
                if number % _SESSIONS_A_TURN == 0:
                    await asyncio.sleep(0)

    async def _drain(self) -> None:
        await self._gateway.draining.wait()
        for go_away in list(self._go_away):
            self._call_go_away(go_away)

    def _call_go_away(self, go_away: Callable[[], None]) -> None:
        if go_away in self._go_away:
            del self._go_away[go_away]
            go_away()
