"""gateway.brokers.kafka.writer: the position rule over a scripted Kafka."""

from __future__ import annotations

import asyncio

import pytest

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.brokers.kafka import writer as writing
from gateway.brokers.kafka.codes import Stored
from gateway.brokers.kafka.port import TopicPlan
from gateway.brokers.kafka.writer import IN_FLIGHT_MAX, ROUND_BYTES, Writer, fence_batch
from store import record_batch
from store.errors import MalformedBatch, OffsetMoved, SealedQueue
from store.record_batch import Record
from store.types import Append, Appended, QueueKey
from tests.gateway.brokers.kafka.fake import FakeKafka, strangers_batch

QUEUE = QueueKey(16, 1024)


class Tenure:
    """A writer of epoch 3 to partition 0, behind its fence."""

    def __init__(self) -> None:
        self.kafka = FakeKafka()
        self.ends: list[int] = []
        self.acknowledged: list[tuple[Append, int]] = []
        self.doubts = 0
        self.held = 0

    async def open(self) -> Tenure:
        await self.kafka.make_topic(TopicPlan("orders", 1, -1))
        fences = [fence_batch(4001, 3, 1), fence_batch(4001, 3, 1, opening=b"{}")]
        _, stored = await self.kafka.produce("orders", 0, fences)
        assert isinstance(stored, Stored)
        self.kafka.sent.clear()
        self.writer = Writer(
            self.kafka, "orders", 0, producer_id=4001, epoch=3, start=stored.base_offset + 1,
            on_acknowledged=self._acknowledge, on_stored=self.ends.append, on_doubt=self._doubt, on_freed=self._free,
        )  # fmt: skip
        return self

    def _acknowledge(self, append: Append, appended: Appended) -> None:
        self.acknowledged.append((append, appended.base_offset))

    def _doubt(self) -> None:
        self.doubts += 1

    def _free(self, size: int) -> None:
        self.held -= size

    def send(self, *values: bytes, expected: int | None = None) -> asyncio.Future[Appended]:
        batch = record_batch.encode([Record(None, value, 1) for value in values])
        self.held += len(batch)
        append = Append(queue=QUEUE, batch=batch, record_count=len(values), expected_offset=expected)
        return self.writer.begin(append)

    def values(self) -> list[bytes | None]:
        return [
            record.value for _, batch in self.kafka.log("orders", 0).batches for record in record_batch.decode(batch)
        ]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PAUSE_S", 0.0)


@pytest.fixture
async def tenure() -> Tenure:
    return await Tenure().open()


async def test_batches_are_stored_behind_the_fence_with_numbers_that_follow_each_other(tenure: Tenure) -> None:
    sent = [tenure.send(b"a", b"b"), tenure.send(b"c")]
    assert [one.base_offset for one in await asyncio.gather(*sent)] == [2, 4]
    numbers = [record_batch.numbers_of(batch) for _, batch in tenure.kafka.log("orders", 0).batches]
    assert numbers == [(4001, 3, 0), (4001, 3, 1), (4001, 3, 2), (4001, 3, 4)]
    assert (tenure.ends[-1], tenure.writer.end, tenure.held) == (5, 5, 0)


async def test_a_round_has_as_many_batches_as_kafka_recognises(tenure: Tenure) -> None:
    await asyncio.gather(*[tenure.send(b"%d" % number) for number in range(IN_FLIGHT_MAX + 1)])
    assert [len(one) for one in tenure.kafka.sent] == [IN_FLIGHT_MAX, 1]


async def test_a_round_has_its_bytes_and_no_more_but_one_batch_at_least(tenure: Tenure) -> None:
    half = b"x" * (ROUND_BYTES // 2 - 200)
    await asyncio.gather(tenure.send(half), tenure.send(half), tenure.send(b"y"), tenure.send(b"z" * ROUND_BYTES))
    assert [len(one) for one in tenure.kafka.sent] == [3, 1]


@pytest.mark.parametrize("script", [["lost"], ["dropped"], [6], [19, "lost", 7], [None, "lost"], [None, 6, 45]])
async def test_what_was_lost_is_sent_again_with_the_same_bytes_and_stored_once(
    tenure: Tenure, script: list[str | int | None]
) -> None:
    tenure.kafka.script.extend(script)
    sent = [tenure.send(b"%d" % number) for number in range(4)]
    assert [one.base_offset for one in await asyncio.gather(*sent)] == [2, 3, 4, 5]
    assert tenure.values()[2:] == [b"0", b"1", b"2", b"3"]
    first, again = tenure.kafka.sent[:2]
    assert set(again) <= set(first)
    assert (tenure.doubts, tenure.held) == (0, 0)


async def test_nothing_is_acknowledged_behind_a_strangers_batch(tenure: Tenure) -> None:
    await tenure.send(b"a")
    tenure.kafka.log("orders", 0).append(strangers_batch())
    lost, later = tenure.send(b"b"), tenure.send(b"c")
    with pytest.raises(AnswerLost):
        await lost
    with pytest.raises(AnswerLost):
        await later
    assert (tenure.doubts, tenure.writer.end, tenure.held) == (1, 3, 0)
    with pytest.raises(SealedQueue):
        tenure.send(b"d")


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_writer_that_was_fenced_acknowledges_nothing_though_kafka_forgets_the_fence(
    tenure: Tenure, forgets: bool
) -> None:
    await tenure.send(b"a")
    await tenure.kafka.produce("orders", 0, [fence_batch(4001, 4, 1)])
    if forgets:
        tenure.kafka.forget_producers()
    with pytest.raises(AnswerLost):
        await tenure.send(b"b")
    assert (b"b" in tenure.values(), tenure.doubts, tenure.writer.end) == (forgets, 1, 3)


async def test_what_was_stored_behind_a_lost_batch_is_not_left_without_an_answer(tenure: Tenure) -> None:
    """The first is lost, the second stored by a Kafka that has forgotten its producer; then others write."""
    tenure.kafka.forget_producers()
    tenure.kafka.script.extend(["dropped"])
    first, second = tenure.send(b"a"), tenure.send(b"b")
    for outcome in await asyncio.gather(first, second, return_exceptions=True):
        assert isinstance(outcome, AnswerLost)
    assert (tenure.doubts, tenure.held) == (1, 0)


@pytest.mark.parametrize("code", [2, 10, 87])
async def test_a_batch_that_kafka_refuses_is_refused_and_its_number_ends_the_tenure(tenure: Tenure, code: int) -> None:
    tenure.kafka.script.append(code)
    with pytest.raises(MalformedBatch):
        await tenure.send(b"a")
    assert (tenure.doubts, tenure.held) == (1, 0)


async def test_an_expected_offset_is_that_of_the_queue(tenure: Tenure) -> None:
    right, wrong, behind = tenure.send(b"a", expected=2), tenure.send(b"b", expected=2), tenure.send(b"c", expected=3)
    assert (await right).base_offset == 2
    with pytest.raises(OffsetMoved) as moved:
        await wrong
    assert moved.value.next_offset == 3
    assert (await behind).base_offset == 3


async def test_who_waits_for_a_kafka_that_is_away_is_answered_and_what_was_sent_is_sent_on(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GIVE_UP_S", 0.02)
    monkeypatch.setattr(writing, "PAUSE_S", 0.01)
    tenure.kafka.is_away = True
    sent = [tenure.send(b"%d" % number) for number in range(IN_FLIGHT_MAX + 1)]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(one) for one in outcomes] == [AnswerLost] * IN_FLIGHT_MAX + [BrokerUnreachable]
    tenure.kafka.is_away = False
    assert (await tenure.send(b"later")).base_offset == 2 + IN_FLIGHT_MAX
    assert tenure.held == 0


async def test_who_stops_finishes_what_is_on_its_way_and_refuses_the_rest(tenure: Tenure) -> None:
    first = [tenure.send(b"%d" % number) for number in range(IN_FLIGHT_MAX)]
    await asyncio.sleep(0)  # they are on their way with the next turn
    rest = tenure.send(b"rest")
    await tenure.writer.stop()
    outcomes = await asyncio.gather(*first, rest, return_exceptions=True)
    refused = [isinstance(one, SealedQueue) for one in outcomes]
    assert refused[-1]
    assert len(tenure.values()) - 2 == refused.count(False)
    assert tenure.held == 0


async def test_sequences_begin_again_behind_the_last(tenure: Tenure) -> None:
    tenure.writer._sequence = writing.SEQUENCES - 1
    tenure.kafka.forget_producers()
    await tenure.send(b"a", b"b")
    assert tenure.writer._sequence == 1


def test_a_fence_is_one_record_that_says_so() -> None:
    batch = fence_batch(4001, 3, 5)
    assert record_batch.check(batch).record_count == 1
    assert record_batch.numbers_of(batch) == (4001, 3, 0)
    [record] = record_batch.decode(batch)
    assert list(record.headers) == [("mq-fence", None)]
    assert record.value is None
    opening = fence_batch(4001, 3, 5, opening=b"x")
    assert record_batch.numbers_of(opening) == (4001, 3, 1)
    assert [record.value for record in record_batch.decode(opening)] == [b"x"]
