"""gateway/groups/machines/light_offsets.py: what is kept, what it takes, and what a snapshot makes of it."""

from __future__ import annotations

from gateway.groups.machines import light_offsets
from gateway.groups.machines.events import LightCommitted, LightForgotten, LightPosition, decode_events, encode_event
from gateway.groups.machines.light_offsets import FORGOTTEN, LightOffsets


def committed(*positions: tuple[int, str, str, int], topic_id: int = 16) -> LightCommitted:
    return LightCommitted(topic_id, tuple(LightPosition(*one) for one in positions))


def test_what_is_said_last_stands_for_each_group_queue_and_partition() -> None:
    offsets = LightOffsets()
    assert offsets.get("phone", 16, 0, "user/42") is None
    offsets.apply(committed((0, "phone", "user/42", 5), (1, "phone", "user/42", 6), (0, "laptop", "user/42", 7)))
    offsets.apply(committed((0, "phone", "user/42", 3)))
    offsets.apply(committed((0, "phone", "user/42", 9), topic_id=17))
    assert offsets.get("phone", 16, 0, "user/42") == 3, "a device may go back"
    assert offsets.get("phone", 16, 1, "user/42") == 6
    assert offsets.get("laptop", 16, 0, "user/42") == 7
    assert offsets.get("phone", 17, 0, "user/42") == 9
    assert offsets.get("phone", 16, 0, "user/4") is None
    assert len(offsets) == 4
    offsets.apply(committed((0, "phone", "user/42", FORGOTTEN), (5, "nobody", "x", FORGOTTEN)))
    assert offsets.get("phone", 16, 0, "user/42") is None
    assert len(offsets) == 3


def test_what_they_take_is_counted_as_it_grows_and_shrinks() -> None:
    offsets = LightOffsets()
    events: list[LightCommitted] = [
        committed((0, "g", "a", 1), (0, "g", "b", 1), (0, "g", "a", 2)),
        committed((0, "g", "a", 5)),
        committed((0, "g", "a", FORGOTTEN), (7, "g", "c", FORGOTTEN)),
    ]
    added_bytes = offsets.added_bytes(events[0])
    offsets.apply(events[0])
    size_bytes = offsets.size_bytes
    assert size_bytes == added_bytes > 0
    assert dict(offsets.counts) == {"g": 2}
    assert offsets.added_bytes(events[1]) == 0
    offsets.apply(events[1])
    assert offsets.size_bytes == size_bytes
    offsets.apply(events[2])
    assert 0 < offsets.size_bytes < size_bytes
    assert size_bytes - offsets.size_bytes == offsets.added_bytes(events[1]), "of a group that has others"
    assert dict(offsets.counts) == {"g": 1}
    offsets.apply(committed((0, "g", "x", 1), topic_id=17))
    assert offsets.decide_prune(lambda topic_id: topic_id == 17) == [LightForgotten(16)]
    offsets.apply(LightForgotten(16))
    offsets.apply(LightForgotten(16))
    offsets.apply(LightForgotten(17))
    assert (offsets.size_bytes, len(offsets), dict(offsets.counts)) == (0, 0, {})


def test_those_of_a_group_are_found_a_stretch_at_a_time() -> None:
    offsets = LightOffsets()
    offsets.apply(committed((0, "g", "a", 1), (0, "gg", "a", 2), (1, "g", "b/g", 3), (2, "g", "c", 4)))
    offsets.apply(committed((0, "g", "a", 5), topic_id=17))
    assert offsets.topic_ids() == [16, 17]
    assert offsets.of_group("g", 16) == {(0, "a"): 1, (1, "b/g"): 3, (2, "c"): 4}
    assert (offsets.of_group("nobody", 16), offsets.of_group("g", 18)) == ({}, {})
    stretches = offsets.stretches_of("g", 16, key_count=2)
    assert [one.name for one in next(stretches)] == ["a"]
    offsets.apply(committed((2, "g", "c", FORGOTTEN), (3, "g", "new", 1)))
    assert [one.name for one in next(stretches)] == ["b/g"], "without what has gone, and what has come"
    assert list(stretches) == []


def test_a_snapshot_is_the_state_at_its_call() -> None:
    offsets = LightOffsets()
    for number in range(light_offsets.COMMITS_MAX + 1):
        offsets.apply(committed((number % 3, f"g{number}", "é/*x"[:2], number)))
    events = offsets.snapshot(lambda group: True)
    offsets.apply(committed((0, "g0", "é/", 77)))
    offsets.apply(LightForgotten(16))
    again = LightOffsets()
    count = 0
    for event in events:
        [read] = decode_events([encode_event(event)])
        assert read == event
        assert isinstance(read, LightCommitted)
        again.apply(read)
        count += 1
    assert count == 2, "each of bounded size"
    assert len(again) == light_offsets.COMMITS_MAX + 1
    assert again.get("g0", 16, 0, "é/") == 0
    [gone] = decode_events([encode_event(LightForgotten(16))])
    assert gone == LightForgotten(16)
