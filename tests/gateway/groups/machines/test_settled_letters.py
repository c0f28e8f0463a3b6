"""gateway/groups/machines/settled_letters.py"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.coordinator.service import DOCUMENT_BYTES_MAX
from gateway.groups.machines.settled_letters import RANGES_MAX, SettledLetters, decode_settled

OFFSETS = st.sets(st.integers(0, 30))


@given(st.lists(OFFSETS, max_size=4), st.integers(0, 31), st.integers(0, 31))
def test_ranges_are_a_set_of_offsets(goes: list[set[int]], low: int, high: int) -> None:
    settled = SettledLetters(7)
    expected: set[int] = set()
    for go in goes:
        settled = settled.with_offsets(go)
        expected |= go
    assert {offset for offset in range(32) if offset in settled} == expected
    assert settled.count(low, high) == len([offset for offset in expected if low <= offset < high])
    following = next(offset for offset in range(low, 100) if offset not in expected)
    assert settled.following(low) == following
    behind = settled.behind(low)
    assert {offset for offset in range(32) if offset in behind} == {offset for offset in expected if offset >= low}
    ends = [end for one in settled.ranges for end in one]
    assert ends == sorted(set(ends))  # they rise and do not touch
    assert decode_settled(settled.encode(), 7) == settled
    assert decode_settled(settled.encode(), 8) == SettledLetters(8)


def test_as_many_as_there_may_be_fit_a_document() -> None:
    most = 2**62
    settled = SettledLetters(2**31 - 1).with_offsets(range(most, most + 2 * RANGES_MAX, 2))
    content = settled.encode()
    assert len(settled.ranges) == RANGES_MAX
    assert content is not None
    assert len(content) < DOCUMENT_BYTES_MAX
