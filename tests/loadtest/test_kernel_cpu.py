"""CPU time of the kernel's threads: which threads count, from which file, and what is new since."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtest import kernel_cpu
from loadtest.kernel_cpu import CpuMeter, kernel_cpu_s, kernel_cpu_since

TICKS = os.sysconf("SC_CLK_TCK")


def thread(proc: Path, pid: int, ppid: int, *, ticks: int = 0, ns: int | None = None, name: str = "kworker") -> None:
    """A line as proc(5) has it: utime is field 14, stime field 15; both get `ticks`."""
    entry = proc / str(pid)
    entry.mkdir(parents=True, exist_ok=True)
    fields = ["S", str(ppid), *["0"] * 9, str(ticks), str(ticks), *["7"] * 20]
    (entry / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    if ns is not None:
        (entry / "schedstat").write_text(f"{ns} 5 6\n")


def test_only_children_of_kthreadd_count(tmp_path: Path) -> None:
    thread(tmp_path, 1, 0, ticks=100)
    thread(tmp_path, 2, 0, ticks=100)
    thread(tmp_path, 9, 2, ns=1_500_000_000, ticks=100)
    thread(tmp_path, 10, 2, ns=250_000_000, name="odd) S 1 name")
    thread(tmp_path, 77, 1, ns=9_000_000_000)
    (tmp_path / "self").mkdir()
    assert kernel_cpu_s(tmp_path) == {9: 1.5, 10: 0.25}


@pytest.mark.parametrize("ns", [None, 0])
def test_ticks_count_where_the_kernel_keeps_no_nanoseconds(tmp_path: Path, ns: int | None) -> None:
    thread(tmp_path, 9, 2, ticks=3, ns=ns)
    assert kernel_cpu_s(tmp_path) == {9: 6 / TICKS}


def test_a_thread_that_started_since_counts_in_full_and_one_that_ended_not_at_all(tmp_path: Path) -> None:
    thread(tmp_path, 9, 2, ns=1_500_000_000)
    before = {**kernel_cpu_s(tmp_path), 8: 40.0}
    thread(tmp_path, 9, 2, ns=1_750_000_000)
    thread(tmp_path, 11, 2, ns=2_000_000_000)
    assert kernel_cpu_since(before, tmp_path) == pytest.approx(2.25)


def test_a_thread_that_ends_while_it_is_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()
    thread(tmp_path, 9, 2, ns=1_000_000_000)
    assert kernel_cpu_s(tmp_path) == {9: 1.0}


def test_a_meter_takes_off_what_an_idle_machine_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([100.0, 104.0, 108.0])
    threads = {9: 1.0}
    process_s = iter([3.0, 5.5, 6.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times_s))
    monkeypatch.setattr(kernel_cpu, "kernel_cpu_s", lambda *_: dict(threads))
    meter = CpuMeter(lambda: next(process_s), 0.1)
    threads[9] = 1.75
    assert meter.taken_s() == pytest.approx((2.5, 0.35))
    assert meter.taken_s() == pytest.approx((3.0, 0.0)), "never below 0"
