"""gateway.codec.schedule_ids."""

from __future__ import annotations

from gateway.codec.schedule_ids import split_node, with_node
from timer.schedule import encode_schedule_id


def test_an_id_carries_its_node_in_a_cluster_and_nothing_more_alone() -> None:
    schedule_id = encode_schedule_id(1_700_000_000_000, 4096, 3)
    assert with_node(None, schedule_id) == schedule_id
    assert with_node("n-1", schedule_id) == f"n-1.{schedule_id}"
    assert split_node(schedule_id) == (None, schedule_id)
    assert split_node(with_node("n-1", schedule_id)) == ("n-1", schedule_id)
