"""What a command or a server loads: not what it does not use. Each module costs every start."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("gateway.cli", ("gateway.main.wiring", "uvloop", "jwt", "cryptography", "aiohttp", "aiokafka")),
        ("gateway.main.wiring", ("jwt", "cryptography")),
    ],
)
def test_what_is_not_used_is_not_loaded(module: str, unused: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*(set({unused!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
