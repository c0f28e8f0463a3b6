"""Where records begin: what numpy finds in many chains at once is what the loop finds, whatever the values are."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark_mq import chain
from pyspark_mq.chain import LANES_MIN, RECORD_BYTES_MAX, RECORDS_MIN, record_starts
from pyspark_mq.errors import MalformedBody

GAP = b"\x00\x00\xff\x7f" * 15 + b"\x00"
"""What lies between the records of two batches: as long as the header of one."""


def varint(size: int, *, octets: int = 1) -> bytes:
    """A length as a zig-zag varint, with needless octets where more are asked for."""
    left, found = 2 * size, b""
    while left >= 0x80 or len(found) < octets - 1:
        found, left = found + bytes([0x80 | left & 0x7F]), left >> 7
    return found + bytes([left])


def record(number: int, value: bytes, *, octets: int = 1) -> bytes:
    """A record without a key, as an encoder writes it."""
    rest = b"\x00\x00" + varint(number) + b"\x01" + varint(len(value)) + value + b"\x00"
    return varint(len(rest), octets=octets) + rest


def laid(batches: Sequence[Sequence[bytes]]) -> tuple[bytes, list[int], list[int], list[int], list[int]]:
    """Batches of records with gaps between: the bytes, where each batch starts and ends, its count, each record."""
    buffer, starts, ends, found = GAP, [], [], []
    for records in batches:
        starts.append(len(buffer))
        found += [len(buffer) + at for at in accumulate(map(len, records[:-1]), initial=0)]
        buffer += b"".join(records)
        ends.append(len(buffer))
        buffer += GAP
    return buffer, starts, ends, [len(records) for records in batches], found


def starts_in(buffer: bytes, starts: list[int], ends: list[int], counts: list[int]) -> list[int]:
    return list(record_starts(buffer, np.array(starts), np.array(ends), np.array(counts)).tolist())


class Followed:
    """How often the loop had to follow a chain."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        loop = chain._one_by_one

        def counted(*given: object) -> object:
            self.count += 1
            return loop(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(chain, "_one_by_one", counted)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Followed:
    return Followed(monkeypatch)


def random_octets(rng: np.random.Generator, size: int) -> bytes:
    return rng.bytes(size)


def text(rng: np.random.Generator, size: int) -> bytes:
    return bytes(rng.integers(32, 127, size, dtype=np.uint8))


def zeros(_: np.random.Generator, size: int) -> bytes:
    return bytes(size)


def records_within(rng: np.random.Generator, size: int) -> bytes:
    """Values that are records themselves: every guess may be wrong."""
    inner = record(int(rng.integers(0, 50)), b"v" * int(rng.integers(1, 30)))
    return (inner * (size // len(inner) + 1))[:size]


VALUES = (random_octets, text, zeros, records_within)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 1 << 32),
    st.sampled_from(VALUES),
    st.lists(st.integers(1, 900), min_size=1, max_size=6),
    st.integers(0, 150),
    st.integers(1, 250),
)
def test_all_records_are_found_whatever_their_values_are(
    seed: int, values: object, counts: list[int], least: int, spread: int
) -> None:
    assert callable(values)
    rng = np.random.default_rng(seed)
    batches = [
        [record(n, values(rng, int(size))) for n, size in enumerate(rng.integers(least, least + spread, count))]
        for count in (*counts, RECORDS_MIN)
    ]
    buffer, starts, ends, counted, found = laid(batches)
    assert starts_in(buffer, starts, ends, counted) == found


@pytest.mark.parametrize("values", [random_octets, text, zeros])
@pytest.mark.parametrize(("least", "most"), [(60, 61), (0, 40), (20, 250)], ids=["equal", "short", "mixed"])
def test_large_bodies_need_no_loop(loop: Followed, values: object, least: int, most: int) -> None:
    assert callable(values)
    rng = np.random.default_rng(7)
    sizes = rng.integers(least, most, 3 * RECORDS_MIN)
    buffer, starts, ends, counts, found = laid([[record(n, values(rng, int(size))) for n, size in enumerate(sizes)]])
    assert starts_in(buffer, starts, ends, counts) == found
    assert not loop.count


def test_many_small_batches_need_no_loop(loop: Followed) -> None:
    batches = [[record(n, b"v" * 50) for n in range(20)] for _ in range(RECORDS_MIN // 20)]
    buffer, starts, ends, counts, found = laid(batches)
    assert starts_in(buffer, starts, ends, counts) == found
    assert not loop.count


@pytest.mark.parametrize(("count", "looped"), [(RECORDS_MIN, 0), (RECORDS_MIN - 1, 1)])
def test_few_records_are_left_to_the_loop(loop: Followed, count: int, looped: int) -> None:
    buffer, starts, ends, counts, found = laid([[record(n, b"v" * 40) for n in range(count)]])
    assert starts_in(buffer, starts, ends, counts) == found
    assert loop.count == looped


@pytest.mark.parametrize(("record_bytes", "looped"), [(RECORD_BYTES_MAX, 0), (RECORD_BYTES_MAX + 1, 1)])
def test_long_records_are_left_to_the_loop(loop: Followed, record_bytes: int, looped: int) -> None:
    sample = len(record(100, b"v" * 200)) - 200  # what a record has besides
    records = [record(100, b"v" * (record_bytes - sample))] * RECORDS_MIN
    buffer, starts, ends, counts, found = laid([records])
    assert ends[0] - starts[0] == record_bytes * RECORDS_MIN
    assert starts_in(buffer, starts, ends, counts) == found
    assert loop.count == looped


@pytest.mark.parametrize(("batch_count", "looped"), [(LANES_MIN, 0), (LANES_MIN - 1, 1)])
def test_few_chains_are_left_to_the_loop(
    loop: Followed, monkeypatch: pytest.MonkeyPatch, batch_count: int, looped: int
) -> None:
    monkeypatch.setattr(chain, "_heads", lambda octets, starts, *given: starts)
    buffer, starts, ends, counts, found = laid([[record(n, b"v" * 40) for n in range(100)]] * batch_count)
    assert starts_in(buffer, starts, ends, counts) == found
    assert loop.count == looped


@pytest.mark.parametrize("octets", [3, 4])
def test_a_length_of_many_octets_among_short_ones_is_followed_by_the_loop(loop: Followed, octets: int) -> None:
    records = [record(n, b"v" * 30) for n in range(RECORDS_MIN)]
    records[RECORDS_MIN // 2] = record(1, b"v" * 50, octets=octets)
    buffer, starts, ends, counts, found = laid([records])
    assert starts_in(buffer, starts, ends, counts) == found
    assert loop.count == 1


def test_a_few_records_that_are_much_longer_are_found(loop: Followed) -> None:
    records = [record(n, b"v" * (8_000 if n % 500 == 250 else 30)) for n in range(2 * RECORDS_MIN)]
    buffer, starts, ends, counts, found = laid([records])
    assert starts_in(buffer, starts, ends, counts) == found
    assert not loop.count


def test_records_too_unlike_each_other_are_followed_by_the_loop(loop: Followed) -> None:
    tiny, long = [record(0, b"")] * 4_000, [record(0, b"\xff" * 8_000)] * 100
    buffer, starts, ends, counts, found = laid([long + tiny])
    assert starts_in(buffer, starts, ends, counts) == found
    assert loop.count == 1


def test_wrong_heads_are_noticed(loop: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, starts, ends, counts, found = laid([[record(n, b"v" * 40) for n in range(RECORDS_MIN)]])
    heads = [*found[::30], found[700] + 3]
    monkeypatch.setattr(chain, "_heads", lambda *given: np.array(heads))
    assert starts_in(buffer, starts, ends, counts) == found
    assert loop.count == 1


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("count", [10, 2 * RECORDS_MIN])
def test_a_batch_with_another_number_of_records_than_it_says_is_refused(count: int, change: int) -> None:
    buffer, starts, ends, counts, _ = laid([[record(n, b"v" * 40) for n in range(count)]] * 2)
    counts[0] += change
    with pytest.raises(MalformedBody, match="away from its end"):
        starts_in(buffer, starts, ends, counts)


def test_tasks_that_bring_the_code_do_not_bring_the_table() -> None:
    sent = pickle.dumps(chain._STEPS)
    assert len(sent) < 100
    arrived = pickle.loads(sent)  # noqa: S301 - our own
    assert np.array_equal(arrived.by_octets, chain._STEPS.by_octets)


def test_more_records_than_fit_are_refused_before_room_is_made_for_them() -> None:
    buffer, starts, ends, _, _ = laid([[record(n, b"v") for n in range(3)]])
    with pytest.raises(MalformedBody, match="2147483647 records cannot fit"):
        starts_in(buffer, starts, ends, [2**31 - 1])


def test_a_length_without_an_end_is_refused_before_it_is_larger_than_an_offset() -> None:
    with pytest.raises(MalformedBody, match="more than five octets"):
        starts_in(b"\xff" * 40, [0], [40], [3])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1 << 32), st.integers(1, 5))
def test_damaged_lengths_give_what_the_loop_gives(seed: int, damaged: int) -> None:
    rng = np.random.default_rng(seed)
    buffer, starts, ends, counts, _ = laid([[record(n, rng.bytes(40)) for n in range(RECORDS_MIN)]])
    octets = bytearray(buffer)
    for at in rng.integers(starts[0], ends[0], damaged):
        octets[at] = int(rng.integers(0, 256))
    found, expected = (
        outcome(follow, bytes(octets), starts, ends, counts) for follow in (starts_in, starts_by_the_loop)
    )
    assert found == expected


def starts_by_the_loop(buffer: bytes, starts: list[int], ends: list[int], counts: list[int]) -> list[int]:
    return list(chain._one_by_one(buffer, np.array(starts), np.array(ends), np.array(counts)))[:-1]


def outcome(follow: object, *given: object) -> object:
    assert callable(follow)
    try:
        return follow(*given)
    except (MalformedBody, IndexError) as error:
        return type(error), str(error)
