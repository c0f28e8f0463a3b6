"""Selectors of installed packages: how a partition is chosen for records that name none, beyond what
gateway/routing/select.py knows.

A package adds one with an entry point of group `mq.selectors`, which names a factory without arguments; what it makes
has the method of `CustomSelector`:

    [project.entry-points."mq.selectors"]
    by_country = "my_package.selectors:ByCountry"

A topic names it (`{"selector": "by_country"}`), or a request (`?selector=by_country`). It is asked for each record, and
for a raw batch, which is not opened, once without key and headers. What it raises, or a partition that is not there,
fails the request before anything of it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import NamedTuple, Protocol, cast

from gateway.plugins import plugins
from gateway.routing.select import SELECTORS
from store.record_batch import Headers

ENTRY_POINT_GROUP = "mq.selectors"


class Selected(NamedTuple):
    """A record that needs a partition. `brokers` names the broker of each of the topic's partitions."""

    topic: str
    key: bytes | None
    headers: Headers
    brokers: tuple[str, ...]


class CustomSelector(Protocol):
    """What a package offers."""

    def select(self, record: Selected) -> int:
        """The partition: from 0, below `len(record.brokers)`. Called for each record of a send: it must not wait."""
        ...


def installed() -> Iterable[EntryPoint]:
    """What installed packages offer."""
    return plugins(ENTRY_POINT_GROUP)


def load(plugins: Iterable[EntryPoint]) -> Mapping[str, CustomSelector]:
    """The selectors by name. Raises ValueError when one takes a built-in's name, and what a package raises: a server
    that lacks a selector would refuse the sends of its topics."""
    found: dict[str, CustomSelector] = {}
    for plugin in plugins:
        if plugin.name in SELECTORS:
            raise ValueError(f"a plug-in takes the name of a built-in selector: {plugin.name}")
        found[plugin.name] = cast(CustomSelector, plugin.load()())
    return found
