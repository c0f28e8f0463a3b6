"""Schedules by a key of their sender's: one pending schedule a key, found by it through rolls, moves and restarts.

Crashes at random: tests/timer/test_crash.py.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence

import pytest

from store.errors import AlreadyStored, DiskFull
from store.types import Acks, Append, Appended
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import TARGET, FailOnce, FakeKeyIndex, FakeLog, keyed_append, make_timer, settle
from tests.waiting import until
from timer.changes import Standing
from timer.errors import ScheduleKeyTaken, TooManySchedules
from timer.schedule import ScheduleId
from timer.schedule_keys import _HOLDERS_AT_ONCE
from timer.service import TimerService
from timer.timer_log import UNIT_BYTES


class Scene:
    """A timer over fakes, that can be started again."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log = FakeLog(self.clock)
        self.disk = SimDisk()
        self.index = FakeKeyIndex()
        self.disk_works: Callable[[], Awaitable[object]] | None = None  # what disk work waits for first

    async def start(self, **settings: int) -> None:
        self.timer: TimerService = make_timer(
            self.log, self.disk, self.clock, key_index=self.index, run_blocking=self._run_blocking, **settings
        )
        await self.timer.start()
        await settle(self.timer)

    async def send(self, *schedules: tuple[int, bytes | None]) -> list[ScheduleId]:
        """Each is due in so many ms, with this key. Not met by intake yet on return."""
        append = keyed_append([(START_MS + due_ms, key or b"-", key) for due_ms, key in schedules])
        appended = await self.timer.schedule(append, acks=Acks.FLUSHED, keys=[key for _, key in schedules])
        return [ScheduleId(START_MS + due_ms, appended.position, at) for at, (due_ms, _) in enumerate(schedules)]

    async def named(self, key: bytes) -> ScheduleId | None:
        await settle(self.timer)
        return await self.timer.named(TARGET.topic_id, key)

    async def pass_time(self, by_ms: int) -> None:
        for _ in range(by_ms // 250):
            self.clock.step(250)
            await settle(self.timer)

    async def _run_blocking(self, work: Callable[[], None]) -> None:
        if self.disk_works is not None:
            await self.disk_works()
        work()


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    await scene.start()
    return scene


async def refused(scene: Scene, *schedules: tuple[int, bytes | None]) -> dict[int, ScheduleId | None]:
    stored_count = len(scene.log.entries)
    with pytest.raises(ScheduleKeyTaken) as caught:
        await scene.send(*schedules)
    assert len(scene.log.entries) == stored_count
    return dict(caught.value.taken)


@pytest.mark.parametrize("due_ms", [500, 5_000, 95_000], ids=["open slot", "closed slot", "rolls"])
async def test_a_key_leads_to_its_schedule_and_is_taken_until_that_is_delivered(scene: Scene, due_ms: int) -> None:
    (first,) = await scene.send((due_ms, b"k"))
    assert await refused(scene, (1, b"k")) == {0: None}  # not in the wheel yet
    assert await scene.named(b"k") == first
    await scene.pass_time(due_ms - 250)
    assert await scene.named(b"k") == first
    assert await refused(scene, (due_ms, None), (due_ms, b"k")) == {1: first}
    await scene.pass_time(500)
    assert await scene.named(b"k") is None
    (second,) = await scene.send((due_ms + 3_000, b"k"))
    assert await scene.named(b"k") == second
    (delivered,) = scene.log.delivered()
    assert (delivered.value, dict(delivered.headers)["mq-schedule-key"]) == (b"k", b"k")


async def test_keys_of_other_topics_and_records_without_one_do_not_matter(scene: Scene) -> None:
    (first,) = await scene.send((5_000, b"k"))
    await scene.send((5_000, None), (6_000, None))
    assert await scene.named(b"k") == first
    assert await scene.timer.named(TARGET.topic_id + 1, b"k") is None
    assert await scene.named(b"") is None


async def test_keys_are_met_at_the_pace_of_their_records(scene: Scene) -> None:
    """All keys of an entry were decoded before its first record was put, 64 a turn of the event loop: with 5,000 of
    them, and others at work, what was accepted next was more than a second late."""
    turns = 0
    yield_to_loop = scene.log.yield_to_loop

    async def counted() -> None:
        nonlocal turns
        turns += 1
        await yield_to_loop()

    append = keyed_append([(START_MS + 5_000, b"v", b"k%d" % number) for number in range(5_000)])
    await scene.timer.schedule(append, acks=Acks.FLUSHED, keys=[b"k%d" % number for number in range(5_000)])
    scene.log.yield_to_loop = counted  # type: ignore[method-assign]
    while await scene.timer.intake_step():
        pass
    assert scene.timer.intake_lag_count == 0
    assert turns < 64
    assert await scene.named(b"k4999")


async def test_keys_of_an_entry_for_which_there_was_no_room_go_on_where_they_were() -> None:
    scene = Scene()
    await scene.start(unwritten_bytes_max=100 * UNIT_BYTES)
    keys = [None if number % 3 else b"k%d" % number for number in range(300)]
    append = keyed_append([(START_MS + 5_000, b"v", key) for key in keys])
    appended = await scene.timer.schedule(append, acks=Acks.FLUSHED, keys=keys)
    steps = 0
    while scene.timer.intake_lag_count:
        await scene.timer.intake_step()
        await scene.timer.checkpoint()
        steps += 1
    assert steps > 1
    for number, key in enumerate(keys):
        if key is not None:
            assert await scene.named(key) == ScheduleId(START_MS + 5_000, appended.position, number)


async def test_claims_are_let_go_when_their_records_are_met_also_if_nobody_sends_again(scene: Scene) -> None:
    await scene.send((5_000, b"k"), (6_000, b"l"))
    claimed = scene.timer._keys._claimed
    assert len(claimed) == 2
    running = asyncio.create_task(scene.timer.run())
    await until(lambda: not claimed)
    assert await refused(scene, (5_000, b"k"))
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("count", [3, 4])
async def test_so_many_rows_in_memory_ask_for_a_checkpoint(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timer.key_rows.ROWS_BEFORE_COMMIT", 4)
    scene = Scene()
    await scene.start(checkpoint_interval_ms=3_600_000)
    running = asyncio.create_task(scene.timer.run())
    for number in range(count):
        await scene.send((5_000, b"k%d" % number))
    await until(lambda: not scene.timer.intake_lag_count)
    if count == 4:
        await until(lambda: len(scene.index.rows) == 4)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(scene.index.rows) == (4 if count == 4 else 0)
    running.cancel()
    await asyncio.wait([running])


async def test_within_one_append_a_key_goes_to_one_record(scene: Scene) -> None:
    assert await refused(scene, (5_000, b"k"), (5_000, None), (6_000, b"k")) == {2: None}
    assert await scene.named(b"k") is None


async def test_a_cancelled_schedule_gives_its_key_back(scene: Scene) -> None:
    await scene.send((5_000, b"k"))
    found = await scene.named(b"k")
    assert found is not None
    assert (await scene.timer.cancel(found)).standing is Standing.PENDING
    (second,) = await scene.send((9_000, b"k"))  # the tombstone is not met yet
    assert await scene.named(b"k") == second


@pytest.mark.parametrize("to_ms", [700, 8_000, 80_000])
async def test_a_moved_schedule_keeps_its_key(scene: Scene, to_ms: int) -> None:
    (first,) = await scene.send((5_000, b"k"))
    await settle(scene.timer)
    moved = (await scene.timer.move(first, START_MS + to_ms)).schedule
    assert await refused(scene, (1_000, b"k")) == {0: first}  # the next copy is not met yet
    assert await scene.named(b"k") == moved
    assert await refused(scene, (1_000, b"k")) == {0: moved}


async def test_what_fires_now_gives_its_key_back(scene: Scene) -> None:
    (first,) = await scene.send((50_000, b"k"))
    await settle(scene.timer)
    firing = asyncio.create_task(scene.timer.fire(first))
    while not firing.done():
        await asyncio.sleep(0)
        await settle(scene.timer)
    (second,) = await scene.send((9_000, b"k"))
    assert await scene.named(b"k") == second


@pytest.mark.parametrize("how", ["clean", "crash", "lost", "behind"])
async def test_keys_are_known_after_a_restart(scene: Scene, how: str) -> None:
    (first, _, other) = await scene.send((50_000, b"k"), (1_000, b"gone"), (70_000, b"other"))
    await scene.pass_time(2_000)
    await scene.timer.checkpoint()
    moved = (await scene.timer.move(other, START_MS + 90_000)).schedule
    await settle(scene.timer)
    if how == "clean":
        await scene.timer.close()
    elif how == "lost":
        scene.index.reset()
    elif how == "behind":
        scene.index.queue_offset -= 1
    await scene.start()
    assert scene.timer.recovery_outcome == {"clean": "clean", "crash": "crash"}.get(how, "rebuilt")
    assert [await scene.named(key) for key in (b"k", b"gone", b"other")] == [first, None, moved]
    assert await refused(scene, (1_000, b"k"), (1_000, b"gone"), (1_000, b"other")) == {0: first, 2: moved}
    await scene.pass_time(100_000)
    assert sorted(record.value for record in scene.log.delivered()) == [b"gone", b"k", b"other"]


async def test_after_a_start_nothing_is_claimed_before_what_was_there_is_met(scene: Scene) -> None:
    (first,) = await scene.send((50_000, b"k"))
    scene.timer = make_timer(scene.log, scene.disk, scene.clock, key_index=scene.index)
    await scene.timer.start()
    sending = asyncio.create_task(scene.send((1_000, b"k")))
    await asyncio.sleep(0)
    assert not sending.done()
    await settle(scene.timer)
    with pytest.raises(ScheduleKeyTaken) as caught:
        await sending
    assert caught.value.taken == {0: first}


async def test_rows_of_what_is_over_go(scene: Scene) -> None:
    await scene.send(*((1_000 + number, b"%d" % number) for number in range(9)), (90_000, b"k"))
    await settle(scene.timer)
    await scene.timer.checkpoint()
    assert len(scene.index.rows) == 10
    await scene.pass_time(4_000)
    await scene.timer.checkpoint()
    assert [row.key for row in scene.index.rows] == [b"k"]
    await scene.pass_time(95_000)  # rolled often
    await scene.timer.checkpoint()
    await scene.pass_time(2_000)
    await scene.send((200_000, None))
    await settle(scene.timer)
    await scene.timer.checkpoint()
    assert not scene.index.rows


async def test_no_file_before_the_first_key(scene: Scene) -> None:
    await scene.send((1_000, None))
    await scene.pass_time(2_000)
    await scene.timer.checkpoint()
    await scene.timer.close()
    assert not scene.index.is_used


@pytest.mark.parametrize("error", [DiskFull("full"), TooManySchedules("many")], ids=lambda error: type(error).__name__)
async def test_what_is_not_stored_gives_its_keys_back(error: DiskFull | TooManySchedules) -> None:
    scene = Scene()
    await scene.start(pending_count_max=2)
    schedules: list[tuple[int, bytes | None]] = [(5_000, b"k")]
    if isinstance(error, DiskFull):
        scene.log.before_append = FailOnce(error)
    else:
        schedules += [(5_000, None)] * 2
    with pytest.raises(type(error)):
        await scene.send(*schedules)
    (first,) = await scene.send((5_000, b"k"))
    assert await scene.named(b"k") == first


async def test_a_sender_that_gives_up_does_not_give_its_key_back(scene: Scene) -> None:
    sending = asyncio.create_task(scene.send((5_000, b"k")))

    def give_up(appends: Sequence[Append]) -> None:
        sending.cancel()

    scene.log.before_append = give_up
    with pytest.raises(asyncio.CancelledError):
        await sending
    scene.log.before_append = lambda appends: None
    assert await refused(scene, (5_000, b"k")) == {0: None}
    found = await scene.named(b"k")
    assert found is not None
    assert found.due_ms == START_MS + 5_000


async def test_deliveries_go_on_while_it_is_looked_who_has_a_key(scene: Scene) -> None:
    await scene.send((1_000, b"old"))
    await settle(scene.timer)
    await scene.timer.checkpoint()  # so that rows are on disk
    disk = asyncio.Event()
    scene.disk_works = disk.wait
    sending = asyncio.create_task(scene.send((5_000, b"new")))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await scene.pass_time(1_500)
    assert [delivered.value for delivered in scene.log.delivered()] == [b"old"]
    assert not sending.done()
    assert await refused(scene, (5_000, b"new")) == {0: None}  # claimed already
    disk.set()
    (new,) = await sending
    assert await scene.named(b"new") == new


async def test_keys_that_could_not_be_looked_for_are_free_again(scene: Scene) -> None:
    await scene.send((60_000, b"old"))
    await settle(scene.timer)
    await scene.timer.checkpoint()

    async def fail() -> None:
        raise OSError(errno.EIO, "a bad disk")

    scene.disk_works = fail
    with pytest.raises(OSError, match="a bad disk"):
        await scene.send((5_000, b"new"))
    scene.disk_works = asyncio.Event().wait
    given_up = asyncio.create_task(scene.send((5_000, b"new")))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    scene.disk_works = None
    (new,) = await scene.send((5_000, b"new"))
    assert await scene.named(b"new") == new


async def test_of_many_keys_each_has_its_holder(scene: Scene) -> None:
    count = 3 * _HOLDERS_AT_ONCE // 2
    keys = [b"%d" % number for number in range(count)]
    held = await scene.send(*((5_000, key) for key in keys))
    await settle(scene.timer)
    assert await refused(scene, *((6_000, key) for key in keys)) == dict(enumerate(held))


async def test_of_two_at_once_one_has_the_key(scene: Scene) -> None:
    outcomes = await asyncio.gather(*(scene.send((5_000, b"k")) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(outcome, ScheduleKeyTaken) for outcome in outcomes) == 4
    assert await scene.named(b"k") is not None


async def test_a_repeat_is_answered_as_one_and_not_with_its_own_key(scene: Scene) -> None:
    await scene.send((5_000, b"k"))

    async def known(appends: Sequence[Append], *, acks: Acks) -> None:
        raise AlreadyStored([{}])

    scene.log.refuse_known = known  # type: ignore[method-assign]
    with pytest.raises(AlreadyStored):
        await scene.send((5_000, b"k"))


async def test_a_header_of_the_name_within_a_value_is_none(scene: Scene) -> None:
    append = keyed_append([(START_MS + 5_000, b"mq-schedule-key", None)])
    appended: Appended = await scene.timer.schedule(append, acks=Acks.FLUSHED)
    await settle(scene.timer)
    await scene.timer.checkpoint()
    assert appended.position
    assert not scene.index.rows
