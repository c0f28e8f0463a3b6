"""Pages of rows that are in memory: sorted, cut behind a cursor, as long as asked for. Pure.

A cursor names the last row of its page by what it was sorted by and its name, so that rows which come or go meanwhile
neither repeat others nor hide them. A row whose figure has changed meanwhile may be met twice, or not at all.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

import orjson

from gateway.errors import CURSOR_ILLEGAL, RequestError

SORTED_IN_LOOP = 1_000
"""Rows that are sorted by a figure in the event loop: a millisecond."""

Row = TypeVar("Row")
Order = Literal["asc", "desc"]
Figure = str | int | float
SortKey = tuple[Figure, str]
"""What a row is sorted by, and its name, which no other row has."""


class Page(NamedTuple, Generic[Row]):
    """Some rows in order, the cursor of the next ones (None: these are the last), and how many rows there are."""

    rows: list[Row]
    next_cursor: str | None
    total: int


def encode_after(name: str) -> str:
    """The cursor behind a name, of rows in the order of their names alone."""
    return base64.urlsafe_b64encode(name.encode()).decode()


def decode_after(cursor: str) -> str:
    """The name in a cursor of `encode_after`. Raises RequestError 400/40050."""
    try:
        return base64.b64decode(cursor, b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise _no_cursor() from None


def page_of(
    rows: Iterable[Row],
    key: Callable[[Row], SortKey],
    *,
    sort: str,
    order: Order,
    cursor: str | None,
    limit: int,
    is_sorted: bool = False,
) -> Page[Row]:
    """The page behind a cursor. `sort` names what `key` gives: a cursor is good for its own order alone. `is_sorted`:
    the rows are in ascending order already. Raises RequestError 400/40050."""
    if is_sorted:
        ordered = list(rows)
        if order == "desc":
            ordered.reverse()
    else:
        ordered = sorted(rows, key=key, reverse=order == "desc")
    first = 0
    if cursor is not None:
        after = _read(cursor, sort, order)
        if ordered and isinstance(after[0], str) is not isinstance(key(ordered[0])[0], str):
            raise _no_cursor()
        first = _behind(ordered, key, after, order)
    found = ordered[first : first + limit]
    is_last = first + limit >= len(ordered)
    next_cursor = None if is_last or not found else _write(sort, order, key(found[-1]))
    return Page(found, next_cursor, len(ordered))


def write_cursor(key: Sequence[Figure]) -> str:
    """The cursor of a row, by its key in a list whose order never changes."""
    return base64.urlsafe_b64encode(orjson.dumps(list(key))).rstrip(b"=").decode()


def read_cursor(cursor: str | None, kinds: tuple[type, ...]) -> list[Figure] | None:
    """The key that a cursor names, its fields of these types; None without a cursor. Raises RequestError 400/40050."""
    if cursor is None:
        return None
    content = _decoded(cursor)
    if not isinstance(content, list) or tuple(map(type, content)) != kinds:
        raise _no_cursor()
    return content


def _behind(ordered: Sequence[Row], key: Callable[[Row], SortKey], after: SortKey, order: Order) -> int:
    """The index of the first row behind a key, by bisection."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        found = key(ordered[middle])
        if found > after if order == "asc" else found < after:
            high = middle
        else:
            low = middle + 1
    return low


def _write(sort: str, order: Order, key: SortKey) -> str:
    return write_cursor([sort, order, *key])


def _read(cursor: str, sort: str, order: Order) -> SortKey:
    """Raises RequestError."""
    match _decoded(cursor):
        case [str(of), str(towards), (str() | int() | float()) as figure, str(name)] if (of, towards) == (sort, order):
            return figure, name
    raise _no_cursor()


def _decoded(cursor: str) -> object:
    try:
        content: object = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise _no_cursor() from None
    return content


def _no_cursor() -> RequestError:
    return RequestError(CURSOR_ILLEGAL, "cursor: not one that a page in this order has named")
