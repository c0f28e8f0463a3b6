"""What is known of sends under way and stored: the short way for what follows its producer's last batch."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from random import Random
from typing import Any

import pytest

from store.dedup.known import KnownSends
from store.dedup.producers import Sent
from store.errors import AlreadyStored, SequenceGone, StoreError, TooManyIds
from store.types import Append, Appended, Identity, ProducerSequence, QueueKey, RecordNumbers

QUEUES = (QueueKey(16, 0), QueueKey(16, 1))
PRODUCERS = (b"a" * 16, b"b" * 16, b"c" * 16)
EXPIRY_MS = 50


def known_sends() -> KnownSends:
    return KnownSends(window_ms=1000, ids_max=10, producer_expiry_ms=EXPIRY_MS, producers_max=4)


def batch(queue: QueueKey, identity: Identity | None) -> Append:
    return Append(queue=queue, batch=b"", record_count=1, identity=identity)


def numbers(producer: bytes, epoch: int, first: int, count: int) -> Identity:
    return Identity(numbers=RecordNumbers(producer, epoch, first, count))


def outcome_of_all(known: KnownSends, append: Append, now_ms: int) -> Append | str | None:
    """The batch with its number, if it is new; the error, if its numbers alone are one; None: neither."""
    try:
        (new,) = known.resolved([append], now_ms)
    except StoreError as error:
        return type(error).__name__
    if known.in_flight([new]):
        return None
    try:
        known.check([new], now_ms)
    except (AlreadyStored, SequenceGone, TooManyIds):
        return None
    return new


@pytest.mark.parametrize("seed", range(4))
async def test_what_follows_is_what_is_new_by_all_questions(seed: int) -> None:
    random, known, now_ms = Random(seed), known_sends(), 0
    under_way: list[tuple[Append, asyncio.Future[list[Appended]]]] = []
    taken = refused = 0
    for position in range(3_000):
        now_ms += random.choice((0, 0, 1, 2 * EXPIRY_MS if not position % 97 else 0))
        queue, producer = random.choice(QUEUES), random.choice(PRODUCERS)
        append = batch(queue, numbers(producer, random.randrange(2), random.randrange(8), random.randrange(1, 5)))
        expected = outcome_of_all(known, append, now_ms)
        following: Append | str | None
        try:
            following = known.following(append, now_ms)
        except StoreError as error:
            following = type(error).__name__
            refused += 1
        assert following in (None, expected)
        taken += isinstance(following, Append)
        if isinstance(expected, Append):
            outcome: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
            known.begin([expected], outcome)
            under_way.append((expected, outcome))
        while under_way and random.random() < 0.6:  # stored in order, and answered
            stored, outcome = under_way.pop(0)
            assert stored.identity is not None
            assert stored.identity.producer is not None
            producer_id, sequence = stored.identity.producer
            sent = Sent(sequence, position, position, now_ms)
            known._producers.add(stored.queue, producer_id, sent, is_durable=bool(position % 3))
            outcome.set_result([])
            await asyncio.sleep(0)
    assert taken > 50
    assert refused > 50


def test_a_batch_with_an_identity_is_the_same_in_all_else() -> None:
    given: dict[str, Any] = {field.name: object() for field in fields(Append)}
    identity = Identity()
    made = Append(**given).identified(identity)
    assert {name: getattr(made, name) for name in given} == given | {"identity": identity}


async def test_nothing_else_follows() -> None:
    known, queue, producer = known_sends(), QUEUES[0], PRODUCERS[0]
    assert known.following(batch(queue, numbers(producer, 0, 0, 5)), 0) is None, "its producer is not known"
    known._producers.add(queue, producer, Sent(4, 0, 0, 0), is_durable=True)
    following = known.following(batch(queue, numbers(producer, 0, 5, 2)), 0)
    assert following is not None
    assert following.identity == Identity(producer=ProducerSequence(producer, 6))
    assert known.following(batch(queue, numbers(producer, 0, 0, 5)), 0) is None, "a repeat"
    assert known.following(batch(QUEUES[1], numbers(producer, 0, 5, 2)), 0) is None, "another queue's"
    assert known.following(batch(queue, numbers(producer, 0, 5, 2)), EXPIRY_MS + 1) is None, "it is forgotten"
    own = RecordNumbers(producer, 0, 5, 1)
    assert known.following(batch(queue, Identity(numbers=own, message_ids=[b"m" * 16])), 0) is None
    assert known.following(batch(queue, Identity(producer=ProducerSequence(producer, 9))), 0) is None
    assert known.following(batch(queue, None), 0) is None
