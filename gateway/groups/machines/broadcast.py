"""Broadcasting: every member of a group gets every record.

A broadcasting group is as many groups of one member as it has members, each named `group/member`. So a member owns
all partitions it wants, commits under its own generation, and keeps its own offsets: they belong to `group/member`,
and a member that comes back under its name goes on where it was. Group names hold no "/", so the names cannot collide.
"""

from __future__ import annotations

from functools import lru_cache

_SEPARATOR = "/"


def lone_group(group: str, member_id: str) -> str:
    """The name under which one member of a broadcasting group is a group of its own."""
    return f"{group}{_SEPARATOR}{member_id}"


@lru_cache(maxsize=4096)  # each receive and each ack asks several times
def group_of(name: str) -> str:
    """The group that clients know behind a name."""
    return name.partition(_SEPARATOR)[0]


def is_lone(name: str) -> bool:
    """Whether this is one member of a broadcasting group."""
    return _SEPARATOR in name


def member_of(name: str) -> str:
    """The member whose own group this is."""
    return name.partition(_SEPARATOR)[2]
