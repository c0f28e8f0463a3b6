"""gateway/api/pages.py"""

from __future__ import annotations

import base64
from typing import Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.pages import page_of
from gateway.errors import RequestError

Rows = dict[str, int]


def all_pages(rows: Rows, limit: int, order: Literal["asc", "desc"]) -> list[str]:
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = page_of(rows, lambda name: (rows[name], name), sort="size", order=order, cursor=cursor, limit=limit)
        assert page.total == len(rows)
        assert len(page.rows) <= limit
        names += page.rows
        cursor = page.next_cursor
        if cursor is None:
            return names
        assert page.rows


@given(
    st.dictionaries(st.text("abé", max_size=3), st.integers(0, 3)), st.integers(1, 4), st.sampled_from(["asc", "desc"])
)
def test_pages_have_every_row_once_in_order(rows: Rows, limit: int, order: Literal["asc", "desc"]) -> None:
    assert all_pages(rows, limit, order) == sorted(rows, key=lambda name: (rows[name], name), reverse=order == "desc")


def test_rows_that_come_and_go_repeat_and_hide_no_others() -> None:
    rows = dict.fromkeys("bdfh", 0)

    def page(cursor: str | None) -> tuple[list[str], str | None, int]:
        return page_of(rows, lambda name: (rows[name], name), sort="name", order="asc", cursor=cursor, limit=2)

    first, cursor, _ = page(None)
    assert first == ["b", "d"]
    del rows["d"]
    rows |= {"a": 0, "e": 0}
    assert page(cursor)[0] == ["e", "f"]
    rows.clear()
    assert page(cursor) == ([], None, 0)


def of(*content: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(content)).decode()


@pytest.mark.parametrize(
    "cursor",
    ["", "?", "é", "x" * 1024, of(), of("size", "asc", 1), of("size", "desc", 1, "a"), of("name", "asc", 1, "a"),
     of("size", "asc", "1", "a"), of("size", "asc", None, "a"), of("size", "asc", [], "a")],
)  # fmt: skip
def test_what_is_no_cursor_of_this_order_is_refused(cursor: str) -> None:
    with pytest.raises(RequestError) as refused:
        page_of(["a"], lambda name: (1, name), sort="size", order="asc", cursor=cursor, limit=1)
    assert refused.value.error_code == 40050
