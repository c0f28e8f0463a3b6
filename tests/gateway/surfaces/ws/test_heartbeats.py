"""gateway/surfaces/ws/heartbeats.py: one timer for all sockets, each after its own time, some at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from gateway.surfaces.ws.heartbeats import BEATS_A_LOOK, LOOK_PAUSE_S, Heartbeats
from tests.waiting import WOKEN_S, until

INTERVAL_S = 0.05


class Socket:
    def __init__(self, beats: Heartbeats, times: int = 1) -> None:
        self._beats, self._times = beats, times
        self.at_s: list[float] = []
        self.began_s = asyncio.get_running_loop().time()
        beats.add(self)

    def beat(self) -> None:
        self.at_s.append(asyncio.get_running_loop().time())
        if len(self.at_s) < self._times:
            self._beats.add(self)


async def test_each_beats_after_the_interval_and_again_if_it_says_so() -> None:
    beats = Heartbeats(INTERVAL_S)
    first = Socket(beats, times=3)
    await asyncio.sleep(INTERVAL_S / 2)
    second, gone = Socket(beats), Socket(beats)
    beats.remove(gone)
    async with asyncio.timeout(WOKEN_S):
        await until(lambda: len(first.at_s) == 3 and len(second.at_s) == 1, pause_s=0.005)
    for socket in (first, second):
        for before_s, at_s in zip([socket.began_s, *socket.at_s], socket.at_s, strict=False):
            assert at_s - before_s >= INTERVAL_S - 0.002
    await asyncio.sleep(2 * INTERVAL_S)
    assert (len(first.at_s), len(second.at_s), gone.at_s) == (3, 1, [])
    assert beats._timer is None, "nothing is left to wake for"


@pytest.mark.parametrize(
    ("interval_s", "count", "a_look"),
    [(INTERVAL_S, 2 * BEATS_A_LOOK + 1, BEATS_A_LOOK), (2 * LOOK_PAUSE_S, 3 * BEATS_A_LOOK, 3 * BEATS_A_LOOK)],
    ids=["few at a time", "all within the interval"],
)
async def test_those_that_opened_together_beat_some_at_a_time_and_stay_apart(
    interval_s: float, count: int, a_look: int
) -> None:
    beats = Heartbeats(interval_s)
    sockets = [Socket(beats, times=2) for _ in range(count)]
    beats._due_s.update(dict.fromkeys(sockets, sockets[-1].began_s + interval_s))  # in one moment
    async with asyncio.timeout(WOKEN_S):
        await until(lambda: all(len(socket.at_s) == 2 for socket in sockets), pause_s=0.005)
    for time in (0, 1):
        looks: dict[int, list[float]] = {}
        for number, socket in enumerate(sockets):
            looks.setdefault(number // a_look, []).append(socket.at_s[time])
        assert time or all(max(own) - min(own) < LOOK_PAUSE_S for own in looks.values())
        for before, after in pairwise(looks.values()):
            assert min(after) - min(before) >= LOOK_PAUSE_S - 0.002


async def test_the_last_that_goes_takes_the_timer_along() -> None:
    beats = Heartbeats(INTERVAL_S)
    one, other = Socket(beats), Socket(beats)
    beats.remove(one)
    assert beats._timer is not None
    beats.remove(other)
    beats.remove(other)
    assert beats._timer is None
    assert Socket(beats).at_s == []
    assert beats._timer is not None
