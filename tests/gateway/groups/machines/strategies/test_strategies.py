"""The allocation strategies against the original's vectors and their own worked examples."""

from __future__ import annotations

import pytest

from gateway.groups.machines.strategies.averagely import Averagely
from gateway.groups.machines.strategies.averagely_by_circle import AveragelyByCircle
from gateway.groups.machines.strategies.base import Partition, Rooms, Strategy, allocate
from gateway.groups.machines.strategies.by_config import ByConfig
from gateway.groups.machines.strategies.consistent_hash import ConsistentHash, point
from gateway.groups.machines.strategies.machine_room import MachineRoom
from gateway.groups.machines.strategies.machine_room_nearby import MachineRoomNearby


def partitions(count: int, topic: str = "T", topic_id: int = 16) -> list[Partition]:
    return [Partition(topic, topic_id, number) for number in range(count)]


def numbers(strategy: Strategy, members: list[str], of: list[Partition]) -> list[list[int]]:
    """What each member gets, by partition number."""
    assignment = allocate(strategy, members, of, {})
    return [[partition.partition for partition in assignment[member]] for member in members]


def c(count: int) -> list[str]:
    return [f"c{index}" for index in range(count)]


@pytest.mark.parametrize(
    ("partition_count", "member_count", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (2, 3, [[0], [1], []]),
        (3, 3, [[0], [1], [2]]),
        (0, 2, [[], []]),
    ],
)
def test_averagely_gives_runs_as_the_original(
    partition_count: int, member_count: int, expected: list[list[int]]
) -> None:
    assert numbers(Averagely(), c(member_count), partitions(partition_count)) == expected


def test_by_circle_deals_like_cards() -> None:
    assert numbers(AveragelyByCircle(), c(3), partitions(8)) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_the_original_strategies_share_each_topic_by_itself() -> None:
    two_topics = partitions(3, "a") + partitions(1, "b", 17)
    assert allocate(Averagely(), c(2), two_topics, {})["c0"] == (
        Partition("a", 16, 0),
        Partition("a", 16, 1),
        Partition("b", 17, 0),
    )


def test_consistent_hash_is_that_of_the_original() -> None:
    assert numbers(ConsistentHash(lambda _: "b"), c(3), partitions(8)) == [[3, 4, 6], [1, 2, 5], [0, 7]]


def test_a_place_is_the_first_four_bytes_of_the_md5() -> None:
    assert point("") == 0xD41D8CD9


def test_consistent_hash_moves_only_partitions_of_who_left() -> None:
    strategy, of = ConsistentHash(lambda _: "b"), partitions(64)
    before = allocate(strategy, c(5), of, {})
    after = allocate(strategy, ["c0", "c1", "c3", "c4"], of, {})
    assert sorted(after) == ["c0", "c1", "c3", "c4"]
    for member in after:
        assert set() < set(before[member]) <= set(after[member])
    assert before["c2"]


def test_consistent_hash_needs_a_virtual_node() -> None:
    with pytest.raises(ValueError, match="virtual_nodes"):
        ConsistentHash(virtual_nodes=0)


def test_by_config_gives_what_is_listed_to_who_is_there() -> None:
    strategy = ByConfig({"c0": [("T", 0)], "c1": [("T", 1), ("T", 2)]})
    assert numbers(strategy, ["c0", "c2"], partitions(4)) == [[0], []]


def test_by_config_refuses_a_partition_on_two_lists() -> None:
    with pytest.raises(ValueError, match="c0 and to c1"):
        ByConfig({"c0": [("T", 0)], "c1": [("T", 0)]})


def test_machine_room_takes_its_rooms_and_deals_out_the_rest_at_the_end() -> None:
    assert numbers(MachineRoom(lambda _: "r@b", ["r"]), c(3), partitions(8)) == [[0, 1, 6], [2, 3, 7], [4, 5]]
    in_room = MachineRoom(lambda partition: "r@b" if partition.partition % 2 else "x@b", ["r"])
    assert numbers(in_room, c(2), partitions(8)) == [[1, 3], [5, 7]]


def test_machine_room_shares_all_and_says_so_when_nothing_lies_in_its_rooms(caplog: pytest.LogCaptureFixture) -> None:
    room, rooms = "x", Rooms("g")
    strategy = MachineRoom(lambda _: "b", ["r"], lambda _: room, rooms.warn)
    shared = [[0, 1], [2, 3]]
    for _ in range(2):
        assert _asked(strategy, rooms, c(2), 4) == shared
        assert len(rooms.warnings) == 1
        assert "(r; they are in x)" in rooms.warnings[0]
    assert caplog.text.count("group=g no partition of some topics lies in the rooms of this group") == 1
    room = "r"
    assert _asked(strategy, rooms, c(2), 4) == shared
    assert rooms.warnings == ()
    room = ""
    assert _asked(strategy, rooms, c(2), 4) == shared
    assert "they are in (none)" in caplog.text


def _asked(strategy: Strategy, rooms: Rooms, members: list[str], count: int) -> list[list[int]]:
    """What a strategy says for members that have said no rooms."""
    rooms.begin({})
    shares = numbers(strategy, members, partitions(count))
    rooms.end()
    return shares


def test_machine_room_nearby_says_which_rooms_have_no_member(caplog: pytest.LogCaptureFixture) -> None:
    rooms = Rooms("g")
    strategy = MachineRoomNearby(Averagely(), lambda _: "b", rooms.of_member, lambda _: "far", rooms.warn)
    for _ in range(2):
        assert _asked(strategy, rooms, ["near@0", "near@1"], 4) == [[0, 1], [2, 3]]
    assert caplog.text.count("rooms without a member") == 1
    assert _asked(strategy, rooms, ["far@0", "near@1"], 4) == [[0, 1, 2, 3], []]
    assert rooms.warnings == ("members have nothing, as no partition lies in their rooms (near): near@1",)


def test_a_room_that_a_member_says_counts_more_than_its_name() -> None:
    rooms = Rooms("g")
    strategy = MachineRoomNearby(
        Averagely(), lambda partition: "ab"[partition.partition % 2], rooms.of_member, lambda broker: broker, rooms.warn
    )
    rooms.begin({"b@0": "a", "c1": "b"})
    assert numbers(strategy, ["b@0", "c1"], partitions(4)) == [[0, 2], [1, 3]]
    rooms.end()
    assert rooms.warnings == ()


def test_machine_room_nearby_keeps_to_the_room_and_shares_rooms_without_members() -> None:
    rooms = ["a"] * 4 + ["b"] * 2 + ["c"] * 3
    strategy = MachineRoomNearby(Averagely(), lambda partition: f"{rooms[partition.partition]}@broker")
    assert numbers(strategy, ["a@1", "a@2", "b@1"], partitions(9)) == [[0, 1, 6], [2, 3, 7], [4, 5, 8]]
