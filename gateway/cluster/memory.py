"""Metadata in the memory of one process: the port over a table of keys. What makes changes durable, if anything does,
is given to it (`write`): nothing for tests, an event log in gateway/cluster/embedded.py.

Changes are made one at a time: decide → write → apply. A watcher that does not keep up is given all keys again, so
what waits for it is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from gateway.cluster.metadata import (
    ABSENT,
    Changes,
    Listing,
    SessionTaken,
    Unavailable,
    Value,
    check_change,
)
from store.uncancelled import to_its_end

WATCH_BACKLOG_MAX = 1_000
"""Changes that wait for one watcher."""


@dataclass(frozen=True, slots=True)
class Written:
    """One change of the space: the event that is applied, and written where metadata is durable. `of_session`: the keys
    belong to sessions of this process, and go with it."""

    revision: int
    changes: Mapping[str, bytes | None]
    of_session: bool = False


class Keyspace:
    """The keys and their values. Changes only through `apply`."""

    def __init__(self) -> None:
        self.revision = 0
        self.values: dict[str, Value] = {}
        self.session_keys: set[str] = set()

    def decide(
        self, expected: Mapping[str, int], changes: Mapping[str, bytes | None], *, of_session: bool = False
    ) -> Written | None:
        """The event, or None when an expectation fails."""
        for key, revision in expected.items():
            known = self.values.get(key)
            if (ABSENT if known is None else known.revision) != revision:
                return None
        return Written(self.revision + 1, dict(changes), of_session)

    def apply(self, event: Written) -> Changes:
        """Change the space; what a watcher is told."""
        self.revision = max(self.revision, event.revision)
        seen: dict[str, Value | None] = {}
        for key, data in event.changes.items():
            self.session_keys.discard(key)
            if data is None:
                self.values.pop(key, None)
                seen[key] = None
            else:
                seen[key] = self.values[key] = Value(data, event.revision)
                if event.of_session:
                    self.session_keys.add(key)
        return Changes(event.revision, seen)

    def listing(self, prefix: str) -> Listing:
        """All keys that begin with a prefix."""
        return Listing(self.revision, {key: value for key, value in self.values.items() if key.startswith(prefix)})

    def events(self) -> Iterator[Written]:
        """Events that lead an empty space to this one."""
        by_revision: dict[tuple[int, bool], dict[str, bytes | None]] = {}
        for key, value in self.values.items():
            by_revision.setdefault((value.revision, key in self.session_keys), {})[key] = value.data
        for (revision, of_session), changes in sorted(by_revision.items(), key=lambda item: item[0]):
            yield Written(revision, changes, of_session)
        yield Written(self.revision, {})  # deletes leave nothing else behind, and revisions are never used again


@dataclass(slots=True, eq=False)
class _Watcher:
    prefix: str
    waiting: deque[Changes] = field(default_factory=deque)
    has_missed: bool = True  # the first thing it is given is a listing
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class WatchedKeys:
    """A keyspace and its watchers. Who changes it tells them."""

    def __init__(self) -> None:
        self.keyspace = Keyspace()
        self._watchers: set[_Watcher] = set()

    def use(self, keyspace: Keyspace) -> None:
        """Another keyspace from now on: watchers get all its keys."""
        self.keyspace = keyspace
        for watcher in self._watchers:
            watcher.waiting.clear()
            watcher.has_missed = True
            watcher.wake.set()

    def tell(self, changes: Changes) -> None:
        """Tell the watchers."""
        for watcher in self._watchers:
            values = {key: value for key, value in changes.values.items() if key.startswith(watcher.prefix)}
            if not values or watcher.has_missed:
                continue
            if len(watcher.waiting) >= WATCH_BACKLOG_MAX:
                watcher.waiting.clear()
                watcher.has_missed = True
            else:
                watcher.waiting.append(Changes(changes.revision, values))
            watcher.wake.set()

    async def watch(self, prefix: str) -> AsyncGenerator[Listing | Changes, None]:
        """See `Metadata.watch`."""
        watcher = _Watcher(prefix)
        self._watchers.add(watcher)
        try:
            while True:
                watcher.wake.clear()
                if watcher.has_missed:
                    watcher.has_missed = False
                    yield self.keyspace.listing(prefix)
                elif watcher.waiting:
                    yield watcher.waiting.popleft()
                else:
                    await watcher.wake.wait()
        finally:
            self._watchers.remove(watcher)


class MemoryMetadata(WatchedKeys):
    """`Metadata` over a keyspace. `write` makes one event durable and then has it applied (`apply`)."""

    def __init__(self, *, write: Callable[[Written], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self._write = write or self._apply_only
        self._changing = asyncio.Lock()

    async def _apply_only(self, event: Written) -> None:
        self.apply(event)

    def apply(self, event: Written) -> None:
        """Change the space and tell the watchers."""
        self.tell(self.keyspace.apply(event))

    async def get(self, key: str) -> Value | None:
        """See `Metadata.get`."""
        return self.keyspace.values.get(key)

    async def list(self, prefix: str) -> Listing:
        """See `Metadata.list`."""
        return self.keyspace.listing(prefix)

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        """See `Metadata.compare_and_set`."""
        return await self._change(expected, changes)

    async def _change(
        self, expected: Mapping[str, int], changes: Mapping[str, bytes | None], *, of_session: bool = False
    ) -> int | None:
        check_change(expected, changes)
        return await to_its_end(self._change_now(expected, changes, of_session))

    async def _change_now(
        self, expected: Mapping[str, int], changes: Mapping[str, bytes | None], of_session: bool
    ) -> int | None:
        async with self._changing:
            event = self.keyspace.decide(expected, changes, of_session=of_session)
            if event is None:
                return None
            await self._write(event)
            return event.revision

    @asynccontextmanager
    async def session(self, key: str, data: bytes, *, ttl_ms: int) -> AsyncIterator[MemorySession]:
        """See `Metadata.session`; `ttl_ms` has no meaning here, as keys and holders live in one process."""
        if await self._change({key: ABSENT}, {key: data}, of_session=True) is None:
            raise SessionTaken(f"{key} is held by another session")
        held = MemorySession(self.keyspace, key)
        try:
            yield held
        finally:
            value = self.keyspace.values.get(key)
            if value is not None:
                with suppress(Unavailable):  # then the end of the process ends it
                    await self._change({key: value.revision}, {key: None})


class MemorySession:
    """A key held in the same process."""

    loss_count = 0

    def __init__(self, keyspace: Keyspace, key: str) -> None:
        self._keyspace = keyspace
        self._key = key

    @property
    def is_held(self) -> bool:
        """See `Session.is_held`."""
        return self._key in self._keyspace.session_keys
