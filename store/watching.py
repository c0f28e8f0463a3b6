"""Callbacks that are called with each change of something, by what they watch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def watch(
    watching: dict[Key, dict[object, Callable[[], None]]], key: Key, wake: Callable[[], None]
) -> Callable[[], None]:
    """Add `wake` to what is called for a key. What is returned takes it out again: no closure, as there is one for each
    socket that waits, and cells are objects for the garbage collector to look at."""
    token = object()
    watching.setdefault(key, {})[token] = wake
    return partial(_unwatch, watching, key, token)


def _unwatch(watching: dict[Key, dict[object, Callable[[], None]]], key: Key, token: object) -> None:
    if (of_key := watching.get(key)) is not None:
        of_key.pop(token, None)
        if not of_key:
            del watching[key]
