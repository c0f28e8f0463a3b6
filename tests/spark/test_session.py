"""What `prepare` sets before the first session. That discovery then works is shown by the session in conftest.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark_mq
import pytest
from pyspark import SparkContext
from pyspark_mq.session import choose_interpreter


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_spark_gets_the_interpreter_this_runs_on() -> None:
    pyspark_mq.prepare()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_the_import_alone_chooses_it_but_not_under_spark_submit() -> None:
    ask = "import os, pyspark_mq; print(os.environ.get('PYSPARK_PYTHON'))"
    environment = {**os.environ, "PYTHONPATH": str(Path(pyspark_mq.__file__).parents[1])}
    for added, chosen in (
        ({}, sys.executable),
        ({"PYSPARK_PYTHON": "p3"}, "p3"),
        ({"PYSPARK_GATEWAY_PORT": "1"}, "None"),
    ):
        run = [sys.executable, "-c", ask]
        assert subprocess.check_output(run, env={**environment, **added}, text=True).strip() == chosen


def test_with_a_session_already_made_the_import_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    choose_interpreter()
    assert "PYSPARK_PYTHON" not in os.environ


def test_an_interpreter_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    pyspark_mq.prepare()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


def test_coming_too_late_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    with pytest.warns(UserWarning, match="DATA_SOURCE_NOT_FOUND"):
        pyspark_mq.prepare()
