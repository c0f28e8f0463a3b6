"""Ids of what a node has carry the node: of schedules (`n1.sAAAB…`), connections, sessions. Of a server that is alone
they have no such beginning."""

from __future__ import annotations

_MARK = "."


def with_node(node: str | None, schedule_id: str) -> str:
    """The id as clients of a node know it; None: of a server that is alone."""
    return schedule_id if node is None else f"{node}{_MARK}{schedule_id}"


def split_node(text: str) -> tuple[str | None, str]:
    """The node that an id names, if any, and the rest."""
    node, mark, schedule_id = text.partition(_MARK)
    return (node, schedule_id) if mark else (None, text)
