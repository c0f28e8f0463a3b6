"""gateway.brokers.kafka.codes: what an owner does about each answer of Kafka."""

from __future__ import annotations

import pytest

from gateway.brokers.kafka.codes import Stored, Verdict, judge

AGAIN, DOUBT, NEVER = Verdict.AGAIN, Verdict.DOUBT, Verdict.NEVER


@pytest.mark.parametrize("code", [3, 5, 6, 7, 13, 19, 20, 56, 14, 29, -1, None])
def test_what_may_not_be_stored_is_sent_again(code: int | None) -> None:
    assert judge([code]) == [AGAIN]


@pytest.mark.parametrize("code", [45, 46, 47, 90])
def test_what_says_that_another_one_may_own_the_partition_ends_the_tenure(code: int) -> None:
    assert judge([code]) == [DOUBT]


@pytest.mark.parametrize("code", [2, 10, 87])
def test_what_will_never_be_stored_is_not_sent_again(code: int) -> None:
    assert judge([code]) == [NEVER]


def test_a_batch_behind_one_that_failed_is_out_of_order_for_no_other_reason() -> None:
    stored = Stored(5, 1)
    assert judge([stored, 6, 45, 45]) == [stored, AGAIN, AGAIN, AGAIN]
    assert judge([stored, None, 47]) == [stored, AGAIN, DOUBT]
    assert judge([stored, 45, 45]) == [stored, DOUBT, AGAIN]
