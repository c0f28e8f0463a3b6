"""gateway.groups.coordinator.metrics: what groups look like from outside."""

from __future__ import annotations

import pytest

from gateway.groups.coordinator import service
from gateway.groups.coordinator.metrics import coordinator_metrics
from gateway.groups.coordinator.service import LAGS_MAX
from gateway.groups.machines.config import BROADCAST
from tests.gateway.groups.coordinator.test_settling import receipts
from tests.gateway.groups.coordinator.world import ORDERS, World, wanting, world

G = "billing"


def read(made: World) -> dict[str, float]:
    """Samples by name and labels."""
    return {
        ",".join([sample.name, *sample.labels.values()]): sample.value
        for metric in coordinator_metrics(made.groups)
        for sample in metric.samples
    }


async def test_members_leases_lag_and_what_was_counted() -> None:
    async with world(values=[b"1", b"2", b"3"]) as made:
        first = (await made.groups.receive(G, wanting(max_messages=2))).messages
        await made.groups.ack(G, receipts(first)[:1])
        await made.groups.nack(G, receipts(first)[1:], delay_ms=0)
        await made.groups.receive(G, wanting(max_messages=1))
        await made.groups.join("streaming", "m1", ORDERS)
        await made.groups._read_lags()
        seen = read(made)
        assert seen["mq_groups"] == 2
        assert seen[f"mq_inflight,{G}"] == 1
        assert seen["mq_group_members,streaming"] == 1
        assert seen[f"mq_group_lag,{G},orders,0"] == 2
        assert seen["mq_group_delivered_records_total"] == 3
        assert seen["mq_group_redelivered_records_total"] == 1
        assert seen["mq_group_settled_records_total"] == 1
        assert seen["mq_group_rebalances_total"] == 1
        assert seen["mq_group_lag_omitted"] == 0


async def test_a_broadcasting_group_is_one_group_with_all_its_members() -> None:
    async with world() as made:
        await made.groups.configure(G, {"mode": BROADCAST})
        for name in ("one", "two"):
            await made.groups.join(G, name, ORDERS)
        seen = read(made)
        assert (seen["mq_groups"], seen[f"mq_group_members,{G}"]) == (1, 2)


async def test_warnings_are_counted_at_groups_that_have_some() -> None:
    async with world(partitions=2) as made:
        made.routes.rooms["b"] = "north"
        for group, member_id in ((G, "south@m1"), ("fine", "north@m1")):
            await made.groups.configure(group, {"strategy": "machine_room_nearby"})
            await made.groups.join(group, member_id, ORDERS)
        assert {name for name in read(made) if name.startswith("mq_group_warnings")} == {f"mq_group_warnings,{G}"}
        assert read(made)[f"mq_group_warnings,{G}"] == len(made.groups.describe(G).warnings) == 1
        await made.groups.join(G, "north@m2", ORDERS)
        await made.groups.join(G, "south@m3", ORDERS)
        assert read(made)[f"mq_group_warnings,{G}"] == 1, "one for all members of a room"


async def test_what_was_read_at_a_start_is_not_counted_as_what_has_happened() -> None:
    async with world(values=[b"1"]) as made:
        await made.groups.ack(G, receipts((await made.groups.receive(G, wanting())).messages))
        await made.kill()
        await made.start()
        assert read(made)["mq_group_settled_records_total"] == 0


async def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LAGS_MAX <= 10_000
    async with world(partitions=3) as made:
        for group in (G, "other"):
            await made.groups.receive(group, wanting())
        for limit, omitted in ((6, 0), (5, 1), (2, 4)):
            monkeypatch.setattr(service, "LAGS_MAX", limit)
            await made.groups._read_lags()
            seen = read(made)
            assert sum(name.startswith("mq_group_lag,") for name in seen) == limit
            assert seen["mq_group_lag_omitted"] == omitted
