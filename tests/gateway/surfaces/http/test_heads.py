"""gateway/surfaces/http/heads.py: requests with a remembered head are found, whatever their length; nothing else is."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage

from gateway.surfaces.http.heads import HEAD_BYTES_MAX, HEADS_MAX, LENGTH_DIGITS_MAX, HeadMemo

HEAD = b"POST / HTTP/1.1\r\nContent-Length: %b\r\nHost: h\r\n\r\n"
TWO = HEAD % b"2"


def learn(memo: HeadMemo[str], data: bytes, meaning: str = "it") -> None:
    """As `Connection` does."""
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16)
        messages, _, _ = parser.feed_data(data)
    finally:
        loop.close()
    message = messages[0][0]
    assert isinstance(message, RawRequestMessage)
    memo.remember(data, message, meaning)


def test_a_request_is_found_whole_or_not_whatever_its_length() -> None:
    memo: HeadMemo[str] = HeadMemo()
    learn(memo, TWO + b"ab")
    for body in (b"ab", b"a", b"", b"abc"):
        assert memo.find(TWO + body) == ("it", len(TWO), len(TWO) + 2)
    head = HEAD % b"1234"
    assert memo.find(head + b"x") == ("it", len(head), len(head) + 1234)
    memo.clear()
    assert memo.find(TWO + b"ab") is None


def test_a_head_is_remembered_before_its_body_is_whole_and_as_small_letters() -> None:
    memo: HeadMemo[str] = HeadMemo()
    small = TWO.replace(b"Content-Length", b"content-length")
    learn(memo, small)
    assert memo.find(small) == ("it", len(small), len(small) + 2)
    assert memo.find(TWO) is None


NOT_FOUND = [
    b"", b"\r\n" + TWO, TWO[:-2], TWO.replace(b"Host: h", b"Host: i"), HEAD % b"", HEAD % b"-2", HEAD % b"2 ",
    HEAD % b"0x2", HEAD % b"2\r\nX: y", HEAD % "\u0662".encode(), HEAD % (b"1" * (LENGTH_DIGITS_MAX + 1)),
    b"POST / HTTP/1.1\r\n\r\nContent-Length: 2\r\nHost: h\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("data", NOT_FOUND)
def test_other_bytes_are_not_found(data: bytes) -> None:
    memo: HeadMemo[str] = HeadMemo()
    learn(memo, TWO + b"ab")
    assert memo.find(data + b"ab") is None
    longest = HEAD % (b"1" * LENGTH_DIGITS_MAX)
    assert memo.find(longest) is not None


NOT_REMEMBERED = [
    b"\r\n\r\n" + TWO + b"ab",  # the parser passes over empty lines
    b"\r\n" + TWO + b"ab",
    TWO.replace(b"Content-Length: 2", b"CONTENT-LENGTH: 99") + b"\r\nContent-Length: 2\r\n\r\n",  # one in the body
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\n\r\nContent-Length: 2\r\n\r\nabcde\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
]


@pytest.mark.parametrize("data", NOT_REMEMBERED)
def test_what_is_not_exactly_the_parsers_head_is_not_remembered(data: bytes) -> None:
    memo: HeadMemo[str] = HeadMemo()
    learn(memo, data)
    assert len(memo) == 0


def test_heads_are_bounded_in_number_and_size() -> None:
    memo: HeadMemo[str] = HeadMemo()
    heads = [TWO.replace(b"Host: h", b"Host: %d" % number) for number in range(HEADS_MAX + 1)]
    for number, head in enumerate(heads):
        learn(memo, head, str(number))
    assert len(memo) == HEADS_MAX
    assert memo.find(heads[0]) is None
    assert memo.find(heads[1]) == ("1", len(heads[1]), len(heads[1]) + 2)
    memo.clear()
    room = HEAD_BYTES_MAX - len(TWO)
    for more, count in ((1, 0), (0, 1)):
        learn(memo, TWO.replace(b"Host: h", b"Host: h" + b"h" * (room + more)))
        assert len(memo) == count
