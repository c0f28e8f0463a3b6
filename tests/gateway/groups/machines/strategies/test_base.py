"""Calling a strategy: order of the arguments, empty ones, and results that are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.groups.machines.strategies.base import (
    Assignment,
    IllegalAssignment,
    Partition,
    allocate,
    by_topic,
    room_of_name,
)

P0, P1 = Partition("T", 16, 0), Partition("T", 16, 1)


class Fixed:
    """Answers what it was told, and remembers what it was asked."""

    name = "fixed"

    def __init__(self, answer: Assignment) -> None:
        self.answer = answer
        self.asked: list[tuple[list[str], list[Partition]]] = []

    def allocate(self, members: Sequence[str], partitions: Sequence[Partition], current: Assignment) -> Assignment:
        self.asked.append((list(members), list(partitions)))
        return self.answer


def test_a_strategy_is_asked_in_order_and_everybody_is_in_the_answer() -> None:
    strategy = Fixed({"m2": [P1, P0]})
    assert allocate(strategy, ["m2", "m1", "m2"], [P1, P0], {}) == {"m1": (), "m2": (P0, P1)}
    assert strategy.asked == [(["m1", "m2"], [P0, P1])]


def test_a_strategy_is_not_asked_when_there_is_nothing_to_share() -> None:
    strategy = Fixed({})
    assert allocate(strategy, [], [P0], {}) == {}
    assert allocate(strategy, ["m1"], [], {}) == {"m1": ()}
    assert strategy.asked == []


@pytest.mark.parametrize(
    "answer",
    [{"m1": [P0], "m2": [P0]}, {"m1": [P0, P0]}, {"stranger": [P0]}, {"m1": [Partition("T", 17, 0)]}],
    ids=["two owners", "twice", "stranger", "unknown partition"],
)
def test_an_illegal_answer_is_refused(answer: Assignment) -> None:
    with pytest.raises(IllegalAssignment):
        allocate(Fixed(answer), ["m1", "m2"], [P0, P1], {})


def test_topics_of_one_name_and_two_ids_are_two_topics() -> None:
    assert by_topic([P0, P1, Partition("T", 17, 0)]) == [[P0, P1], [Partition("T", 17, 0)]]


def test_a_room_stands_before_the_at_sign() -> None:
    assert [room_of_name(name) for name in ("r@b", "b", "@b", "r@b@c")] == ["r", "", "", "r"]
