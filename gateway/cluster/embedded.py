"""Metadata in a node's own data directory: for one node, and for nodes that are content to depend on one.

Every change is one event in system topic `__cluster`, appended with an fdatasync and then applied, by the event log
that consumer groups use too (gateway/brokers/event_log.py); its crash table holds here. An event is a JSON record:

    {"revision": 7, "changes": {"topics/orders": "eyJ2Ijox...", "nodes/n2": null}, "of_session": false}

Values are base64; null deletes. Snapshot: `cluster-metadata.0` and `.1` in the data directory
(docs/formats.md).

    crash                      what a restart finds
    before the append          the space as it was; no client was answered
    during it                  the change, or nothing of it: the events of one call are one entry
    behind it                  the change, whether it was answered or not
    with sessions open         their keys are gone, as is the process that held them. The event that deletes them is
                               written with the first change; until then every start deletes them anew

After an I/O error it is not known whether the last change is on the disk, so reads are refused with `Unavailable` until
a restart has looked.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from gateway.brokers.base import Broker
from gateway.brokers.event_log import EventKind, EventLog, RunBlocking
from gateway.cluster.memory import MemoryMetadata, Written
from gateway.cluster.metadata import Listing, OutcomeUnknown, TooLarge, Unavailable, Value
from store import Store
from store.clock import Clock
from store.errors import Corrupt, RecordTooLarge, StoreError, StoreStopped
from store.files import Files
from store.topics import CLUSTER_QUEUE

SNAPSHOT_EVENTS = 1_000
"""How many changes a restart may have to read before a snapshot is saved."""


def encode_event(event: Written) -> bytes:
    """The JSON record of one change."""
    changes = {key: None if data is None else b64encode(data).decode() for key, data in event.changes.items()}
    return orjson.dumps({"revision": event.revision, "changes": changes, "of_session": event.of_session})


def decode_events(values: Iterable[bytes | None]) -> list[Written]:
    """The changes of the records of one entry. Raises ValueError: what is unknown must not be skipped."""
    events = []
    for value in values:
        try:
            fields = orjson.loads(value or b"")
            encoded: Mapping[str, str | None] = fields.pop("changes")
            changes = {key: None if data is None else b64decode(data, validate=True) for key, data in encoded.items()}
            events.append(Written(changes=changes, **fields))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"a cluster metadata record is not understood ({error!r}); was it written by a newer version?"
            raise ValueError(reason) from error
    return events


CLUSTER_EVENTS: EventKind[Written] = EventKind(
    whose="cluster metadata",
    snapshot_name="cluster-metadata",
    queue=CLUSTER_QUEUE,
    encode=encode_event,
    decode=decode_events,
    barrier=Written(0, {}),
)


def keeps_metadata(store: Store) -> bool:
    """Whether the data directory of an open store has, or had, metadata of its own."""
    return store.bounds(CLUSTER_QUEUE).max_offset > 0


class EmbeddedMetadata(MemoryMetadata):
    """`Metadata` in the store behind `broker`. `start`, then `run` until cancelled, then `close`."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        broker: Broker,
        clock: Clock,
        *,
        run_blocking: RunBlocking = asyncio.to_thread,
    ) -> None:
        super().__init__(write=self._write_durably)
        self._is_failed = False
        self._unwritten: list[Written] = []  # applied at the start, and written with the first change
        self._events: EventLog[Written] = EventLog(
            CLUSTER_EVENTS,
            broker,
            clock,
            CLUSTER_EVENTS.snapshot_files(directory, files, run_blocking),
            apply=lambda event, _: self.apply(event),
            whole_state=lambda: list(self.keyspace.events()),
        )

    @property
    def needed_position(self) -> int | None:
        """See `EventLog.needed_position`."""
        return self._events.needed_position

    async def start(self) -> None:
        """Read what was written. Raises Corrupt when some of it is lost: what nodes agreed on must not be guessed."""
        await self._events.replay(_refuse_lost)
        if stale := self.keyspace.session_keys:
            event = Written(self.keyspace.revision + 1, dict.fromkeys(stale))
            self.apply(event)
            self._unwritten.append(event)

    async def run(self) -> None:
        """Write changes until cancelled."""
        await self._events.run()

    async def close(self) -> None:
        """Save a snapshot. Call when `run` has ended."""
        await self._events.close()

    async def _write_durably(self, event: Written) -> None:
        try:
            await self._events.write([*self._unwritten, event])
            self._unwritten.clear()
        except StoreStopped as error:
            self._is_failed = True
            raise OutcomeUnknown(str(error)) from error
        except RecordTooLarge as error:  # a store with small log files
            raise TooLarge(str(error)) from error
        except StoreError as error:
            raise Unavailable(str(error)) from error
        if self._events.unsaved_count >= SNAPSHOT_EVENTS:
            await self._events.save()

    async def get(self, key: str) -> Value | None:
        """See `Metadata.get`."""
        self._check()
        return await super().get(key)

    async def list(self, prefix: str) -> Listing:
        """See `Metadata.list`."""
        self._check()
        return await super().list(prefix)

    def _check(self) -> None:
        if self._is_failed:
            raise Unavailable("an I/O error left the cluster metadata in doubt; restart the node")


def _refuse_lost(count: int) -> None:
    reason = f"{count} changes of the cluster metadata are lost; restore the data directory from a backup"
    raise Corrupt("commitlog", 0, reason)
