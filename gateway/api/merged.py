"""Lists of several nodes as one: what each has answered for itself, merged. Pure.

Rows stay the bytes that their node wrote; only what they are ordered by is looked at. A page's cursor names its last
row by what rows are ordered by (pages.py), not where it stood: so one cursor is right at every node, and each is asked
for the whole page. A node that did not answer is named in `missing_nodes`: its rows are not there, and not skipped in
silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import orjson

from gateway.api.pages import Order, SortKey, cursor_of, decode_after, encode_after
from gateway.codec.schedule_ids import split_node
from gateway.errors import CURSOR_ILLEGAL, RequestError

MISSING = "missing_nodes"
"""The field that names the nodes of which a list has nothing."""

Texts = Mapping[str, bytes]
"""JSON objects of nodes, by node."""

Fields = dict[str, msgspec.Raw]

_CURSOR = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ROWS = msgspec.json.Decoder(list[msgspec.Raw])


class Rows(NamedTuple):
    """How the rows of a list are ordered: the field they are in, the one with their name, and, by what a page is sorted
    by, the field with the figure."""

    field: str
    name: str
    figures: Mapping[str, str] = MappingProxyType({})


def merged_list(texts: Texts, rows: Rows, missing: Sequence[str]) -> dict[str, object]:
    """All rows, by name; what else there is, as the first node says it."""
    found = [row for text in texts.values() for row in rows_of(text, rows.field)]
    found.sort(key=lambda row: str(_value(row, rows.name)))
    return _answer(texts, {rows.field: [_shown(row) for row in found]}, missing)


def merged_page(
    texts: Texts, rows: Rows, missing: Sequence[str], *, sort: str, order: Order, limit: int
) -> dict[str, object]:
    """The first rows of the pages of all nodes, which they were asked for with the same cursor and limit."""
    figure = rows.figures.get(sort)

    def key(row: bytes) -> SortKey:
        name = str(_value(row, rows.name))
        return (0 if figure is None else _figure(_value(row, figure))), name

    found = [row for text in texts.values() for row in rows_of(text, rows.field)]
    found.sort(key=key, reverse=order == "desc")
    is_last = len(found) <= limit and not any(_value(text, "next_cursor") for text in texts.values())
    found = found[:limit]
    more = {
        rows.field: [_shown(row) for row in found],
        "next_cursor": None if is_last or not found else cursor_of(sort, order, key(found[-1])),
        "total": sum(_value(text, "total") for text in texts.values()),
    }
    return _answer(texts, more, missing)


def merged_names(texts: Texts, rows: Rows, missing: Sequence[str], *, limit: int) -> dict[str, object]:
    """As `merged_page`, of a list by name whose cursor is the name of the last row."""
    found = [row for text in texts.values() for row in rows_of(text, rows.field)]
    found.sort(key=lambda row: str(_value(row, rows.name)))
    is_last = len(found) <= limit and not any(_value(text, "next_cursor") for text in texts.values())
    found = found[:limit]
    cursor = None if is_last or not found else _value(found[-1], rows.name)
    return _answer(texts, {rows.field: [_shown(row) for row in found], "next_cursor": cursor}, missing)


def merged_behind(texts: Texts, rows: Rows, missing: Sequence[str], *, limit: int) -> dict[str, object]:
    """As `merged_names`, of a list of which a caller may not see all: the cursor of a page (pages.encode_after) names
    the last row that its node has looked at."""
    cursors = [cursor for text in texts.values() if (cursor := _value(text, "next_cursor")) is not None]
    looked_at = min(map(decode_after, cursors), default=None)
    found = {str(_value(row, rows.name)): row for text in texts.values() for row in rows_of(text, rows.field)}
    names = sorted(name for name in found if looked_at is None or name <= looked_at)
    if len(names) > limit:
        names = names[:limit]
        looked_at = names[-1]
    cursor = None if looked_at is None else encode_after(looked_at)
    return _answer(texts, {rows.field: [_shown(found[name]) for name in names], "next_cursor": cursor}, missing)


def added(texts: Texts, fields: Sequence[str], missing: Sequence[str]) -> dict[str, object]:
    """What nodes have counted, added up: numbers, and lists of numbers place by place."""
    sums: dict[str, object] = {}
    for field in fields:
        values = [_value(text, field) for text in texts.values()]
        sums[field] = [sum(each) for each in zip(*values, strict=True)] if isinstance(values[0], list) else sum(values)
    return _answer(texts, sums, missing)


# ---- delayed records ------------------------------------------------------------------------------------------------

AT = "at"
"""The field of a delayed record in an answer for other nodes: its cursor at its node."""


class Place(NamedTuple):
    """Where a merged list of delayed records goes on: behind a cursor of a node, in the order of nodes."""

    node: str
    cursor: str


def read_place(text: str) -> Place:
    """The place that a merged page has named. Raises RequestError 400/40050."""
    cursor, _, node = text.rpartition("@")
    if not node or not _CURSOR.fullmatch(cursor):
        raise RequestError(CURSOR_ILLEGAL, "cursor: not one that a page of this cluster has named")
    return Place(node, cursor)


def cursors_by_due(nodes: Sequence[str], place: Place | None) -> dict[str, str | None]:
    """What each node is asked for, in the order of due times; of one due time, nodes follow by name."""
    if place is None:
        return dict.fromkeys(nodes)
    due_ms, _, _ = place.cursor.partition(".")
    behind = {True: str(10**18 - 1), False: None}
    cursors: dict[str, str | None] = {}
    for node in nodes:
        if node == place.node:
            cursors[node] = place.cursor
        elif node < place.node:
            cursors[node] = f"{due_ms}.{behind[True]}"
        else:  # nothing of this due time was shown: behind all that is due a millisecond before
            cursors[node] = f"{int(due_ms) - 1}.{behind[True]}" if int(due_ms) else None
    return cursors


def merged_by_due(texts: Texts, missing: Sequence[str], *, limit: int) -> dict[str, object]:
    """The first delayed records of all nodes. A node's page that is short has told nothing of what is behind it: the
    merged one ends there, too."""
    found: list[tuple[tuple[int, str, int], bytes, str]] = []
    ends: list[tuple[tuple[int, str, int], str]] = []
    for node, text in texts.items():
        for row in rows_of(text, "schedules"):
            at = str(_value(row, AT))
            found.append((_due_key(at, node), row, at))
        if (end := _value(text, "next_cursor")) is not None:
            ends.append((_due_key(end, node), end))
    found.sort(key=lambda each: each[0])
    until = min(ends, default=None)
    if until is not None:
        found = [each for each in found if each[0] <= until[0]]
    next_cursor = None
    if len(found) > limit:
        found = found[:limit]
        key, _, at = found[-1]
        next_cursor = f"{at}@{key[1]}"
    elif until is not None:
        next_cursor = f"{until[1]}@{until[0][1]}"
    return _schedules(texts, [row for _, row, _ in found], next_cursor, missing)


def cursors_in_turn(nodes: Sequence[str], place: Place | None) -> dict[str, str | None]:
    """What each node is asked for, in the order of acceptance: one node after the other, those before `place` only for
    what they count."""
    if place is None:
        return dict.fromkeys(nodes)
    return {node: place.cursor if node == place.node else None for node in nodes if node >= place.node}


def merged_in_turn(
    texts: Texts, missing: Sequence[str], *, first: str, limit: int, known: Sequence[str]
) -> dict[str, object]:
    """The delayed records of one node after the other, from node `first` on, as many as there is room for. `known`: all
    nodes, by name."""
    found: list[bytes] = []
    for node in known:
        if node < first or node not in texts:
            continue
        rows = rows_of(texts[node], "schedules")
        room = limit - len(found)
        if len(rows) > room:
            found += rows[:room]
            return _schedules(texts, found, f"{_value(rows[room], AT)}@{node}", missing)
        found += rows
        if (end := _value(texts[node], "next_cursor")) is not None:
            return _schedules(texts, found, f"{end}@{node}", missing)
    return _schedules(texts, found, None, missing)


def _schedules(
    texts: Texts, rows: Sequence[bytes], next_cursor: str | None, missing: Sequence[str]
) -> dict[str, object]:
    totals = [_value(text, "total") for text in texts.values()]
    shown = []
    for row in rows:
        fields = _FIELDS.decode(row)
        fields.pop(AT)
        shown.append({name: _shown(value) for name, value in fields.items()})
    total = None if None in totals else sum(totals)
    return _answer(texts, {"schedules": shown, "next_cursor": next_cursor, "total": total}, missing)


def _due_key(at: str, node: str) -> tuple[int, str, int]:
    due_ms, _, position = at.partition(".")
    return int(due_ms), node, int(position)


def by_node(
    schedule_ids: Sequence[str], own: str, *, known: Collection[str], timer_owner: Callable[[str], str | None]
) -> dict[str, list[int]]:
    """The places of ids in a list, by the node that each names, or that has the shard that it names; those that name
    none of these are for this node."""
    found: dict[str, list[int]] = {}
    for place, text in enumerate(schedule_ids):
        node = split_node(text)[0] or timer_owner(text)
        found.setdefault(node if node in known else own, []).append(place)  # type: ignore[arg-type]
    return found


# ---- JSON -----------------------------------------------------------------------------------------------------------


def rows_of(text: bytes, field: str) -> list[bytes]:
    """The JSON of each row of an answer."""
    return [bytes(row) for row in _ROWS.decode(_FIELDS.decode(text)[field])]


def _value(text: bytes, field: str) -> Any:
    raw = _FIELDS.decode(text).get(field)
    return None if raw is None else msgspec.json.decode(raw)


def _figure(value: object) -> int | float | str:
    return value if isinstance(value, int | float | str) else 0


def _shown(raw: bytes | msgspec.Raw) -> orjson.Fragment:
    return orjson.Fragment(bytes(raw))


def _answer(texts: Texts, fields: Mapping[str, object], missing: Sequence[str]) -> dict[str, object]:
    first = next(iter(texts.values()))
    shown: dict[str, object] = {name: _shown(value) for name, value in _FIELDS.decode(first).items()}
    return {**shown, **fields, MISSING: list(missing)}
