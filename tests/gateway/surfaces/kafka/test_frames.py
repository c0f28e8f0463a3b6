"""Frames cut anywhere are the same frames; sizes and headers from strangers are bounded."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.surfaces.kafka.apis import API_VERSIONS, APIS
from gateway.surfaces.kafka.frames import (
    LARGE_BYTES,
    REQUEST_BYTES_MIN,
    ROOM_BYTES_MAX,
    Frames,
    read_header,
    response_head,
)
from gateway.surfaces.kafka.schema import Malformed

BYTES_MAX = 1000


def _frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def _request(key: int, version: int, client: bytes | None = b"me") -> memoryview:
    name = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client
    return memoryview(struct.pack(">hhi", key, version, 7) + name + b"\0\0")


@given(st.lists(st.binary(min_size=REQUEST_BYTES_MIN, max_size=60), max_size=8), st.lists(st.integers(0, 500)))
def test_frames_are_the_same_wherever_the_stream_is_cut(contents: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(_frame, contents))
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    frames = Frames(BYTES_MAX)
    found = [bytes(one) for low, high in pairwise(places) for one in _taken(frames, stream[low:high])]
    assert found == contents
    assert frames.is_between
    later = Frames(BYTES_MAX)
    for low, high in pairwise(places):  # what comes while frames wait is kept
        later.feed(stream[low:high])
    assert [bytes(one) for one in _taken(later, b"")] == contents


def _taken(frames: Frames, data: bytes) -> Iterator[memoryview]:
    if data:
        frames.feed(data)
    while (one := frames.take()) is not None:
        yield one


@given(
    st.lists(st.integers(REQUEST_BYTES_MIN, 20 * LARGE_BYTES), max_size=4), st.lists(st.integers(1, 4 * LARGE_BYTES))
)
def test_frames_are_the_same_whether_they_are_fed_or_read_to_where_they_stay(
    sizes: list[int], reads: list[int]
) -> None:
    contents = [bytes([number + 1]) * (size - 1) + b"$" for number, size in enumerate(sizes)]
    stream, found = b"".join(map(_frame, contents)), []
    frames, at, left = Frames(2**21), 0, reads
    while at < len(stream):
        size, left = (left[0], left[1:]) if left else (LARGE_BYTES, left)
        room = frames.room
        piece = stream[at : at + (size if room is None else min(size, len(room)))]
        at += len(piece)
        if room is None:
            found += map(bytes, _taken(frames, piece))
        else:
            room[: len(piece)] = piece
            frames.came(len(piece))
            found += map(bytes, _taken(frames, b""))
        if at % 7 == 0 and frames.room is not None:  # what is fed though there is room
            found += map(bytes, _taken(frames, stream[at : at + 9]))
            at += 9
    assert found == contents
    assert frames.is_between


@pytest.mark.parametrize("size", [ROOM_BYTES_MAX, ROOM_BYTES_MAX + 1])
def test_there_is_room_for_a_large_frame_and_none_for_a_larger_one(size: int) -> None:
    frames, stream = Frames(2**24), _frame(bytes(size - 4))
    frames.feed(stream[: LARGE_BYTES - 1])
    assert frames.room is None
    frames.feed(stream[LARGE_BYTES - 1 : LARGE_BYTES])
    have = LARGE_BYTES
    if size > ROOM_BYTES_MAX:
        assert frames.room is None
        frames.feed(stream[have:])
    while (room := frames.room) is not None:
        assert (len(room), len(cast(bytearray, room.obj))) == (size - have, size)
        frames.came(step := min(len(room), 100_000))
        have += step
    taken = frames.take()
    assert taken is not None
    assert taken.readonly is (size > ROOM_BYTES_MAX)
    small = Frames(2**24)
    small.feed(_frame(bytes(LARGE_BYTES - 5))[:-1])
    assert small.room is None
    frames.feed(stream[: 2 * LARGE_BYTES])
    frames.clear()
    assert (frames.room, frames.is_between) == (None, True)


def test_a_size_is_accepted_at_the_bound_and_not_beyond() -> None:
    assert [len(one) for one in _taken(Frames(BYTES_MAX), _frame(bytes(BYTES_MAX)))] == [BYTES_MAX]
    for size in (BYTES_MAX + 1, REQUEST_BYTES_MIN - 1, -1, 2**31 - 1):
        with pytest.raises(Malformed):
            list(_taken(Frames(BYTES_MAX), struct.pack(">i", size)))


def test_a_frame_that_waits_while_the_bound_is_raised_is_accepted() -> None:
    frames, content = Frames(BYTES_MAX), bytes(2 * BYTES_MAX)
    frames.feed(_frame(bytes(20)) + _frame(content)[:100])
    assert frames.take() is not None
    frames.bytes_max = len(content)  # as a client is known now
    assert frames.take() is None
    assert not frames.has_one
    assert [bytes(one) for one in _taken(frames, _frame(content)[100:])] == [content]


def test_what_waits_takes_little_more_memory_than_its_bytes() -> None:
    tracemalloc.start()
    try:
        small, slow = Frames(BYTES_MAX), Frames(20_000)
        small.feed(_frame(bytes(REQUEST_BYTES_MIN)) * 2_000)
        assert small.take() is not None
        slow.feed(_frame(bytes(20_000))[:50])
        for piece in (b"\0", b"\0\0", b"\0\0\0\0\0\0\0") * 500:
            slow.feed(piece)
        assert tracemalloc.get_traced_memory()[0] < 2 * (28_000 + 5_000)
    finally:
        tracemalloc.stop()


def test_a_request_of_http_is_refused_by_its_first_bytes() -> None:
    with pytest.raises(Malformed):
        list(_taken(Frames(16 * 1024 * 1024), b"GET / HTTP/1.1\r\n\r\n"))


def test_headers_have_tagged_fields_from_the_flexible_version_on() -> None:
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            header = read_header(_request(api.key, version))
            assert (header.key, header.version, header.correlation_id, header.client_id) == (api.key, version, 7, "me")
            assert header.at == 12 + (version >= api.flexible)
            tagged = version >= api.flexible and api.key != API_VERSIONS
            assert response_head(header, 10) == struct.pack(">ii", 14 + tagged, 7) + b"\0" * tagged


def test_what_is_not_served_is_refused_but_for_any_version_of_api_versions() -> None:
    assert read_header(_request(API_VERSIONS, 99)).version == 99
    for key, version in ((0, 2), (0, 10), (1, 13), (24, 0), (999, 0)):
        with pytest.raises(Malformed):
            read_header(_request(key, version))
    with pytest.raises(Malformed):
        read_header(memoryview(b"\0\x03\0\x01\0\0\0\x07\0\x10ab"))
    assert read_header(_request(3, 1, None)).client_id == ""
