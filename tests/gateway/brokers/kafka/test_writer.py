"""gateway.brokers.kafka.writer: the position rule over a scripted Kafka."""

from __future__ import annotations

import asyncio

import pytest

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.brokers.kafka import writer as writing
from gateway.brokers.kafka.codes import Stored
from gateway.brokers.kafka.port import TopicPlan
from gateway.brokers.kafka.writer import IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX, Writer, fence_batch
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
        _, stored = [await self.kafka.produce("orders", 0, fence) for fence in fences]
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
        return asyncio.ensure_future(_only(self.writer.begin(append)))

    def values(self) -> list[bytes | None]:
        return [
            record.value for _, batch in self.kafka.log("orders", 0).batches for record in record_batch.decode(batch)
        ]


async def _only(begun: asyncio.Future[list[Appended]]) -> Appended:
    [appended] = await begun
    return appended


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PAUSE_S", 0.0)
    monkeypatch.setattr(writing, "GIVE_UP_LOOK_S", 0.01)


@pytest.fixture
async def tenure() -> Tenure:
    return await Tenure().open()


async def test_batches_are_stored_behind_the_fence_with_numbers_that_follow_each_other(tenure: Tenure) -> None:
    sent = [tenure.send(b"a", b"b"), tenure.send(b"c")]
    assert [one.base_offset for one in await asyncio.gather(*sent)] == [2, 4]
    numbers = [record_batch.numbers_of(batch) for _, batch in tenure.kafka.log("orders", 0).batches]
    assert numbers == [(4001, 3, 0), (4001, 3, 1), (4001, 3, 2), (4001, 3, 4)]
    assert (tenure.ends[-1], tenure.writer.end, tenure.held) == (5, 5, 0)


async def sent_by_now(tenure: Tenure) -> int:
    """How many batches are on their way, or answered, when all that can be done is done."""
    for _ in range(10):
        await asyncio.sleep(0)
    return len(tenure.kafka.sent)


async def test_as_many_are_on_their_way_as_kafka_recognises_and_the_next_follows_the_first_that_is_stored(
    tenure: Tenure,
) -> None:
    tenure.kafka.holds = True
    sent = [tenure.send(b"%d" % number) for number in range(IN_FLIGHT_MAX + 3)]
    assert await sent_by_now(tenure) == IN_FLIGHT_MAX
    tenure.kafka.answer()
    assert await sent_by_now(tenure) == IN_FLIGHT_MAX + 1
    assert [one.done() for one in sent] == [True] + [False] * (IN_FLIGHT_MAX + 2)
    tenure.kafka.answer(2)
    assert await sent_by_now(tenure) == IN_FLIGHT_MAX + 3
    tenure.kafka.answer(IN_FLIGHT_MAX)
    assert [one.base_offset for one in await asyncio.gather(*sent)] == [*range(2, 2 + IN_FLIGHT_MAX + 3)]


async def test_what_is_on_its_way_has_its_bytes_and_no_more_but_one_batch_at_least(tenure: Tenure) -> None:
    tenure.kafka.holds = True
    half = b"x" * (IN_FLIGHT_BYTES_MAX // 2 - 200)
    large = b"z" * IN_FLIGHT_BYTES_MAX
    sent = [tenure.send(half), tenure.send(half), tenure.send(b"y"), tenure.send(large), tenure.send(b"y")]
    assert await sent_by_now(tenure) == 3
    tenure.kafka.answer(2)
    assert await sent_by_now(tenure) == 3, "a small one is on its way"
    tenure.kafka.answer()
    assert await sent_by_now(tenure) == 4, "the large one goes alone"
    tenure.kafka.answer()
    assert await sent_by_now(tenure) == 5
    tenure.kafka.answer()
    await asyncio.gather(*sent)


async def test_behind_one_that_is_not_stored_nothing_new_is_sent_until_it_is(tenure: Tenure) -> None:
    tenure.kafka.holds = True
    tenure.kafka.script.extend([None, "dropped"])
    sent = [tenure.send(b"%d" % number) for number in range(IN_FLIGHT_MAX + 2)]
    assert await sent_by_now(tenure) == IN_FLIGHT_MAX
    tenure.kafka.answer(2)
    assert await sent_by_now(tenure) == IN_FLIGHT_MAX, "what is on its way behind it is waited for"
    tenure.kafka.answer(IN_FLIGHT_MAX - 2)
    assert await sent_by_now(tenure) == 2 * IN_FLIGHT_MAX - 1
    assert tenure.kafka.sent[IN_FLIGHT_MAX:] == tenure.kafka.sent[1:IN_FLIGHT_MAX], "the same bytes, in order"
    tenure.kafka.answer(IN_FLIGHT_MAX - 2)
    assert await sent_by_now(tenure) == 2 * IN_FLIGHT_MAX - 1
    tenure.kafka.answer()
    assert await sent_by_now(tenure) == 2 * IN_FLIGHT_MAX + 1
    tenure.kafka.answer(2)
    assert [one.base_offset for one in await asyncio.gather(*sent)] == [*range(2, 2 + IN_FLIGHT_MAX + 2)]
    assert tenure.doubts == 0


async def test_without_a_leader_nothing_is_sent_and_callers_are_told_so(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GIVE_UP_S", 0.02)
    monkeypatch.setattr(writing, "PAUSE_S", 0.01)
    tenure.kafka.has_no_leader = True
    outcomes = await asyncio.gather(tenure.send(b"a"), tenure.send(b"b"), return_exceptions=True)
    assert [type(one) for one in outcomes] == [BrokerUnreachable] * 2
    monkeypatch.setattr(writing, "GIVE_UP_S", 5.0)
    tenure.kafka.has_no_leader = False
    assert (await tenure.send(b"c")).base_offset == 2, "their numbers are not used up"
    assert (tenure.doubts, tenure.held) == (0, 0)


@pytest.mark.parametrize("script", [["lost"], ["dropped"], [6], [19, "lost", 7], [None, "lost"], [None, 6, 45]])
async def test_what_was_lost_is_sent_again_with_the_same_bytes_and_stored_once(
    tenure: Tenure, script: list[str | int | None]
) -> None:
    tenure.kafka.script.extend(script)
    sent = [tenure.send(b"%d" % number) for number in range(4)]
    assert [one.base_offset for one in await asyncio.gather(*sent)] == [2, 3, 4, 5]
    assert tenure.values()[2:] == [b"0", b"1", b"2", b"3"]
    assert len(set(tenure.kafka.sent)) == 4
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
    await tenure.kafka.produce("orders", 0, fence_batch(4001, 4, 1))
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
    monkeypatch.setattr(writing, "GIVE_UP_S", 5.0)
    tenure.kafka.is_away = False
    assert (await tenure.send(b"later")).base_offset == 2 + IN_FLIGHT_MAX
    assert tenure.held == 0


async def test_who_waits_too_long_for_one_answer_is_told_so_before_it_comes(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GIVE_UP_S", 0.02)
    tenure.kafka.holds = True
    sent = [tenure.send(b"%d" % number) for number in range(IN_FLIGHT_MAX + 1)]
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(one) for one in outcomes] == [AnswerLost] * IN_FLIGHT_MAX + [BrokerUnreachable]
    monkeypatch.setattr(writing, "GIVE_UP_S", 5.0)
    tenure.kafka.holds = False
    tenure.kafka.answer(IN_FLIGHT_MAX)
    assert (await tenure.send(b"later")).base_offset == 2 + IN_FLIGHT_MAX
    assert tenure.held == 0


async def test_who_waits_too_long_for_one_before_its_own_is_told_so_too(
    tenure: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GIVE_UP_S", 0.05)
    tenure.kafka.holds = True
    tenure.kafka.script.append("lost")
    sent = [tenure.send(b"first"), tenure.send(b"second")]
    assert await sent_by_now(tenure) == 2
    tenure.kafka.answer(2)
    assert await sent_by_now(tenure) == 3, "the first again, the second is stored"
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(one) for one in outcomes] == [AnswerLost] * 2
    monkeypatch.setattr(writing, "GIVE_UP_S", 5.0)
    tenure.kafka.holds = False
    tenure.kafka.answer()
    assert (await tenure.send(b"later")).base_offset == 4
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
