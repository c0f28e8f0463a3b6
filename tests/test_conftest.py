"""tests/conftest.py: where nothing may be skipped a skip is a failure, and mutants are counted; no test leaves
handlers on the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.conftest import LONGEST_FIRST, begins, pytest_generate_tests

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

LEAVES = """
import logging

def test_leaves():
    logging.getLogger().addHandler(logging.StreamHandler())

def test_comes_later():
    logging.getLogger().error("heard by pytest alone")
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


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run of all of them says."""
    path = tmp_path_factory.mktemp("told")
    (path / "test_leaving.py").write_text(LEAVES)
    return run(written(path))


def written(path: Path) -> Path:
    (path / "test_one.py").write_text(ONE)
    (path / "test_another.py").write_text("import pytest\npytest.importorskip('nowhere')")
    return path


def test_a_skip_is_a_failure_where_nothing_may_be_skipped_and_mutants_are_counted(told: str, tmp_path: Path) -> None:
    assert "1 failed, 3 passed, 3 skipped, 1 error" in told
    assert "mutants: 1 of 2 killed" in told
    assert "survived: False" in told
    insisted = run(written(tmp_path), MQ_NO_SKIP="1")
    assert "2 failed, 1 passed, 2 errors" in insisted
    for reason in ("no such tool here", "nor this one", "nowhere"):
        assert reason in insisted


@pytest.mark.parametrize(
    ("asked", "seeds"),
    [("not matrix and not long", [1, 4]), ("", [1, 4, 0, 2, 3]), ("matrix or long", [1, 4, 0, 2, 3])],
)
def test_long_seeds_are_made_where_they_are_not_left_out(asked: str, seeds: list[int]) -> None:
    metafunc = Mock()
    metafunc.config.option.markexpr = asked
    metafunc.definition.get_closest_marker.return_value = pytest.mark.seeds([1, 4], 5).mark
    pytest_generate_tests(metafunc)
    [(name, made)] = [call.args for call in metafunc.parametrize.call_args_list]
    values = [one if isinstance(one, int) else one.values[0] for one in made]
    assert (name, values) == ("seed", seeds)
    assert {mark.name for one in made[2:] for mark in one.marks} <= {"long"}


def test_the_longest_files_are_there_and_begin_in_this_order_behind_those_with_spark() -> None:
    found = [one for name in LONGEST_FIRST for one in (REPOSITORY / "tests").rglob(name)]
    assert ["/".join(path.parts[-2:]) for path in found] == list(LONGEST_FIRST)
    others = [REPOSITORY / "tests" / "e2e" / "test_backup.py", REPOSITORY / "tests" / "store" / "test_store.py"]
    spark = REPOSITORY / "tests" / "spark" / "test_spark.py"
    assert sorted([*reversed(others), *reversed(found), spark], key=begins) == [spark, *found, *others]


def test_what_takes_long_begins_first(tmp_path: Path) -> None:
    sizes = {"e2e": 1, "crash": 1, "store": 9, "auth": 8}
    for folder, size in sizes.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_it.py").write_bytes(bytes(size))
    files = [tmp_path / folder / "test_it.py" for folder in sorted(sizes)]
    assert [path.parent.name for path in sorted(files, key=begins)] == list(sizes)


def test_a_handler_left_on_the_log_fails_the_test_that_left_it_and_no_other(told: str) -> None:
    assert "ERROR at teardown of test_leaves" in told
    assert "test_comes_later" not in told
    assert "left on the root logger: [<StreamHandler" in told
