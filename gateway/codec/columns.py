"""The records of a request that have nothing but a key and a value, as two columns: what is sent most in batches.

The same checks and the same bytes as `parse_records`, a column at a time: a call in C for all keys, one for all values.
A request that has anything else in it, or anything wrong, has no columns; `parse_records` takes it, and says why.

Strings alone are cut out of the text, without an object for any: what stands between two of them is the same nearly
always, so the text is split at it (`strings_of`). The pieces with blanks between them, and quotes around, are read as
one string. If they are one, and there is no escape, none of them has a quote in it, so each piece is a whole string,
and the string's bytes are how it is written as compact JSON.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from operator import itemgetter
from typing import NamedTuple

import orjson

from gateway.codec.records import Encoded, Format, encode_column, encode_keys, parts
from gateway.errors import RequestError
from store.limits import KEY_BYTES_MAX, RECORD_BYTES_MAX

_KEY, _VALUE = itemgetter("key"), itemgetter("value")
_VALUE_BYTES_MAX = RECORD_BYTES_MAX - KEY_BYTES_MAX  # no sum is needed below it

_QUOTE = b'"'
_BEGIN, _BETWEEN, _END = (
    re.compile(pattern.replace(b" ", rb"[ \t\r\n]{0,9}+"))
    for pattern in (rb' \{ "records" : \[ \{ "value" : "', rb'" \} , \{ "value" : "', rb'" \} \] \} \Z')
)


def columns_in_steps(
    records: object, fmt: Format, *, raw_keys: bool, size_bytes: int
) -> Generator[None, None, Columns | None]:
    """As `columns_of`, which is what the generator returns, of a text of so many bytes, some records a step."""
    if not isinstance(records, list):
        return None
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for part in parts(records, size_bytes):
        columns = columns_of(part, fmt, raw_keys=raw_keys)
        if columns is None:
            return None
        keys += columns.keys or ()
        values += columns.values
        if len(keys) not in (0, len(values)):
            return None
        yield
    return Columns(keys or None, values)


class Columns(NamedTuple):
    """Record i has `values[i]` (None: a tombstone) and `keys[i]`; `keys` None: none of them has a key. `quote` stands
    before and behind each value."""

    keys: Sequence[bytes] | None
    values: Encoded
    quote: bytes = b""

    @property
    def bytes_max(self) -> int:
        """No record is larger than this."""
        return 2 * len(self.quote) + _longest(self.values) + (0 if self.keys is None else _longest(self.keys))


def strings_of(body: bytes, *, records_max: int) -> Columns | None:
    """The columns of the JSON text of a request, of `records_max` records at most that have nothing but strings as
    values, all written alike; None of any other text."""
    begin, end = _BEGIN.match(body), body.rfind(_QUOTE)
    if begin is None or b"\\" in body or _END.match(body, end) is None or len(body) > _VALUE_BYTES_MAX:
        return None
    first = begin.end()
    between = _BETWEEN.match(body, body.find(_QUOTE, first))
    if between is None:
        return None
    values = body[first:end].split(between[0])
    if len(values) > records_max:
        return None
    try:
        orjson.loads(b'"%b"' % b" ".join(values))
    except orjson.JSONDecodeError:
        return None
    return Columns(None, values, _QUOTE)


def columns_of(records: object, fmt: Format, *, raw_keys: bool) -> Columns | None:
    """The columns of a request's `records`; None when `parse_records` must take them, as it had better with one."""
    if not isinstance(records, list) or len(records) < 2:
        return None
    count = len(records)
    try:
        width, rest = divmod(sum(map(len, records)), count)
        if rest or width not in (1, 2):
            return None
        values = encode_column(list(map(_VALUE, records)), fmt)
        keys = encode_keys(list(map(_KEY, records)), fmt, raw_keys=raw_keys) if width == 2 else None
    except (KeyError, TypeError, RequestError):  # of what is no object, too
        return None
    if _longest(values) > _VALUE_BYTES_MAX:
        return None
    if keys is None:
        return Columns(None, values)
    if None in keys:
        return Columns(None, values) if keys.count(None) == count else None
    if _longest(keys) > KEY_BYTES_MAX:
        return None
    return Columns(keys, values)  # type: ignore[arg-type]


def _longest(column: Encoded) -> int:
    try:
        return max(map(len, column))  # type: ignore[arg-type]
    except TypeError:  # of a tombstone
        return max(map(len, filter(None, column)), default=0)
