"""Settings for all tests: failures of Hypothesis print what reproduces them, and slow machines are no failures."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("mq", deadline=None, print_blob=True)
settings.load_profile("mq")
