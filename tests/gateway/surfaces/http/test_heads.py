"""gateway/surfaces/http/heads.py: requests with a remembered head are found, whatever their length and id; nothing else
is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage

from gateway.surfaces.http.answers import REQUEST_ID_CHARS_MAX
from gateway.surfaces.http.heads import (
    HEAD_BYTES_MAX,
    HEADS_MAX,
    LENGTH_DIGITS_MAX,
    OFFSET_DIGITS_MAX,
    HeadMemo,
)

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
        assert memo.find(TWO + body) == ("it", len(TWO), len(TWO) + 2, None, None)
    head = HEAD % b"1234"
    assert memo.find(head + b"x") == ("it", len(head), len(head) + 1234, None, None)
    memo.clear()
    assert memo.find(TWO + b"ab") is None


def test_a_head_is_remembered_before_its_body_is_whole_and_as_small_letters() -> None:
    memo: HeadMemo[str] = HeadMemo()
    small = TWO.replace(b"Content-Length", b"content-length")
    learn(memo, small)
    assert memo.find(small) == ("it", len(small), len(small) + 2, None, None)
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
        assert memo.find(head + b"ab") == ("it", len(head), len(head) + 2, request_id.decode(), None)
    for request_id in (b"", b" ", b"a ", b"a b", b"a\t", b"\xc3\xbc", b"a\r\nX: y", b'"a"', longest + b"a"):
        assert memo.find(named(request_id, name) + b"ab") is None, request_id
    assert memo.find(TWO) is None
    learn(memo, TWO)
    assert memo.find(TWO) == ("it", len(TWO), len(TWO) + 2, None, None)


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


Parse = Callable[[bytes], RawRequestMessage | None]


@pytest.fixture
def parsed() -> Iterator[Parse]:
    """What aiohttp's parser reads; None where it refuses, or waits for more."""
    loop = asyncio.new_event_loop()

    def parse(data: bytes) -> RawRequestMessage | None:
        parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16)
        try:
            messages, _, _ = parser.feed_data(data)
        except HttpProcessingError:
            return None
        return messages[0][0] if messages else None  # type: ignore[return-value]

    yield parse
    loop.close()


def said(message: RawRequestMessage) -> list[object]:
    """All that the parser says of a head, but for the values that are cut out."""
    names = "method", "path", "version", "should_close", "compression", "upgrade", "chunked", "url"
    cut = "content-length", "x-request-id"
    headers = [(name, name.lower() in cut or value) for name, value in message.headers.items()]
    return [*(getattr(message, name) for name in names), headers]


def test_what_is_found_is_what_the_parser_says(parsed: Parse) -> None:
    random = Random(37)
    memo: HeadMemo[RawRequestMessage] = HeadMemo()
    found_count = refused_count = 0

    for _ in range(6_000):
        data = _head(random)
        message, found = parsed(data), memo.find(data)
        if found is not None:
            learned, start, end, request_id, offset = found
            assert offset is None
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
    b"GET /?offset= HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /?offset=-1 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /?end_offset=1 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /?a=1 HTTP/1.1\r\nHost: h?offset=1 \r\n\r\n",
    b"GET /?offset=%b HTTP/1.1\r\nHost: h\r\n\r\n" % (b"1" * (OFFSET_DIGITS_MAX + 1)),
    b"GET /?offset=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab",
    b"HEAD /?offset=1 HTTP/1.1\r\nHost: h\r\n\r\n",
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
    assert memo.find(heads[1]) == ("1", len(heads[1]), len(heads[1]) + 2, None, None)
    memo.clear()
    room = HEAD_BYTES_MAX - len(TWO)
    for more, count in ((1, 0), (0, 1)):
        learn(memo, TWO.replace(b"Host: h", b"Host: h" + b"h" * (room + more)))
        assert len(memo) == count


PULL = b"GET /records?timeout=5&offset=%b&end_offset=9 HTTP/1.1\r\nHost: h\r\n\r\n"


def test_a_pull_is_found_whatever_its_offset_and_says_which() -> None:
    memo: HeadMemo[str] = HeadMemo()
    learn(memo, PULL % b"7")
    for digits in (b"0", b"8", b"0009", b"9" * OFFSET_DIGITS_MAX):
        head = PULL % digits
        assert memo.find(head) == ("it", len(head), len(head), None, int(digits))
        assert memo.find(head + b"more") == ("it", len(head), len(head), None, int(digits))
        assert memo.find(head[:-1]) is None
    other = (b"", b"-1", b"+1", b"1x", b"1 ", b"%31", b"latest", b"9" * (OFFSET_DIGITS_MAX + 1), "\u0662".encode())
    for text in (*other, b"1&offset=2", b"&offset=1"):
        assert memo.find(PULL % text) is None, text
    for name in (b"timeout", b"end_offset", b"/records"):
        assert memo.find((PULL % b"7").replace(name, name + b"s")) is None
    with_id = (PULL % b"12").replace(b"Host: h", b"Host: h\r\nX-Request-Id: mine")
    assert memo.find(with_id) is None
    learn(memo, with_id.replace(b"mine", b"other"))
    assert memo.find(with_id) == ("it", len(with_id), len(with_id), "mine", 12)


def _pull(random: Random) -> bytes:
    """A head that is nearly a pull's, with offsets in places where they may be mistaken."""
    digits = random.choice([b"1", b"22", b"022", b"", b"-1", b"x", b"1 2", b"9" * 20, b"&offset=3"])
    parts = [b"offset=" + digits]
    parts += random.sample(
        [b"end_offset=4", b"timeout=1", b"offset=5", b"a?offset=6", b"x=offset=7"], k=random.choice([0, 0, 1, 2])
    )
    random.shuffle(parts)
    lines = [b"Host: h"]
    for line in (b"X-Request-Id: r1", b"Content-Length: 0", b"Referer: /?offset=8 ", b"X: &offset=9 "):
        if random.random() < 0.2:
            lines.append(line)
    random.shuffle(lines)
    target = b"/" + random.choice([b"a", b"b"]) + b"?" + b"&".join(parts)
    return b"GET " + target + b" HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"


def test_a_pull_that_is_found_is_what_the_parser_says(parsed: Parse) -> None:
    """But for its offset, where that is named once, as whoever gives it a meaning sees to."""
    random = Random(112)
    memo: HeadMemo[RawRequestMessage] = HeadMemo()
    found_count = 0

    for _ in range(6_000):
        data = _pull(random)
        message, found = parsed(data), memo.find(data)
        if found is not None:
            learned, start, end, request_id, offset = found
            assert message is not None, data
            assert start == end == len(data)
            assert message.headers.get("X-Request-Id") == request_id
            assert "Content-Length" not in message.headers
            assert [int(text) for text in message.url.query.getall("offset")] == [offset]
            known, own = ([(k, v) for k, v in one.url.query.items() if k != "offset"] for one in (learned, message))
            assert known == own
            assert learned.url.path == message.url.path
            assert list(learned.headers.items()) == [
                (name, learned.headers[name] if name == "X-Request-Id" else value)
                for name, value in message.headers.items()
            ]
            found_count += 1
        elif message is not None and len(message.url.query.getall("offset", [])) == 1:
            memo.remember(data, message, message)
    assert found_count > 200
