"""Crash states by the million: lives of a store on a simulated disk, each from one seed, over all cores.

A life is a list of rounds. A round runs some operations (tests/properties/store_world.py), most often until the power
fails, then draws several of the disks that may be left (tests/simdisk.py). Each one is recovered and checked; on some

    P4  the store takes appends again, and they are read back
    P5  a crash inside recovery, and inside that one's recovery, changes nothing

and the last one is where the next round goes on. Disks of one round that are equal byte for byte are one state and
count once. A life depends on nothing but its seed; every third one has its indexes synced all together (`syncfs`), as
stores of many queues do, every second one a log that is allocated ahead of most groups, not zeroed, and every fifth one
an index in a database (tests/simdb.py), with light queues.

A failure is shrunk: rounds, disks and operations that do not matter are taken away, and what is left is printed as
Python, to be put into `live`.

A run that is interrupted says how far it came and with which seed to go on: lives are counted in the order of seeds.

    python -m tests.properties.torture --states 1000000            # or: make torture
    python -m tests.properties.torture --states 1 --seed 4711      # one life alone
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random, SystemRandom
from typing import NamedTuple
from unittest.mock import patch

import uvloop
from crc32c import crc32c

from store.config import StoreConfig
from store.data_format import raise_format
from store.errors import StoreError
from store.index import file as file_index
from store.index.opening import IndexKind
from store.log import writer
from store.store import LIGHT_FORMAT
from store.types import Acks
from tests.properties.store_world import (
    SETTINGS,
    Call,
    CreateTopic,
    Model,
    Operation,
    PowerCut,
    Put,
    Reopen,
    World,
    some_operations,
)
from tests.simdb import simulated_database
from tests.simdisk import SimDisk
from tests.store.kit import abandon, open_store

ROUNDS = 8
REPEATS_MAX = 5
"""So many disks in a row that were seen before, and a round draws no more of them: what can be left is few."""

LARGE_GROUP_BYTES = 600
"""In half of the lives groups from this size on count as large: the log is allocated ahead of them, not zeroed."""

SHRINK_RUNS_MAX = 400
TELL_EVERY_S = 15.0


@dataclass(frozen=True)
class Round:
    """Operations, and a seed for each disk drawn after them; life goes on from the last one."""

    operations: tuple[Operation, ...]
    disk_seeds: tuple[int, ...]


@dataclass(frozen=True)
class Life:
    """Everything that happens to one store."""

    synced_each_max: int
    zero_group_bytes_max: int
    syncs_beside: bool
    kept_log_share: int
    index: IndexKind
    rounds: tuple[Round, ...]


class Count(NamedTuple):
    """What was seen: crash states that were recovered and checked, and power cuts inside recoveries."""

    states: int = 0
    cuts_in_recovery: int = 0


class Lived(NamedTuple):
    """How the life of one seed went; `failure` is for people."""

    seed: int
    seen: Count
    failure: str | None


class Died(Exception):
    """A check failed; carries what had happened up to then, and nothing after it."""

    def __init__(self, life: Life, cause: Exception) -> None:
        super().__init__(repr(cause))
        self.life = life
        self.cause = cause


def life_of(seed: int) -> Life:
    """The life that belongs to a seed."""
    rng = Random(seed)
    lengths = (1, 4, 12, 30) if seed % 8 == 0 else (1, 3, 8, 20)  # long ones see more of retention, and cost more
    rounds = []
    for _ in range(ROUNDS):
        operations = some_operations(rng, rng.choice(lengths))
        if rng.random() < 0.9:
            cut = PowerCut(rng.randrange(1, 3 + 2 * len(operations)))
            operations.insert(rng.randrange(len(operations)), cut)
        disk_seeds = tuple(rng.getrandbits(32) for _ in range(rng.choice((4, 12, 32))))
        rounds.append(Round(tuple(operations), disk_seeds))
    synced_each_max = 1 if seed % 3 == 0 else file_index.SYNCED_EACH_MAX
    zero_group_bytes_max = LARGE_GROUP_BYTES if seed % 2 else writer.ZERO_GROUP_BYTES_MAX
    kept_log_share = (1, 4, file_index.KEPT_LOG_SHARE)[seed // 4 % 3]
    index: IndexKind = "rocksdb" if seed % 5 == 0 else "file"
    return Life(synced_each_max, zero_group_bytes_max, seed % 4 >= 2, kept_log_share, index, tuple(rounds))


def live(life: Life) -> Count:
    """Live a life to its end. Raises Died."""
    quiet = logging.getLogger("store")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)  # damaged disks are the point, not news
    try:
        with (
            patch.object(file_index, "SYNCED_EACH_MAX", life.synced_each_max),
            patch.object(file_index, "KEPT_LOG_SHARE", life.kept_log_share),
            patch.object(writer, "ZERO_GROUP_BYTES_MAX", life.zero_group_bytes_max),
            patch.object(writer, "WRITEOUT_BYTES", min(life.zero_group_bytes_max, writer.WRITEOUT_BYTES)),
            simulated_database(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_live(life))
    finally:
        quiet.setLevel(level)


async def _live(life: Life) -> Count:
    state_count = cut_count = 0
    disk = SimDisk()
    disk.syncs_beside = life.syncs_beside
    world = World(disk, Model(), replace(SETTINGS, index=life.index))
    await world.start(certain_count=0)
    if life.index == "rocksdb":
        # Else by the first light queue, in the middle of a cut; see tests/store/test_data_format.py for those.
        raise_format(SETTINGS.root, disk, LIGHT_FORMAT)
    lived: list[Round] = []
    for one in life.rounds:
        seen: set[int] = set()
        tried: list[int] = []
        repeat_count = 0
        try:
            await world.run(one.operations if lived else (CreateTopic(), *one.operations))
            for disk_seed in one.disk_seeds:
                is_last = disk_seed == one.disk_seeds[-1]
                if repeat_count == REPEATS_MAX and not is_last:
                    continue
                tried.append(disk_seed)
                rng = Random(disk_seed)
                disk = world.disk.crash(rng)
                fingerprint = _fingerprint(disk)
                is_new = fingerprint not in seen
                seen.add(fingerprint)
                state_count += is_new
                repeat_count = 0 if is_new else repeat_count + 1
                if not is_new and not is_last:
                    continue
                after, cuts = await recovered(disk, world.model if is_last else world.model.copy(), rng, world.settings)
                cut_count += cuts
                if is_last:
                    world = after
                elif rng.random() < 0.2:  # P4
                    await after.run([Put((Call(((rng.randrange(12), (5, 900)),), Acks.FLUSHED),)), Reopen()])
                else:
                    await abandon()
        except Exception as error:
            raise Died(replace(life, rounds=(*lived, Round(one.operations, tuple(tried)))), error) from error
        lived.append(one)
    await abandon()
    return Count(state_count, cut_count)


async def recovered(disk: SimDisk, model: Model, rng: Random, settings: StoreConfig = SETTINGS) -> tuple[World, int]:
    """The world after a power cut left this disk, recovered and checked; and how often the power failed during that
    (P5)."""
    cut_count = 0
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 1, 3))):
        disk.cut_power_at(rng.randrange(1, 12))
        with contextlib.suppress(OSError, StoreError):
            await open_store(disk, settings)
        await abandon()
        cut_count += disk.is_dark
        disk = disk.crash(rng)
    world = World(disk, model, settings)
    await world.start(certain_count=model.durable_count)
    return world, cut_count


def _fingerprint(disk: SimDisk) -> int:
    return hash(tuple((path, crc32c(disk.contents(path))) for path in disk.paths()))


# ---- shrinking -----------------------------------------------------------------------------------------------------


def shrunk(died: Died, *, runs_max: int = SHRINK_RUNS_MAX) -> Died:
    """A shorter life that dies of the same kind of error: the best found within so many runs."""
    runs_left = runs_max
    was_better = True
    while was_better and runs_left:
        was_better = False
        for candidate in _shorter(died.life):
            if not runs_left:
                break
            runs_left -= 1
            try:
                live(candidate)
            except Died as other:
                if type(other.cause) is type(died.cause):
                    died, was_better = other, True
                    break
    return died


def _shorter(life: Life) -> Iterator[Life]:
    """Lives with a part taken away, the largest parts first. Each is smaller, so that shrinking comes to an end."""
    rounds = life.rounds
    size = len(rounds) // 2
    while size:
        for at in range(0, len(rounds) - size + 1, size):
            yield replace(life, rounds=rounds[:at] + rounds[at + size :])
        size //= 2
    for number, one in enumerate(rounds):
        if len(one.disk_seeds) > 1:
            yield _with_round(life, number, replace(one, disk_seeds=one.disk_seeds[-1:]))
        size = len(one.operations)
        while size:
            for at in range(0, len(one.operations) - size + 1, size):
                operations = one.operations[:at] + one.operations[at + size :]
                yield _with_round(life, number, replace(one, operations=operations))
            size //= 2


def _with_round(life: Life, number: int, one: Round) -> Life:
    return replace(life, rounds=(*life.rounds[:number], one, *life.rounds[number + 1 :]))


def as_python(life: Life) -> str:
    """An expression that makes this life."""
    return re.sub(r"<(Acks\.\w+): \d+>", r"\1", repr(life))


# ---- many lives ----------------------------------------------------------------------------------------------------


def live_seed(seed: int) -> Lived:
    """Live the life of a seed; a failure comes back shrunk, as text."""
    try:
        return Lived(seed, live(life_of(seed)), None)
    except Died as died:
        least = shrunk(died)
        trace = "".join(traceback.format_exception(least.cause))
        return Lived(seed, Count(), f"seed {seed} failed; shrunk to\n\n    live({as_python(least.life)})\n\n{trace}")


def live_many(
    first_seed: int, state_count: int, *, process_count: int, told: Callable[[int, Count], None]
) -> tuple[int, Count]:
    """Live seed after seed until so many states were seen; how many lives it took, and what was seen.

    `told` gets the same now and then. With one process it is this one. Raises AssertionError with the first failure.
    """
    total = Count()
    lives = 0
    with contextlib.closing(_lived(first_seed, process_count)) as all_lived:
        while total.states < state_count:
            lived = next(all_lived)
            if lived.failure is not None:
                raise AssertionError(lived.failure)
            lives += 1
            total = Count(*map(sum, zip(total, lived.seen, strict=True)))
            told(lives, total)
    return lives, total


def _lived(first_seed: int, process_count: int) -> Generator[Lived, None, None]:
    """The lives from a seed on, without end, in the order of seeds."""
    seeds = itertools.count(first_seed)
    if process_count == 1:
        yield from map(live_seed, seeds)
    running: deque[Future[Lived]] = deque()
    with ProcessPoolExecutor(process_count, mp_context=get_context("spawn"), initializer=_start_worker) as pool:
        try:
            while True:
                while len(running) < 4 * process_count:
                    running.append(pool.submit(live_seed, next(seeds)))
                yield running.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it says when to stop
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # a life makes much garbage and few cycles


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


class Teller:
    """Says on a stream how far it has come."""

    def __init__(self, first_seed: int) -> None:
        self._first_seed = first_seed
        self.told = (0, Count())
        self._began_s = self._told_s = time.monotonic()

    def __call__(self, lives: int, count: Count) -> None:
        self.told = (lives, count)
        if time.monotonic() - self._told_s >= TELL_EVERY_S:
            self._told_s = time.monotonic()
            print(self.line(lives, count), file=sys.stderr, flush=True)

    def line(self, lives: int, count: Count) -> str:
        """One line: states, speed, seeds."""
        passed_s = max(time.monotonic() - self._began_s, 1e-9)
        return (
            f"{count.states:,} crash states in {passed_s:,.0f} s, {count.states / passed_s:,.0f}/s; "
            f"{count.cuts_in_recovery:,} power cuts inside recoveries; "
            f"{lives:,} lives, seeds from {self._first_seed}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: exit code 0, or 1 when a life failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.properties.torture", description=(__doc__ or "")[:98])
    parser.add_argument("--states", type=int, default=1_000_000, help="crash states to see (default: a million)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: by chance, printed)")
    parser.add_argument("--processes", type=int, default=available_cores())
    options = parser.parse_args(arguments)
    seed: int = options.seed if options.seed is not None else SystemRandom().randrange(1, 2**32)
    print(f"seeds from {seed}, {options.processes} processes", flush=True)
    teller = Teller(seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        lives, count = live_many(seed, options.states, process_count=options.processes, told=teller)
    except AssertionError as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        lives, count = teller.told
        print(f"{teller.line(lives, count)}; go on with --states {options.states - count.states} --seed {seed + lives}")
        return 130
    print(teller.line(lives, count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
