"""Where a reader of a light queue begins, and whether it may: what pulls and event streams have in common."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from gateway.api.light import LightReader
from gateway.auth.access import Permission
from gateway.codec.cursors import parse_cursor
from gateway.errors import CURSOR_ILLEGAL, RequestError
from gateway.routing.base import TopicView
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway


def check_group(request: web.Request, view: TopicView, name: bytes, group: str | None) -> None:
    """Raises RequestError unless the caller may receive from a light queue, and in this group."""
    access_of(request).check(Permission.RECEIVE, topic=f"{view.name}/{name.decode()}", group=group)


async def cursor_offsets(gateway: Gateway, view: TopicView, cursor: str) -> dict[int, int]:
    """The next offsets that a cursor names, by partition. Raises RequestError."""
    parsed = parse_cursor(cursor)
    if set(parsed.offsets) != {view.name} or max(parsed.offsets[view.name]) >= view.partitions:
        raise RequestError(CURSOR_ILLEGAL, "cursor: not one that a pull of this topic has named")
    await gateway.consumer.check_epoch(view, parsed.epochs.get(view.name))
    return dict(parsed.offsets[view.name])


async def light_offsets(
    gateway: Gateway,
    view: TopicView,
    name: bytes,
    partitions: Sequence[int],
    *,
    cursor: str | None,
    group: str | None,
    is_latest: bool,
) -> dict[int, int]:
    """The next offset in each of these partitions: the cursor's, which may name others as well; without one the
    group's; else the end, or the beginning. A partition that the cursor does not name begins at its first record.
    Raises RequestError, NoLightQueues, UnknownQueue."""
    if cursor is not None:
        return {**dict.fromkeys(partitions, 0), **await cursor_offsets(gateway, view, cursor)}
    begin = await LightReader(gateway.routes_table).ends(view.name, name, partitions) if is_latest else {}
    offsets = {partition: begin.get(partition, 0) for partition in partitions}
    if group is not None:
        committed = gateway.groups.light_offsets.committed
        known = {one: committed(group, view.name, one, name.decode()) for one in partitions}
        offsets.update((partition, offset) for partition, offset in known.items() if offset is not None)
    return offsets
