"""CPU time of the kernel's own threads: work that a server causes and its process is not charged for.

A sync that is asked for by Linux AIO runs in a worker of the kernel (kworker), writeback in another; both are children
of kthreadd. They serve the whole machine, so their time can be charged to a server only where nothing else runs,
less what an idle machine takes (`idle_kernel_cpu_share`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PROC = Path("/proc")
KTHREADD_PID = 2
_IDLE_S = 3.0


def kernel_cpu_s(proc: Path = PROC) -> dict[int, float]:
    """CPU time in seconds that each thread of the kernel has taken so far, by pid; empty where none can be seen (a
    container with pids of its own)."""
    found: dict[int, float] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == KTHREADD_PID:  # ppid; see proc(5)
                found[int(entry.name)] = _cpu_s(entry, fields)
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
    return found


def kernel_cpu_since(before: Mapping[int, float], proc: Path = PROC) -> float:
    """CPU time in seconds that the kernel's threads have taken since `before`, an answer of `kernel_cpu_s`.

    Threads that have started since count in full. The time of one that has ended since is lost: the kernel keeps idle
    workers for five minutes (IDLE_WORKER_TIMEOUT), so in a run of a few minutes this is little.
    """
    return sum(max(0.0, now_s - before.get(pid, 0.0)) for pid, now_s in kernel_cpu_s(proc).items())


def idle_kernel_cpu_share(duration_s: float = _IDLE_S) -> float:
    """Seconds of CPU that the kernel's threads take in a second while we do nothing. Blocks for `duration_s`."""
    before = kernel_cpu_s()
    began_s = time.monotonic()
    time.sleep(duration_s)
    return kernel_cpu_since(before) / (time.monotonic() - began_s)


class CpuMeter:
    """CPU time in seconds since it was made: of a process, and of kernel threads."""

    def __init__(self, process_s: Callable[[], float], idle_share: float) -> None:
        """`process_s`: CPU time of the process so far. `idle_share`: see `idle_kernel_cpu_share`."""
        self._process_s, self._idle_share = process_s, idle_share
        self._process_before_s, self._kernel_before = process_s(), kernel_cpu_s()
        self._began_s = time.monotonic()

    def taken_s(self) -> tuple[float, float]:
        """Of the process; and of kernel threads, less what they take while nothing runs, never below 0."""
        kernel_s = kernel_cpu_since(self._kernel_before) - self._idle_share * (time.monotonic() - self._began_s)
        return self._process_s() - self._process_before_s, max(0.0, kernel_s)


def _cpu_s(entry: Path, stat_fields: list[str]) -> float:
    """From schedstat, in nanoseconds, where the kernel keeps it; else utime and stime, in ticks of 10 ms."""
    ticks_s = (int(stat_fields[11]) + int(stat_fields[12])) / os.sysconf("SC_CLK_TCK")
    try:
        return int((entry / "schedstat").read_text().split()[0]) / 1e9 or ticks_s  # 0 where it is switched off
    except FileNotFoundError:
        return ticks_s
