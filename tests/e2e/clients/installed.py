"""Installs the clients, once, into `.venv/clients`. What cannot be installed skips its tests, and says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import REPOSITORY

HERE = Path(__file__).resolve().parent
CLIENTS = REPOSITORY / ".venv" / "clients"
REST_CLIENT = "kafka-rest@0.0.5"
WEBSOCKET_CLIENT = "ws@8.18.0"
_INSTALL_TIMEOUT_S = 300


def pypi_clients() -> dict[str, str]:
    """The environment in which a driver finds the Python clients."""
    place = CLIENTS / "pypi"
    wanted = (HERE / "requirements.txt").read_text()
    mark = place / "installed.txt"
    if not mark.exists() or mark.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        _install(
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--target", str(place), "--requirement", str(HERE / "requirements.txt"),
        )  # fmt: skip
        mark.write_text(wanted)
    return _environment(PYTHONPATH=str(place))


def npm_client(package: str = REST_CLIENT) -> dict[str, str]:
    """The environment in which a driver finds a package of npm: kafka-rest, or ws."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm; install them with: apt-get install nodejs npm")
    place = CLIENTS / "npm" / package
    if not (place / "node_modules" / package.partition("@")[0] / "package.json").exists():
        place.mkdir(parents=True, exist_ok=True)
        _install("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place), package)
    return _environment(NODE_PATH=str(place / "node_modules"))


def _environment(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("MQ_")}, **more}


def _install(*command: str) -> None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False, cwd=CLIENTS.parent
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{command[0]} could not install the clients: {error}")
    else:
        if result.returncode:
            pytest.skip(f"{command[0]} could not install the clients: {result.stderr.strip()[-500:]}")
