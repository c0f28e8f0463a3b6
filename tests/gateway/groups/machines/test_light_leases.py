"""gateway/groups/machines/light_leases.py in the table of groups: what is kept of light queues in queue mode, what a
snapshot makes of it, what goes with topics and groups; receipts that name a queue."""

from __future__ import annotations

import pytest

from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.errors import IllegalRequest
from gateway.groups.machines.events import (
    Event,
    Forgotten,
    Leased,
    LightBegun,
    LightCommitted,
    LightForgotten,
    LightPosition,
    Settled,
    decode_events,
    encode_event,
)
from gateway.groups.machines.leases import Verdict
from gateway.groups.machines.light_leases import LightLeases
from gateway.groups.machines.light_offsets import FORGOTTEN
from gateway.groups.machines.progress import LightKey, PartitionKey
from gateway.groups.machines.receipts import PREFIX, Receipt, Signer
from gateway.groups.machines.table import GroupTable
from tests.gateway.groups.machines.test_table import table

A, B, OTHER = LightKey(16, 0, "a"), LightKey(16, 0, "b"), LightKey(16, 1, "a")
NOW_MS = 1_000


def leased(made: GroupTable, key: LightKey, first: int, count: int, until_ms: int = 5_000) -> None:
    """Records that come after all that was taken there."""
    leases = made.leases("g", key)
    assert leases is not None
    _, events = leases.decide_receive(
        [], range(first, first + count), fetched_to=first + count, limit=count, invisible_ms=until_ms - NOW_MS,
        now_ms=NOW_MS,
    )  # fmt: skip
    for event in events:
        made.apply(event, 0)


def reset(made: GroupTable, key: LightKey, offset: int) -> None:
    leases = made.leases("g", key)
    assert leases is not None
    for event in leases.decide_reset(offset, NOW_MS):
        made.apply(event, 0)


def begun() -> GroupTable:
    made = table([LightBegun("g", 16, 7)])
    leased(made, A, 0, 3)
    leased(made, B, 100, 1)
    made.apply(Settled("g", 16, 0, (0, 2), "a"), 0)
    made.apply(Settled("g", 16, 0, (100,), "b"), 0)
    return made


def again(made: GroupTable, events: list[Event]) -> GroupTable:
    return table(decode_events([encode_event(event) for event in events]))


def receipt(key: LightKey, offset: int, epoch: int = 7, attempt: int = 1) -> Receipt:
    return Receipt(*key[:2], offset, attempt, 5_000, epoch, 1, key.name)


def test_each_queue_has_its_own_leases_and_its_place_is_the_first_record_that_is_not_done() -> None:
    made = begun()
    assert [made.light_offset("g", key) for key in (A, B, OTHER)] == [1, 101, 0]
    assert made.get("g").open_count == made.open_count == 1
    light = made.light("g", 16)
    assert light is not None
    assert set(light.open) == {(0, "a")}, "nothing is kept of the others but an offset"
    assert made.leases("g", PartitionKey(16, 0)) is None, "the partition is another place"
    assert made.leases("g", LightKey(17, 0, "a")) is None
    assert [key for key, _ in made.get("g").open_leases()] == [A]
    idle = made.leases("g", B)
    assert idle is not None
    assert (idle.next_offset, idle.epoch) == (101, 7)
    assert idle.verdicts([receipt(B, 100), receipt(B, 101), receipt(B, 100, epoch=6)], NOW_MS) == [
        Verdict.EXPIRED, Verdict.STALE, Verdict.STALE,
    ]  # fmt: skip
    assert idle.decide_ack([receipt(B, 100)], NOW_MS).verdicts == [Verdict.OK], "acking twice is fine"


def test_a_snapshot_leads_an_empty_table_to_the_same_state() -> None:
    made = begun()
    reset(made, B, 90)
    assert made.light_offset("g", B) == 90
    sizes = made.size_bytes, made.size_of("g"), made.open_count
    for events in (list(made.snapshot()), list(made.snapshot(["g"]))):
        copy = again(made, events)
        assert [copy.light_offset("g", key) for key in (A, B, OTHER)] == [1, 90, 0]
        assert (copy.size_bytes, copy.size_of("g"), copy.open_count) == sizes
        for key in (A, B, OTHER):
            there, here = copy.leases("g", key), made.leases("g", key)
            assert there is not None
            assert here is not None
            assert there.frozen() == here.frozen()


def test_a_snapshot_gives_no_place_to_what_has_none() -> None:
    """As of a group whose delete a crash has cut off behind its first event."""
    made = begun()
    reset(made, B, 90)
    gone = LightCommitted(16, (LightPosition(0, "g", "a", FORGOTTEN), LightPosition(0, "g", "b", FORGOTTEN)), "g")
    made.apply(gone, 0)
    sizes = made.size_bytes, made.size_of("g"), made.open_count
    for events in (list(made.snapshot()), list(made.snapshot(["g"]))):
        assert {event.group for event in events} == {"g"}
        copy = again(made, events)
        assert copy.light_offsets.of_group("g", 16) == {}
        assert list(copy.snapshot()) == list(made.snapshot())
        assert (copy.size_bytes, copy.size_of("g"), copy.open_count) == sizes


def test_a_snapshot_of_one_group_has_its_places_alone() -> None:
    made = begun()
    made.apply(LightCommitted(16, (LightPosition(0, "other", "a", 3), LightPosition(0, "gg", "a", 3))), 0)
    assert {event.group for event in made.snapshot(["g"])} == {"g"}
    assert made.light_offsets.of_group("g", 16) == {(0, "a"): 1, (0, "b"): 101}


def test_what_a_group_has_goes_with_the_topic_and_with_the_group() -> None:
    made = begun()
    events: list[Event] = [*made.decide_prune(lambda _: False), *made.light_offsets.decide_prune(lambda _: False)]
    assert events == [Forgotten("g", (16,)), LightForgotten(16)]
    for event in events:
        made.apply(event, 0)
    assert (made.light("g", 16), made.open_count, made.light_offset("g", A)) == (None, 0, 0)
    made = begun()
    made.apply(Forgotten("g", None), 0)
    assert (made.light("g", 16), made.open_count) == (None, 0)
    again_begun = LightLeases("g", 16).decide_begin(8)
    assert again_begun.epoch == 8, "receipts from before are void"


def test_settings_reach_the_leases_there_are() -> None:
    made = begun()
    leases = made.opened("g", A)
    assert leases is not None
    assert leases.room == GroupConfig().in_flight_max - 1
    made.get("g")  # as `Configured` does
    made._configure(made.get("g"), GroupConfig(in_flight_max=5))
    assert leases.room == 4


def test_an_event_without_a_name_is_of_the_partition_and_is_written_as_before() -> None:
    event = Leased("g", 16, 0, 1, (0,), (), (0,), 5)
    assert b'"name"' not in encode_event(event)
    made = table([event])
    assert made.light("g", 16) is None
    assert made.leases("g", PartitionKey(16, 0)) is not None


def test_a_receipt_names_its_queue_and_is_worth_nothing_anywhere_else() -> None:
    signer = Signer([b"k" * 16])
    for name in ("a", "ab", "user/é" + "x" * 240):
        run = Receipt(16, 0, 5, 1, 9, 7, 3, name)
        texts = signer.sign_all("g", [run])
        assert Signer([b"k" * 16]).check_runs("g", texts) == [run]
        assert all(text.startswith("r3.") for text in texts)
    whole = signer.sign("g", Receipt(16, 0, 5, 1, 9, 7, 1))
    assert whole.startswith(PREFIX)
    fresh = Signer([b"k" * 16])
    text = signer.sign("bc", Receipt(16, 0, 5, 1, 9, 7, 1, "a"))
    assert fresh.check("bc", text).name == "a"
    for group in ("b", "abc", "c", "bcd"):
        with pytest.raises(IllegalRequest):
            fresh.check(group, text)
    body, _, index = text.removeprefix("r3.").partition(".")
    for other in (
        f"r2.{body}.{index}",
        f"r3.{body}=.{index}",
        f"r3.{body}A.{index}",
        f"r3.{body[:-1]}.{index}",
        "r3..",
    ):
        with pytest.raises(IllegalRequest):
            fresh.check("bc", other)
    mixed = signer.sign_all("g", [Receipt(16, 0, 5, 1, 9, 7, 1, "a"), Receipt(16, 0, 6, 1, 9, 7, 1, "b")])
    assert [one and one.name for one in fresh.check_all("g", mixed)] == ["a", "b"], "they are no run"
