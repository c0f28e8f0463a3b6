"""What a step takes of the machine: from looks at /proc to the limit of a row."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from loadtest.peers.usage import Look, Process, Taken, family, limit, look, parse, taken
from tests.waiting import PATIENCE_S

NOTHING = Taken(10, 0, 0, 0, 0, 0, 0)


def seen(at_s: float, cpu_s: float, threads_s: dict[int, float] | None = None, kernel: float = 0.0) -> Look:
    return Look(at_s, cpu_s, 2 * cpu_s, 3 * cpu_s + kernel, 0.5 * at_s, {2: kernel}, threads_s or {})


def test_a_line_of_stat_is_read_whatever_the_name_holds() -> None:
    fields = "S 7 0 0 0 -1 4194560 1 2 3 4 11 22 33 44 20 0 1 0 5 6 7"
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert parse(f"12 (a) b (c) {fields}") == Process(12, 7, pytest.approx(110 * tick_s))


def test_a_family_is_all_that_comes_from_its_roots() -> None:
    processes = [Process(pid, parent, 0) for pid, parent in [(1, 0), (5, 1), (6, 5), (7, 6), (8, 1)]]
    assert family(processes, [5]) == {5, 6, 7}


def test_a_window_is_cut_out_between_the_looks() -> None:
    looks = [seen(0, 0), seen(1, 1, {9: 0.5}), seen(2, 1.5, {9: 0.9}), seen(3, 2, {8: 0.3}, kernel=0.2)]
    used = taken(looks, 0.5, 2.5)
    assert used.wall_s == 2
    assert used.server_cpu_s == pytest.approx(1.75 - 0.5)
    assert used.client_cpu_s == pytest.approx(2 * (1.75 - 0.5))
    assert used.kernel_cpu_s == pytest.approx(0.1)
    assert used.others_cpu_s == pytest.approx(0)
    assert used.disk_busy_s == pytest.approx(1)
    assert used.server_thread_s == pytest.approx(0.9 - 0.25), "thread 9 was gone at 3 s and loses nothing by that"


def test_a_window_reaches_no_further_than_the_looks() -> None:
    used = taken([seen(5, 1), seen(6, 2)], -1e9, 1e9)
    assert (used.wall_s, used.server_cpu_s) == (1, 1)


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (NOTHING._replace(client_cpu_s=9.5), "client"),
        (NOTHING._replace(client_cpu_s=9.4, server_thread_s=9.6, server_cpu_s=10), "server"),
        (NOTHING._replace(client_cpu_s=9.9, server_thread_s=9.6), "client, server"),
        (NOTHING._replace(client_cpu_s=9.4, server_cpu_s=9.4 * ((os.cpu_count() or 1) - 1)), "machine"),
        (NOTHING._replace(client_cpu_s=5, others_cpu_s=10.0 * (os.cpu_count() or 1) - 5), "disturbed"),
        (NOTHING._replace(disk_busy_s=6), "disk"),
        (NOTHING, "latency"),
    ],
)
def test_what_is_used_up_is_the_limit(used: Taken, expected: str) -> None:
    assert limit(used, is_paced=False) == expected


def test_what_is_sent_on_a_timetable_is_limited_by_that() -> None:
    assert limit(NOTHING._replace(disk_busy_s=9), is_paced=True) == "timetable"
    assert limit(NOTHING._replace(client_cpu_s=9.9), is_paced=True) == "client"


def test_a_real_process_is_seen_with_the_children_it_waited_for() -> None:
    burn = "import time\nuntil = time.process_time() + 0.3\nwhile time.process_time() < until: pass"
    parent = f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\ntime.sleep(300)"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        try:
            looks = [look(time.monotonic(), [process.pid], [], None)]
            deadline_s = time.monotonic() + PATIENCE_S
            while looks[-1].server_s - looks[0].server_s < 0.3 and time.monotonic() < deadline_s:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
                looks.append(look(time.monotonic(), [process.pid], [], None))
        finally:
            process.kill()
    assert looks[-1].server_s - looks[0].server_s >= 0.3
