"""gateway.groups.machines.table: all groups as one machine: where events go, what a snapshot holds, what is
forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from gateway.groups.machines.config import BROADCAST, GroupConfig
from gateway.groups.machines.errors import UnknownGroup
from gateway.groups.machines.events import (
    Barrier,
    CommittedOffset,
    Configured,
    DocumentPut,
    Event,
    Forgotten,
    Leased,
    LeasesSet,
    OffsetsCommitted,
    Settled,
    decode_events,
    encode_event,
)
from gateway.groups.machines.progress import Absent, Found, PartitionKey, Unavailable
from gateway.groups.machines.strategies.registry import StrategyRegistry
from gateway.groups.machines.subscription import Subscription
from gateway.groups.machines.table import GroupTable
from tests.gateway.groups.machines.topic_view import FakeTopic

ORDERS = FakeTopic("orders", 16, 2)
KEY = PartitionKey(16, 0)


def table(events: Iterable[Event] = ()) -> GroupTable:
    made = GroupTable(StrategyRegistry())
    for event in events:
        made.apply(event, 0)
    made.progress.open()
    return made


def joined(made: GroupTable, group: str, member_id: str) -> Sequence[Event]:
    wish = Subscription(frozenset(["orders"]))
    events = made.get_or_new(group).membership.decide_join(member_id, wish, [ORDERS])
    for event in events:
        made.apply(event, 0)
    return events


LEASING: list[Event] = [
    LeasesSet("g", 16, 0, 5, 10, ()),
    Leased("g", 16, 0, 13, (10, 11, 12), (), (10, 11), 1000),
    Settled("g", 16, 0, (10,)),
]
COMMITTED = OffsetsCommitted("g", (CommittedOffset(16, 1, 7, "m", 1), CommittedOffset(17, 0, 9, "", 1)))


def test_a_group_is_there_from_its_first_event_until_it_is_deleted() -> None:
    made = table()
    assert "g" not in made
    made.get_or_new("g")
    assert "g" not in made, "asking makes none"
    made.apply(DocumentPut("g", "key", b"x"), 0)
    assert ("g" in made, len(made), made.names()) == (True, 1, ["g"])
    made.apply(Forgotten("g", None), 0)
    with pytest.raises(UnknownGroup):
        made.get("g")


def test_a_barrier_belongs_to_nobody() -> None:
    assert table([Barrier()]).names() == []


def test_where_a_group_has_leases_its_place_is_the_first_record_that_is_not_done() -> None:
    made = table([*LEASING, COMMITTED])
    assert made.stored("g", KEY) == Found(11, "", 0)
    assert made.stored("g", PartitionKey(16, 1)) == Found(7, "m", 1)
    assert made.stored("g", PartitionKey(18, 0)) == Absent()
    assert isinstance(GroupTable(StrategyRegistry()).stored("g", KEY), Unavailable)
    assert made.topic_ids("g") == {16, 17}
    assert made.get("g").open_count == 2


def test_what_a_group_has_in_a_topic_goes_with_the_topic() -> None:
    made = table([*LEASING, COMMITTED])
    (forgotten,) = made.decide_prune(lambda topic_id: topic_id != 16)
    assert forgotten == Forgotten("g", (16,))
    made.apply(forgotten, 0)
    assert (made.leases("g", KEY), made.topic_ids("g"), "g" in made) == (None, {17}, True)
    assert made.decide_prune(lambda topic_id: topic_id == 17) == []


def test_a_snapshot_leads_an_empty_table_to_the_same_state() -> None:
    made = table([*LEASING, COMMITTED, DocumentPut("g", "key", b"\x00"), Configured("g", {"max_attempts": 3})])
    joined(made, "g", "m1")
    joined(made, "other", "m2")
    made.apply(Configured("wide", {"mode": BROADCAST}), 0)
    joined(made, "wide/one", "one")
    events = list(made.snapshot())
    again = table(decode_events([encode_event(event) for event in events]))
    assert list(again.snapshot()) == events
    assert again.config("g") == GroupConfig(max_attempts=3)
    assert again.config("wide/one").mode == BROADCAST
    assert again.get("g").membership.share("m1") == made.get("g").membership.share("m1")


def test_the_members_of_a_broadcasting_group_have_its_settings_whenever_they_come() -> None:
    made = table([Configured("wide", {"mode": BROADCAST, "members_max": 7})])
    joined(made, "wide/one", "one")
    assert made.get("wide/one").config.members_max == 7
    made.apply(Configured("wide", {"mode": BROADCAST, "members_max": 8}), 0)
    assert made.get("wide/one").config.members_max == 8
    assert made.lone_groups("wide") == ["wide/one"]
    assert made.lone_groups("wid") == []


def test_settings_reach_the_leases_there_are() -> None:
    made = table(LEASING)
    leases = made.leases("g", KEY)
    assert leases is not None
    assert leases.room == GroupConfig().in_flight_max - 2
    made.apply(Configured("g", {"in_flight_max": 5}), 0)
    assert leases.room == 3


def test_a_strategy_that_is_not_installed_any_more_leaves_assignments_alone(caplog: pytest.LogCaptureFixture) -> None:
    made = table()
    joined(made, "g", "m1")
    before = made.get("g").membership.share("m1")
    made.apply(Configured("g", {"strategy": "of_a_package"}), 0)
    assert "of_a_package" in caplog.text
    for event in made.get("g").membership.decide_rebalance([ORDERS]):
        made.apply(event, 0)
    assert made.get("g").membership.share("m1").assigned == before.assigned
