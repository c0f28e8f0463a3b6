"""All servers of one durability, up at once: rows that are compared are measured seconds apart, on warm servers.

A server that dies fails the step it died in and is started anew, on an empty directory, for its next one. One that does
not start fails all its steps. Other servers are idle meanwhile; what that takes is measured (`idle`).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from loadtest.peers.peer import Durability, Peer, Unavailable
from loadtest.peers.plan import KEPT, Row, Step, Turn, options_of
from loadtest.peers.servers import Died, Server
from loadtest.peers.session import Failed, Result, drive_command, driven, empty, failure, step_result
from loadtest.peers.usage import look

WARMED_BY = {"batched": 0.6, "scan": 0.4}
"""Works that a new server is loaded with, by a client that does both if there is one, and the share of the peer's
warm-up time that each has."""

WARM_UP = "warm-up"
"""The topic of that."""

WARM_TIMEOUT_S = 120.0
DROP_TIMEOUT_S = 60.0


class Place(NamedTuple):
    """A server of the fleet."""

    peer: str
    level: str


class _Up(NamedTuple):
    server: Server
    data: Path
    stack: ExitStack


class _Kept(NamedTuple):
    """What a work has left for another one to go on with; no topic when it failed."""

    topic: str
    records: int


class Fleet:
    """See the module. Use it as a block."""

    def __init__(self, peers: Mapping[str, Peer], durability: Durability, tools: Path) -> None:
        self._peers = peers
        self._levels = {
            Place(name, level.name): level
            for name, peer in peers.items()
            for level in peer.levels
            if level.durability is durability
        }
        self._tools = tools
        self._up: dict[Place, _Up] = {}
        self._lost: dict[Place, str] = {}
        self._kept: dict[Place, dict[str, _Kept]] = {}

    def __enter__(self) -> Self:
        """Start and warm all servers. One that does not start is lost, and does not keep the others away."""
        try:
            for place in self._levels:
                try:
                    self._server(place)
                except Died as error:
                    print(f"    {place.peer}, {place.level}: {str(error)[:200]}", flush=True)
        except BaseException:  # told to end meanwhile: what is up already must not stay
            self._stop_all()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop_all()

    def idle(self, for_s: float) -> dict[str, float]:
        """How much of one core each server takes when nothing is asked of it."""
        places = {place: up.server.pids for place, up in self._up.items()}
        before = {place: look(0, pids, (), None).server_s for place, pids in places.items()}
        began_s = time.monotonic()
        time.sleep(for_s)
        wall_s = time.monotonic() - began_s
        return {
            f"{place.peer}, {place.level}": (look(0, pids, (), None).server_s - before[place]) / wall_s
            for place, pids in places.items()
        }

    def result(self, turn: Turn) -> Result:
        """Measure a row once."""
        place = Place(turn.row.peer, turn.row.level.name)
        step = turn.step
        options = options_of(step, self._peers[turn.row.peer])
        topic = f"{step.name}-{turn.number}-{_word(turn.row.client)}"
        try:
            if step.work in KEPT:
                kept = self._kept_for(place, turn.row, KEPT[step.work], options, turn.number)
                topic, options["count"] = kept.topic, kept.records
            elif step.work not in KEPT.values():
                self._drop_all()
            server = self._server(place)
            os.sync()  # what steps before have left to be written is not this one's
            command = drive_command(turn.row, step.work, server.endpoint, topic, options)
            data = self._up[place].data
            found = step_result(server, command, data, timeout_s=step.timeout_s, is_paced=step.is_paced)
        except (Died, Failed) as error:
            found = failure(error)
        if step.work in KEPT.values():
            self._keep(place, turn.row.client, topic, found)
        return found

    def _kept_for(self, place: Place, row: Row, work: str, options: Mapping[str, float], number: int) -> _Kept:
        """What that work has left: by the same client or, when no client of that name does it, by the first one.

        It is done again, unmeasured, on a server that is new since. Raises Failed, Died.
        """
        clients = [way.client for way in self._peers[row.peer].ways(work)]
        if not clients:
            raise Failed(f"no client does {work}")
        client = row.client if row.client in clients else clients[0]
        self._server(place)
        if client not in self._kept.setdefault(place, {}):
            self.result(Turn(number, Step(work, work, options), row._replace(client=client)))
        kept = self._kept[place][client]
        if not kept.records:
            raise Failed(f"{work} by {client} failed: nothing to go on with")
        return kept

    def _keep(self, place: Place, client: str, topic: str, found: Result) -> None:
        self._kept.setdefault(place, {})[client] = _Kept(topic, 0 if "failed" in found else _stored(found))

    def _drop_all(self) -> None:
        """Remove the topics that are kept, where a peer has a way to do that."""
        for place, kept in self._kept.items():
            ways = self._peers[place.peer].ways("drop")
            up = self._up.get(place)
            for one in kept.values() if ways and up else ():
                assert up is not None
                row = Row(place.peer, self._levels[place], ways[0].client)
                command = drive_command(row, "drop", up.server.endpoint, one.topic, {})
                try:
                    driven(command, up.server, up.data, timeout_s=DROP_TIMEOUT_S)
                except (Failed, Died) as error:
                    print(f"    {place.peer}: {one.topic} is not removed: {str(error)[:200]}", flush=True)
        self._kept.clear()

    def _server(self, place: Place) -> Server:
        """The server of a place, started anew when it has died. Raises Died."""
        if place in self._lost:
            raise Died(self._lost[place])
        if place in self._up:
            try:
                self._up[place].server.check()
                return self._up[place].server
            except Died:
                self._stop(place)
        data = empty(self._tools / "data" / _word(f"{place.peer} {place.level}"))
        stack = ExitStack()
        try:
            server = stack.enter_context(self._peers[place.peer].serve(self._tools, data, self._levels[place]))
        except (Died, Unavailable, OSError) as error:
            shutil.rmtree(data, ignore_errors=True)
            self._lost[place] = str(error)
            raise Died(str(error)) from error
        self._up[place] = _Up(server, data, stack)
        self._warm(place)
        return server

    def _stop_all(self) -> None:
        with ExitStack() as stack:
            for place in self._up:
                stack.callback(self._stop, place)

    def _stop(self, place: Place) -> None:
        up = self._up.pop(place)
        self._kept.pop(place, None)
        up.stack.close()
        shutil.rmtree(up.data, ignore_errors=True)

    def _warm(self, place: Place) -> None:
        """Load a new server for its warm-up time. What fails here fails again where it is measured."""
        peer, up = self._peers[place.peer], self._up[place]
        clients = {work: [way.client for way in peer.ways(work)] for work in WARMED_BY}
        shared = [client for client in clients["batched"] if client in clients["scan"]]
        records = 0
        for work, share in WARMED_BY.items():
            if not clients[work] or (work in KEPT and not shared):
                continue
            options = {"duration_s": peer.warm_up_s * share, "warm_s": 0.0}
            if work in KEPT:
                options["count"] = records
            row = Row(place.peer, self._levels[place], (shared or clients[work])[-1])
            command = drive_command(row, work, up.server.endpoint, WARM_UP, options)
            try:
                numbers, _ = driven(command, up.server, up.data, timeout_s=peer.warm_up_s + WARM_TIMEOUT_S)
                records = _stored(numbers)
                self._kept.setdefault(place, {})[WARM_UP] = _Kept(WARM_UP, records)
            except (Failed, Died) as error:
                print(f"    {place.peer}, {place.level}: warm-up: {str(error)[:200]}", flush=True)
                return


def _stored(found: Result) -> int:
    """How many records a work has left in its topic."""
    return int(float(str(found.get("stored", found.get("records", 0)))))


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
