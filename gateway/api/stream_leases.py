"""What event streams of consumer groups have in their clients' hands. Pure.

A stream hands out records on lease and its client settles them by other requests. So that a stream need not ask how far
its client is, whoever settles says so here; what is settled elsewhere (on a socket) counts until its lease is over.

Invariant
    H1  a stream has at most `credit` records out whose lease, as far as this server's clock goes, is not over
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.groups.protocol import Delivered, Settled


class StreamLeases:
    """The records of one stream. `on_room` is called when one of them was settled."""

    def __init__(self, credit: int, on_room: Callable[[], None]) -> None:
        self._credit = credit
        self._on_room = on_room
        self._out: dict[str, tuple[str, int, int, int]] = {}  # by receipt: topic, partition, offset, until_ms

    def room(self, now_ms: int) -> int:
        """How many more records may go out."""
        if len(self._out) >= self._credit:
            self._out = {receipt: one for receipt, one in self._out.items() if one[3] > now_ms}
        return self._credit - len(self._out)

    @property
    def next_end_ms(self) -> int | None:
        """When the next lease is over; None when nothing is out."""
        return min((one[3] for one in self._out.values()), default=None)

    def took(self, messages: Iterable[Delivered]) -> None:
        """These go out."""
        for message in messages:
            self._out[message.receipt] = (message.topic, message.partition, message.offset, message.until_ms)

    def settled(self, receipts: Iterable[str]) -> None:
        """These are done, or given back."""
        before = len(self._out)
        for receipt in receipts:
            self._out.pop(receipt, None)
        if len(self._out) < before:
            self._on_room()

    def settled_up_to(self, topic: str, partition: int, offset: int) -> None:
        """All of a partition up to this offset."""
        self.settled(
            [receipt for receipt, one in self._out.items() if one[:2] == (topic, partition) and one[2] <= offset]
        )

    def extended(self, receipt: str, new_receipt: str, until_ms: int) -> None:
        """A lease goes on under another receipt."""
        if (one := self._out.pop(receipt, None)) is not None:
            self._out[new_receipt] = (*one[:3], until_ms)


class AllStreamLeases:
    """Those of all streams, by group."""

    def __init__(self) -> None:
        self._by_group: dict[str, list[StreamLeases]] = {}

    def add(self, group: str, leases: StreamLeases) -> None:
        """A stream has begun."""
        self._by_group.setdefault(group, []).append(leases)

    def remove(self, group: str, leases: StreamLeases) -> None:
        """A stream has ended."""
        streams = self._by_group[group]
        streams.remove(leases)
        if not streams:
            del self._by_group[group]

    def settled(self, group: str, results: Sequence[Settled]) -> None:
        """Receipts were settled; those that were not `ok` are no longer leases either."""
        for leases in self._by_group.get(group, ()):
            leases.settled([result.receipt for result in results])

    def settled_up_to(self, group: str, topic: str, partition: int, offset: int) -> None:
        """All of a partition up to this offset was."""
        for leases in self._by_group.get(group, ()):
            leases.settled_up_to(topic, partition, offset)

    def extended(self, group: str, results: Sequence[Settled], until_ms: int) -> None:
        """Leases go on until then."""
        for leases in self._by_group.get(group, ()):
            for result in results:
                if result.new_receipt is not None:
                    leases.extended(result.receipt, result.new_receipt, until_ms)
