"""How many handles there are, and what connections may have of them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from gateway.main.file_handles import ADDRESS_SHARE, RESERVED_MAX, bounded
from gateway.settings.limits import Limits

DEFAULT = Limits()
ENOUGH = DEFAULT.connections_max + RESERVED_MAX


@pytest.mark.parametrize(
    ("handle_limit", "connections"),
    [(300, 150), (1024, 512), (2 * RESERVED_MAX, RESERVED_MAX), (ENOUGH - 1, DEFAULT.connections_max - 1)],
)
def test_connections_leave_handles_for_files(handle_limit: int, connections: int) -> None:
    limits = bounded(DEFAULT, handle_limit)
    assert limits.connections_max == connections
    assert limits.connections_per_address_max == min(DEFAULT.connections_per_address_max, connections // ADDRESS_SHARE)


def test_where_there_are_enough_the_settings_hold() -> None:
    assert bounded(DEFAULT, ENOUGH) is DEFAULT
    few = Limits(connections_max=10, connections_per_address_max=10)
    assert bounded(few, 300) is few


def test_any_number_of_one_address_stays_any_number() -> None:
    assert bounded(Limits(connections_per_address_max=0), 300).connections_per_address_max == 0


def test_the_limit_is_raised_as_far_as_the_system_allows() -> None:
    program = "from gateway.main.file_handles import raised_limit; print(raised_limit())"

    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 333))

    ran = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=lower, env=os.environ, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "333"
