"""gateway/surfaces/http/heads.py: whole requests with a remembered head are found, nothing else is."""

from __future__ import annotations

import pytest

from gateway.surfaces.http.heads import HEAD_BYTES_MAX, HEADS_MAX, HeadMemo

HEAD = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n"


def test_a_whole_request_is_found() -> None:
    memo: HeadMemo[str] = HeadMemo()
    memo.remember(HEAD, 2, "it")
    assert memo.find(HEAD + b"ab") == ("it", b"ab")
    memo.clear()
    assert memo.find(HEAD + b"ab") is None


@pytest.mark.parametrize("data", [b"", HEAD, HEAD + b"a", HEAD + b"abc", b"\r\n" + HEAD + b"ab", HEAD[:-2]])
def test_less_more_or_other_bytes_are_not(data: bytes) -> None:
    memo: HeadMemo[str] = HeadMemo()
    memo.remember(HEAD, 2, "it")
    assert memo.find(data) is None


def test_heads_are_bounded_in_number_and_size() -> None:
    memo: HeadMemo[int] = HeadMemo()
    for number in range(HEADS_MAX + 1):
        memo.remember(b"%d\r\n\r\n" % number, 0, number)
    assert len(memo) == HEADS_MAX
    assert memo.find(b"0\r\n\r\n") is None
    assert memo.find(b"1\r\n\r\n") == (1, b"")
    memo.clear()
    memo.remember(b"x" * (HEAD_BYTES_MAX - 4) + b"\r\n\r\n", 0, 1)
    memo.remember(b"y" * (HEAD_BYTES_MAX - 3) + b"\r\n\r\n", 0, 2)
    assert len(memo) == 1
