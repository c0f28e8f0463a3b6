"""How safe a send is to be when it is answered: `?acks=` in requests, `Mq-Acks` in answers."""

from __future__ import annotations

from multidict import istr

from gateway.errors import invalid
from gateway.routing.select import SELECTORS
from store.types import Acks

MQ_ACKS = istr("Mq-Acks")
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
