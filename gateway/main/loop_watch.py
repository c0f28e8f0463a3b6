"""How long single turns of the event loop last, and what the loop was doing when one lasted too long.

A turn is what the loop does between two looks at its sockets and timers; while it lasts no request is served. uvloop
turns in C and has no hook for it, and a wrapper around every callback would cost each request some of them. Two
observers see enough:

    beat      a timer of the loop, every BEAT_S. One that comes late says how long the turn before it lasted. It reads
              the CPU clock of its thread as well: `work` is a turn that used the CPU for so long, `wait` one that was
              late because the thread did not run: a busy machine, a system call, another thread with the GIL
    sampler   a thread that sleeps until a beat is overdue by HELD_S, by less where beats are rare, and looks then, once
              a turn, at the stack of the loop's thread: by the time the beat comes, that is gone

What is measured is shorter than the turn by up to BEAT_S: the turn may have begun right after a beat. A loop that has
had little to do for a second has a beat every IDLE_BEAT_S; there a turn is as long as the CPU time since the beat
before, nearly all of which is its own, and one that waits is measured shorter by up to IDLE_BEAT_S.

Cost: 100 timers of 2 us and 20 wake-ups of a thread a second, 0.1 % of a core where the loop is awake anyway. An idle
server wakes for each, so there are 20 timers then. Nothing is on the way of a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from prometheus_client.core import HistogramMetricFamily, Metric

from gateway.main.metrics import histogram_buckets
from gateway.surfaces.ws.commands import PERMISSIONS

log = logging.getLogger(__name__)

BEAT_S = 0.01
IDLE_BEAT_S = 0.05
"""Between beats of a loop that has used less than IDLE_SHARE of the time for IDLE_BEATS of them: each wakes a process
that sleeps."""

IDLE_SHARE = 0.33
IDLE_BEATS = 100
BUSY_BEATS = 25
"""So many of them a beat takes back that was used for more: what is done once a second may be all there is to do."""

HELD_S = 0.05
"""A turn of at least this is counted, and looked into while it lasts."""

LATE_MAX = 1_000
"""Beats that are kept for who asks how late they were."""

BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LOG_INTERVAL_S = 10.0
"""How often a line is written; it counts those in between."""

_ROOT = Path(__file__).resolve().parent.parent.parent
_OURS = tuple(f"{_ROOT / package}{os.sep}" for package in ("gateway", "store", "timer"))
_ENDPOINT, _SOCKET_COMMAND = "endpoint", "_take_one"


class Held(NamedTuple):
    """A turn that lasted too long: for how long, how much of that its thread used the CPU, and what it was at."""

    length_s: float
    cpu_s: float
    by: str


class LoopWatch:
    """The watch over one event loop; a collector of its two histograms. Made and used in the loop's thread."""

    def __init__(
        self,
        *,
        beat_s: float = BEAT_S,
        idle_beat_s: float = IDLE_BEAT_S,
        held_s: float = HELD_S,
        on_work: Callable[[Held], None] | None = None,
    ) -> None:
        """`on_work` is told of each turn that was work; without it, the log is, now and then. `idle_beat_s`: from one
        beat to the next of a loop that has little to do; that of others has turns measured alike."""
        self._beat_s = beat_s
        self._idle_beat_s = idle_beat_s
        self._held_s = held_s
        self._on_work = on_work or self._say
        self._late_s: deque[float] = deque(maxlen=LATE_MAX)
        self._counts = {cause: [0] * (len(BOUNDS_S) + 1) for cause in ("work", "wait")}
        self._sums_s = dict.fromkeys(self._counts, 0.0)
        self._unsaid_count = 0
        self._quiet_until_s = 0.0
        self._due_s = 0.0
        self._interval_s = 0.0  # before that
        self._cpu_s = 0.0
        self._idle_count = 0  # beats that found the loop idle, less what busy ones took back
        self._seen: tuple[float, str] = 0.0, ""  # the beat that was overdue, and what was found then
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = 0
        self._stopping = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch the running loop, whose thread this is, within the block."""
        self._thread_id = threading.get_ident()
        self._cpu_s = time.thread_time()
        self._rearm(time.monotonic())
        sampler = threading.Thread(target=self._sample, name="loop watch", daemon=True)
        sampler.start()
        try:
            yield
        finally:
            assert self._timer is not None
            self._timer.cancel()
            self._stopping.set()
            sampler.join()

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client: one reading."""
        held = HistogramMetricFamily(
            "mq_loop_held_seconds",
            f"Turns of the event loop of {self._held_s * 1000:g} ms or more: with CPU time (work), or without (wait).",
            labels=("cause",),
        )
        for cause, counts in self._counts.items():
            held.add_metric((cause,), histogram_buckets(BOUNDS_S, counts), self._sums_s[cause])
        yield held

    def take_late_p99_ms(self) -> float | None:
        """How late 99 of 100 beats were at most since this was asked last; None: there was none."""
        late = sorted(self._late_s)
        self._late_s.clear()
        return max(late[len(late) * 99 // 100 - (len(late) % 100 == 0)] * 1000, 0.0) if late else None

    @property
    def beat_s(self) -> float:
        """How long it is from one beat to the next, now."""
        return self._beat_s if self._idle_count < IDLE_BEATS else self._idle_beat_s

    def _rearm(self, now_s: float) -> None:
        self._interval_s = self.beat_s
        self._due_s = now_s + self._interval_s
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._beat)

    def _beat(self) -> None:
        now_s, cpu_s = time.monotonic(), time.thread_time()
        late_s, used_s = now_s - self._due_s, cpu_s - self._cpu_s
        length_s = late_s
        if self._interval_s > self._beat_s and late_s >= self._beat_s:
            length_s = max(late_s, min(used_s, late_s + self._interval_s))
        is_busy = used_s >= IDLE_SHARE * (self._interval_s + late_s)
        self._idle_count = min(max(self._idle_count + (-BUSY_BEATS if is_busy else 1), 0), IDLE_BEATS)
        if length_s >= self._held_s:
            self._idle_count = 0
            self._held(length_s, used_s)
            now_s, cpu_s = time.monotonic(), time.thread_time()
        self._cpu_s = cpu_s
        self._late_s.append(late_s)
        self._rearm(now_s)

    def _held(self, found_s: float, used_s: float) -> None:
        """Count a turn that lasted too long; tell of it if it was our work."""
        is_work = used_s >= self._held_s
        cause, length_s = ("work", min(found_s, used_s)) if is_work else ("wait", found_s)
        self._counts[cause][bisect_left(BOUNDS_S, length_s)] += 1
        self._sums_s[cause] += length_s
        if not is_work:
            return
        due_s, found = self._seen
        self._on_work(Held(found_s, used_s, found if due_s == self._due_s else "unknown"))

    def _say(self, held: Held) -> None:
        self._unsaid_count += 1
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + LOG_INTERVAL_S
            log.warning(
                "event loop held ms=%d cpu_ms=%d by=%s count=%d",
                held.length_s * 1000, held.cpu_s * 1000, held.by, self._unsaid_count,
            )  # fmt: skip
            self._unsaid_count = 0

    def _sample(self) -> None:
        """The sampler's life. The loop's thread writes `_due_s`, this one `_seen`; both are single assignments."""
        wait_s = self._held_s
        while not self._stopping.wait(wait_s):
            due_s, more_s = self._due_s, self._interval_s - self._beat_s
            # As long after the beat before as with beats of BEAT_S.
            overdue_s = max(self._beat_s, self._held_s - more_s) if more_s > 0 else self._held_s
            wait_s = due_s + overdue_s - time.monotonic()
            if wait_s <= 0:
                wait_s = self._held_s
                if self._seen[0] != due_s:
                    self._seen = due_s, self._look()

    def _look(self) -> str:
        """What the loop is at. The frame is let go of on return: as long as it is there, so is all that it has."""
        frame = sys._current_frames().get(self._thread_id)
        return "unknown" if frame is None else doing(frame)


def doing(frame: FrameType) -> str:
    """What a stack is at: the route or the op of a socket, as far as one is on it, and the innermost line of ours."""
    line, purpose = "", ""
    at: FrameType | None = frame
    while at is not None:
        name = at.f_code.co_name
        if not line and at.f_code.co_filename.startswith(_OURS):
            path = Path(at.f_code.co_filename).relative_to(_ROOT)
            line = f"{path}:{at.f_lineno}({name})"
        if name == _ENDPOINT and (row := at.f_locals.get("row")) is not None:
            purpose = f"route {row.name} "
            break
        if name == _SOCKET_COMMAND:
            op = at.f_locals.get("op")
            purpose = f"socket op {op} " if isinstance(op, str) and op in PERMISSIONS else "socket "
            break
        at = at.f_back
    return f"{purpose}{line or 'outside of this program'}"
