"""gateway/surfaces/http/heads.py: requests with a remembered head are found, whatever their length and id; nothing else
is."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage

from gateway.surfaces.http.answers import REQUEST_ID_CHARS_MAX
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
        assert memo.find(TWO + body) == ("it", len(TWO), len(TWO) + 2, None)
    head = HEAD % b"1234"
    assert memo.find(head + b"x") == ("it", len(head), len(head) + 1234, None)
    memo.clear()
    assert memo.find(TWO + b"ab") is None


def test_a_head_is_remembered_before_its_body_is_whole_and_as_small_letters() -> None:
    memo: HeadMemo[str] = HeadMemo()
    small = TWO.replace(b"Content-Length", b"content-length")
    learn(memo, small)
    assert memo.find(small) == ("it", len(small), len(small) + 2, None)
    assert memo.find(TWO) is None


def named(request_id: bytes, name: bytes = b"X-Request-Id") -> bytes:
    return TWO.replace(b"Host: h", b"%b: %b\r\nHost: h" % (name, request_id))


@pytest.mark.parametrize("name", [b"X-Request-Id", b"x-request-id"])
def test_a_request_is_found_whatever_its_id_and_says_which(name: bytes) -> None:
    memo: HeadMemo[str] = HeadMemo()
    learn(memo, named(b"first", name) + b"ab")
    longest = b"a" * REQUEST_ID_CHARS_MAX
    for request_id in (b"0", b"5f0c-77.A_z", longest):
        head = named(request_id, name)
        assert memo.find(head + b"ab") == ("it", len(head), len(head) + 2, request_id.decode())
    for request_id in (b"", b" ", b"a ", b"a b", b"a\t", b"\xc3\xbc", b"a\r\nX: y", b'"a"', longest + b"a"):
        assert memo.find(named(request_id, name) + b"ab") is None, request_id
    assert memo.find(TWO) is None
    learn(memo, TWO)
    assert memo.find(TWO) == ("it", len(TWO), len(TWO) + 2, None)


@pytest.mark.parametrize(
    "data",
    [
        named(b"a b"),
        named(b"a", b"X-REQUEST-ID"),
        named(b"a\r\nX-Request-Id: b"),
        named(b"a\r\nx-request-id: b"),
        named(b"a\r\nX-REQUEST-ID: b"),
        named(b"a").replace(b"X-Request-Id: a", b"X-Request-Id:a"),
    ],
)
def test_a_head_with_an_id_that_is_not_where_it_is_cut_out_is_not_remembered(data: bytes) -> None:
    memo: HeadMemo[str] = HeadMemo()
    learn(memo, data + b"ab")
    assert len(memo) == 0


def _head(random: Random) -> bytes:
    """A head that is nearly right, with what is cut out in places where it may be mistaken."""
    id_ = random.choice([b"a", b"b1", b"9", b"", b"x y", b"2", b"Content-Length", b"\r\n", b" 3", b"a\r\n b"])
    length = random.choice([b"2", b"02", b"12", b"", b"2 ", b" 2", b"+2", b"2,2", b"2\r\n"])
    lines = [b"Host: h", random.choice([b"Content-Length: ", b"content-length: ", b"Content-Length:"]) + length]
    for name in (b"X-Request-Id: ", b"x-request-id: ", b"X-REQUEST-ID: ", b"X-Request-Id:", b"X-Other: "):
        if random.random() < 0.35:
            lines.append(name + id_)
    if random.random() < 0.1:
        lines.append(random.choice([b"Content-Length: 2", b"Transfer-Encoding: chunked", b"\tfolded", b": x"]))
    random.shuffle(lines)
    break_ = b"\r\n" if random.random() < 0.95 else b"\n"
    return b"POST /" + random.choice([b"a", b"X-Request-Id:"]) + b" HTTP/1.1\r\n" + break_.join(lines) + b"\r\n\r\n"


def said(message: RawRequestMessage) -> list[object]:
    """All that the parser says of a head, but for the values that are cut out."""
    names = "method", "path", "version", "should_close", "compression", "upgrade", "chunked", "url"
    cut = "content-length", "x-request-id"
    headers = [(name, name.lower() in cut or value) for name, value in message.headers.items()]
    return [*(getattr(message, name) for name in names), headers]


def test_what_is_found_is_what_the_parser_says() -> None:
    random = Random(37)
    loop = asyncio.new_event_loop()
    memo: HeadMemo[RawRequestMessage] = HeadMemo()
    found_count = refused_count = 0

    def parsed(data: bytes) -> RawRequestMessage | None:
        parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16)
        try:
            messages, _, _ = parser.feed_data(data)
        except HttpProcessingError:
            return None
        return messages[0][0] if messages else None  # type: ignore[return-value]

    for _ in range(6_000):
        data = _head(random)
        message, found = parsed(data), memo.find(data)
        if found is not None:
            learned, start, end, request_id = found
            message = parsed(data[:start] + b"x" * (end - start))
            assert message is not None, data
            found_count += 1
            assert int(message.headers["Content-Length"]) == end - start
            assert message.headers.get("X-Request-Id") == request_id
            assert said(message) == said(learned)
        elif message is not None:
            memo.remember(data, message, message)
        else:
            refused_count += 1
    loop.close()
    assert found_count > 200
    assert refused_count > 500


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


def test_a_head_that_was_found_is_found_no_more_when_all_are_forgotten_or_another_meaning_is_learnt() -> None:
    memo: HeadMemo[str] = HeadMemo()
    learn(memo, TWO + b"ab")
    found = memo.find(TWO + b"ab")
    assert found is not None
    assert memo.find(TWO + b"cd") == found
    assert memo.find(TWO[:-1]) is None
    memo._last = TWO, ("stale", *found[1:])
    learn(memo, TWO + b"ab")
    assert memo.find(TWO + b"ab") == found
    memo.clear()
    assert memo.find(TWO + b"ab") is None


def test_heads_are_bounded_in_number_and_size() -> None:
    memo: HeadMemo[str] = HeadMemo()
    heads = [TWO.replace(b"Host: h", b"Host: %d" % number) for number in range(HEADS_MAX + 1)]
    for number, head in enumerate(heads):
        learn(memo, head, str(number))
    assert len(memo) == HEADS_MAX
    assert memo.find(heads[0]) is None
    assert memo.find(heads[1]) == ("1", len(heads[1]), len(heads[1]) + 2, None)
    memo.clear()
    room = HEAD_BYTES_MAX - len(TWO)
    for more, count in ((1, 0), (0, 1)):
        learn(memo, TWO.replace(b"Host: h", b"Host: h" + b"h" * (room + more)))
        assert len(memo) == count
