"""gateway.recurring.service and gateway.recurring.definitions: what fires, what is missed, what is refused, what a
start finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.recurring import service
from gateway.recurring.definitions import (
    MISSED_MAX,
    RECURRING_EVENTS,
    Barrier,
    Definition,
    Deleted,
    Delivered,
    Fired,
    Paused,
    Put,
    RecurringRecord,
)  # fmt: skip
from gateway.recurring.errors import RecurringUnowned, TooManyRecurring, UnknownRecurring
from gateway.recurring.rule import Rule
from store import record_batch
from store.errors import DiskFull
from store.record_batch import Record
from store.topics import RECURRING_QUEUE
from store.types import Acks, Append, QueueKey
from tests.clock import START_MS
from tests.gateway.recurring.world import COUNT_MAX, World, every, world
from tests.simdisk import Fault
from tests.store.kit import SMALL, entries_of
from tests.waiting import PATIENCE_S
from timer.ports import Delivered as Stored
from timer.ports import Due


async def test_a_record_is_sent_each_time_it_is_due_and_never_early() -> None:
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS), None)
        await server.pass_ms(9_999)
        assert await server.dues() == []
        await server.pass_ms(1)
        assert await server.dues() == [10]
        await server.pass_ms(10_000)
        await server.pass_ms(10_000)
        assert await server.dues() == [10, 20, 30]
        (first, *_) = await server.sent()
        assert first.timestamp_ms == first.due_ms, "its time is its due time"
        recurring = server.get()
        assert (recurring.delivered_count, recurring.missed_count, recurring.offset) == (3, 0, 2)
        assert recurring.next_due_ms() == START_MS + 40_000


async def test_a_name_that_is_let_go_of_is_owned_again_before_a_schedule_of_it_is_made() -> None:
    async with world() as server:
        recurring, owned, deleted = server.recurring, {"r"}, []
        recurring.is_owned = owned.__contains__

        async def on_deleted(name: str) -> None:
            deleted.append(name)

        recurring.on_deleted = on_deleted
        await recurring.put("r", every(10, START_MS), None)
        async with recurring.leaving("r") as is_unused:
            assert not is_unused
            await recurring.delete("r")
        assert deleted == ["r"]
        async with recurring.leaving("r") as is_unused, recurring.leaving("r") as is_unused_again:
            assert (is_unused, is_unused_again) == (True, False)
            again = asyncio.create_task(recurring.put("r", every(10, START_MS), None))
            owned.add("s")
            await recurring.put("s", every(10, START_MS), None)
            await server.pass_ms(10_000)  # others go on
            assert not again.done()
            owned.remove("r")
        with pytest.raises(RecurringUnowned):
            await again
        owned.add("r")
        assert (await recurring.put("r", every(10, START_MS), None))[1]


async def test_missed_due_times_are_counted_in_one_record_or_have_one_each() -> None:
    async with world() as server:
        await server.recurring.put("once", every(10, START_MS, value=b"once"), None)
        await server.recurring.put("all", every(10, START_MS, value=b"all", missed="all"), None)
        await server.pass_ms(35_000)
        sent = await server.sent()
        once = [(one.due_ms - START_MS, one.missed_count) for one in sent if one.name == "once"]
        both = [(one.due_ms - START_MS, one.missed_count) for one in sent if one.name == "all"]
        assert once == [(30_000, 2)]
        assert both == [(10_000, 0), (20_000, 0), (30_000, 0)]
        assert (server.get("once").missed_count, server.get("once").delivered_count) == (2, 1)
        assert (server.get("all").missed_count, server.get("all").delivered_count) == (0, 3)
        assert server.recurring.stats.missed_count == 2


@pytest.mark.parametrize("count", [MISSED_MAX, MISSED_MAX + 1])
@pytest.mark.parametrize("is_cron", [False, True])
async def test_no_more_than_so_many_missed_ones_are_delivered_and_the_older_ones_counted(
    count: int, is_cron: bool
) -> None:
    async with world() as server:
        definition = every(60, START_MS, missed="all")
        if is_cron:
            definition = Definition("orders", RecurringRecord(value=b"v"), Rule(cron="* * * * *"), "all")
        server.clock.set(START_MS // 60_000 * 60_000)
        await server.recurring.put("r", definition, None)
        await server.pass_ms(count * 60_000)
        sent = await server.sent()
        assert len(sent) == MISSED_MAX
        assert [one.missed_count for one in sent[:2]] == [count - MISSED_MAX, 0]
        assert [one.due_ms for one in sent] == sorted({one.due_ms for one in sent})
        assert server.get().missed_count == count - MISSED_MAX


@pytest.mark.parametrize("over", [0, 5])
async def test_due_times_of_cron_that_were_missed_are_counted_up_to_a_bound(
    over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "COUNTED_MAX", 50)
    async with world() as server:
        server.clock.set(START_MS // 60_000 * 60_000)
        definition = Definition("orders", RecurringRecord(value=b"v"), Rule(cron="* * * * *"), "once")
        await server.recurring.put("r", definition, None)
        await server.pass_ms((50 + over) * 60_000)
        (sent,) = await server.sent()
        assert (sent.due_ms, sent.missed_count) == (server.clock.now_ms(), 49), "the last one, whatever was counted"


async def test_in_a_pause_nothing_is_due_and_nothing_missed() -> None:
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS), None)
        await server.recurring.pause("r", True)
        assert server.get().next_due_ms() is None
        await server.pass_ms(35_000)
        resumed = await server.recurring.pause("r", False)
        assert resumed.next_due_ms() == START_MS + 40_000
        await server.pass_ms(5_000)
        assert await server.dues() == [40]
        assert server.get().missed_count == 0
        before = server.recurring._events.event_count
        await server.recurring.pause("r", False)
        assert server.recurring._events.event_count == before, "it was so already"


async def test_a_clock_that_is_set_back_fires_nothing_again() -> None:
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS), None)
        await server.pass_ms(30_000)
        server.clock.step(-25_000)
        await server.settle()
        await server.recurring.pause("r", True)
        await server.recurring.pause("r", False)
        await server.recurring.put("r", every(5, START_MS), None)
        await server.pass_ms(24_999)
        assert await server.dues() == [30], "the last due time never falls, whatever is changed"
        await server.pass_ms(5_001)
        assert await server.dues() == [30, 35]


async def test_the_same_definition_again_changes_nothing_and_another_one_misses_nothing() -> None:
    async with world() as server:
        first, is_new = await server.recurring.put("r", every(10, START_MS), None)
        assert is_new
        server.clock.step(25_000)
        assert await server.recurring.put("r", every(10, START_MS), None) == (first, False)
        again, is_new = await server.recurring.put("r", every(10, START_MS, value=b"other"), None)
        assert (again.version, is_new, again.created_ms) == (2, False, START_MS)
        await server.settle()
        (sent,) = await server.sent()
        assert (sent.value, sent.missed_count) == (b"other", 1), "the rule is the same: what was due is due still"
        server.clock.step(30_000)
        await server.recurring.put("r", every(7, START_MS), None)
        await server.settle()
        assert len(await server.sent()) == 1, "a new rule begins now"
        assert server.get().next_due_ms() == START_MS + 56_000
        paused, _ = await server.recurring.put("r", every(7, START_MS), True)
        assert paused.paused
        kept, _ = await server.recurring.put("r", every(8, START_MS), None)
        assert kept.paused, "nothing was said of the pause"


async def test_deleted_is_gone_and_versions_are_never_used_twice() -> None:
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS), None)
        await server.recurring.delete("r")
        await server.pass_ms(20_000)
        assert await server.sent() == []
        with pytest.raises(UnknownRecurring):
            await server.recurring.delete("r")
        with pytest.raises(UnknownRecurring):
            await server.recurring.pause("r", True)
        await server.recurring._events.save()
        await server.stop()
        await server.start()
        made, is_new = await server.recurring.put("r", every(10, START_MS), None)
        assert (made.version, is_new) == (2, True)


async def test_changes_leave_nothing_behind_in_memory() -> None:
    async with world() as server:
        for number in range(500):
            await server.recurring.put("r", every(10 + number, START_MS), None)
            await server.recurring.next_due_ms()
        assert len(server.recurring._due) < 100
        assert await server.recurring.next_due_ms() == START_MS + 509_000


async def test_there_may_be_so_many_and_no_more() -> None:
    async with world() as server:
        for number in range(COUNT_MAX):
            await server.recurring.put(f"r{number}", every(10, START_MS), None)
        with pytest.raises(TooManyRecurring):
            await server.recurring.put("one-more", every(10, START_MS), None)
        await server.recurring.put("r0", every(11, START_MS), None)
        await server.recurring.delete("r1")
        await server.recurring.put("one-more", every(10, START_MS), None)
        assert len(server.recurring.table) == COUNT_MAX
        assert server.recurring.table.names(after="r7") == ["r8", "r9"]


async def test_without_its_topic_a_schedule_waits_and_then_has_missed_what_was_due() -> None:
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS, topic="later"), None)
        await server.pass_ms(15_000)
        assert "r" in server.recurring.troubles
        assert server.get().last_due_ms is None
        await server.broker.create_topic("later", 1)
        await server.pass_ms(10_000)
        (sent,) = await server.sent("later")
        assert (sent.due_ms, sent.missed_count) == (START_MS + 20_000, 1)
        assert server.recurring.troubles == {}


async def test_a_record_for_a_topic_that_goes_while_it_is_on_its_way_is_dropped_and_counted() -> None:
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS), None)
        server.clock.step(10_000)
        assert await server.recurring.step(), "it has fired"
        await server.broker.delete_topic("orders")
        assert await server.recurring.step()
        recurring = server.get()
        assert (recurring.owed, recurring.delivered_count, recurring.missed_count) == ((), 0, 1)
        assert server.recurring.stats.dropped_count == 1


async def test_where_the_broker_of_one_is_away_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "DELIVERED_PER_STEP", 2)  # two that wait are all of a step
    async with world() as server:
        await server.broker.create_topic("far", 1)
        far_id = server.routes.topic("far").topic_id
        partitions, is_away = server.recurring._partitions, True

        class Away:
            async def deliver(self, dues: Sequence[Due]) -> Sequence[Stored]:
                here = [due for due in dues if not (is_away and due.target.topic_id == far_id)]
                told = iter(await partitions.deliver(here) if here else ())
                return [next(told) if due in here else None for due in dues]

        server.recurring._partitions = Away()  # type: ignore[assignment]
        for name in ("far 1", "far 2"):
            await server.recurring.put(name, every(10, START_MS, topic="far"), None)
        await server.recurring.put("near", every(10, START_MS), None)
        for _ in range(5):
            await server.pass_ms(10_000)
        assert await server.dues() == [10, 20, 30, 40, 50]
        assert [len(server.get(name).owed) for name in ("far 1", "far 2", "near")] == [1, 1, 0]
        is_away = False
        await server.pass_ms(1)
        await server.pass_ms(9_999)
        assert server.get("far 1").delivered_count == server.get("far 2").delivered_count == 3
        assert server.get("far 1").missed_count == 3, "20 and 30 and 40 are missed, 50 has a record"


async def test_on_a_full_disk_it_waits_and_the_rest_is_missed() -> None:
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS), None)
        server.clock.step(10_000)
        await server.recurring.step()
        assert server.get().owed
        deliver, is_full = server.recurring._partitions.deliver, True

        async def refused(dues: object) -> object:
            if is_full:
                raise DiskFull("full")
            return await deliver(dues)  # type: ignore[arg-type]

        server.recurring._partitions.deliver = refused  # type: ignore[method-assign, assignment]
        for _ in range(3):
            assert not await server.recurring.step(), "no room"
            server.clock.step(10_000)
        assert len(server.get().owed) == 1, "while it owes, it fires no more"
        is_full = False
        await server.settle()
        sent = await server.sent()
        assert [(one.due_ms - START_MS, one.missed_count) for one in sent] == [(10_000, 0), (40_000, 2)]


async def test_what_was_delivered_and_could_not_be_noted_is_not_delivered_again() -> None:
    async with world(partitions=2) as server:
        await server.recurring.put("r", every(10, START_MS), None)
        server.clock.step(10_000)
        await server.recurring.step()
        write, is_full = server.recurring._write, True

        async def refused(events: object, *, flushed: bool = True) -> None:
            if is_full:
                raise DiskFull("not even for notes")
            await write(events, flushed=flushed)  # type: ignore[arg-type]

        server.recurring._write = refused  # type: ignore[method-assign, assignment]
        for _ in range(3):
            with pytest.raises(DiskFull):
                await server.recurring.step()
        with pytest.raises(DiskFull):
            await server.recurring.pause("r", True)
        is_full = False
        await server.settle()
        assert await server.dues() == [10]
        assert (server.get().delivered_count, server.get().owed) == (1, ())


async def test_records_have_their_key_headers_and_tag_and_go_where_sent_ones_go() -> None:
    async with world(partitions=4) as server:
        record = RecurringRecord(key=b"k", value=b"v", headers=(("own", b"1"),), tag="paid", message_group="g")
        rule = Rule(every_ms=1_000, anchor_ms=START_MS)
        await server.recurring.put("keyed", Definition("orders", record, rule, "all"), None)
        await server.recurring.put("placed", Definition("orders", RecurringRecord(value=b"v", partition=3), rule), None)
        await server.recurring.put("free", Definition("orders", RecurringRecord(value=b"v"), rule), None)
        for _ in range(4):
            await server.pass_ms(1_000)
        sent = await server.sent()
        assert len({one.partition for one in sent if one.name == "keyed"}) == 1
        assert {one.partition for one in sent if one.name == "placed"} == {3}
        assert len({one.partition for one in sent if one.name == "free"}) == 4, "one after the other"
        assert {one.key for one in sent if one.name == "keyed"} == {b"k"}


async def test_many_that_are_due_at_once_are_delivered_in_batches() -> None:
    async with world() as server:
        for number in range(COUNT_MAX):
            await server.recurring.put(f"r{number:02}", every(10, START_MS), None)
        appends = server.store.stats.append_count
        await server.pass_ms(10_000)
        assert len(await server.sent()) == COUNT_MAX
        assert server.store.stats.append_count - appends <= 3


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("is_delivered", [False, True])
async def test_a_start_delivers_what_had_fired_and_was_not_delivered(is_saved: bool, is_delivered: bool) -> None:
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS, missed="all"), None)
        server.clock.step(20_000)
        await server.recurring.step()
        if is_saved:
            await server.recurring._events.save()
        if is_delivered:  # and the note of it is lost
            server.recurring._write = _lost  # type: ignore[method-assign, assignment]
            await server.recurring.step()
        await server.kill()
        assert len(server.get().owed) == 2
        await server.settle()
        assert await server.dues() == [10, 20]
        assert (server.get().delivered_count, server.get().owed) == (2, ())
        await server.pass_ms(10_000)
        await server.kill()
        await server.settle()
        assert await server.dues() == [10, 20, 30]


async def _lost(events: object, *, flushed: bool = True) -> None:
    return None


async def test_running_it_fires_by_itself_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_IDLE_MS_MAX", 1)
    async with world() as server:
        server._writing.cancel()
        await asyncio.wait([server._writing])
        running = asyncio.create_task(server.recurring.run())
        await server.recurring.put("r", every(10, START_MS), None)
        for _ in range(3):
            server.clock.step(10_000)
            orders = server.routes.topic("orders").topic_id
            assert await server.store.wait_for(
                QueueKey(orders, 0), server.store.bounds(QueueKey(orders, 0)).max_offset, 5_000
            )
        assert await server.dues() == [10, 20, 30]
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        server._writing = asyncio.create_task(server.recurring._events.run())


async def test_what_is_wrong_for_a_while_is_told_once_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_RETRY_MS", 1)
    async with world() as server:
        await server.recurring.put("r", every(10, START_MS), None)
        server.clock.step(10_000)
        write, count = server.recurring._write, 0

        async def refused(events: object, *, flushed: bool = True) -> None:
            nonlocal count
            count += 1
            if count <= 3:
                raise DiskFull("no room")
            await write(events, flushed=flushed)  # type: ignore[arg-type]

        server.recurring._write = refused  # type: ignore[method-assign, assignment]
        firing = asyncio.create_task(server.recurring._fire_on())
        orders = QueueKey(server.routes.topic("orders").topic_id, 0)
        assert await server.store.wait_for(orders, 0, 5_000)
        firing.cancel()
        await asyncio.wait([firing])
        assert caplog.text.count("recurring schedules wait: no room") == 1
        assert await server.dues() == [10]


async def test_many_without_a_topic_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FIRED_PER_STEP", 3)
    async with world() as server:
        for number in range(7):
            await server.recurring.put(f"r{number}", every(10, START_MS, topic="later"), None)
        server.clock.step(10_000)
        steps = 0
        while await server.recurring.step():
            steps += 1
        assert steps == 3
        assert len(server.recurring.troubles) == 7


async def test_in_a_store_of_small_files_many_due_times_take_several_entries() -> None:
    server = World(config=SMALL)
    await server.start()
    await server.broker.create_topic("orders", 1)
    await server.recurring.put("r", every(1, START_MS, missed="all"), None)
    await server.pass_ms(600_000)
    assert await server.dues() == list(range(1, 601))
    await server.stop()


async def test_a_failed_disk_ends_the_firing_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    server = World()
    await server.start()
    await server.broker.create_topic("orders", 1)
    await server.recurring.put("r", every(10, START_MS), None)
    server.disk.inject(Fault("datasync", path_part="commitlog"))
    server.clock.step(10_000)
    await asyncio.wait_for(server.recurring._fire_on(), PATIENCE_S)
    assert "until a restart" in caplog.text
    assert server.recurring.table.names() == ["r"]


async def test_events_that_are_not_understood_are_refused() -> None:
    for text in (b"", b"{}", b'{"event": "newer"}', b'{"event": "deleted", "name": "r", "more": 1}', None):
        with pytest.raises(ValueError, match="newer version"):
            RECURRING_EVENTS.decode([text])
    event = Barrier()
    assert RECURRING_EVENTS.decode([RECURRING_EVENTS.encode(event)]) == [event]


async def test_events_behind_a_lost_one_are_read_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """`mq repair` has put a record without a value where one was destroyed."""
    async with world() as server:
        await server.recurring.put("kept", every(10, START_MS), None)
        lost = record_batch.encode([Record(None, None, START_MS)])
        await server.store.append([Append(queue=RECURRING_QUEUE, batch=lost, record_count=1)], acks=Acks.FLUSHED)
        named = [
            Fired("nobody", START_MS, 0),
            Delivered("nobody", 1),
            Paused("nobody", True, START_MS),
            Deleted("nobody"),
        ]
        batch = record_batch.encode([Record(None, RECURRING_EVENTS.encode(event), START_MS) for event in named])
        append = Append(queue=RECURRING_QUEUE, batch=batch, record_count=len(named))
        await server.store.append([append], acks=Acks.FLUSHED)
        await server.kill()
        assert server.recurring.table.names() == ["kept"]
        assert "1 events of recurring schedules were lost" in caplog.text
        await server.pass_ms(10_000)
        assert await server.dues() == [10]


async def test_the_state_is_the_same_from_its_snapshot_and_from_its_events() -> None:
    async with world() as server:
        await server.recurring.put("a", every(10, START_MS), None)
        await server.recurring.put("b", every(10, START_MS, missed="all"), True)
        await server.pass_ms(35_000)
        await server.recurring.delete("a")
        before = {name: server.get(name) for name in server.recurring.table.names()}
        assert [type(event).__name__ for event in server.recurring.table.snapshot()] == ["Versions", "Put"]
        await server.kill()
        assert {name: server.get(name) for name in server.recurring.table.names()} == before
        await server.recurring._events.save()
        await server.kill()
        assert {name: server.get(name) for name in server.recurring.table.names()} == before
        assert await entries_of(server.store, RECURRING_QUEUE)
        assert isinstance(next(iter(list(server.recurring.table.snapshot())[1:])), Put)
