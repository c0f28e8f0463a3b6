"""beanstalkd's protocol, spoken here: commands, and when the answers to many of them are whole."""

from __future__ import annotations

import pytest

from loadtest.peers.beanstalkd import Job, consumed, inserted_bytes, put, use, used_bytes
from loadtest.peers.peer import WorkFailed


def test_a_job_goes_behind_its_length() -> None:
    assert use("orders") == b"use orders\r\n"
    assert put(b"abc") == b"put 1 0 60 3\r\nabc\r\n"
    assert put(b"abc", delay_s=7) == b"put 1 7 60 3\r\nabc\r\n"


def test_puts_are_answered_when_every_line_is_there() -> None:
    answers = bytearray(b"INSERTED 9\r\nINSERTED 10\r\n")
    assert inserted_bytes(answers, 2) == len(answers)
    assert inserted_bytes(answers, 3) == inserted_bytes(answers[:-1], 2) == inserted_bytes(bytearray(), 2) == 0
    with_tube = bytearray(b"USING orders\r\n") + answers
    assert inserted_bytes(with_tube, 2) == len(with_tube)
    assert inserted_bytes(with_tube, 3) == 0


def test_a_job_that_is_refused_is_a_failure() -> None:
    with pytest.raises(WorkFailed, match="DRAINING"):
        inserted_bytes(bytearray(b"INSERTED 9\r\nDRAINING\r\n"), 2)


def test_the_tube_is_chosen_when_the_line_is_whole() -> None:
    assert used_bytes(bytearray(b"USING orders\r")) == 0
    assert used_bytes(bytearray(b"USING orders\r\n")) == 14


def test_deletes_and_reserves_are_answered_in_turn() -> None:
    answers = bytearray(b"DELETED\r\nRESERVED 7 3\r\nabc\r\nRESERVED 8 4\r\n\r\n\r\n\r\nTIMED_OUT\r\n")
    found = [Job(b"7", b"abc"), Job(b"8", b"\r\n\r\n")]
    assert consumed(answers, deleted=1, reserved=3) == found
    assert [consumed(answers[:size], deleted=1, reserved=3) for size in range(len(answers))] == [None] * len(answers)
    assert consumed(bytearray(b"TIMED_OUT\r\n"), deleted=0, reserved=1) == []


@pytest.mark.parametrize(
    ("answers", "deleted", "reserved"),
    [(b"NOT_FOUND\r\n", 1, 0), (b"TIMED_OUT\r\n", 1, 0), (b"DELETED\r\n", 0, 1), (b"DEADLINE_SOON\r\n", 0, 1)],
)
def test_another_answer_is_a_failure(answers: bytes, deleted: int, reserved: int) -> None:
    with pytest.raises(WorkFailed, match=answers.decode().strip()):
        consumed(bytearray(answers), deleted, reserved)
