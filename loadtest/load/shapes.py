"""How the number of users goes over time. They take Locust's own options: -u the highest number, -t the whole time.

ramp    five equal steps up to -u                          where does it bend?
spike   a quarter of -u, all of it for a fifth of the      does it come back?
        time, a quarter again
soak    -u all the time, after a slow start                does it stay the same for hours?
"""

from __future__ import annotations

import time
from abc import abstractmethod

from locust import LoadTestShape

STEPS = 5
QUIET_SHARE = 4
SPIKE_FROM, SPIKE_TO = 0.4, 0.6
SOAK_START_SHARE = 0.1
DEFAULT_USERS = 20
DEFAULT_RUN_S = 60.0
JUMP_S = 2.0
"""Users come and go within this at a step."""


class _Shape(LoadTestShape):
    """-u and -t count."""

    abstract = True
    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """Users and users/s at this moment; None when it is over."""
        options = self.runner.environment.parsed_options if self.runner is not None else None
        users = (options.num_users if options is not None else None) or DEFAULT_USERS
        run_s = float((options.run_time if options is not None else None) or DEFAULT_RUN_S)
        passed = (time.perf_counter() - self.start_time) / run_s
        if passed >= 1:
            return None
        return self.at(passed, users, run_s)

    @abstractmethod
    def at(self, passed: float, users: int, run_s: float) -> tuple[int, float]:
        """The same, when this share of the time has passed."""


class Ramp(_Shape):
    """See the module."""

    def at(self, passed: float, users: int, run_s: float) -> tuple[int, float]:
        """Step by step."""
        wanted = max(users * (int(passed * STEPS) + 1) // STEPS, 1)
        return wanted, max(users / STEPS / JUMP_S, 1)


class Spike(_Shape):
    """See the module."""

    def at(self, passed: float, users: int, run_s: float) -> tuple[int, float]:
        """Few, all, few."""
        is_high = SPIKE_FROM <= passed < SPIKE_TO
        return users if is_high else max(users // QUIET_SHARE, 1), max(users / JUMP_S, 1)


class Soak(_Shape):
    """See the module."""

    def at(self, passed: float, users: int, run_s: float) -> tuple[int, float]:
        """All of them."""
        return users, max(users / (run_s * SOAK_START_SHARE), 0.1)
