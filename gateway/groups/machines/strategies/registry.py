"""Allocation strategies by name: the built-in ones, and those of installed packages.

A package adds one with an entry point of group `mq.allocation_strategies`; the entry point names a factory that takes a
`StrategyContext` (see `base`):

    [project.entry-points."mq.allocation_strategies"]
    by_country = "my_package.strategies:by_country"

Options of the built-in ones, as in a group's JSON:

    consistent_hash       {"virtual_nodes": 10}
    by_config             {"partitions": {"member-1": [["orders", 0], ["orders", 1]]}}
    machine_room          {"rooms": ["a", "b"]}
    machine_room_nearby   {"inner": "averagely", and the options of the inner one}
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint

from gateway.groups.machines.strategies.averagely import Averagely
from gateway.groups.machines.strategies.averagely_by_circle import AveragelyByCircle
from gateway.groups.machines.strategies.base import Factory, Strategy, StrategyContext
from gateway.groups.machines.strategies.by_config import ByConfig
from gateway.groups.machines.strategies.consistent_hash import VIRTUAL_NODES, ConsistentHash
from gateway.groups.machines.strategies.machine_room import MachineRoom
from gateway.groups.machines.strategies.machine_room_nearby import MachineRoomNearby
from gateway.groups.machines.strategies.sticky import Sticky
from gateway.plugins import plugins

ENTRY_POINT_GROUP = "mq.allocation_strategies"


def installed() -> Iterable[EntryPoint]:
    """What installed packages offer."""
    return plugins(ENTRY_POINT_GROUP)


class StrategyRegistry:
    """Makes strategies; loads a plug-in when it is first used. Raises ValueError when one takes a built-in's name."""

    def __init__(self, plugins: Iterable[EntryPoint] = ()) -> None:
        self._built_in: dict[str, Factory] = {
            Averagely.name: lambda _: Averagely(),
            AveragelyByCircle.name: lambda _: AveragelyByCircle(),
            ConsistentHash.name: _consistent_hash,
            ByConfig.name: _by_config,
            MachineRoom.name: _machine_room,
            MachineRoomNearby.name: self._machine_room_nearby,
            Sticky.name: lambda _: Sticky(),
        }
        self._plugins = {plugin.name: plugin for plugin in plugins}
        if taken := self._built_in.keys() & self._plugins.keys():
            raise ValueError(f"a plug-in takes the name of a built-in strategy: {', '.join(sorted(taken))}")

    def names(self) -> list[str]:
        """All strategies there are."""
        return sorted(self._built_in.keys() | self._plugins.keys())

    def make(self, name: str, context: StrategyContext) -> Strategy:
        """A strategy by name. Raises ValueError for an unknown name, or options it cannot take."""
        if name in self._built_in:
            return self._built_in[name](context)
        if name in self._plugins:
            factory: Factory = self._plugins[name].load()
            return factory(context)
        raise ValueError(f"unknown allocation strategy {name}; there are {', '.join(self.names())}")

    def _machine_room_nearby(self, context: StrategyContext) -> Strategy:
        inner = context.options.get("inner", Averagely.name)
        if not isinstance(inner, str) or inner == MachineRoomNearby.name:
            raise ValueError('machine_room_nearby: "inner" must be the name of another strategy')
        inside = self.make(inner, context)
        return MachineRoomNearby(
            inside, context.broker_of, context.room_of_member, context.room_of_broker, context.warn
        )


def _consistent_hash(context: StrategyContext) -> Strategy:
    virtual_nodes = context.options.get("virtual_nodes", VIRTUAL_NODES)
    if type(virtual_nodes) is not int or not 1 <= virtual_nodes <= 1000:
        raise ValueError('consistent_hash: "virtual_nodes" must be a number from 1 to 1000')
    return ConsistentHash(context.broker_of, virtual_nodes)


def _by_config(context: StrategyContext) -> Strategy:
    match context.options.get("partitions"):
        case dict() as lists:
            return ByConfig({str(member): [_pair(pair) for pair in _pairs(pairs)] for member, pairs in lists.items()})
        case _:
            raise ValueError('by_config: "partitions" must map members to lists of [topic, partition]')


def _pairs(pairs: object) -> list[object]:
    if not isinstance(pairs, list):
        raise ValueError("by_config: a member's partitions must be a list of [topic, partition]")
    return pairs


def _pair(pair: object) -> tuple[str, int]:
    match pair:
        case [str() as topic, int() as partition]:
            return topic, partition
        case _:
            raise ValueError(f"by_config: {pair} is not [topic, partition]")


def _machine_room(context: StrategyContext) -> Strategy:
    match context.options.get("rooms"):
        case list() as rooms if rooms and all(isinstance(room, str) for room in rooms):
            return MachineRoom(context.broker_of, rooms, context.room_of_broker, context.warn)
        case _:
            raise ValueError('machine_room: "rooms" must be a list of names')
