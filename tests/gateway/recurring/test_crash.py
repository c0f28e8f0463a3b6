"""Put, pause, delete, fire, save, let retention take log files, step the clock both ways, and crash, at random: killed,
or the power cut at any call of the disk, also while it starts.

Covers gateway.recurring.definitions and gateway.recurring.service. What must hold, after every start and at the end:

    each due time is delivered once at most, never early, and those of one name in order
    delivered, missed and owed ones are together exactly the due times that have come
    what was answered is so; what was not answered is so or was never said
    a schedule that is not paused has one next due time, behind all that have fired

Every run is a seed; a failure names it. `MQ_RECURRING_RUNS` sets how many are tried.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from gateway.recurring.definitions import Definition, Recurring
from gateway.recurring.errors import UnknownRecurring
from store.errors import StoreError
from store.types import QueueKey
from tests.gateway.recurring.world import World, every
from tests.seeds import each_seed
from tests.store.kit import abandon, put, with_settings

RUNS = int(os.environ.get("MQ_RECURRING_RUNS", "80"))
STEPS = 60
NAMES = ("a", "b", "c")
CONFIG = with_settings(commit_log_file_bytes=64 * 1024, extent_bytes=16 * 1024, retention_ms=1)


class Run:
    """One random history. `said`: by name, what was answered last, None: deleted; `unsure` instead of it, what may be
    so as well, as a crash came before the answer."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = World(config=CONFIG)
        self.said: dict[str, tuple[Definition, bool] | None] = {}
        self.unsure: dict[str, tuple[Definition, bool] | None] = {}
        self.untouched: set[str] = set()
        """Neither paused nor replaced since they were made."""
        self.value = 0
        self.latest_ms = 0
        self.sent: list[tuple[str, bytes, int]] = []
        self.read = 0

    async def run(self) -> None:
        await self.world.start()
        await self.world.broker.create_topic("orders", 1)
        await self.world.broker.create_topic("others", 1)
        steps: tuple[tuple[int, Callable[[], Awaitable[object]]], ...] = (
            (6, self.put), (3, self.pause), (2, self.delete), (40, self.step), (25, self.tick), (5, self.save),
            (5, self.expire), (3, self.stop), (6, self.kill), (12, self.cut),
        )  # fmt: skip
        weights = [weight for weight, _ in steps]
        for _ in range(STEPS):
            (step,) = self.rng.choices([one for _, one in steps], weights)
            try:
                await step()
            except (StoreError, OSError):
                assert self.world.disk.is_dark, "nothing but a power cut may fail"
            if self.world.disk.is_dark:
                await self.crash()
        self.world.disk.cut_power_at(1_000_000_000)
        for name in self.world.recurring.table.names():
            await self.change(name, self.now(name, paused=False), self.world.recurring.pause(name, False))
        self.clock_step(120_000)
        await self.world.settle()
        await self.check()
        for name in self.world.recurring.table.names():
            recurring = self.world.get(name)
            assert not recurring.owed
            assert (recurring.last_due_ms or 0) >= recurring.from_ms - 1, "what was due has fired"
        await self.world.stop()

    # ---- what happens

    async def put(self) -> None:
        name, rng = self.rng.choice(NAMES), self.rng
        self.value += 1
        missed = "all" if rng.random() < 0.5 else "once"
        anchor_ms = self.world.clock.now_ms() - rng.randrange(20_000)
        definition = every(rng.choice((1, 3, 10, 40)), anchor_ms, value=b"%d" % self.value, missed=missed)
        old = self.said.get(name)
        paused = rng.choice((None, True, False, False))
        now = (definition, (old is not None and old[1]) if paused is None else paused)
        await self.change(name, now, self.world.recurring.put(name, definition, paused))

    async def pause(self) -> None:
        name, paused = self.rng.choice(NAMES), self.rng.random() < 0.5
        await self.change(name, self.now(name, paused), self.world.recurring.pause(name, paused))

    def now(self, name: str, paused: bool) -> tuple[Definition, bool] | None:
        old = self.said.get(name)
        return None if old is None else (old[0], paused)

    async def delete(self) -> None:
        name = self.rng.choice(NAMES)
        await self.change(name, None, self.world.recurring.delete(name))

    async def change(self, name: str, now: tuple[Definition, bool] | None, work: Awaitable[object]) -> None:
        is_new = self.said.get(name) is None
        self.untouched.discard(name)
        self.unsure[name] = now
        try:
            await work
        except UnknownRecurring:
            assert self.said.get(name) is None
            assert self.unsure.pop(name) is None
            return
        self.said[name] = self.unsure.pop(name)
        if is_new and now is not None and not now[1]:
            self.untouched.add(name)

    async def step(self) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            await self.world.recurring.step()

    async def tick(self) -> None:
        self.clock_step(self.rng.choice((1, 300, 999, 1_000, 5_000, 12_000, 60_000, -400, -7_000)))

    def clock_step(self, by_ms: int) -> None:
        self.latest_ms = max(self.latest_ms, self.world.clock.step(by_ms))

    async def save(self) -> None:
        await self.world.recurring._events.save()

    async def expire(self) -> None:
        """Much is stored, and old files go as far as what is needed allows."""
        await self.check()
        topic_id = self.world.routes.topic("others").topic_id
        for _ in range(20):
            await put(self.world.store, QueueKey(topic_id, 0), bytes(4_000))
        await self.world.store._save_checkpoint()
        await self.world.store.expire()

    async def stop(self) -> None:
        await self.world.stop()
        await self.world.start()
        await self.check()

    async def kill(self) -> None:
        """With some events of `step` perhaps written and perhaps not applied."""
        await self.world.kill()
        await self.check()

    async def cut(self) -> None:
        self.world.disk.cut_power_at(self.rng.randrange(1, 15))

    async def crash(self) -> None:
        await abandon()
        while True:
            self.world.disk = self.world.disk.crash(self.rng)
            if self.rng.random() < 0.3:
                self.world.disk.cut_power_at(self.rng.randrange(1, 12))
            try:
                await self.world.start()
                await self.check()
                return
            except (StoreError, OSError):
                assert self.world.disk.is_dark
                await abandon()

    # ---- what must hold

    async def check(self) -> None:
        await self.check_delivered()
        found = {name: self.world.recurring.table.find(name) for name in NAMES}
        for name, recurring in found.items():
            now = None if recurring is None else (recurring.definition, recurring.paused)
            assert now in (self.said.get(name), self.unsure.get(name, self.said.get(name))), name
            if name in self.unsure:
                self.said[name] = now
            if recurring is not None:
                self.check_one(recurring)
        self.unsure.clear()

    async def check_delivered(self) -> None:
        """Retention may take the first ones: what was seen before is kept here."""
        topic_id = self.world.routes.topic("orders").topic_id
        low = self.world.store.bounds(QueueKey(topic_id, 0)).min_offset
        assert low <= self.read, "seen before it expires"
        new = (await self.world.sent())[self.read - low :]
        self.read += len(new)
        self.sent += [(one.name, one.value, one.due_ms) for one in new]
        assert all(due_ms <= self.latest_ms for _, _, due_ms in self.sent), "early"
        (most,) = Counter(self.sent).most_common(1) or [(None, 0)]
        assert most[1] <= 1, f"twice: {most[0]}"

    def check_one(self, recurring: Recurring) -> None:
        name, next_ms = recurring.name, recurring.next_due_ms()
        assert (next_ms is None) is recurring.paused
        if next_ms is not None:
            assert next_ms > (recurring.last_due_ms or 0)
        value = recurring.definition.record.value
        own = [due_ms for other, own_value, due_ms in self.sent if (other, own_value) == (name, value)]
        assert own == sorted(own)
        assert all(due_ms <= (recurring.last_due_ms or 0) for due_ms in own)
        owed = [one.due_ms for one in recurring.owed]
        noted = [due_ms for due_ms in own if due_ms not in owed]
        assert len(noted) <= recurring.delivered_count
        if name in self.untouched:
            came = recurring.definition.rule.count_between(recurring.created_ms, recurring.from_ms)
            assert recurring.delivered_count == len(noted)
            assert recurring.delivered_count + recurring.missed_count + len(owed) == came


@each_seed(RUNS)
async def test_each_due_time_is_delivered_once_whatever_crashes(seed: int) -> None:
    await Run(seed).run()
