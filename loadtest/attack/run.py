"""Runs attacks one after the other and makes a row of each. A server that held is attacked again; one that did not is
replaced, so that no row is blamed for another.

    prepare │ start (memory) │ the attack, in a process of its own │ quiet, up to a minute │ end
            └──────── watched, with another client's sends and reads going on ───────────────┘
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import aiohttp

from loadtest.attack.attack import (
    FULL,
    QUIET_MAX_S,
    SHORT,
    STOP_RSS_BYTES,
    Attack,
    Figures,
    MiB,
    Numbers,
    Outcome,
    Row,
    Victim,
    problems_of,
)
from loadtest.attack.attacker import Attacker, SetupFailed, raise_handle_limit
from loadtest.attack.curves import Curves, Point, longest_turn_ms, middle, worst
from loadtest.attack.steady import Steady
from loadtest.attack.victim import Target, running_victim
from loadtest.attack.watch import SAMPLE_INTERVAL_S, NotMeasured, Watch, reset_peak
from loadtest.process import ProcessFailed

WARM_UP_S = 0.2
QUIET_MIN_S = 5.0
POLL_S = 0.02
END_TIMEOUT_S = 5.0
PREPARED = "prepared"
TURN_TOLD = b"event loop held"
_CPU_MS = re.compile(r"cpu_ms=(\d+)")
TURNS_SHOWN_MAX = 5
GO = "go"
SESSION_ADDRESS = "127.0.1.200"
"""Of the attacker's HTTP; its raw connections have others."""

Tell = Callable[[Row], None]


class Run:
    """Rows and curves of one run."""

    def __init__(self, directory: Path, *, is_short: bool, tell: Tell) -> None:
        """`directory`: for the victims' data."""
        self.rows: list[Row] = []
        self.curves = Curves()
        self._directory = directory
        self._is_short = is_short
        self._bounds = SHORT if is_short else FULL
        self._tell = tell
        self._began_s = time.monotonic()
        self._servers = count()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([f"{__package__}.catalogue"])

    def attack(self, attacks: Sequence[Attack]) -> None:
        """All that have this size, victim by victim."""
        left = [one for one in attacks if one.numbers(is_short=self._is_short) is not None]
        for victim in dict.fromkeys(one.victim for one in left):
            waiting = [one for one in left if one.victim == victim]
            while waiting:
                waiting = waiting[self._life(victim, waiting) :]

    def _life(self, victim: Victim, attacks: Sequence[Attack]) -> int:
        """Attack one server until it is through or an attack succeeds; how many there were."""
        directory = self._directory / str(next(self._servers))
        rows: list[Row] = []
        try:
            with running_victim(victim, directory) as target:
                asyncio.run(self._attacks(target, attacks, rows))
        except (ProcessFailed, NotMeasured, OSError, aiohttp.ClientError) as error:
            self._blame(f"the server: {error or type(error).__name__}", victim, attacks, rows)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        self.rows += rows
        return len(rows)

    def _blame(self, problem: str, victim: Victim, attacks: Sequence[Attack], rows: list[Row]) -> None:
        """A server that did not end well: its last row failed, without numbers when it had none."""
        if not rows:
            attack = attacks[0]
            now_s = self._now_s()
            tried = attack.text(attack.numbers(is_short=self._is_short) or {})
            rows.append(
                Row(name=attack.name, tried=tried, victim=victim.name, began_s=now_s, ended_s=now_s,
                    figures=None, seen={}, problems=[])
            )  # fmt: skip
        rows[-1] = replace(rows[-1], problems=[*rows[-1].problems, problem])
        self._tell(rows[-1])

    async def _attacks(self, target: Target, attacks: Sequence[Attack], rows: list[Row]) -> None:
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(target.session())
            watch = Watch(session, target.pid, self.curves, self._began_s)
            steady = Steady(session, self._began_s)
            await steady.begin()
            loops = [
                watch.sample(),
                watch.check_health(),
                watch.count_turns(),
                watch.feel_slowness(),
                steady.send(),
                steady.read(),
            ]
            tasks = [asyncio.ensure_future(one) for one in loops]
            stack.push_async_callback(_cancel, tasks)
            await asyncio.sleep(WARM_UP_S)
            for attack in attacks:
                row = await self._one(attack, target, watch, steady)
                rows.append(row)
                self._tell(row)
                if not row.is_good:
                    return

    async def _one(self, attack: Attack, target: Target, watch: Watch, steady: Steady) -> Row:
        numbers = attack.numbers(is_short=self._is_short)
        assert numbers is not None
        began_s = ended_s = self._now_s()
        outcome = Outcome({}, [])
        figures: Figures | None = None
        problem: str | None = None
        log_bytes = target.log.stat().st_size
        try:
            with _attacking(self._context, target, attack, numbers) as child:
                await child.until_prepared(watch, attack.timeout_s)
                start_bytes = watch.memory().rss_bytes
                is_peak_known = reset_peak(target.pid)
                turns = await watch.turns()
                began_s = self._now_s()
                outcome = await child.finish(watch, attack.timeout_s)
            ended_s = self._now_s()
            gap_ms = steady.gap_now_ms()
            peak_bytes = watch.memory().peak_bytes if is_peak_known else 0
            kept_bytes_max = attack.kept_bytes_max(numbers)
            back_bytes, back_s = await self._quiet(watch, start_bytes + kept_bytes_max)
            problem = await steady.settle() or await _is_closed_to_others(target)
            await asyncio.sleep(2 * SAMPLE_INTERVAL_S)  # so that there is a sample, however short it was
            watch.memory()  # whether it still lives
            figures = self._figures(
                began_s, steady, start_bytes=start_bytes, peak_bytes=peak_bytes, gap_ms=gap_ms,
                turn_ms=_longest(turns, await watch.turns(), _turns_told(target.log, log_bytes)),
                back_bytes=back_bytes, back_s=back_s,
            )  # fmt: skip
            if figures is None:
                problem = problem or "a health check, or /metrics, had no good answer"
        except NotMeasured as reason:
            problem = str(reason)
        found = (
            [] if figures is None else problems_of(figures, self._bounds, kept_bytes_max=attack.kept_bytes_max(numbers))
        )
        if figures is not None and figures.turn_ms > self._bounds.turn_ms * figures.slowness:
            found += [f"the server's log: {line}" for line in _turns_told(target.log, log_bytes)[:TURNS_SHOWN_MAX]]
        return Row(
            name=attack.name, tried=attack.text(numbers), victim=attack.victim.name, began_s=began_s,
            ended_s=ended_s, figures=figures, seen=outcome.seen, keeps=_kept(attack, numbers, figures),
            problems=[*([problem] if problem else []), *outcome.problems, *found],
        )  # fmt: skip

    def _figures(
        self, since_s: float, steady: Steady, *, start_bytes: int, peak_bytes: int, gap_ms: Point,
        turn_ms: float | None, back_bytes: int | None, back_s: float,
    ) -> Figures | None:  # fmt: skip
        """None when a number is missing. The quiet counts: what began in the attack may end after it."""
        now_s = self._now_s()
        rss_mib = worst(self.curves.rss_mib, since_s, now_s)
        health_ms = worst(self.curves.health_ms, since_s, now_s)
        handles = worst(self.curves.handles, since_s, now_s)
        gaps_ms = [*(one.value or 0 for one in steady.gap_ms if one.at_s >= since_s), gap_ms.value or 0]
        if rss_mib is None or health_ms is None or handles is None or turn_ms is None:
            return None
        return Figures(
            start_bytes=start_bytes,
            worst_bytes=max(int(rss_mib * MiB), peak_bytes),
            health_ms=health_ms,
            handles=int(handles),
            gap_ms=max(gaps_ms),
            late_ms=worst(steady.late_ms, since_s, now_s),
            turn_ms=turn_ms,
            slowness=1.0 if self._is_short else middle(self.curves.slowness, since_s, now_s) or 1.0,
            back_bytes=back_bytes,
            back_s=back_s,
        )

    async def _quiet(self, watch: Watch, start_bytes: int) -> tuple[int | None, float]:
        """Wait until memory is back, for a minute at most; what it is then, and after how long."""
        back_bytes = self._bounds.back_bytes
        if back_bytes is None:
            return None, 0.0
        began_s = time.monotonic()
        while True:
            await asyncio.sleep(POLL_S)
            quiet_s = time.monotonic() - began_s
            is_back = watch.memory().rss_bytes <= start_bytes + back_bytes
            if (is_back and quiet_s >= QUIET_MIN_S) or quiet_s >= QUIET_MAX_S:
                return watch.memory().rss_bytes, quiet_s

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s


class _Child:
    """The attacker's process. See `_attack`."""

    def __init__(self, context: ForkServerContext, target: Target, attack: Attack, numbers: Numbers) -> None:
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_attack, args=(target, attack, numbers, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    async def until_prepared(self, watch: Watch, timeout_s: float) -> None:
        """Raises NotMeasured."""
        told = await self._told(watch, timeout_s)
        if told != PREPARED:
            raise NotMeasured(f"the attack could not be prepared: {told}")
        await asyncio.sleep(WARM_UP_S)

    async def finish(self, watch: Watch, timeout_s: float) -> Outcome:
        """Let it attack, to its end, or until its time is over or it has won. Raises NotMeasured."""
        self._pipe.send(GO)
        told = await self._told(watch, timeout_s)
        if isinstance(told, Outcome):
            return told
        return Outcome({}, [str(told)])

    async def _told(self, watch: Watch, timeout_s: float) -> object:
        deadline_s = time.monotonic() + timeout_s
        while not self._pipe.poll():
            if watch.memory().rss_bytes > STOP_RSS_BYTES:
                return f"ended by us at {watch.memory().rss_bytes / MiB:,.0f} MiB"
            if time.monotonic() > deadline_s:
                return f"ended by us after {timeout_s:.0f} s"
            if not self._process.is_alive() and not self._pipe.poll():
                return "the attacker died"
            await asyncio.sleep(POLL_S)
        try:
            told: object = self._pipe.recv()
        except EOFError:
            return "the attacker died"
        return told

    def end(self) -> None:
        """Its connections end with it."""
        self._process.kill()
        self._process.join(END_TIMEOUT_S)
        self._pipe.close()


@contextmanager
def _attacking(context: ForkServerContext, target: Target, attack: Attack, numbers: Numbers) -> Iterator[_Child]:
    child = _Child(context, target, attack, numbers)
    try:
        yield child
    finally:
        child.end()


def _attack(target: Target, attack: Attack, numbers: Numbers, pipe: Connection) -> None:
    """The attacker's process: says PREPARED, waits for GO, says its Outcome."""
    raise_handle_limit()
    with suppress(EOFError, BrokenPipeError):  # the run has ended
        asyncio.run(_carry_out(target, attack, numbers, pipe))


async def _carry_out(target: Target, attack: Attack, numbers: Numbers, pipe: Connection) -> None:
    async with target.session(address=SESSION_ADDRESS) as session:
        attacker = Attacker(target, session)
        if attack.prepare is not None:
            try:
                await attack.prepare(attacker, **numbers)
            except (SetupFailed, aiohttp.ClientError, TimeoutError, OSError) as error:
                pipe.send(str(error) or type(error).__name__)
                return
        pipe.send(PREPARED)
        await asyncio.to_thread(pipe.recv)
        attacker.seen.clear()
        try:
            await attack.run(attacker, **numbers)
        except (SetupFailed, aiohttp.ClientError, TimeoutError, OSError) as error:
            attacker.wrong(f"the attack ended with {type(error).__name__}: {error}")
        pipe.send(Outcome(dict(attacker.seen), attacker.problems))


def _kept(attack: Attack, numbers: Numbers, figures: Figures | None) -> str:
    """What was promised to be remembered, and what each of it takes."""
    if attack.keeps is None or figures is None or figures.back_bytes is None:
        return ""
    each = max(figures.back_bytes - figures.start_bytes, 0) / numbers[attack.keeps.number]
    return f"{attack.keeps.text}, {each:,.0f} bytes each"


def _turns_told(log: Path, since_bytes: int) -> list[str]:
    """What the server has written of its longest turns since, in its own words."""
    with log.open("rb") as file:
        file.seek(since_bytes)
        lines = [line.decode(errors="replace").strip() for line in file if TURN_TOLD in line]
    return [line[line.index(TURN_TOLD.decode()) :] for line in lines]


async def _is_closed_to_others(target: Target) -> str | None:
    """Whether a new connection is served again; None when it is."""
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline_s:
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with target.session() as session, session.get("/healthz", timeout=_TIMEOUT) as response:
                if response.status == 200:
                    return None
        await asyncio.sleep(POLL_S)
    return f"no new connection is served within {END_TIMEOUT_S:.0f} s of the attack's end"


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _longest(
    before: Mapping[float, float] | None, after: Mapping[float, float] | None, told: Sequence[str]
) -> float | None:
    """By the bounds of `/metrics`; by what the log says, where it has a line for each of these turns."""
    if before is None or after is None:
        return None
    said = [float(found[1]) for line in told if (found := _CPU_MS.search(line))]
    at_most_ms = longest_turn_ms(before, after)
    count = max(after.values(), default=0.0) - max(before.values(), default=0.0)
    return min(at_most_ms, max(said)) if said and len(said) == count else at_most_ms


_TIMEOUT = aiohttp.ClientTimeout(total=END_TIMEOUT_S)
