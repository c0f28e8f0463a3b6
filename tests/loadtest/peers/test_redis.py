"""The protocol of Redis as it is replayed: what is sent byte by byte, and when an answer is whole."""

from __future__ import annotations

import pytest

from loadtest.peers.peer import WorkFailed
from loadtest.peers.redis import added_bytes, xadd
from loadtest.peers.work import BATCH_RECORDS

ADDED = b"$15\r\n1700000000000-7\r\n"


def test_a_command_is_an_array_of_strings_behind_their_lengths() -> None:
    assert xadd("orders", b"abc") == b"*5\r\n$4\r\nXADD\r\n$6\r\norders\r\n$1\r\n*\r\n$1\r\nv\r\n$3\r\nabc\r\n"


def test_a_batch_is_answered_when_every_id_is_there() -> None:
    answers = bytearray(ADDED * BATCH_RECORDS)
    assert added_bytes(answers) == len(answers)
    assert added_bytes(bytearray()) == 0
    assert added_bytes(answers[:-1]) == 0
    assert added_bytes(answers[: -len(ADDED)]) == 0


@pytest.mark.parametrize("before", [b"", ADDED])
def test_an_error_in_any_place_is_a_failure(before: bytes) -> None:
    with pytest.raises(WorkFailed, match="OOM command not allowed"):
        added_bytes(bytearray(before + b"-OOM command not allowed\r\n"))
