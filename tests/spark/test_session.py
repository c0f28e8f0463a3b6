"""What `prepare` sets before the first session. That discovery then works is shown by the session in conftest.py."""

from __future__ import annotations

import os
import sys

import pyspark_mq
import pytest
from pyspark import SparkContext


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_spark_gets_the_interpreter_this_runs_on() -> None:
    pyspark_mq.prepare()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_an_interpreter_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    pyspark_mq.prepare()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


def test_coming_too_late_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    with pytest.warns(UserWarning, match="DATA_SOURCE_NOT_FOUND"):
        pyspark_mq.prepare()
