"""What a send says of all its records: how safe they are to be when it is answered (`?acks=` in requests, `Mq-Acks` in
answers), and when they are due (`?delay_ms=`, `?deliver_at=`, headers).
"""

from __future__ import annotations

from typing import NamedTuple

from multidict import istr

from gateway.api.shapes.queries import SendQuery, SendRawQuery
from gateway.codec.records import ProduceRecord, parse_raw_record
from store.types import Acks

MQ_ACKS = istr("Mq-Acks")
DELAY_HEADERS = {"delay_ms": istr("Mq-Delay-Ms"), "deliver_at": istr("Mq-Deliver-At")}
"""Headers of requests that say what the parameters of these names say."""

_LEVELS = {"written": Acks.WRITTEN, "flushed": Acks.FLUSHED}
_NAMES = {level: name for name, level in _LEVELS.items()}


def acks_named(name: str | None) -> Acks | None:
    """The level of a parameter; None when it was not given."""
    return None if name is None else _LEVELS[name]


def name_of_acks(level: Acks) -> str:
    """The level as `Mq-Acks` names it."""
    return _NAMES[level]


class Due(NamedTuple):
    """When the records of a request are to be delivered; one of the two is None."""

    delay_ms: int | None
    deliver_at_ms: int | None


def due_named(query: SendQuery | SendRawQuery) -> Due | None:
    """What the parameters `delay_ms` and `deliver_at` say; None without them. Raises RequestError 42250."""
    fields: dict[str, object] = {}
    if query.delay_ms is not None:
        fields["delay_ms"] = query.delay_ms
    if query.deliver_at is not None:
        fields["deliver_at"] = query.deliver_at
    if not fields:
        return None
    checked = parse_raw_record(fields, None, None)
    return Due(checked.delay_ms, checked.deliver_at_ms)


def delayed(records: list[ProduceRecord], due: Due | None) -> list[ProduceRecord]:
    """The records with this due time, but for those that have one of their own."""
    if due is None:
        return records
    return [
        record._replace(delay_ms=due.delay_ms, deliver_at_ms=due.deliver_at_ms)
        if record.delay_ms is None and record.deliver_at_ms is None
        else record
        for record in records
    ]
