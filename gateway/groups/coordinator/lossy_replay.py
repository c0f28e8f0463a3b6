"""Reading the events of groups when some of them are lost.

`mq repair` puts a record without a value wherever one was destroyed (store/offline/repair.py): it is not known what
it said. What comes behind it is still the truth, as far as it says how things are; what says how they changed is not:

    offsets, settings, documents, deletions   kept: they say how things are from there on
    leases                                    stay as they were before the first lost event, and end by themselves: what
                                              became of them later is passed over. Where there were none, but were
                                              later, the group begins with the first record
    members                                   are out, and join again, in a generation that no member can have had (but
                                              in a group of which every event is lost: it is a new one)

So a record may be delivered again, and none is passed over by a group that is known. What was lost for good is named by
the report of the repair: a commit, then the one before it counts; a deletion, then the group is back; or where a group
began. The start saves a snapshot at once, so that this happens once.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.groups.machines.events import (
    AssignmentAsked,
    Event,
    Leased,
    LeaseMoved,
    LeasesSet,
    MemberJoined,
    MemberLeft,
    PartitionsAssigned,
    PartitionsReleased,
    Rebalanced,
    Rejected,
    Settled,
)
from gateway.groups.machines.progress import LightKey, place_of
from gateway.groups.machines.table import GroupTable

EVENTS_LOST = "events_lost"


class LossyReplay:
    """From the first lost event on: `begin`, then `kept` for each event, then `end`."""

    def __init__(self, table: GroupTable, now_ms: int) -> None:
        self._table = table
        self._now_ms = now_ms
        self._generations: dict[str, int] = {}
        self.lost_count = 0

    def begin(self) -> list[Event]:
        """What is to be applied where the first one is lost."""
        events: list[Event] = []
        for group in self._table.groups():
            self._saw(group.name, group.membership.generation)
            events += [MemberLeft(group.name, member.member_id, EVENTS_LOST) for member in group.membership.members()]
        return events

    def kept(self, event: Event) -> Iterable[Event]:
        """What is to be applied in place of an event."""
        match event:
            case MemberJoined():
                self._saw(event.group, event.since_generation)
            case AssignmentAsked() | Rebalanced() | PartitionsAssigned():
                self._saw(event.group, event.generation)
            case MemberLeft() | PartitionsReleased():
                pass
            case Leased() | LeaseMoved() | Rejected() | Settled():
                place = place_of(event.topic_id, event.partition, event.name)
                if self._table.leases(event.group, place) is None:
                    begin = self._table.light_offset(event.group, place) if isinstance(place, LightKey) else 0
                    return [
                        LeasesSet(event.group, event.topic_id, event.partition, self._now_ms, begin, (), event.name)
                    ]
            case _:
                return [event]
        return ()

    def end(self) -> list[Event]:
        """What is to be applied when all is read. A lost event began one generation at most."""
        return [
            Rebalanced(group, self._generations.get(group, 0) + self.lost_count + 1, {})
            for group in self._table.names()
        ]

    def _saw(self, group: str, generation: int) -> None:
        self._generations[group] = max(generation, self._generations.get(group, 0))
