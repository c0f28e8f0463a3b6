"""The journal of frames against a list that forgets nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.surfaces.ws.journal import FRAMES_MAX, Forgotten, Frame, Journal

steps = st.lists(
    st.tuples(st.sampled_from(["sent", "sent", "sent", "confirm", "rewind"]), st.integers(0, 20)), max_size=80
)


@given(st.sampled_from([0, 1, 4, 16, 64]), steps)
def test_what_is_taken_back_is_what_was_sent_since(frames_max: int, steps: list[tuple[str, int]]) -> None:
    journal = Journal(frames_max)
    model: list[Frame] = []
    confirmed = most = 0
    for step, number in steps:
        if step == "sent":
            frame = Frame(number, len(model), number + 1, number * 7)
            model.append(frame)
            assert journal.sent(frame) == len(model)
            most = max(most, len(model))
        elif step == "confirm":
            seen = len(model) - number
            if seen < 0:
                continue
            journal.confirm(seen)
            confirmed = max(confirmed, seen)
        else:
            seen = len(model) - number
            if seen < confirmed:
                with pytest.raises(Forgotten):
                    journal.rewind(seen)
                continue
            try:
                taken = journal.rewind(seen)
            except Forgotten:
                assert most - seen > frames_max  # J2: a rewind does not bring back what was forgotten before
                continue
            assert taken == model[seen:][::-1]
            del model[seen:]
        assert journal.last == len(model)


def test_as_many_frames_are_remembered_as_is_promised() -> None:
    journal = Journal()
    for n in range(3 * FRAMES_MAX):
        journal.sent(Frame(0, n, 1, 1))
    assert len(journal.rewind(2 * FRAMES_MAX)) == FRAMES_MAX
    with pytest.raises(Forgotten):
        journal.confirm(2 * FRAMES_MAX + 1)
