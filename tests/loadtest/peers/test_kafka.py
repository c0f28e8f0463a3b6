"""What is spoken to a Kafka broker, and what its tools print."""

from __future__ import annotations

import struct

import pytest

from gateway.surfaces.kafka.frames import read_header
from gateway.surfaces.kafka.produce import Produced, read_produce, write_produced
from loadtest.peers import kafka_protocol as protocol
from loadtest.peers.kafka import PEERS, scanned
from loadtest.peers.peer import WorkFailed
from loadtest.peers.replay import Fetched
from store.record_batch import encode_columns, with_base_offset

PRODUCED = bytes.fromhex(  # topic "t1", partition 0, base offset 1000
    "0000002a" "00000000" "00000001" "0002" "7431" "00000001"
    "00000000" "0000" "00000000000003e8" "ffffffffffffffff" "00000000"
)  # fmt: skip


def fetched(records: bytes, *, error: int = 0) -> bytes:
    """An answer to a fetch, with whatever bytes as its records."""
    body = struct.pack(">iii", 0, 0, 1) + struct.pack(">h", 2) + b"t1" + struct.pack(">i", 1)
    body += struct.pack(">ihqqi", 0, error, 5, 5, -1) + struct.pack(">i", len(records)) + records
    return struct.pack(">i", len(body)) + body


def test_a_produce_request_has_its_length_and_ends_with_the_batch() -> None:
    batch = bytes(encode_columns(None, [b"a", b"b"], 1))
    request = protocol.produce("topic", batch)
    assert struct.unpack_from(">ihhi", request) == (len(request) - 4, 0, 3, 0)
    assert request.endswith(struct.pack(">ii", 0, len(batch)) + batch)


def test_an_answer_to_produce_is_cut_where_it_ends() -> None:
    for size in range(len(PRODUCED)):
        assert protocol.produced_bytes(PRODUCED[:size]) == 0
    assert protocol.produced_bytes(PRODUCED) == len(PRODUCED)
    assert protocol.produced_bytes(PRODUCED + b"\x00\x00\x00\x2a") == len(PRODUCED)


def test_a_compact_produce_request_is_what_mq_reads() -> None:
    batch = bytes(200)
    request = memoryview(protocol.produce_compactly("topic", batch))[4:]
    header = read_header(request)
    assert (len(request), header.key, header.version) == (len(request.obj) - 4, 0, 9)
    read = read_produce(request, header.at, header.version)
    assert (read.is_transactional, read.acks, read.topics) == (False, -1, [("topic", [(0, batch)])])


@pytest.mark.parametrize("error", [0, 3])
def test_an_answer_to_a_compact_produce_is_cut_where_it_ends(error: int) -> None:
    body = bytes(5) + write_produced([("topic", [Produced(0, error, 7, -1, None)])], 9)
    answer = struct.pack(">i", len(body)) + body
    assert protocol.produced_compactly(answer[:-1]) == 0
    if error:
        with pytest.raises(WorkFailed, match="error code 3"):
            protocol.produced_compactly(answer)
    else:
        assert protocol.produced_compactly(answer + b"more") == len(answer)


def test_an_error_of_produce_is_a_failure() -> None:
    answer = bytearray(PRODUCED)
    answer[25] = 3  # unknown topic or partition
    with pytest.raises(WorkFailed, match="error code 3"):
        protocol.produced_bytes(answer)


def test_a_fetch_request_asks_for_an_offset() -> None:
    request = protocol.fetch("topic", 1_234, 1_048_576)
    assert struct.unpack_from(">ihhi", request) == (len(request) - 4, 1, 4, 0)
    assert request.endswith(struct.pack(">iqi", 0, 1_234, 1_048_576))


def test_whole_batches_are_counted_and_a_cut_one_is_not() -> None:
    batch = encode_columns(None, [b"a", b"b", b"c"], 1)
    first, second = bytes(with_base_offset(batch, 10)), bytes(with_base_offset(batch, 13))
    answer = fetched(first + second + first[:40])
    assert protocol.fetched(answer[:-1]) is None
    assert protocol.fetched(answer) == Fetched(len(answer), 16)
    assert protocol.fetched(fetched(first + second[:-1])) == Fetched(len(answer) - 40 - 1, 13)


def test_a_fetch_that_brings_nothing_or_an_error_is_a_failure() -> None:
    with pytest.raises(WorkFailed, match="no whole batch"):
        protocol.fetched(fetched(b""))
    with pytest.raises(WorkFailed, match="error code 1"):
        protocol.fetched(fetched(b"", error=1))


REPORTS = """2026-11-23 04:10:21:500, 0, 0.0001, 0.0002, 1, 1.6584, 558, 45, 0.0021, 22.2222
2026-11-23 04:10:22:000, 0, 8.5832, 34.0598, 90001, 357142.8571, 0, 252, 34.0598, 357142.8571
2026-11-23 04:10:22:500, 0, 24.8910, 65.2313, 261001, 684000.0000, 0, 250, 65.2313, 684000.0000
2026-11-23 04:10:23:000, 0, 46.3487, 84.4790, 500001, 885826.7717, 0, 254, 84.4790, 885826.7717
2026-11-23 04:10:24:000, 0, 95.2722, 193.3735, 2500001, 2027667.9842, 0, 253, 193.3735, 2027667.9842
2026-11-23 04:10:24:500, 0, 191.4025, 382.9895, 3500001, 4015936.2550, 0, 251, 382.9895, 4015936.2550
"""


def test_the_rate_of_the_consumers_tool_leaves_its_start_out() -> None:
    numbers = scanned(REPORTS, warm_s=1.5, wall_s=0, monotonic_s=0)
    assert numbers["records"] == 3_000_000
    assert numbers["took_s"] == pytest.approx(1.5)
    assert numbers["records_per_s"] == pytest.approx(2_000_000)
    assert numbers["ended_s"] - numbers["began_s"] == pytest.approx(1.5)


def test_a_tool_that_read_too_little_is_a_failure() -> None:
    with pytest.raises(WorkFailed, match="less than 10 s"):
        scanned(REPORTS, warm_s=10, wall_s=0, monotonic_s=0)
    with pytest.raises(WorkFailed, match="less than"):
        scanned("", warm_s=1, wall_s=0, monotonic_s=0)
    with pytest.raises(WorkFailed, match="Exiting before"):
        scanned(f"{REPORTS}WARNING: Exiting before consuming the expected number", warm_s=1, wall_s=0, monotonic_s=0)


def test_every_work_has_clients_of_different_names() -> None:
    for work in ("replay", "fetch", "batched", "scan", "push", "singles", "topics", "fill", "first_record", "drop"):
        clients = [way.client for way in PEERS[0].ways(work)]
        assert clients
        assert len(set(clients)) == len(clients)
    assert not PEERS[0].ways("receive")
