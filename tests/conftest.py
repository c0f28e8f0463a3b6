"""For all tests: failures of Hypothesis print what reproduces them, slow machines are no failures, and every answer
that a test receives is one that the served documents declare (tests/contract.py). What tests start can be interrupted,
also where the tests are a shell's background job, which begins with SIGINT ignored and would hand that on.

CI tries the same examples each time, so that it judges the change and not the dice; `make test` and `make torture`
elsewhere look for new ones.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import contract

settings.register_profile("mq", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("mq")

signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def answers_are_as_declared() -> Iterator[None]:
    yield from contract.install()
