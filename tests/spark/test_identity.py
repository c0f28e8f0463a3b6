"""Names and numbers of what is sent, at their limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_mq.errors import MqError
from pyspark_mq.identity import EPOCH_MAX, LANE_BATCHES_MAX, WRITE_ID_CHARS_MAX, Keyed, Numbered, is_write_id

from gateway.settings.limits import IDEMPOTENCY_KEY_BYTES_MAX, PRODUCER_NAME_BYTES_MAX
from gateway.surfaces.http.idempotency import SEQUENCE_MAX


def number(epoch: int, batch: int, digest: int) -> int:
    return int(Numbered("q", 3, epoch).of_batch(batch, digest)["Mq-Sequence"])


@given(
    st.tuples(st.integers(0, EPOCH_MAX), st.integers(0, LANE_BATCHES_MAX - 1)),
    st.tuples(st.integers(0, EPOCH_MAX), st.integers(0, LANE_BATCHES_MAX - 1)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)
def test_numbers_rise_with_epoch_and_batch(a: tuple[int, int], b: tuple[int, int], x: int, y: int) -> None:
    if a != b:
        assert (number(*a, x) < number(*b, y)) == (a < b)
    else:
        assert (number(*a, x) == number(*b, y)) == (x % 2**16 == y % 2**16)


def test_the_largest_number_is_one_the_server_takes() -> None:
    assert number(EPOCH_MAX, LANE_BATCHES_MAX - 1, 2**16 - 1) <= SEQUENCE_MAX
    with pytest.raises(MqError, match="repartition"):
        number(0, LANE_BATCHES_MAX, 0)


def test_the_longest_names_are_ones_the_server_takes() -> None:
    longest = "w" * WRITE_ID_CHARS_MAX
    assert is_write_id(longest)
    assert not is_write_id(longest + "w")
    of = Numbered(f"{longest}~sorted", 10**9, EPOCH_MAX)
    assert len(of.of_batch(0, 0)["Mq-Producer"]) <= PRODUCER_NAME_BYTES_MAX
    assert len(of.of_delayed(10**9)["Idempotency-Key"]) <= IDEMPOTENCY_KEY_BYTES_MAX


@pytest.mark.parametrize("text", ["", "a b", 'a"b', "a\\b", "ä", "a\n"])
def test_what_cannot_name_a_write(text: str) -> None:
    assert not is_write_id(text)


def test_a_job_without_a_name_has_the_same_keys_and_time_at_every_attempt() -> None:
    attempts = [Keyed("job", 2, 1234) for _ in range(2)]
    assert attempts[0].of_batch(5, 1) == attempts[1].of_batch(5, 1) == {"Idempotency-Key": '"job/2/5"'}
    assert attempts[0].stamp_ms == 1234
    assert Numbered("q", 0, 0).stamp_ms is None
