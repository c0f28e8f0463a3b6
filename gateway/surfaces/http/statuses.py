"""HTTP statuses of error codes: the one place that knows both."""

from __future__ import annotations

from gateway.errors import CONFIG_CONSTRAINT


def status_of(error_code: int) -> int:
    """The HTTP status of a code: the code itself, or the first three of its five digits."""
    if error_code == CONFIG_CONSTRAINT:
        return 422  # as Confluent's REST Proxy has it
    return error_code if error_code < 1000 else error_code // 100
