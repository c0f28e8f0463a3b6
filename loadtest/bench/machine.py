"""Where the numbers were measured: the machine and the versions, as far as they matter to a reader."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median

from loadtest.slowness import slowness

DISTRIBUTIONS = ("mq-gateway", "aiohttp", "uvloop", "orjson", "aiokafka", "crc32c")

MEMORY_WATCHERS = Path("/sys/kernel/mm/damon/admin/kdamonds")
"""Threads of the kernel that see which memory is used: admin-guide/mm/damon/usage of Linux's documentation."""

_LOOKS = 5


def facts(data: Path) -> dict[str, object]:
    """The machine; `data` is where files are written. No names, no paths."""
    return {
        "cpu": _of_file("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "file_system": file_system(data),
        "load_average": round(os.getloadavg()[0], 2),
        "slowness": now_slowness(),
        "pages_out": pages_out(),
    }


def described(machine: Mapping[str, object]) -> str:
    """The machine of `facts` in a line of a report. Files of earlier runs do not say how slow it was."""
    slow = ""
    if "slowness" in machine:
        slow = f", {machine['slowness']} times as slow as our reference (loadtest/slowness.py)"
    paged = ", memory that is not used for a while is paged out" if machine.get("pages_out") else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores{slow}, {machine['memory_gib']} GiB{paged}, "
        f"Linux {machine['kernel']}, {machine['file_system']}"
    )


def now_slowness() -> float:
    """How slow the machine is in this second, as a multiple of the reference, at least 1 (loadtest/slowness.py). The
    name of a processor does not say it: cores of virtual machines are shared."""
    return round(median(slowness() for _ in range(_LOOKS)), 1)


def pages_out(watchers: Path = MEMORY_WATCHERS) -> bool:
    """Whether the kernel takes away memory that was not used for a while: what a server had in the system's cache, and
    code that an idle one has not run."""
    return any(
        _is(state, "on") and any(_is(action, "pageout") for action in state.parent.glob("contexts/*/schemes/*/action"))
        for state in watchers.glob("*/state")
    )


def versions() -> Mapping[str, str]:
    """Python and what the speed depends on."""
    return {"python": platform.python_version(), **{name: version(name) for name in DISTRIBUTIONS}}


def commit() -> str:
    """What of ours is measured; "unknown" outside a repository."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def file_system(path: Path) -> str:
    """The type of the file system that holds a path; "unknown" where the system does not say."""
    found = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text()
    except OSError:
        return found[1]
    resolved = path.resolve()
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split()
        if resolved.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def _of_file(path: str, field: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), None)


def _is(file: Path, text: str) -> bool:
    try:
        return file.read_text().strip() == text
    except OSError:
        return False
