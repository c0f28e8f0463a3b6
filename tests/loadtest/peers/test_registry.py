"""Every peer can be had by its name, and says what the report needs; without its programs."""

from __future__ import annotations

import pytest

from loadtest.peers.plan import PARTS, long_workloads, workloads
from loadtest.peers.registry import MODULES, peer_of

WORKS = {step.work for step in (*workloads(quick=True), *(long_workloads(part, quick=True) for part in PARTS[1:]))}


@pytest.mark.parametrize("name", list(MODULES))
def test_a_peer_says_what_it_is(name: str) -> None:
    peer = peer_of(name)
    assert peer.name == name
    assert peer.about
    assert (peer.is_ours, peer.is_limit) == (name == "mq", name == "bare aiohttp")
    assert len({level.name for level in peer.levels}) == len(peer.levels) > 0
    assert all(level.about for level in peer.levels)
    assert any(peer.ways(work) for work in WORKS)


@pytest.mark.parametrize("name", list(MODULES))
def test_each_way_of_a_work_has_a_name_of_its_own(name: str) -> None:
    peer = peer_of(name)
    for work in WORKS:
        clients = [way.client for way in peer.ways(work)]
        assert len(set(clients)) == len(clients), work
    if peer.ways("fill"):
        assert peer.ways("first_record")[0].client == peer.ways("fill")[0].client, "who fills reads again"
    if peer.ways("scan"):
        assert peer.ways("drop"), "what was sent for the scan is removed"


def test_a_name_that_is_none_is_an_error() -> None:
    with pytest.raises(KeyError):
        peer_of("mqtt")
