"""Metadata in a Kafka in memory: processes that race, die and are replaced, while appends are lost, repeated and late;
snapshots that are cut off or damaged, and a log that others shorten, lose or replace.

Covers gateway.cluster.kafka_metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from random import Random
from typing import Any

import pytest

from gateway.brokers.kafka.codes import MESSAGE_TOO_LARGE
from gateway.brokers.kafka.port import Refused, TopicDiffers, TopicPlan, Unreached
from gateway.cluster import kafka_metadata, metadata_log
from gateway.cluster.kafka_metadata import KafkaMetadata
from gateway.cluster.metadata import (
    ABSENT,
    Changes,
    Listing,
    MetadataError,
    OtherMetadata,
    OutcomeUnknown,
    Unavailable,
    Value,
)
from gateway.cluster.metadata_log import KEY, WRITERS_MAX, Command, End, Part, Read, Snapshot, encode_command
from store import record_batch
from store.record_batch import Record
from tests.gateway.brokers.kafka.fake import Log, strangers_batch
from tests.gateway.cluster.metadata_world import TOPIC, Counting, LogKafka, a_process, content_of, killed
from tests.waiting import PATIENCE_S, until

TTL_MS = 600


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_metadata, "LOOK_S", 0.01)
    monkeypatch.setattr(kafka_metadata, "WAIT_MS", 50)
    monkeypatch.setattr(kafka_metadata, "RETRY_S", 0.001)
    monkeypatch.setattr(kafka_metadata, "RETRY_MAX_S", 0.02)


@pytest.fixture
def kafka() -> LogKafka:
    return LogKafka()


@pytest.fixture
async def metadata(kafka: LogKafka) -> AsyncIterator[KafkaMetadata]:
    """Of one process, which is to end well."""
    async with asyncio.timeout(PATIENCE_S), a_process(kafka) as own:
        yield own


async def put(metadata: KafkaMetadata, key: str, data: bytes) -> int:
    found = await metadata.get(key)
    revision = await metadata.compare_and_set({key: ABSENT if found is None else found.revision}, {key: data})
    assert revision is not None
    return revision


def saving_at(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """Snapshots behind so few records, of several parts."""
    monkeypatch.setattr(kafka_metadata, "SNAPSHOT_RECORDS", records)
    monkeypatch.setattr(kafka_metadata, "SNAPSHOT_REST_S", 0.03)
    monkeypatch.setattr(metadata_log, "PART_BYTES", 50)


def append(kafka: LogKafka, *commands: Command) -> None:
    kafka.the_log.append(bytes(record_batch.encode([Record(KEY, encode_command(one), 0) for one in commands])))


# ---- whatever becomes of appends -------------------------------------------------------------------------------------


@pytest.mark.seeds(range(4), 100)
async def test_what_was_told_holds_whatever_becomes_of_appends_and_processes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    kafka = LogKafka(random)
    if seed % 2:
        saving_at(monkeypatch, 40)
    counting = Counting()
    processes: list[KafkaMetadata] = []
    is_over = False

    async def count_on(number: int) -> None:
        while not is_over:
            await counting.add(processes[number])
            await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
        for _ in range(3):
            processes.append(await stack.enter_async_context(a_process(kafka)))
        counters = [asyncio.create_task(count_on(number)) for number in range(3)]
        for _ in range(4):
            before = counting.added
            await until(lambda: counting.added >= before + 10, pause_s=0.01)  # noqa: B023
            number = random.randrange(3)
            await killed(processes[number])
            processes[number] = await stack.enter_async_context(a_process(kafka))
        is_over = True
        await asyncio.gather(*counters)
        kafka.random = None
        for batch in kafka.late:
            kafka.the_log.append(batch)
        last = await stack.enter_async_context(a_process(kafka))
        for process in (*processes, last):
            found = await process.get("n")
            assert found is not None
            assert counting.added <= int(found.data) <= counting.added + counting.unknown, "each once, none lost"
            await until(lambda: last._state.next_offset == process._state.next_offset)  # noqa: B023
            assert content_of(process._state) == content_of(last._state)
        if seed % 2:
            assert kafka.the_log.start > 0, "there were snapshots"


async def test_reads_see_what_another_process_was_told_before(kafka: LogKafka, metadata: KafkaMetadata) -> None:
    async with a_process(kafka) as other:
        for number in range(50):
            await put(metadata, "a", b"%d" % number)
            found = await other.get("a")
            assert found is not None
            assert found.data == b"%d" % number
            assert (await other.list("")).values["a"].data == b"%d" % number


async def test_reads_that_wait_share_one_record(kafka: LogKafka, metadata: KafkaMetadata) -> None:
    await metadata.get("a")
    before = kafka.the_log.end
    await asyncio.gather(*[metadata.get(str(number)) for number in range(100)])
    assert kafka.the_log.end == before + 1


async def test_changes_that_wait_share_an_append(kafka: LogKafka, metadata: KafkaMetadata) -> None:
    await metadata.get("a")
    before = len(kafka.the_log.batches)
    keys = [str(number) for number in range(50)]
    assert all(await asyncio.gather(*[metadata.compare_and_set({key: ABSENT}, {key: key.encode()}) for key in keys]))
    assert len(kafka.the_log.batches) <= before + 2
    half = bytes(kafka_metadata.BATCH_BYTES // 2)
    before = len(kafka.the_log.batches)
    await asyncio.gather(*[put(metadata, f"large/{number}", half) for number in range(4)])
    assert len(kafka.the_log.batches) > before + 2


async def test_an_answer_that_is_lost_is_no_second_change(kafka: LogKafka, metadata: KafkaMetadata) -> None:
    await metadata.get("a")
    kafka.script += ["lost", "dropped", "lost"]
    sent = len(kafka.sent)
    first = await metadata.compare_and_set({"a": ABSENT}, {"a": b"1"})
    assert first is not None
    assert await metadata.compare_and_set({"a": first}, {"a": None}) is not None
    kafka.the_log.append(kafka.sent[sent])  # the first one, late: its expectation holds again
    assert await metadata.get("a") is None


async def test_what_kafka_refuses_is_an_error_and_the_next_change_is_made(
    kafka: LogKafka, metadata: KafkaMetadata
) -> None:
    await metadata.get("a")
    kafka.script.append(MESSAGE_TOO_LARGE)
    with pytest.raises(MetadataError, match="error 10"):
        await metadata.compare_and_set({"a": ABSENT}, {"a": b"1"})
    await put(metadata, "a", b"2")


async def test_a_process_that_others_have_pushed_out_goes_on_as_another_writer(
    kafka: LogKafka, metadata: KafkaMetadata
) -> None:
    await put(metadata, "a", b"1")
    append(kafka, *[Command(f"other-{number}", 1, kafka.the_log.end, Read()) for number in range(WRITERS_MAX)])
    with pytest.raises(Unavailable, match="nothing was changed"):
        await metadata.compare_and_set({"b": ABSENT}, {"b": b"1"})
    await put(metadata, "b", b"2")


async def test_kafka_goes_away_and_comes_back(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_metadata, "CALL_TIMEOUT_S", 0.2)
    first = await put(metadata, "a", b"1")
    async with aclosing(metadata.watch("")) as watch:
        await anext(watch)
        kafka.is_away = True
        with pytest.raises(OutcomeUnknown):
            await metadata.compare_and_set({"a": first}, {"a": b"2"})
        with pytest.raises(Unavailable, match="nothing was changed") as refused:
            await metadata.compare_and_set({"b": ABSENT}, {"b": b"1"})
        assert not isinstance(refused.value, OutcomeUnknown)
        with pytest.raises(Unavailable):
            await metadata.get("a")
        assert not metadata._waiting or [type(call.action) for call in metadata._waiting] == [Read]
        kafka.is_away = False
        seen = await anext(watch)
        assert seen == Changes(seen.revision, {"a": Value(b"2", seen.revision)}), "it was made later"
        assert await metadata.get("b") is None


async def test_a_watch_that_begins_while_kafka_is_away_begins_with_all_keys(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_metadata, "CALL_TIMEOUT_S", 0.1)
    await put(metadata, "a", b"1")
    kafka.is_away = True
    async with a_process(kafka) as late, aclosing(late.watch("")) as watch:
        beginning = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.3)
        assert not beginning.done()
        kafka.is_away = False
        seen = await beginning
        assert isinstance(seen, Listing)
        assert seen.values["a"].data == b"1"


# ---- sessions --------------------------------------------------------------------------------------------------------


async def test_the_key_of_a_process_that_died_goes_and_that_of_others_stays(
    kafka: LogKafka, metadata: KafkaMetadata
) -> None:
    async with (
        a_process(kafka) as dying,
        metadata.session("nodes/1", b"one", ttl_ms=TTL_MS) as lasting,
        aclosing(metadata.watch("nodes/2")) as watch,
    ):
        await anext(watch)
        async with dying.session("nodes/2", b"two", ttl_ms=TTL_MS) as held:
            assert (await anext(watch)).values["nodes/2"] is not None
            begun_s = asyncio.get_running_loop().time()
            await killed(dying)
            assert (await anext(watch)).values == {"nodes/2": None}
            assert asyncio.get_running_loop().time() - begun_s > TTL_MS / 1000 * 0.6
            assert not held.is_held
        assert lasting.is_held
        assert lasting.loss_count == 0


async def test_a_session_that_others_have_ended_is_begun_again(kafka: LogKafka, metadata: KafkaMetadata) -> None:
    async with metadata.session("nodes/1", b"one", ttl_ms=TTL_MS) as session:
        [held] = metadata._state.sessions
        async with a_process(kafka) as other, aclosing(other.watch("nodes/")) as watch:
            await anext(watch)
            await other.submit(End(held))
            assert (await anext(watch)).values == {"nodes/1": None}
            assert (await anext(watch)).values["nodes/1"] is not None
            await until(lambda: session.loss_count == 1 and session.is_held, pause_s=0.01)


async def test_a_suspicion_is_answered_at_once(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_metadata, "RENEWALS_PER_TTL", 0.5)  # of itself it would beat after twice its time
    async with metadata.session("nodes/1", b"one", ttl_ms=TTL_MS) as session, a_process(kafka):
        until_s = asyncio.get_running_loop().time() + 3 * TTL_MS / 1000
        await until(lambda: asyncio.get_running_loop().time() > until_s, pause_s=0.01)
        assert session.is_held
        assert session.loss_count == 0


async def test_a_kafka_that_takes_no_appends_for_long_ends_no_session(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_metadata, "CALL_TIMEOUT_S", 0.1)
    async with a_process(kafka) as other, AsyncExitStack() as stack:
        held = [
            await stack.enter_async_context(one.session(f"nodes/{number}", b"here", ttl_ms=TTL_MS))
            for number, one in enumerate((metadata, other))
        ]
        kafka.is_writable = False
        await until(lambda: not any(session.is_held for session in held), pause_s=0.01)
        await asyncio.sleep(2 * TTL_MS / 1000)
        kafka.is_writable = True
        await until(lambda: all(session.is_held for session in held), pause_s=0.01)
        await asyncio.sleep(TTL_MS / 1000)
        assert [session.loss_count for session in held] == [0, 0]


# ---- snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [39, 40])
async def test_a_snapshot_takes_the_place_of_what_is_before_it(
    records: int, kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving_at(monkeypatch, 39)
    metadata._jitter = 1.0
    await put(metadata, "a", b"1")
    while kafka.the_log.end < records:
        await metadata.get("a")
    if records == 39:
        await asyncio.sleep(0.1)
        assert kafka.the_log.start == 0
        return
    await until(lambda: kafka.the_log.start, pause_s=0.01)
    assert kafka.the_log.start == 40
    async with a_process(kafka) as other:
        assert (await other.list("")) == (await metadata.list(""))


async def test_large_changes_bring_the_next_snapshot_forward(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_metadata, "SNAPSHOT_BYTES", 100_000)
    for number in range(4):
        await put(metadata, str(number), Random(number).randbytes(50_000))
    await until(lambda: kafka.the_log.start, pause_s=0.01)


async def test_a_process_that_dies_within_a_snapshot_leaves_all_readable(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await put(metadata, str(number), b"value %d" % number)
    expected = await metadata.list("")
    monkeypatch.setattr(metadata_log, "PART_BYTES", 50)
    async with a_process(kafka) as dying:
        await dying.get("0")
        parts = list(Snapshot(dying._state).parts())
        for part in parts[:-1]:
            await dying.submit(part)
        await killed(dying)
    assert kafka.the_log.start == 0
    await metadata._save()
    assert kafka.the_log.start > parts[0].at
    async with a_process(kafka) as other:
        assert await other.list("") == expected


async def test_two_snapshots_at_once_are_both_whole(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_log, "PART_BYTES", 50)
    async with a_process(kafka) as other:
        for number in range(20):
            await put(metadata, str(number), b"value %d" % number)
        await other.get("0")
        await asyncio.gather(metadata._save(), other._save(), put(metadata, "x", b"meanwhile"))
        expected = await metadata.list("")
    assert kafka.the_log.start > 0
    async with a_process(kafka) as third:
        assert await third.list("") == expected


async def test_a_snapshot_that_was_overtaken_is_passed_over(kafka: LogKafka, metadata: KafkaMetadata) -> None:
    await put(metadata, "a", b"1")
    async with a_process(kafka) as other:
        older = list(Snapshot(metadata._state).parts())
        await put(other, "a", b"2")
        newer = list(Snapshot(other._state).parts())
        for process, parts in ((metadata, older), (other, newer)):
            for part in parts:
                assert await process.submit(part) is not None
        assert older[0].at < newer[0].at
        await kafka.delete_before(TOPIC, 0, newer[0].at)
        async with a_process(kafka) as third:
            assert await third.list("") == await metadata.list("")


async def test_a_snapshot_that_cannot_be_read_back_deletes_nothing(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await put(metadata, "a", b"1")
    monkeypatch.setattr(Snapshot, "parts", lambda own: iter([Part(own.at, 0, "{}", 1, 5)]))
    with caplog.at_level(logging.WARNING):
        await metadata._save()
    assert "not whole" in caplog.text
    assert kafka.the_log.start == 0


async def test_a_snapshot_of_which_kafka_deletes_nothing_does_no_harm(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: object) -> None:
        raise Refused(29, "topic")

    monkeypatch.setattr(kafka, "delete_before", refused)
    await put(metadata, "a", b"1")
    with caplog.at_level(logging.WARNING):
        await metadata._save()
    assert "error 29" in caplog.text
    async with a_process(kafka) as other:
        assert await other.list("") == await metadata.list("")


async def test_a_process_that_has_slept_through_a_snapshot_reads_it(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(metadata, "a", b"1")
    async with a_process(kafka) as sleeper, aclosing(sleeper.watch("")) as watch:
        await anext(watch)
        plain = kafka.fetch

        async def asleep(topic: str, partition: int, offset: int, **more: Any) -> Any:
            await awake.wait()
            await asyncio.sleep(0.01)  # watchers have their turn
            return await plain(topic, partition, offset, **more)

        awake = asyncio.Event()
        own = LogKafka()
        own.logs = kafka.logs
        monkeypatch.setattr(own, "fetch", asleep)
        sleeper._kafka = own
        await asyncio.sleep(0.1)  # a fetch that was under way has ended
        waiting = asyncio.ensure_future(sleeper.compare_and_set({"b": ABSENT}, {"b": b"1"}))
        await until(lambda: kafka.state().keyspace.values.get("b"), pause_s=0.01)
        await put(metadata, "a", b"2")
        await metadata._save()
        await put(metadata, "c", b"1")
        following = asyncio.ensure_future(anext(watch))
        awake.set()
        with pytest.raises(OutcomeUnknown, match="read anew"):
            await waiting
        seen = await following
        assert isinstance(seen, Listing), "all keys again"
        assert {key: value.data for key, value in seen.values.items()} == {"a": b"2", "b": b"1", "c": b"1"}
        await put(sleeper, "d", b"1")


# ---- a log that is not what it was -----------------------------------------------------------------------------------


@asynccontextmanager
async def doomed(kafka: LogKafka) -> AsyncIterator[KafkaMetadata]:
    """A process that is to end by itself; who leaves it is told."""
    metadata = KafkaMetadata(kafka, TOPIC)
    await metadata.__aenter__()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield metadata
    finally:
        with pytest.raises(OtherMetadata):
            await metadata.__aexit__()


async def stopped(metadata: KafkaMetadata, said: str) -> None:
    """It ends by itself, and says why; so does everything that is asked of it."""
    await asyncio.wait([metadata.running], timeout=PATIENCE_S)
    with pytest.raises(OtherMetadata, match=said):
        await metadata.running
    with pytest.raises(OtherMetadata, match=said):
        await metadata.get("a")
    with pytest.raises(OtherMetadata, match=said):
        await metadata.compare_and_set({"a": ABSENT}, {"a": b"1"})


async def test_a_log_that_ends_before_what_was_read_stops_the_process(kafka: LogKafka) -> None:
    async with doomed(kafka) as metadata:
        await put(metadata, "a", b"1")
        kafka.the_log.lose(1)
        await stopped(metadata, "Kafka has lost records")


async def test_records_that_others_have_appended_in_place_of_lost_ones_stop_the_process(kafka: LogKafka) -> None:
    async with doomed(kafka) as metadata:
        await put(metadata, "a", b"1")
        await put(metadata, "a", b"2")
        end = kafka.the_log.end
        kafka.the_log.lose(end - 1)
        append(kafka, Command("other", 1, end - 1, Read()), Command("other", 2, end - 1, Read()))
        await stopped(metadata, "another batch")


async def test_a_topic_that_was_made_anew_while_kafka_was_away_stops_the_process(kafka: LogKafka) -> None:
    async with doomed(kafka) as metadata:
        await put(metadata, "a", b"1")
        end = kafka.the_log.end
        kafka.is_away = True
        await until(lambda: not metadata._is_verified, pause_s=0.01)
        kafka.logs[TOPIC, 0] = Log()
        append(kafka, *[Command("other", number, 0, Read()) for number in range(1, end + 5)])
        kafka.is_away = False
        await stopped(metadata, "made anew")


async def test_a_new_leader_that_has_all_is_no_reason_to_stop(kafka: LogKafka, metadata: KafkaMetadata) -> None:
    await put(metadata, "a", b"1")
    kafka.the_log.leader_epoch += 1
    await put(metadata, "a", b"2")
    kafka.is_away = True
    await until(lambda: not metadata._is_verified, pause_s=0.01)
    kafka.is_away = False
    await put(metadata, "a", b"3")


async def test_a_log_without_its_beginning_and_without_a_snapshot_is_refused(kafka: LogKafka) -> None:
    async with a_process(kafka) as metadata:
        await put(metadata, "a", b"1")
    await kafka.delete_before(TOPIC, 0, 1)
    async with doomed(kafka) as metadata:
        await stopped(metadata, "no whole snapshot")


async def test_a_damaged_snapshot_is_passed_over_for_the_next(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def kept(*_: object) -> None:
        pass

    monkeypatch.setattr(kafka, "delete_before", kept)
    await put(metadata, "a", b"1")
    at = kafka.the_log.end
    append(kafka, Command("other", 1, at, Part(at, 0, '{"revision":1,"sessions":{},"writers":{}}', 1, 77)))
    await metadata._save()
    expected = await metadata.list("")
    kafka.the_log.start = at
    async with a_process(kafka) as other:
        assert await other.list("") == expected
    assert "damaged" in caplog.text


async def test_records_of_others_in_the_topic_are_passed_over(kafka: LogKafka, metadata: KafkaMetadata) -> None:
    await put(metadata, "a", b"1")
    kafka.the_log.append(strangers_batch(3))
    await put(metadata, "a", b"2")
    async with a_process(kafka) as other:
        assert await other.list("") == await metadata.list("")


async def test_a_record_of_a_newer_version_stops_the_process(kafka: LogKafka) -> None:
    async with doomed(kafka) as metadata:
        await put(metadata, "a", b"1")
        value = encode_command(Command("w", 1, 0, Read())).replace(b'"v":1', b'"v":2')
        kafka.the_log.append(bytes(record_batch.encode([Record(KEY, value, 0)])))
        await stopped(metadata, "newer version")


async def test_a_batch_that_is_damaged_on_its_way_is_fetched_again(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(metadata, "a", b"1")
    plain, damages = kafka.fetch, 3

    async def damaged(*arguments: Any, **more: Any) -> Any:
        nonlocal damages
        fetched = await plain(*arguments, **more)
        if fetched.batches and damages:
            damages -= 1
            fetched.batches[-1] ^= 1
        return fetched

    monkeypatch.setattr(kafka, "fetch", damaged)
    await put(metadata, "a", b"2")
    assert not damages


async def test_a_topic_that_is_not_fit_is_refused(kafka: LogKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    async def differs(_: TopicPlan) -> None:
        raise TopicDiffers("cleanup.policy is compact, and must be delete")

    monkeypatch.setattr(kafka, "make_topic", differs)
    async with doomed(kafka) as metadata:
        await stopped(metadata, "compact")


async def test_a_kafka_that_is_not_there_yet_is_waited_for(kafka: LogKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_metadata, "CALL_TIMEOUT_S", 0.1)
    kafka.is_away = True
    async with asyncio.timeout(PATIENCE_S), a_process(kafka) as metadata:
        with pytest.raises(Unavailable):
            await metadata.get("a")
        kafka.is_away = False
        await until(lambda: metadata._is_loaded.is_set(), pause_s=0.01)
        await put(metadata, "a", b"1")


async def test_who_waits_is_told_when_the_process_ends(kafka: LogKafka) -> None:
    async with a_process(kafka) as metadata:
        await metadata.get("a")
        kafka.is_away = True
        waiting = asyncio.ensure_future(metadata.compare_and_set({"a": ABSENT}, {"a": b"1"}))
        await asyncio.sleep(0.05)
    with pytest.raises(Unavailable, match="stopping"):
        await waiting


async def test_an_error_of_kafka_is_said_to_who_waits(
    kafka: LogKafka, metadata: KafkaMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_metadata, "CALL_TIMEOUT_S", 0.1)
    await metadata.get("a")

    async def unreached(*_: object, **__: object) -> None:
        raise Unreached("node 1 of Kafka cannot be reached")

    monkeypatch.setattr(kafka, "fetch", unreached)
    await until(lambda: not metadata._is_verified, pause_s=0.01)
    with pytest.raises(Unavailable, match="node 1 of Kafka"):
        await metadata.get("a")
