"""What a step takes of the machine: CPU of the server, of its clients, of kernel threads, and how busy the disk was.

A look at /proc has all of it (about 6 ms). Looks are taken while a step runs; what a window took is the difference
between its two ends, each interpolated between the looks beside it. The time of a process that has ended is in that of
the parent that waited for it (cutime, cstime), so nothing is lost when a tool ends between two looks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from loadtest.kernel_cpu import kernel_cpu_s

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
BOUND = 0.95
"""A client or the busiest thread of a server that takes so much of the wall time is what limits a row."""

MACHINE_BOUND = 0.925
"""Of all cores: more is not left to be had."""

DISK_BOUND = 0.5
"""A disk that is busy for so much of the time while nothing else is exhausted."""


class Process(NamedTuple):
    """A line of /proc/PID/stat, as far as it matters; see proc(5)."""

    pid: int
    parent: int
    cpu_s: float
    """Its own, and that of the children it has waited for."""


class Look(NamedTuple):
    """Totals at one moment (`time.monotonic()`)."""

    at_s: float
    server_s: float
    client_s: float
    machine_s: float
    """Of all that runs, kernel included."""

    disk_s: float
    kernel_s: Mapping[int, float]
    """Of the kernel's threads, by thread."""

    threads_s: Mapping[int, float]
    """Of the server's threads, by thread."""


class Taken(NamedTuple):
    """What a window took."""

    wall_s: float
    server_cpu_s: float
    client_cpu_s: float
    kernel_cpu_s: float
    others_cpu_s: float
    """All else that ran: idle servers, the harness itself, and whatever disturbed it."""

    disk_busy_s: float
    server_thread_s: float
    """The server's busiest thread."""


def look(at_s: float, server: Iterable[int], client: Iterable[int], device: Path | None) -> Look:
    """Now. Servers and clients are given by the process ids of their first processes; `device`: of a block device."""
    processes = [parsed for name in os.listdir("/proc") if name.isdigit() and (parsed := _process(name))]
    server_ids = family(processes, server)
    client_ids = family(processes, client)
    return Look(
        at_s,
        sum(one.cpu_s for one in processes if one.pid in server_ids),
        sum(one.cpu_s for one in processes if one.pid in client_ids),
        _machine_s(),
        _disk_busy_s(device),
        kernel_cpu_s(),
        {thread.pid: thread.cpu_s for pid in server_ids for thread in _threads(pid)},
    )


def family(processes: Sequence[Process], roots: Iterable[int]) -> set[int]:
    """The process ids of processes and of all that come from them."""
    found = set(roots)
    children: dict[int, list[int]] = {}
    for one in processes:
        children.setdefault(one.parent, []).append(one.pid)
    left = list(found)
    while left:
        new = children.get(left.pop(), [])
        found.update(new)
        left += new
    return found


def parse(stat: str) -> Process:
    """One line of /proc/PID/stat. The name in brackets may hold anything, brackets too."""
    head, _, rest = stat.rpartition(")")
    fields = rest.split()
    return Process(int(head.split(" ", 1)[0]), int(fields[1]), sum(map(int, fields[11:15])) * TICK_S)


def taken(looks: Sequence[Look], began_s: float, ended_s: float) -> Taken:
    """Between two moments, which are moved to the first and the last look if they lie outside."""
    began_s, ended_s = max(began_s, looks[0].at_s), min(ended_s, looks[-1].at_s)

    def over(values: Sequence[float]) -> float:
        times = [one.at_s for one in looks]
        return _at(times, values, ended_s) - _at(times, values, began_s)

    kernel = _by_thread([one.kernel_s for one in looks])
    threads = _by_thread([one.threads_s for one in looks])
    server_s, client_s = over([one.server_s for one in looks]), over([one.client_s for one in looks])
    kernel_s, machine_s = sum(map(over, kernel)), over([one.machine_s for one in looks])
    return Taken(
        ended_s - began_s,
        server_s,
        client_s,
        kernel_s,
        max(machine_s - server_s - client_s - kernel_s, 0.0),
        over([one.disk_s for one in looks]),
        max(map(over, threads), default=0.0),
    )


def limit(used: Taken, *, is_paced: bool) -> str:
    """What keeps a row from being faster; `is_paced`: it was sent on a timetable. "disturbed": programs that have
    nothing to do with it took what was left of the machine."""
    wall_s = used.wall_s
    bound = [
        name
        for name, cpu_s in (("client", used.client_cpu_s), ("server", used.server_thread_s))
        if cpu_s >= BOUND * wall_s
    ]
    if bound:
        return ", ".join(bound)
    bound_s = MACHINE_BOUND * (os.cpu_count() or 1) * wall_s
    own_s = used.server_cpu_s + used.client_cpu_s + used.kernel_cpu_s
    if own_s + used.others_cpu_s >= bound_s:
        return "machine" if own_s >= bound_s else "disturbed"
    if is_paced:
        return "timetable"
    return "disk" if used.disk_busy_s >= DISK_BOUND * wall_s else "latency"


def device_of(directory: Path) -> Path | None:
    """Where the kernel counts what the disk of a directory does; None where it is no block device."""
    number = directory.stat().st_dev
    found = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    return found if found.exists() else None


def _process(name: str) -> Process | None:
    try:
        return parse(_read(f"/proc/{name}/stat"))
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return None


def _threads(pid: int) -> list[Process]:
    """Threads as lines of stat; their children are the process's, so only their own time is meant."""
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/task"):
            fields = _read(f"/proc/{pid}/task/{name}/stat").rpartition(")")[2].split()
            found.append(Process(int(name), pid, (int(fields[11]) + int(fields[12])) * TICK_S))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read().decode(errors="replace")


def _machine_s() -> float:
    """The first line of /proc/stat without idle and iowait; guest time is in user time already."""
    fields = list(map(int, _read("/proc/stat").split("\n", 1)[0].split()[1:9]))
    return (sum(fields) - fields[3] - fields[4]) * TICK_S


def _disk_busy_s(device: Path | None) -> float:
    """Time with at least one request under way: field 10 of /sys/block/*/stat, ms."""
    return 0.0 if device is None else int(device.read_text().split()[9]) / 1000


def _by_thread(looks: Sequence[Mapping[int, float]]) -> list[list[float]]:
    """The times of each thread in all looks; before it was there 0, after it ended what it had last."""
    found = []
    for thread in {thread for one in looks for thread in one}:
        values, last_s = [], 0.0
        for one in looks:
            last_s = one.get(thread, last_s)
            values.append(last_s)
        found.append(values)
    return found


def _at(times: Sequence[float], values: Sequence[float], at_s: float) -> float:
    for number in range(1, len(times)):
        if at_s <= times[number]:
            span_s = times[number] - times[number - 1]
            share = (at_s - times[number - 1]) / span_s if span_s else 1.0
            return values[number - 1] + share * (values[number] - values[number - 1])
    return values[-1]
