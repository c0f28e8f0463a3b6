"""What installed packages add to a server: their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


def plugins(group: str) -> Iterable[EntryPoint]:
    """The entry points of a group. A process reads each package's once, for all groups."""
    found: Iterable[EntryPoint] = _installed(tuple(sys.path)).select(group=group)
    return found


@cache
def _installed(path: tuple[str, ...]) -> Any:
    """All that the packages on `path` name; its type is not the same in all versions of Python."""
    return entry_points()
