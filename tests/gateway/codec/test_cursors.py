"""gateway/codec/cursors.py"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.cursors import parse_cursor, write_cursor
from gateway.errors import RequestError
from store.types import OFFSET_MAX

NAMES = st.text("abz09._%-", min_size=1, max_size=8)


@given(
    st.dictionaries(NAMES, st.dictionaries(st.integers(0, 999), st.integers(0, OFFSET_MAX), min_size=1), min_size=1),
    st.data(),
)
def test_a_cursor_comes_back_as_it_was_written(offsets: dict[str, dict[int, int]], data: st.DataObject) -> None:
    epochs = {name: str(number) for number, name in enumerate(offsets) if data.draw(st.booleans())}
    next_offsets = [(name, partition, offset) for name, of in offsets.items() for partition, offset in of.items()]
    cursor = parse_cursor(write_cursor(next_offsets, epochs))
    assert (cursor.offsets, cursor.epochs) == (offsets, epochs)


def test_the_first_place_of_a_topic_names_its_epoch() -> None:
    next_offsets = [("a", 0, 5), ("a", 1, 6), ("b", 0, 7)]
    assert write_cursor(next_offsets, {"a": "16", "b": "17"}) == "a@16:0=5;a:1=6;b@17:0=7"


def test_kafka_sse_cursors_are_read_too() -> None:
    cursor = parse_cursor('[{"topic": "a", "partition": 0, "offset": 5}, {"topic": "a", "partition": 1, "offset": 0}]')
    assert (cursor.offsets, cursor.epochs) == ({"a": {0: 5, 1: 0}}, {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:0",
        "a:0=",
        "a:0=-1",
        "a:x=1",
        "a b:0=1",
        "a:0=1;a:0=2",
        "a@1:0=1;a@2:1=1",
        f"a:0={OFFSET_MAX + 1}",
        "[",
        "[1]",
        '[{"topic": "a"}]',
        '[{"topic": "a", "partition": 0, "timestamp": 1}]',
        '[{"topic": "a", "partition": 0, "offset": -1}]',
        '[{"topic": "a", "partition": true, "offset": 1}]',
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_cursor(text)
    assert caught.value.error_code == 40050


@given(st.text(max_size=60))
def test_any_text_is_a_cursor_or_is_refused(text: str) -> None:
    refusal = None
    try:
        parse_cursor(text)
    except RequestError as error:
        refusal = error
    assert refusal is None or refusal.error_code == 40050
