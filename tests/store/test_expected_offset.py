"""Appends that ask for their offset: of those that ask for the same, one gets it, and the others store nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from store.errors import AlreadyStored, OffsetMoved
from store.store import Store
from store.types import ID_BYTES, NO_FINGERPRINT, Acks, Appended, Identity, QueueKey, RequestPart
from tests.simdisk import SimDisk
from tests.store.kit import append_of, opened, put, values_of


async def put_at(
    store: Store, queue: QueueKey, offset: int, value: bytes, identity: Identity | None = None
) -> Appended:
    append = replace(append_of(queue, [value]), expected_offset=offset, identity=identity)
    (answer,) = await store.append([append], acks=Acks.FLUSHED)
    return answer


async def test_of_many_that_ask_for_one_offset_one_gets_it() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        for offset in range(3):
            outcomes = await asyncio.gather(
                *(put_at(store, queue, offset, b"%d by %d" % (offset, who)) for who in range(10)),
                return_exceptions=True,
            )
            won = [one for one in outcomes if isinstance(one, Appended)]
            assert [one.base_offset for one in won] == [offset]
            lost = [one for one in outcomes if isinstance(one, OffsetMoved)]
            assert [one.next_offset for one in lost] == [offset + 1] * 9
        assert len(await values_of(store, queue)) == 3


async def test_what_is_under_way_counts() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        first = asyncio.ensure_future(put(store, queue, b"first"))
        await asyncio.sleep(0)
        with pytest.raises(OffsetMoved):
            await put_at(store, queue, 0, b"too late")
        assert (await put_at(store, queue, 1, b"second")).base_offset == 1
        assert (await first).base_offset == 0


async def test_a_repeat_is_told_what_became_of_it_though_the_offset_is_taken_now() -> None:
    async with opened(SimDisk()) as store:
        topic, _ = await store.create_topic("t", 1)
        queue = QueueKey(topic.topic_id, 0)
        identity = Identity(request=RequestPart(b"r" * ID_BYTES, NO_FINGERPRINT, range(1)))
        assert (await put_at(store, queue, 0, b"once", identity)).base_offset == 0
        with pytest.raises(AlreadyStored) as known:
            await put_at(store, queue, 0, b"once", identity)
        assert known.value.originals[0][0].offset == 0
