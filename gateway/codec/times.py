"""Points in time as clients write them: epoch milliseconds, or an RFC 3339 string with its offset from UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: the last one that RFC 3339 can write."""

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse_time_ms(value: object) -> int:
    """Epoch ms of an int or an RFC 3339 string. A part of a millisecond counts as a whole one: never too early.

    Raises ValueError that says what is wrong; the caller knows which field it was.
    """
    if value.__class__ is int:
        assert isinstance(value, int)
        if not 0 <= value <= TIME_MS_MAX:
            raise ValueError(f"must be between 0 and {TIME_MS_MAX} ms")
        return value
    if not isinstance(value, str):
        raise ValueError("must be epoch milliseconds (an integer) or an RFC 3339 time (a string)")
    match = _RFC3339.fullmatch(value)
    if match is None:
        raise ValueError("is not an RFC 3339 time such as 2026-01-31T09:30:00Z")
    try:
        since = datetime.fromisoformat(value[:19] + (match[2] if match[2] not in "Zz" else "+00:00")) - _EPOCH
    except ValueError as error:
        raise ValueError(f"is not an RFC 3339 time: {error}") from error
    fraction = match[1] or ".0"
    time_ms = since // _MILLISECOND + -(-int(fraction[1:].ljust(9, "0")) // 1_000_000)
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise ValueError("must not be before 1970 or after 9999")
    return time_ms
