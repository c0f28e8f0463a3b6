"""tests/conftest.py: where nothing may be skipped a skip is a failure, and mutants are counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ONE = """
import pytest

def test_skips():
    pytest.skip("no such tool here")

@pytest.mark.skipif(True, reason="nor this one")
def test_is_marked():
    pass

@pytest.mark.parametrize("mutant", [True, False])
def test_every_mutant_is_killed(mutant):
    assert mutant
"""


def run(path: Path, **environment: str) -> str:
    kept = {
        name: value for name, value in os.environ.items() if name != "MQ_NO_SKIP" and not name.startswith("PYTEST_")
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        ".",
        "--continue-on-collection-errors",
        path,
    ]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**kept, **environment}, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_a_skip_is_a_failure_where_nothing_may_be_skipped_and_mutants_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_another.py").write_text("import pytest\npytest.importorskip('nowhere')")
    told = run(tmp_path)
    assert "1 failed, 1 passed, 3 skipped" in told
    assert "mutants: 1 of 2 killed" in told
    assert "survived: False" in told
    insisted = run(tmp_path, MQ_NO_SKIP="1")
    assert "2 failed, 1 passed, 2 errors" in insisted
    for reason in ("no such tool here", "nor this one", "nowhere"):
        assert reason in insisted
