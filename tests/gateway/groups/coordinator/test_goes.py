"""gateway.groups.coordinator.goes: who shares a go, and who is told when. What is written: test_stream.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.groups.coordinator.goes import TOLD_A_TURN, Goes
from gateway.groups.machines.errors import UnknownMember

CALLS_MAX = 500


async def test_calls_share_goes_and_answers_come_a_few_a_turn() -> None:
    goes_of: list[int] = []

    async def write(group: str, asked: Sequence[int]) -> list[int | Exception]:
        goes_of.append(len(asked))
        await asyncio.sleep(0.001)
        return [UnknownMember("7") if one == 7 else -one for one in asked]

    told: list[int] = []
    goes: Goes[str, int, int] = Goes(write, calls_max=CALLS_MAX)

    async def ask(number: int) -> None:
        if number == 7:
            with pytest.raises(UnknownMember):
                await goes.ask("g", "m7", 7)
        else:
            assert await goes.ask("g", f"m{number}", number) == -number
        told.append(number)

    asking = [asyncio.create_task(ask(number)) for number in range(1, 1201)]
    most = before = 0
    while not all(task.done() for task in asking):
        await asyncio.sleep(0)
        most, before = max(most, len(told) - before), len(told)
    await asyncio.gather(*asking)
    assert goes_of == [CALLS_MAX, CALLS_MAX, 200]
    assert sorted(told) == list(range(1, 1201))
    assert most <= TOLD_A_TURN
    assert not goes._writing
    assert not goes._waiting


async def test_the_second_call_of_a_member_waits_for_the_next_go_and_an_error_is_told_to_all() -> None:
    written: list[list[str]] = []

    async def write(group: str, asked: Sequence[str]) -> list[str | Exception]:
        written.append(list(asked))
        if group == "bad":
            raise UnknownMember("all")
        return list(asked)

    goes: Goes[str, str, str] = Goes(write, calls_max=CALLS_MAX)
    asked = (goes.ask("g", "a", "1"), goes.ask("g", "a", "2"), goes.ask("g", "b", "3"))
    assert await asyncio.gather(*asked) == ["1", "2", "3"]
    assert written == [["1", "3"], ["2"]]
    refused = await asyncio.gather(goes.ask("bad", "a", "1"), goes.ask("bad", "b", "2"), return_exceptions=True)
    assert [type(error) for error in refused] == [UnknownMember, UnknownMember]
