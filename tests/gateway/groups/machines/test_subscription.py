"""Subscriptions by name and by pattern; patterns that could hold up the server are refused."""

from __future__ import annotations

import pytest

from gateway.groups.machines.errors import IllegalRequest
from gateway.groups.machines.subscription import TOPICS_MAX, VISIBLE_BYTES_MAX, Subscription
from store.limits import TOPIC_NAME_BYTES_MAX


def test_names_match_themselves_and_patterns_whole_names() -> None:
    both = Subscription(frozenset(("orders",)), "eu-.*")
    assert [both.matches(name) for name in ("orders", "orders2", "eu-", "eu-a", "an-eu-a")] == [
        True,
        False,
        True,
        True,
        False,
    ]


def test_system_topics_are_found_by_name_only() -> None:
    everything = Subscription(pattern=".*")
    assert not any(everything.matches(name) for name in ("__timer", "%DLQ%billing", "%RETRY%billing"))
    assert Subscription(frozenset(("%DLQ%billing",))).matches("%DLQ%billing")


@pytest.mark.parametrize(
    "pattern", ["orders", "^orders-(eu|us).*$", r"orders\.v\d", r"[*+?(]{2}\*", "a|b|c", "a*b*c*", ""]
)
def test_patterns_of_bounded_cost_are_taken(pattern: str) -> None:
    assert Subscription(pattern=pattern).pattern == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*",
        "(a|a)+b",
        "(a|a){9}",
        "a*a*a*a*b",
        "(a|a)(a|a)(a|a)(a|a)",
        "(?=a)b",
        r"(a)\1",
        "[[](a*)*]",
        r"\\(a*)*",
        "(",
        "[a",
        "a{9999999999}",
        "a" * (TOPIC_NAME_BYTES_MAX + 1),
    ],
)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(IllegalRequest):
        Subscription(pattern=pattern)


def test_a_subscription_names_something_and_not_too_much() -> None:
    with pytest.raises(IllegalRequest):
        Subscription()
    Subscription(frozenset(f"t{number}" for number in range(TOPICS_MAX)))
    with pytest.raises(IllegalRequest):
        Subscription(frozenset(f"t{number}" for number in range(TOPICS_MAX + 1)))
    Subscription(frozenset(("t" * TOPIC_NAME_BYTES_MAX,)))
    with pytest.raises(IllegalRequest):
        Subscription(frozenset(("t" * (TOPIC_NAME_BYTES_MAX + 1),)))


def test_a_pattern_finds_only_what_is_visible_and_names_find_the_rest() -> None:
    wish = Subscription(frozenset(("named",)), ".*", (("mine-*", "one"), ("mine-secret*",)))
    found = [
        name for name in ("mine-a", "mine-", "one", "one2", "mine-secret1", "theirs", "named") if wish.matches(name)
    ]
    assert found == ["mine-a", "mine-", "one", "named"]
    assert not Subscription(pattern=".*", visible=((), ())).matches("mine-a")
    assert not Subscription(pattern="a.*", visible=(("*",), ())).matches("mine-a")
    assert not Subscription(pattern=".*", visible=(("*",), ("*",))).matches("mine-a")


def test_what_is_visible_is_bounded() -> None:
    allowed = ("a" * VISIBLE_BYTES_MAX,)
    assert Subscription(pattern=".*", visible=(allowed, ()))
    with pytest.raises(IllegalRequest, match="by name"):
        Subscription(pattern=".*", visible=(allowed, ("b",)))
