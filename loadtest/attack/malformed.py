"""Requests that are nearly HTTP, each with a marker request hidden in it: a POST to `/topics/hidden`. Pure.

A server that reads a message in two ways (as a proxy before it would read it, and then differently) stores that
record. `tests/gateway/security/test_framing.py` sends them to a server in the test's process, `make attack` to one of
its own.
"""

from __future__ import annotations

JSON = b"Content-Type: application/vnd.kafka.json.v2+json\r\n"
BODY = b'{"records":[{"value":1}]}'
HIDDEN = (
    b"POST /topics/hidden HTTP/1.1\r\nHost: localhost\r\n" + JSON + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
)
HOST = b"Host: localhost\r\n"


def post(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST /topics/orders HTTP/1.1\r\n" + HOST + JSON + headers + b"\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


REFUSED: dict[str, bytes] = {
    # Two lengths: the classic ways to smuggle a request past a proxy.
    "length and chunked": post(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunked and length": post(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + HIDDEN),
    "two lengths that differ": post(b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(HIDDEN), HIDDEN),
    "two lengths that agree": post(b"Content-Length: 25\r\nContent-Length: 25\r\n", BODY + HIDDEN),
    "a list of lengths": post(b"Content-Length: 25, 25\r\n", BODY + HIDDEN),
    "a length with a plus": post(b"Content-Length: +25\r\n", BODY + HIDDEN),
    "a negative length": post(b"Content-Length: -1\r\n", HIDDEN),
    "a length with an underscore": post(b"Content-Length: 2_5\r\n", BODY + HIDDEN),
    "a hexadecimal length": post(b"Content-Length: 0x19\r\n", BODY + HIDDEN),
    "a length with a point": post(b"Content-Length: 25.0\r\n", BODY + HIDDEN),
    "an empty length": post(b"Content-Length: \r\n", HIDDEN),
    "a length past 64 bits": post(b"Content-Length: 18446744073709551641\r\n", BODY + HIDDEN),
    "a length in other digits": post("Content-Length: ٢٥\r\n".encode(), BODY + HIDDEN),
    # Chunked in name only.
    "an unknown transfer coding": post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunked is not the last coding": post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunked twice": post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunked after a vertical tab": post(b"Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n" + HIDDEN),
    "chunked in quotes": post(b'Transfer-Encoding: "chunked"\r\n', b"0\r\n\r\n" + HIDDEN),
    "chunked in HTTP/1.0": b"POST /topics/orders HTTP/1.0\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"0\r\n\r\n" + HIDDEN,
    # Chunks that are none.
    "a chunk size with a plus": post(b"Transfer-Encoding: chunked\r\n", b"+0\r\n\r\n" + HIDDEN),
    "a chunk size with 0x": post(b"Transfer-Encoding: chunked\r\n", b"0x0\r\n\r\n" + HIDDEN),
    "a negative chunk size": post(b"Transfer-Encoding: chunked\r\n", b"-1\r\n\r\n" + HIDDEN),
    "a chunk size with an underscore": post(b"Transfer-Encoding: chunked\r\n", b"1_0\r\n" + HIDDEN),
    "a chunk size of nothing": post(b"Transfer-Encoding: chunked\r\n", b"\r\n\r\n" + HIDDEN),
    "a chunk size past 64 bits": post(b"Transfer-Encoding: chunked\r\n", b"10000000000000000\r\n" + HIDDEN),
    "a chunk longer than it says": post(b"Transfer-Encoding: chunked\r\n", b"1\r\nab\r\n0\r\n\r\n" + HIDDEN),
    "a bare LF after a chunk size": post(b"Transfer-Encoding: chunked\r\n", b"5\nhello\r\n0\r\n\r\n" + HIDDEN),
    "a bare LF in a chunk extension": post(b"Transfer-Encoding: chunked\r\n", b"0;a=\nb\r\n\r\n" + HIDDEN),
    # Header lines.
    "a space before the colon": post(b"Content-Length : 0\r\n", HIDDEN),
    "a line that is folded": post(b"X-A: b\r\n Content-Length: 0\r\n", HIDDEN),
    "a first line that is folded": b"POST /topics/orders HTTP/1.1\r\n X: y\r\n" + HOST + b"\r\n",
    "a NUL in a value": post(b"X-A: a\0b\r\n"),
    "a NUL in a name": post(b"X\0A: b\r\n"),
    "a bare CR in a value": post(b"X-A: a\rContent-Length: 0\r\n", HIDDEN),
    "a header without a colon": post(b"Content-Length\r\n"),
    "a header without a name": post(b": value\r\n"),
    "a space in a name": post(b"X A: b\r\n"),
    "a name in brackets": post(b"[X]: b\r\n"),
    "a giant header": post(b"X-A: " + b"a" * 100_000 + b"\r\n"),
    "a giant header name": post(b"A" * 100_000 + b": a\r\n"),
    "many headers": post(b"".join(b"X-%d: a\r\n" % number for number in range(20_000))),
    # Request lines.
    "a method with a space": b"PO ST /topics/orders HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method of other characters": b"P(ST /topics/orders HTTP/1.1\r\n" + HOST + b"\r\n",
    "a giant target": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "a NUL in the target": b"GET /a\0b HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/2 in the clear": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.0": b"GET /topics HTTP/3.0\r\n" + HOST + b"\r\n",
    "a version of two digits": b"GET /topics HTTP/1.10\r\n" + HOST + b"\r\n",
    "a version in lower case": b"GET /topics http/1.1\r\n" + HOST + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n",
    "a body where a request should be": BODY + b"\r\n\r\n",
}  # fmt: skip
"""Answered by one refusal, and the end of the connection."""
