"""NATS: its protocol as it is replayed, the rates that `nats bench` prints, the times of its schedules."""

from __future__ import annotations

import re

import pytest

from loadtest.peers.nats import acknowledged_bytes, connected_bytes, publish, publish_atomic, rate, rfc3339
from loadtest.peers.peer import WorkFailed

ACK = b'MSG _INBOX.t-0 1 27\r\n{"stream":"orders","seq":7}\r\n'
ONE_CLIENT = """05:01:02 Starting JetStream asynchronous publisher benchmark [batch=1,000, clients=1, msgs=400,000]
05:01:02 [1] Starting JetStream asynchronous publisher, publishing 400,000 messages

NATS JetStream asynchronous publisher stats: 111,699 msgs/sec ~ 11 MiB/sec ~ min: 19,026.33us ~ avg: 35,762.16us
"""
FOUR_CLIENTS = """  [1] 34,657 msgs/sec ~ 3.3 MiB/sec ~ min: 16us ~ avg: 126.80us (100,000 msgs)
  [2] 34,701 msgs/sec ~ 3.3 MiB/sec ~ min: 16us ~ avg: 126.80us (100,000 msgs)

 NATS JetStream durable consumer (callback) aggregated stats: 138,629 msgs/sec ~ 13 MiB/sec
 message rates min 34,657 | avg 34,679 | max 34,701 | stddev 22 msgs
"""


def test_every_record_is_a_command_with_a_subject_to_answer_to() -> None:
    assert publish("orders", "_INBOX.a", [b"abc", b"de"]) == (
        b"PUB orders _INBOX.a 3\r\nabc\r\nPUB orders _INBOX.a 2\r\nde\r\n"
    )


def test_an_atomic_batch_is_committed_by_its_last_record_which_alone_is_answered() -> None:
    sent = publish_atomic("orders", "_INBOX.a", [b"abc", b"de"])
    found = []
    while sent:
        head, _, rest = sent.partition(b"\r\n")
        header_size, size = map(int, head.split()[-2:])
        found.append((head.split()[1:-2], rest[:header_size], rest[header_size:size]))
        assert rest[size : size + 2] == b"\r\n"
        sent = rest[size + 2 :]
    headers = b"NATS/1.0\r\nNats-Batch-Id: _INBOX.a\r\nNats-Batch-Sequence: %d\r\n"
    assert found == [
        ([b"orders"], headers % 1 + b"\r\n", b"abc"),
        ([b"orders", b"_INBOX.a"], headers % 2 + b"Nats-Batch-Commit: 1\r\n\r\n", b"de"),
    ]


def test_a_batch_is_answered_when_every_acknowledgement_is_there() -> None:
    answers = bytearray(ACK * 3)
    assert acknowledged_bytes(answers, 3) == len(answers)
    assert acknowledged_bytes(answers, 4) == acknowledged_bytes(answers[:-1], 3) == 0
    with_ping = bytearray(ACK + b"PING\r\n" + ACK)
    assert acknowledged_bytes(with_ping, 2) == len(with_ping)
    assert acknowledged_bytes(with_ping, 3) == 0


@pytest.mark.parametrize(
    "error",
    [b"-ERR 'Unknown Protocol Operation'\r\n", b'MSG a 1 46\r\n{"error":{"code":503,"err_code":10077}}\r\n'],
)
def test_an_error_is_a_failure(error: bytes) -> None:
    with pytest.raises(WorkFailed, match=re.escape(error.decode().split()[-1])):
        acknowledged_bytes(bytearray(ACK + error), 2)


def test_a_connection_is_ready_behind_the_first_pong() -> None:
    said = bytearray(b'INFO {"server_id":"A"}\r\nPONG\r\n')
    assert connected_bytes(said) == len(said)
    assert connected_bytes(said[:-1]) == 0


def test_the_rate_is_that_of_all_clients() -> None:
    assert rate(ONE_CLIENT) == 111_699
    assert rate(FOUR_CLIENTS) == 138_629


@pytest.mark.parametrize("output", ["nats: error: nats: no servers available", f"WARNING: not optimal!\n{ONE_CLIENT}"])
def test_a_run_with_an_error_has_no_rate(output: str) -> None:
    with pytest.raises(WorkFailed, match="nats bench"):
        rate(output)


def test_a_schedule_is_to_the_millisecond_in_utc() -> None:
    assert rfc3339(1_767_225_600_007) == "2026-01-01T00:00:00.007Z"
