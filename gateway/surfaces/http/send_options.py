"""What a send says of all its records: how safe they are to be when it is answered (`?acks=` in requests, `Mq-Acks` in
answers), how their partition is chosen (`?selector=`), and when they are due (`?delay_ms=`, `?deliver_at=`, headers).
"""

from __future__ import annotations

from typing import NamedTuple

from multidict import istr

from gateway.codec.records import ProduceRecord, parse_raw_record
from gateway.errors import invalid
from gateway.routing.select import SELECTORS
from gateway.surfaces.http.reading import Query
from store.types import Acks

MQ_ACKS = istr("Mq-Acks")
DELAY_HEADERS = {"delay_ms": istr("Mq-Delay-Ms"), "deliver_at": istr("Mq-Deliver-At")}
"""Headers of requests that say what the parameters of these names say."""

_LEVELS = {"written": Acks.WRITTEN, "flushed": Acks.FLUSHED}
_NAMES = {level: name for name, level in _LEVELS.items()}


def acks_named(name: str | None) -> Acks | None:
    """The level of a parameter; None when it was not given. Raises RequestError 422."""
    if name is None:
        return None
    try:
        return _LEVELS[name]
    except KeyError:
        raise invalid('acks: must be "written" or "flushed"') from None


def name_of_acks(level: Acks) -> str:
    """The level as `Mq-Acks` names it."""
    return _NAMES[level]


def selector_named(name: str | None) -> str | None:
    """The selector of a `?selector=` parameter. Raises RequestError 422."""
    if name is None or name in SELECTORS:
        return name
    raise invalid(f"selector: must be one of {', '.join(SELECTORS)}")


class Due(NamedTuple):
    """When the records of a request are to be delivered; one of the two is None."""

    delay_ms: int | None
    deliver_at_ms: int | None


def due_named(query: Query) -> Due | None:
    """What the parameters `delay_ms` and `deliver_at` say; None without them. Raises RequestError 400, 42250."""
    fields: dict[str, object] = {}
    if query.text("delay_ms") is not None:
        fields["delay_ms"] = query.integer("delay_ms", 0, least=-(10**18))
    if (time_ms := query.time_ms("deliver_at")) is not None:
        fields["deliver_at"] = time_ms
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
