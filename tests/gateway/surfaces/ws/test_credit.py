"""Credits: whatever is granted, sent, returned, paused in whatever order, nobody is sent more than was granted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.surfaces.ws.credit import Credit, CreditRefused, Ledger

LIMIT = 100

operations = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.integers(1, 60), min_size=1, max_size=8)),
        st.tuples(st.just("hand over"), st.none()),
        st.tuples(st.just("permit"), st.tuples(st.integers(0, 50), st.integers(0, 50))),
        st.tuples(st.just("pause"), st.none()),
        st.tuples(st.just("resume"), st.none()),
    ),
    max_size=60,
)


class Model:
    """Ten lines that count what a client could count: granted, sent, returned, for one unit."""

    def __init__(self, granted: int) -> None:
        self.granted, self.sent, self.returned = granted, 0, 0

    @property
    def allowed(self) -> int:
        return self.granted - (self.sent - self.returned)


@given(st.booleans(), st.integers(0, LIMIT), st.none() | st.integers(0, LIMIT), operations)
def test_sent_minus_returned_never_exceeds_what_was_granted(
    auto: bool, messages: int, bytes_: int | None, steps: list[tuple[str, object]]
) -> None:
    ledger = Ledger(
        Credit(LIMIT).widened(messages), None if bytes_ is None else Credit(LIMIT).widened(bytes_), auto=auto
    )
    message_model, byte_model = Model(messages), Model(bytes_ or 0)
    booked: list[tuple[int, int]] = []
    paused = False
    for step, argument in steps:
        if step == "send":
            assert isinstance(argument, list)
            for size in argument:
                nothing_in_flight = ledger.bytes is None or ledger.bytes.in_flight == 0
                if not ledger.fits(size):
                    continue
                assert not paused
                ledger.sent(1, size)
                booked.append((1, size))
                message_model.sent += 1
                byte_model.sent += size
                assert message_model.allowed >= 0
                # K2: the one message that may be too large went alone.
                assert bytes_ is None or byte_model.allowed >= 0 or nothing_in_flight
        elif step == "hand over" and booked:
            count, size = booked.pop(0)
            ledger.returned(count, size)
            if auto:
                message_model.returned += count
                byte_model.returned += size
        elif step == "permit":
            assert isinstance(argument, tuple)
            try:
                ledger.permit(*argument)
            except CreditRefused:
                continue
            message_model.granted += argument[0]
            byte_model.granted += argument[1]
        elif step in ("pause", "resume"):
            paused = step == "pause"
            ledger.paused = paused
        # The ledger and the client's own count agree, so a client can always know what it may still get.
        assert ledger.messages.left == message_model.allowed
        assert ledger.bytes is None or ledger.bytes.left == byte_model.allowed
        assert message_model.allowed <= LIMIT
        assert ledger.message_budget == (0 if paused else message_model.allowed)


def test_a_message_larger_than_the_window_goes_when_nothing_else_is_in_flight() -> None:
    ledger = Ledger(Credit(LIMIT).widened(10), Credit(LIMIT).widened(20), auto=False)
    ledger.sent(1, 5)
    assert not ledger.fits(50)
    ledger.permit(0, 5)
    assert ledger.fits(50)
    ledger.sent(1, 50)
    assert ledger.bytes is not None
    assert ledger.bytes.left == -30
    assert not ledger.fits(1)
    ledger.permit(0, 49)
    assert not ledger.fits(50), "one byte is still in flight"
    ledger.permit(0, 1)
    assert ledger.fits(50)


def test_without_a_byte_granted_not_even_one_message_goes() -> None:
    ledger = Ledger(Credit(LIMIT).widened(10), Credit(LIMIT), auto=True)
    assert not ledger.fits(1)
    ledger.permit(0, 1)
    assert ledger.fits(50)


def test_credit_stops_at_its_limit_and_a_refused_grant_changes_nothing() -> None:
    for auto in (True, False):
        ledger = Ledger(Credit(LIMIT).widened(LIMIT - 1), Credit(LIMIT).widened(LIMIT), auto=auto)
        with pytest.raises(CreditRefused):
            ledger.permit(1, 1)
        assert ledger.messages.left == LIMIT - 1
        ledger.permit(1, 0)
        with pytest.raises(CreditRefused):
            ledger.permit(1, 0)
    with pytest.raises(CreditRefused):
        Credit(LIMIT).widened(LIMIT + 1)


def test_more_than_the_budget_is_a_bug_of_ours() -> None:
    ledger = Ledger(Credit(LIMIT).widened(2), Credit(LIMIT).widened(10), auto=True)
    with pytest.raises(AssertionError):
        ledger.sent(3, 3)
    with pytest.raises(AssertionError):
        ledger.sent(2, 11)
    ledger.sent(1, 11)
