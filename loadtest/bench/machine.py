"""Where the numbers were measured: the machine and the versions, as far as they matter to a reader."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

DISTRIBUTIONS = ("mq-gateway", "aiohttp", "uvloop", "orjson", "aiokafka", "crc32c")


def facts(data: Path) -> dict[str, object]:
    """The machine; `data` is where files are written. No names, no paths."""
    return {
        "cpu": _of_file("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "file_system": file_system(data),
        "load_average": round(os.getloadavg()[0], 2),
    }


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
