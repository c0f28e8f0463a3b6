"""The timer's benchmark: its arithmetic, its page, and clients that see each record when it is due."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.bench import timer_peers
from loadtest.bench.parts import Part
from loadtest.bench.timer import SERVED, as_markdown, cells
from loadtest.bench.timer_peers import Arrival, Delaying, RedisSet, Served, Subject, measure, ratio_cells, table
from loadtest.bench.timer_work import Row, TooSlow, accepting, busy, flat_and_recovery, percentiles
from loadtest.peers.peer import Unavailable


def test_percentiles_are_of_the_values_given() -> None:
    values = [float(value) for value in range(1000, 0, -1)]
    assert percentiles(values) == [501.0, 991.0, 1000.0]
    assert percentiles([7.0]) == [7.0, 7.0, 7.0]


def test_the_page_keeps_what_is_in_one_process_apart_from_what_goes_through_a_server() -> None:
    row = Row("busy", "3,000 ms", "<= 2,000 ms", False, n=5)
    served = Served("mq", "synced", 100, 50, [10.0], [1_000.0], [2.0], [5.0])
    page = as_markdown({"busy": Part({"cores": 2}, [row._asdict()]), SERVED: Part({"cores": 2}, [served._asdict()])})
    in_process, _, through = page.partition("## Through a server")
    assert "| busy | 3,000 ms | 5 | <= 2,000 ms | **no** |" in in_process
    assert "| mq | 10/s (10 - 10) | 1,000.0 ms" in through
    assert "- cores: 2" in through
    assert cells(Row("x", "y"))[2:] == ("1", "-", "-")


@pytest.mark.matrix
def test_every_measurement_runs_and_checks_what_it_measures(tmp_path: Path) -> None:
    for name in ("accept", "busy", "flat"):
        (tmp_path / name).mkdir()
    (row,) = asyncio.run(accepting(tmp_path / "accept", 1000, 2))
    assert (row.work, row.n) == ("accept", 2)
    rows = asyncio.run(busy(tmp_path / "busy", 1000, 1))
    assert [row.work for row in rows] == ["busy", "others", "others, the limit"]
    rows = asyncio.run(flat_and_recovery(tmp_path / "flat", 1000, 3000))
    assert [row.work for row in rows] == ["flat", "memory", "change", "recovery", "clean start"]
    assert "202,998 pending" in rows[3].measured  # 3,000 and two times five probes of 20,000, less two cancelled


class Fake:
    """A server that hands records out when they are due, without waiting."""

    def __init__(self, late_ms: float) -> None:
        self._late_ms = late_ms
        self._dues: list[int] = []

    def accept(self, dues_ms: Sequence[int]) -> float:
        self._dues += dues_ms
        return 0.25

    def receive(self, count: int) -> list[Arrival]:
        taken, self._dues = sorted(self._dues)[:count], sorted(self._dues)[count:]
        return [Arrival(due, due + self._late_ms) for due in taken]

    def late(self, rate: int, seconds: int) -> list[Arrival]:
        return [Arrival(number, number + self._late_ms) for number in range(rate * seconds)]


def fake(name: str, share: int, late_ms: float) -> Subject:
    @contextmanager
    def served(_: Path) -> Iterator[Delaying]:
        yield Fake(late_ms)

    return Subject(name, "a fake", share, served)


def test_all_are_measured_in_every_round_and_a_slow_one_gets_a_share_of_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_peers, "subjects", lambda: [fake("mq", 1, 2.0), fake("slow", 10, 8.0)])
    said: list[str] = []
    ours, slow = measure(tmp_path, 10_000, 2, said.append)
    assert said == ["round 1: mq", "round 1: slow", "round 2: mq", "round 2: slow"]
    assert (ours.busy_count, slow.busy_count, ours.rate, slow.rate) == (10_000, 1_000, 5_000, 500)
    assert ours.late_p50_ms == ours.late_p99_ms == [2.0, 2.0]
    assert ours.busy_ms == [999 + 2.0] * 2, "from the beginning of the second until the last has come"
    assert slow.accepted_per_s == [4_000.0] * 2, "four batches of 1,000 take a quarter of a second each"


def test_who_fails_is_named_with_the_reason_and_is_in_no_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def missing(_: Path) -> Iterator[Delaying]:
        raise Unavailable("redis-server is not installed (apt-get install redis-server)")
        yield

    @contextmanager
    def too_slow(_: Path) -> Iterator[Delaying]:
        raise TooSlow("the busy second began while it was being filled")
        yield

    subjects = [fake("mq", 1, 2.0), Subject("redis", "", 1, missing), Subject("tube", "", 1, too_slow)]
    monkeypatch.setattr(timer_peers, "subjects", lambda: subjects)
    monkeypatch.setattr(timer_peers, "COMPARED", (("mq", "redis"),))
    rows = measure(tmp_path, 1_000, 1, lambda _: None)
    lines = table(rows)
    assert "| redis | not measured: redis-server is not installed (apt-get install redis-server) |" in lines[3]
    assert "| tube | not measured: the busy second began" in lines[4]
    assert len(lines) == 5


def test_ratios_are_of_rounds() -> None:
    ours = Served("mq", "", 1, 1, [10, 20], [1, 1], [1, 1], [4, 8])
    its = Served("redis", "", 1, 1, [20, 20], [2, 2], [1, 1], [2, 2])
    assert ratio_cells([ours, its], "mq", "redis") == (
        "mq / redis", "0.75x (0.50 - 1.00)", "0.50x (0.50 - 0.50)", "1.00x (1.00 - 1.00)", "3.00x (2.00 - 4.00)", "",
    )  # fmt: skip


def test_the_mover_of_redis_sleeps_until_the_next_record_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    slept_s: list[float] = []
    monkeypatch.setattr("time.sleep", slept_s.append)
    monkeypatch.setattr("time.time_ns", lambda: 10_000_000_000)

    def answer() -> None:
        for reply in ([b"9:1:x", b"10:2:x", b"10500"], [b"10500:3:x", b""]):
            theirs.recv(65_536)
            theirs.sendall(b"*%d\r\n" % len(reply) + b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in reply))

    server = threading.Thread(target=answer)
    server.start()
    arrivals = RedisSet(ours).receive(3)
    server.join()
    assert [one.due_ms for one in arrivals] == [9, 10, 10_500]
    assert slept_s == [0.5], "no poll in between, and none after the last"
