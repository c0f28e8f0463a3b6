"""Strategies by name, their options, and plug-ins."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from gateway.groups.machines.strategies.base import Partition, Strategy, StrategyContext
from gateway.groups.machines.strategies.registry import ENTRY_POINT_GROUP, StrategyRegistry, installed
from gateway.groups.machines.strategies.sticky import Sticky

BUILT_IN = [
    "averagely",
    "averagely_by_circle",
    "by_config",
    "consistent_hash",
    "machine_room",
    "machine_room_nearby",
    "sticky",
]
OPTIONS: dict[str, dict[str, object]] = {
    "by_config": {"partitions": {"m1": [["orders", 0]]}},
    "machine_room": {"rooms": ["a"]},
    "consistent_hash": {"virtual_nodes": 3},
    "machine_room_nearby": {"inner": "consistent_hash", "virtual_nodes": 3},
}


def test_all_built_in_strategies_are_there_and_know_their_names() -> None:
    registry = StrategyRegistry()
    assert registry.names() == BUILT_IN
    for name in BUILT_IN:
        assert registry.make(name, StrategyContext(options=OPTIONS.get(name, {}))).name == name


def test_options_reach_the_strategy() -> None:
    strategy = StrategyRegistry().make("by_config", StrategyContext(options=OPTIONS["by_config"]))
    p0, p1 = Partition("orders", 16, 0), Partition("orders", 16, 1)
    assert strategy.allocate(["m1"], [p0, p1], {}) == {"m1": [p0]}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("consistent_hash", {"virtual_nodes": 0}),
        ("consistent_hash", {"virtual_nodes": True}),
        ("by_config", {}),
        ("by_config", {"partitions": {"m1": "orders"}}),
        ("by_config", {"partitions": {"m1": [["orders"]]}}),
        ("machine_room", {"rooms": []}),
        ("machine_room", {"rooms": [1]}),
        ("machine_room_nearby", {"inner": "machine_room_nearby"}),
        ("machine_room_nearby", {"inner": 1}),
        ("by_moon", {}),
    ],
)
def test_what_a_strategy_cannot_take_is_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        StrategyRegistry().make(name, StrategyContext(options=options))


def test_a_plug_in_is_loaded_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = EntryPoint("by_country", "country_strategies:make", ENTRY_POINT_GROUP)
    registry = StrategyRegistry([plugin])  # its module does not exist yet
    assert "by_country" in registry.names()
    made: list[StrategyContext] = []

    def make(context: StrategyContext) -> Strategy:
        made.append(context)
        return Sticky()

    module = ModuleType("country_strategies")
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "country_strategies", module)
    context = StrategyContext(options={"country": "de"})
    assert isinstance(registry.make("by_country", context), Sticky)
    assert made == [context]


def test_a_plug_in_cannot_take_the_name_of_a_built_in() -> None:
    with pytest.raises(ValueError, match="sticky"):
        StrategyRegistry([EntryPoint("sticky", "m:make", ENTRY_POINT_GROUP)])


def test_installed_packages_are_asked() -> None:
    assert all(plugin.group == ENTRY_POINT_GROUP for plugin in installed())
