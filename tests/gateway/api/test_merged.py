"""gateway.api.merged: pages of several nodes, turned one after the other, are the list of all rows: each once, in
order, whichever node has it, however short a node's page is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import orjson
import pytest

from gateway.api import merged
from gateway.api.merged import AT, Rows
from gateway.api.pages import Order, decode_after, encode_after, page_of
from gateway.errors import CURSOR_ILLEGAL, RequestError

NODES = ("n1", "n2", "n3")
GROUPS = Rows("groups", "group", {"lag": "lag"})


def page(rows: Sequence[Mapping[str, Any]], *, sort: str, order: Order, cursor: str | None, limit: int) -> bytes:
    """What a node answers."""

    def key(row: Mapping[str, Any]) -> tuple[int, str]:
        return (row["lag"] or 0 if sort == "lag" else 0), row["group"]

    one = page_of(rows, key, sort=sort, order=order, cursor=cursor, limit=limit)
    return orjson.dumps({"groups": one.rows, "next_cursor": one.next_cursor, "total": one.total})


@pytest.mark.parametrize("sort", ["name", "lag"])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("seed", range(5))
def test_pages_by_any_figure_are_one_list(seed: int, sort: str, order: Order) -> None:
    random = Random(seed)
    rows: dict[str, list[dict[str, Any]]] = {node: [] for node in NODES}
    for number in range(40):
        lag = random.choice([None, 0, random.randrange(6)])
        rows[random.choice(NODES)].append({"group": f"g{random.randrange(100)}-{number}", "lag": lag})
    every = [row for some in rows.values() for row in some]
    whole = merged_page(rows, sort, order, None, 100)
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        shown = merged_page(rows, sort, order, cursor, random.randrange(1, 9))
        assert shown["total"] == len(every)
        assert shown["missing_nodes"] == []
        found += shown["groups"]
        if (cursor := shown["next_cursor"]) is None:
            break
    assert found == whole["groups"]
    assert sorted(row["group"] for row in found) == sorted(row["group"] for row in every)
    figures = [(row["lag"] or 0) if sort == "lag" else 0 for row in found]
    assert figures == sorted(figures, reverse=order == "desc")


def merged_page(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], sort: str, order: Order, cursor: str | None, limit: int
) -> dict[str, Any]:
    texts = {node: page(some, sort=sort, order=order, cursor=cursor, limit=limit) for node, some in rows.items()}
    answer = merged.merged_page(texts, GROUPS, (), sort=sort, order=order, limit=limit)
    return dict(orjson.loads(orjson.dumps(answer)))


def due_page(rows: Sequence[tuple[int, int]], cursor: str | None, limit: int, short: int) -> bytes:
    """What a node answers by due time, `short` rows at most, as its page may be."""
    after = (-1, -1) if cursor is None else tuple(map(int, cursor.split(".")))
    behind = sorted(row for row in rows if row > after)
    shown = behind[: min(limit, short)]
    at = [f"{due_ms}.{position}" for due_ms, position in shown]
    next_cursor = None if len(shown) == len(behind) else (at[-1] if at else f"{behind[0][0]}.{behind[0][1] - 1}")
    schedules = [{"deliver_at": row[0], "name": text, AT: text} for row, text in zip(shown, at, strict=True)]
    return orjson.dumps({"schedules": schedules, "next_cursor": next_cursor, "total": len(rows)})


@pytest.mark.parametrize("seed", range(20))
def test_pages_by_due_time_are_one_list_though_a_nodes_page_is_short(seed: int) -> None:
    random = Random(seed)
    rows = {node: [(random.randrange(8), position) for position in range(1, random.randrange(1, 13))] for node in NODES}
    expected = sorted((due_ms, node, position) for node, some in rows.items() for due_ms, position in some)
    found: list[tuple[int, str, int]] = []
    cursor = None
    for _ in range(500):
        limit = random.randrange(1, 6)
        place = None if cursor is None else merged.read_place(cursor)
        texts = {
            node: due_page(rows[node], asked, limit, random.randrange(5))
            for node, asked in merged.cursors_by_due(NODES, place).items()
        }
        shown = orjson.loads(orjson.dumps(merged.merged_by_due(texts, (), limit=limit)))
        assert len(shown["schedules"]) <= limit
        assert all(AT not in row for row in shown["schedules"]), "of this exchange alone"
        for row in shown["schedules"]:
            due_ms, _, position = row["name"].partition(".")
            node = next(node for node in NODES if (int(due_ms), int(position)) in rows[node] and
                        (int(due_ms), node, int(position)) not in found)  # fmt: skip
            found.append((int(due_ms), node, int(position)))
        if (cursor := shown["next_cursor"]) is None:
            break
    assert found == expected
    assert shown["total"] == len(expected)


@pytest.mark.parametrize("seed", range(10))
def test_in_the_order_of_acceptance_one_node_follows_the_other(seed: int) -> None:
    random = Random(seed)
    rows = {node: list(range(random.randrange(12))) for node in NODES}
    expected = [(node, position) for node in NODES for position in rows[node]]
    found: list[tuple[str, int]] = []
    cursor = None
    for _ in range(500):
        limit = random.randrange(1, 6)
        place = None if cursor is None else merged.read_place(cursor)
        texts = {}
        cursors = merged.cursors_in_turn(NODES, place)
        for node in NODES:
            first = int(cursors.get(node) or 0)
            some = rows[node][first : first + min(limit, random.randrange(1, 5))]
            end = first + len(some)
            schedules = [{"name": [node, position], AT: str(position)} for position in some]
            next_cursor = None if end == len(rows[node]) else str(end)
            texts[node] = orjson.dumps({"schedules": schedules, "next_cursor": next_cursor, "total": len(rows[node])})
        first_node = NODES[0] if place is None else place.node
        answer = merged.merged_in_turn(texts, (), first=first_node, limit=limit, known=NODES)
        shown = orjson.loads(orjson.dumps(answer))
        found += [(node, position) for node, position in (row["name"] for row in shown["schedules"])]
        if (cursor := shown["next_cursor"]) is None:
            break
    assert found == expected


def test_what_is_missing_is_named_and_numbers_are_kept_as_they_were_written() -> None:
    texts = {"n1": b'{"groups":[{"group":"b","lag":1.0}]}', "n3": b'{"groups":[{"group":"a","lag":1e400}]}'}
    shown = orjson.dumps(merged.merged_list(texts, GROUPS, ["n2"]))
    assert shown == b'{"groups":[{"group":"a","lag":1e400},{"group":"b","lag":1.0}],"missing_nodes":["n2"]}'


def test_counts_are_added_place_by_place() -> None:
    texts = {"n1": b'{"counts":[1,2],"total":3,"from":7}', "n2": b'{"counts":[10,0],"total":10,"from":9}'}
    shown = orjson.loads(orjson.dumps(merged.added(texts, ("counts", "total"), [])))
    assert shown == {"counts": [11, 2], "total": 13, "from": 7, "missing_nodes": []}


def test_ids_go_to_the_nodes_that_they_name() -> None:
    ids = ["n2.s1", "s2", "n1.s3", "n9.s4", "n2.s5", "s6"]
    shards = {"s6": "n2"}
    found = merged.by_node(ids, "n1", known=NODES, timer_owner=shards.get)
    assert found == {"n2": [0, 4, 5], "n1": [1, 2, 3]}


@pytest.mark.parametrize("text", ["", "12", "12@", "x@n1", "1.@n1", ".1@n1", "1.2.3@n1", f"{'9' * 19}@n1"])
def test_a_cursor_of_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        merged.read_place(text)
    assert refused.value.error_code == CURSOR_ILLEGAL


@pytest.mark.parametrize("seed", range(5))
def test_pages_of_which_a_caller_sees_a_part_end_where_the_list_ends(seed: int) -> None:
    random = Random(seed)
    every = [f"g{number:02}" for number in range(60)]
    hidden = set(random.sample(every, 45))
    home = {name: random.choice(NODES) for name in every}
    of = {node: [name for name in every if home[name] == node] for node in NODES}

    def answer(node: str, after: str, limit: int) -> bytes:
        behind = [name for name in of[node] if name > after]
        page = behind[:limit]
        more = encode_after(page[-1]) if len(behind) > limit else None
        return orjson.dumps({"groups": [{"group": name} for name in page if name not in hidden], "next_cursor": more})

    found: list[str] = []
    cursor = None
    while True:
        limit = random.randrange(1, 9)
        after = "" if cursor is None else decode_after(cursor)
        texts = {node: answer(node, after, limit) for node in NODES}
        shown = orjson.loads(orjson.dumps(merged.merged_behind(texts, GROUPS, ["n4"], limit=limit)))
        assert shown["missing_nodes"] == ["n4"]
        assert len(shown["groups"]) <= limit
        found += [row["group"] for row in shown["groups"]]
        if (cursor := shown["next_cursor"]) is None:
            break
    assert found == [name for name in every if name not in hidden]
