"""gateway/schemas/kept.py: how much is kept, for how long, and how often it is asked."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import OVERLOADED, RequestError
from gateway.schemas.kept import ENTRY_BYTES, Answer, Kept


class World:
    def __init__(self, bytes_max: int = 10 * (ENTRY_BYTES + 10), **more: int) -> None:
        self.now_s = 0.0
        self.asked: list[object] = []
        self.kept: Kept[str] = Kept(bytes_max, monotonic_s=lambda: self.now_s, **more)

    async def get(self, key: object, *, size_bytes: int = 10, fresh_s: float | None = None) -> str:
        async def fetch() -> Answer[str]:
            self.asked.append(key)
            await asyncio.sleep(0)
            return Answer(f"value of {key}", size_bytes, fresh_s)

        return await self.kept.get(key, fetch)


async def test_what_fits_is_asked_once_and_the_one_used_longest_ago_goes_first() -> None:
    world = World()
    for key in range(10):
        assert await world.get(key) == f"value of {key}"
    for key in range(10):
        await world.get(key)
    assert world.asked == list(range(10))
    await world.get(0)
    await world.get(10)  # one more than there is room for
    await world.get(0)
    assert world.asked == [*range(10), 10]
    await world.get(1)
    assert world.asked == [*range(10), 10, 1]
    assert len(world.kept) == 10
    assert world.kept.size_bytes == 10 * (ENTRY_BYTES + 10)


async def test_what_is_larger_than_all_the_room_is_not_kept() -> None:
    world = World(1000)
    await world.get("fits", size_bytes=1000 - ENTRY_BYTES)
    await world.get("fits")
    await world.get("does not", size_bytes=1001 - ENTRY_BYTES)
    await world.get("does not", size_bytes=1001 - ENTRY_BYTES)
    assert world.asked == ["fits", "does not", "does not"]


async def test_an_answer_is_good_for_so_long() -> None:
    world = World()
    await world.get("a", fresh_s=10.0)
    world.now_s = 9.99
    await world.get("a", fresh_s=10.0)
    world.now_s = 10.0
    await world.get("a", fresh_s=10.0)
    assert world.asked == ["a", "a"]
    assert world.kept.size_bytes == ENTRY_BYTES + 10


async def test_all_who_ask_at_once_wait_for_one_answer_also_when_the_first_is_gone() -> None:
    world = World()
    asking = [asyncio.create_task(world.get("a")) for _ in range(100)]
    await asyncio.sleep(0)
    asking[0].cancel()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == ["value of a"] * 99
    assert world.asked == ["a"]


async def test_a_question_that_fails_is_asked_again() -> None:
    world = World()

    async def fail() -> Answer[str]:
        raise RequestError(500, "no")

    for _ in range(2):
        with pytest.raises(RequestError):
            await world.kept.get("a", fail)
    assert await world.get("a") == "value of a"


async def test_so_many_questions_are_under_way_and_not_one_more() -> None:
    world = World(fetches_max=3)
    asking = [asyncio.create_task(world.get(key)) for key in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as caught:
        await world.get("one more")
    assert caught.value.error_code == OVERLOADED
    await asyncio.gather(*asking)
    assert await world.get("one more") == "value of one more"


async def test_closing_ends_what_is_under_way() -> None:
    world = World()

    async def never() -> Answer[str]:
        await asyncio.Event().wait()
        raise AssertionError

    asking = asyncio.create_task(world.kept.get("a", never))
    await asyncio.sleep(0)
    await world.kept.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
