"""gateway.main.group_moves: a group is used on one node only, whatever becomes of the answers while it moves."""

from __future__ import annotations

import pytest

from gateway.api.cluster import GROUPS
from gateway.brokers.base import AnswerLost
from gateway.cluster.node import ClusterNode
from gateway.cluster.peer import PeerBroker
from gateway.groups.coordinator.service import Coordinator
from gateway.groups.machines.errors import GroupElsewhere
from gateway.main.group_moves import GroupMoves
from store.errors import Overloaded
from tests.gateway.cluster.test_node import AWAY, REFUSED, Troubled, joined
from tests.gateway.groups.coordinator.world import wanting, world

G = "billing"


async def give_cut_off(
    groups: Coordinator, node: ClusterNode, other: ClusterNode, *, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give a group to a node whose answer is lost, and with it, for a while, the way to the metadata."""
    metadata = node._metadata
    assert isinstance(metadata, Troubled)

    async def take_group(_: PeerBroker, group: str, *_events: bytes, size_bytes: int, revision: int) -> bool:
        if is_taken:
            assert await other.own(GROUPS, group, revision)
        metadata.troubles = [AWAY, AWAY, REFUSED, AWAY]
        raise AnswerLost("cut off")

    monkeypatch.setattr("gateway.cluster.node.RETRY_S", 0)
    monkeypatch.setattr(PeerBroker, "take_group", take_group)
    moves = GroupMoves(groups, node)
    await moves.begin()
    await moves.give(G, other.name)


async def test_a_group_whose_taker_was_not_heard_is_used_again_when_it_is_certain_whose_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = Troubled()
    async with joined(metadata, name="n2") as (other, _), joined(metadata) as (node, _), world(values=[b"a"]) as made:
        await made.groups.receive(G, wanting())
        with pytest.raises(Overloaded, match="it has not"):
            await give_cut_off(made.groups, node, other, is_taken=False, monkeypatch=monkeypatch)
        await made.groups.configure(G, {"max_attempts": 3})
        with monkeypatch.context() as taken:
            await give_cut_off(made.groups, node, other, is_taken=True, monkeypatch=taken)
        assert G not in made.groups.table
        with pytest.raises(GroupElsewhere):
            await made.groups.configure(G, {"max_attempts": 4})
