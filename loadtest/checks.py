"""What "no loss, no duplicate, in order, never early" means, counted exactly. Pure: the demo and the load test feed it.

Every record a sender makes has an identity of its own. A record counts as sent when the server has acknowledged it;
one whose request failed may or may not arrive, and is neither lost nor unexpected.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Id = TypeVar("Id", bound=Hashable)


class Deliveries(Generic[Id]):
    """Records sent against records received, by identity. Which of the two is noticed first does not matter."""

    def __init__(self) -> None:
        self._received: set[Id] = set()
        self._missing: set[Id] = set()
        self.sent_count = 0
        self.duplicate_count = 0
        """Receipts of a record that had been received before."""

    def sent(self, ids: Iterable[Id]) -> None:
        """These were acknowledged; each is told once."""
        told = set(ids)
        self.sent_count += len(told)
        self._missing |= told - self._received

    def received(self, record_id: Id) -> None:
        """This one arrived."""
        if record_id in self._received:
            self.duplicate_count += 1
        else:
            self._received.add(record_id)
            self._missing.discard(record_id)

    @property
    def received_count(self) -> int:
        """Different records received."""
        return len(self._received)

    @property
    def lost(self) -> frozenset[Id]:
        """Sent and not received; to be looked at when nothing is on its way any more."""
        return frozenset(self._missing)

    @property
    def is_complete(self) -> bool:
        """Whether everything sent so far has been received."""
        return not self._missing


class KeyOrder:
    """Whether the records of each key come in the order in which they were sent. Sequence numbers rise within a key."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def received(self, key: str, sequence: int) -> str | None:
        """What is wrong with this record's place, None when nothing is. A gap is not wrong: see `Deliveries`."""
        last = self._last.get(key)
        if last is not None and sequence <= last:
            return f"key {key}: record {sequence} came after record {last}"
        self._last[key] = sequence
        return None


@dataclass(slots=True)
class Lateness:
    """By how much delayed records missed their due times, in ms. Early is below zero."""

    late_ms: list[int] = field(default_factory=list)

    def fired(self, deliver_at_ms: int, at_ms: int) -> None:
        """A record due at one time was delivered at the other."""
        self.late_ms.append(at_ms - deliver_at_ms)

    @property
    def early_count(self) -> int:
        return sum(late_ms < 0 for late_ms in self.late_ms)
