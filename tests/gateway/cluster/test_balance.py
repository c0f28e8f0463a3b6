"""gateway/cluster/balance.py: carried out in parts of any size, a plan ends where it says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from gateway.cluster.balance import NoTaker, Partition, Plan, plan_drain, plan_share

PARTITIONS = 20
On = dict[str, list[Partition]]


def carried_out(on: On, plan: Callable[[On], Plan]) -> int:
    """How many moves it took; of each part the total is what is left of them."""
    count, left = 0, None
    while True:
        moves, total = plan(on)
        assert left is None or total == left
        if not moves:
            assert total == 0
            return count
        for topic, partition, source, to in moves:
            on[source].remove((topic, partition))
            on.setdefault(to, []).append((topic, partition))
            count += 1
        left = total - len(moves)


@pytest.mark.parametrize("limit", [1, 7, PARTITIONS])
def test_a_broker_is_drained_to_the_others_evenly_and_has_its_share_afterwards(limit: int) -> None:
    rng = Random(limit)
    for _ in range(50):
        on: On = {}
        for partition in range(PARTITIONS):
            on.setdefault(rng.choice(("n1", "n2", "n3", "gone")), []).append(("orders", partition))
        leaving, gone = len(on.get("n1", ())), len(on.get("gone", ()))
        takers = {"n1", "n2", "n3"}
        assert carried_out(on, partial(plan_drain, name="n1", takers=takers, limit=limit)) == leaving
        assert on.get("n1", []) == []
        assert len(on.get("gone", ())) == gone, "a broker that takes none keeps what it has"
        carried_out(on, partial(plan_share, name="n1", takers=takers, limit=limit))
        share = PARTITIONS // 3
        spare = sum(max(0, len(on.get(name, ())) - share) for name in ("n2", "n3"))
        assert len(on.get("n1", ())) == share or spare == 0
        assert min(len(on.get("n1", ())), share) >= min(share, PARTITIONS - gone - 2 * share)


def test_nobody_else_takes_them() -> None:
    on: On = {"n1": [("orders", 0)]}
    with pytest.raises(NoTaker, match="no other broker can take"):
        plan_drain(on, "n1", {"n1"}, 10)
    assert plan_drain({}, "n1", {"n1"}, 10) == ([], 0)
    assert plan_share(on, "n1", {"n1"}, 10) == ([], 0)
