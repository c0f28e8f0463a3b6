"""gateway/codec/documents.py: the same documents, however the body is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.documents import (
    DEPTH_MAX,
    TOO_LONG,
    Document,
    Lines,
    Splitter,
    Values,
    single_line,
    single_object,
)
from gateway.surfaces.http.produce_stream import ProduceStream

BYTES_MAX = 40


def cut(splitter: Splitter, body: bytes, steps: list[int]) -> list[Document]:
    documents: list[Document] = []
    at = 0
    for step in steps:
        documents += splitter.feed(body[at : at + step])
        at += step
    documents += splitter.feed(body[at:])
    return documents + splitter.finish()


@given(
    st.lists(
        st.one_of(st.binary(max_size=12), st.sampled_from([b"\n", b'{"a":"}"}', b'"\\"', b"[1]", b" ", b"x" * 50]))
    ),
    st.lists(st.integers(1, 9), max_size=30),
)
@pytest.mark.parametrize("kind", [Lines, Values])
def test_chunks_make_no_difference(kind: type[Lines] | type[Values], parts: list[bytes], steps: list[int]) -> None:
    body = b"".join(parts)
    whole, pieces = kind(bytes_max=BYTES_MAX), kind(bytes_max=BYTES_MAX)
    assert cut(pieces, body, steps) == cut(whole, body, [])
    assert pieces.is_broken == whole.is_broken


def test_lines_are_cut_at_line_breaks_and_blank_ones_are_none() -> None:
    assert cut(Lines(bytes_max=BYTES_MAX), b'{"a":1}\r\n\n  \n{"b":2}', []) == [b'{"a":1}\r', b'{"b":2}']


def test_a_line_may_have_the_limit_and_one_more_is_too_long() -> None:
    body = b"x" * BYTES_MAX + b"\n" + b"x" * (BYTES_MAX + 1) + b"\nnext\n"
    assert cut(Lines(bytes_max=BYTES_MAX), body, [1] * 30) == [b"x" * BYTES_MAX, TOO_LONG, b"next"]


def test_a_line_without_end_takes_no_memory() -> None:
    lines = Lines(bytes_max=BYTES_MAX)
    for _ in range(1000):
        assert lines.feed(b"x" * 100) == []
    assert lines._rest == []
    assert lines.finish() == [TOO_LONG]


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.text('{}[]"\\ab', max_size=5), max_size=2), max_size=5),
    st.text(" \r\n", max_size=2),
)
def test_values_are_told_apart_by_their_brackets(values: list[dict[str, str]], between: str) -> None:
    body = between.encode().join(map(orjson.dumps, values))
    assert [orjson.loads(one) for one in cut(Values(bytes_max=10_000), body, [])] == values  # type: ignore[arg-type]


def test_what_is_no_object_is_a_document_too() -> None:
    assert cut(Values(bytes_max=BYTES_MAX), b'{"a":1} nope {"b":2} 5', []) == [b'{"a":1}', b"nope", b'{"b":2}', b"5"]


def test_a_value_may_have_the_limit_and_one_more_ends_the_stream() -> None:
    fits = b'{"a":"' + b"x" * (BYTES_MAX - 8) + b'"}'
    assert len(fits) == BYTES_MAX
    assert cut(Values(bytes_max=BYTES_MAX), fits + fits, []) == [fits, fits]
    broken = Values(bytes_max=BYTES_MAX)
    assert cut(broken, b'{"a":"x' + fits[6:] + fits, []) == [TOO_LONG]
    assert broken.is_broken


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_a_value_may_be_nested_so_deep_and_one_more_ends_the_stream(bracket: bytes) -> None:
    closing = {b"[": b"]", b"{": b"}"}[bracket[:1]]
    fits = bracket * (DEPTH_MAX - 1) + b"[]" + closing * (DEPTH_MAX - 1)
    assert cut(Values(bytes_max=1_000_000), fits + b"{}", []) == [fits, b"{}"]
    broken = Values(bytes_max=1_000_000)
    (document,) = cut(broken, b"{}" + bracket * 100_000, [])[1:]
    assert broken.is_broken
    assert isinstance(document, bytes)
    assert len(document) <= len(bracket) * (DEPTH_MAX + 1)
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(document)
    assert broken.feed(b"{}") == []


async def test_a_piece_of_brackets_is_cut_in_turns_of_the_event_loop() -> None:
    """Covers ProduceStream, which feeds the splitter: nobody waits for a whole piece."""
    stream = ProduceStream.__new__(ProduceStream)
    stream._splitter = Values(bytes_max=BYTES_MAX)
    piece = b"[]" * (10 * Values.turn_bytes)
    turn_count = 0

    async def others() -> None:
        nonlocal turn_count
        while True:
            turn_count += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(others())
    assert await stream._documents(piece) == [b"[]"] * (10 * Values.turn_bytes)
    running.cancel()
    assert turn_count >= len(piece) // Values.turn_bytes


@given(
    st.lists(
        st.sampled_from(
            [b"\n", b" ", b"\r\n", b"\t", b"\v", b'{"a":"}"}', b'{"a":', b"1}", b"[1]", b"{}", b'"{"', b"1", b"x"]
        ),
        max_size=5,
    )
)
@pytest.mark.parametrize(("single", "kind"), [(single_line, Lines), (single_object, Values)])
def test_a_single_document_that_is_json_is_what_the_splitter_finds(
    single: Callable[[bytes], bytes | None], kind: type[Lines] | type[Values], parts: list[bytes]
) -> None:
    body = b"".join(parts)
    document = single(body)
    if document is None:
        return
    try:
        value = orjson.loads(document)
    except orjson.JSONDecodeError:
        return
    [found] = cut(kind(bytes_max=1_000), body, [])
    assert isinstance(found, bytes)
    assert orjson.loads(found) == value


@pytest.mark.parametrize("single", [single_line, single_object])
def test_a_single_document_may_have_white_space_around_it(single: Callable[[bytes], bytes | None]) -> None:
    assert single(b' {"a":1}\r\n') == b'{"a":1}'
    assert single(b"\n") is None
