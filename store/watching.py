"""Callbacks that are called with each change of something, by what they watch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)
Wake = TypeVar("Wake")


def watch(watching: dict[Key, dict[object, Wake]], key: Key, wake: Wake) -> Callable[[], None]:
    """Add `wake` to what is called for a key. What is returned takes it out again."""
    watched = _Watched(watching, key)
    watching.setdefault(key, {})[watched] = wake
    return watched


class _Watched:
    """What takes a callback out again, and under what it is kept. There are two for each socket that waits: this is
    less than half of a token and a partial, or a closure."""

    __slots__ = ("_key", "_watching")

    def __init__(self, watching: MutableMapping[Any, dict[object, Any]], key: Hashable) -> None:
        self._watching = watching
        self._key = key

    def __call__(self) -> None:
        if (of_key := self._watching.get(self._key)) is not None:
            of_key.pop(self, None)
            if not of_key:
                del self._watching[self._key]
