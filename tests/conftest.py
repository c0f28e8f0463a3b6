"""For all tests: failures of Hypothesis print what reproduces them, slow machines are no failures, and every answer
that a test receives is one that the served documents declare (tests/contract.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import contract

settings.register_profile("mq", deadline=None, print_blob=True)
settings.load_profile("mq")


@pytest.fixture(scope="session", autouse=True)
def answers_are_as_declared() -> Iterator[None]:
    yield from contract.install()
