"""The trail of admin actions: passed on by the handlers that answer them, written in the background.

Nothing waits for the disk but the answers to the actions themselves (ring `actions`): one that has been answered is in
the trail durably, unless the trail could not be written. The other rings are durable within GATHER_S. A disk that is
full or broken stops nothing: what waits is tried again, what no longer fits in memory is counted as lost, and the trail
says so itself once it can be written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.api.trail_files import (
    ACTIONS,
    DIRECTORY,
    REFUSED,
    SCHEDULES,
    Act,
    Page,
    Printed,
    Ring,
    RingSpec,
    read_page,
)
from store.clock import Clock
from store.files import Files
from store.uncancelled import to_its_end
from store.waits import is_set_within

log = logging.getLogger(__name__)

SERVER = "server"
"""The principal of what the server does by itself."""

GATHER_S = 1.0
"""How long lines that no caller waits for are gathered before they are written."""

ANSWER_WAIT_S = 2.0
"""How long an answer waits for its line at most: a disk that hangs must not keep an operator from acting."""

RETRY_S = 5.0
WAITING_MAX = 2_000
"""Lines of one ring that wait for the disk."""

REFUSED_PER_S_MAX = 20
REFUSED_BURST_MAX = 200
"""Refused attempts that are written; of more only the number is."""


@dataclass(slots=True)
class TrailStats:
    """Counters since start."""

    written_count: int = 0
    lost_count: int = 0
    suppressed_count: int = 0
    is_failing: bool = False
    """The last write has failed."""


class _Waiting:
    """Acts of one ring that are not on disk yet."""

    def __init__(self, ring: Ring | Printed) -> None:
        self.ring = ring
        self.acts: list[tuple[int, Act]] = []


class Trail:
    """The trail of one server, in directory `audit` of `data`; None: on standard output, and there are no pages of it.
    All methods belong to the event loop; `run` must be running."""

    def __init__(
        self,
        data: Path | None,
        files: Files,
        clock: Clock,
        *,
        monotonic_s: Callable[[], float],
        gather_s: float = GATHER_S,
    ) -> None:
        self.stats = TrailStats()
        self._directory = directory = None if data is None else data / DIRECTORY
        self._files = files
        self._clock = clock
        self._monotonic_s = monotonic_s
        self._gather_s = gather_s
        self._waiting = {
            spec: _Waiting(Printed() if directory is None else Ring(directory, spec, files))
            for spec in (ACTIONS, SCHEDULES, REFUSED)
        }
        self._answers: list[asyncio.Future[None]] = []
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._unsaid_lost = 0
        self._unsaid_suppressed = 0
        self._refusals_left = float(REFUSED_BURST_MAX)
        self._refusals_at_s = monotonic_s()

    def record(self, act: Act) -> asyncio.Future[None] | None:
        """Hand over one act. The future, if there is one, ends when the act is durable, or cannot be for now."""
        spec = _ring_of(act)
        if spec is REFUSED and not self._may_write_refusal():
            self.stats.suppressed_count += 1
            self._unsaid_suppressed += 1
            return None
        self._add(spec, act)
        self._work.set()
        if spec is not ACTIONS:
            return None
        self._urgent.set()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return answer

    async def recorded(self, act: Act) -> None:
        """Hand over one act, and wait as long as its answer may wait for the disk."""
        if (answer := self.record(act)) is not None:
            timer = asyncio.get_running_loop().call_later(ANSWER_WAIT_S, _let_go, answer)
            try:
                await answer
            finally:
                timer.cancel()

    async def page(
        self, wanted: Callable[[dict[str, object]], bool], *, cursor: str | None, limit: int, from_ms: int = 0
    ) -> Page:
        """See `read_page`; reads in a thread what is on disk."""
        if self._directory is None:
            return Page([], None)
        return await asyncio.to_thread(
            read_page, self._directory, self._files, wanted, cursor=cursor, limit=limit, from_ms=from_ms
        )

    async def run(self) -> None:
        """Write what is passed on, until cancelled; then call `close`."""
        while True:
            await self._work.wait()
            if not self._urgent.is_set():
                await is_set_within(self._urgent, self._gather_s)
            self._work.clear()
            self._urgent.clear()
            await to_its_end(self._write())
            if self.stats.is_failing:
                await is_set_within(self._urgent, RETRY_S)
                self._work.set()

    async def close(self) -> None:
        """Write what still waits, and release the files."""
        await self._write()
        for waiting in self._waiting.values():
            waiting.ring.close()

    def _add(self, spec: RingSpec, act: Act) -> None:
        acts = self._waiting[spec].acts
        if len(acts) >= WAITING_MAX:
            self.stats.lost_count += 1
            self._unsaid_lost += 1
            return
        acts.append((self._clock.now_ms(), act))

    def _may_write_refusal(self) -> bool:
        now_s = self._monotonic_s()
        earned = (now_s - self._refusals_at_s) * REFUSED_PER_S_MAX
        self._refusals_left = min(float(REFUSED_BURST_MAX), self._refusals_left + earned)
        self._refusals_at_s = now_s
        if self._refusals_left < 1:
            return False
        self._refusals_left -= 1
        if self._unsaid_suppressed:
            self._add(REFUSED, _counted("trail.suppressed", self._unsaid_suppressed))
            self._unsaid_suppressed = 0
        return True

    async def _write(self) -> None:
        answers, self._answers = self._answers, []
        error: OSError | None = None
        for waiting in self._waiting.values():
            acts, waiting.acts = waiting.acts, []
            if not acts:
                continue
            try:
                await asyncio.to_thread(waiting.ring.append, acts)
            except OSError as failure:
                error = failure
                waiting.acts[:0] = acts
            except Exception:  # the server goes on, and would meet the same line again
                log.exception("lines of the trail of admin actions are lost count=%d", len(acts))
                self.stats.lost_count += len(acts)
                self._unsaid_lost += len(acts)
            else:
                self.stats.written_count += len(acts)
        self._say(error)
        for answer in answers:
            _let_go(answer)

    def _say(self, error: OSError | None) -> None:
        if error is not None and not self.stats.is_failing:
            log.error("the trail of admin actions cannot be written, and they go on error=%s", error)
        if error is None and self.stats.is_failing:
            log.warning("the trail of admin actions is written again lost=%d", self._unsaid_lost)
        self.stats.is_failing = error is not None
        if error is None and self._unsaid_lost:
            self._add(ACTIONS, _counted("trail.lost", self._unsaid_lost))
            self._unsaid_lost = 0
            self._work.set()


def _let_go(answer: asyncio.Future[None]) -> None:
    if not answer.done():
        answer.set_result(None)


def _ring_of(act: Act) -> RingSpec:
    if act.outcome == "refused":
        return REFUSED
    return SCHEDULES if act.action.startswith(("schedule.", "recurring.")) else ACTIONS


def _counted(action: str, count: int) -> Act:
    return Act(action=action, principal=SERVER, outcome="done", details={"count": count})
