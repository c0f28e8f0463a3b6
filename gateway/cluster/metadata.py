"""What the nodes of a cluster agree on: a small space of keys with atomic changes, behind one port.

    get, list        values, and the revision at which each was last written
    compare_and_set  several keys at once, all or none, if none of them was written since it was read
    watch            the keys below a prefix, then every change of them
    session          a key that is there while the process that holds it lives

Three stores implement it: memory (tests), the node's own data directory (embedded.py) and etcd (etcd.py). One set of
tests holds all three to it.

Revisions
    R1  every change of the space has a higher revision than the one before; the changes of one call share one
    R2  the revision of a key is the one of its last change; a key that is not there has revision 0
    R3  revisions are never used again, so a compare-and-set with an old revision fails, also after a delete

Sessions say *when* a node may be gone; they never make anything safe. A store may end one although its holder lives
(etcd did, issue #15247): the holder writes its key again. Whoever acts on a missing key must fence first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from store.limits import MiB

KEY_BYTES_MAX = 512
"""UTF-8 of one key."""

CAS_KEYS_MAX = 100
"""Keys of one compare-and-set; etcd takes 128 operations in one transaction unless it is told otherwise."""

CAS_BYTES_MAX = 1 * MiB
"""Keys and values of one compare-and-set; etcd takes requests of 1.5 MiB unless it is told otherwise."""

ABSENT = 0
"""The revision of a key that is not there."""


class Value(NamedTuple):
    """A value and the revision of its last change."""

    data: bytes
    revision: int


class Listing(NamedTuple):
    """All keys below a prefix, as of one revision."""

    revision: int
    values: Mapping[str, Value]


class Changes(NamedTuple):
    """What one revision changed; None: the key was deleted."""

    revision: int
    values: Mapping[str, Value | None]


class MetadataError(Exception):
    """Base of what goes wrong with metadata on purpose."""


class Unavailable(MetadataError):
    """The metadata cannot be reached or take changes now. Nothing was changed; try again later."""


class OutcomeUnknown(Unavailable):
    """The change may have been made, or may be made yet. Read before acting on either."""


class TooLarge(MetadataError):
    """A key, or one compare-and-set, exceeds a limit. Nothing was changed; never retry."""


class OtherMetadata(MetadataError):
    """The metadata is not what a node knew before: another cluster's, or older. Nothing of it may be applied."""


class SessionTaken(MetadataError):
    """Another process holds the key of a session."""


class Session(Protocol):
    """A held key."""

    @property
    def is_held(self) -> bool:
        """Whether the key is certainly there, by this process's monotonic clock. False while it has to be written
        again, and when the metadata could not be reached for the session's time to live."""
        ...

    @property
    def loss_count(self) -> int:
        """How often the key was lost and had to be written again."""
        ...


class Metadata(Protocol):
    """The port. Methods raise Unavailable when the metadata cannot be reached."""

    async def get(self, key: str) -> Value | None:
        """The value of a key as of now: a change that was answered before this call is seen. None: there is none."""
        ...

    async def list(self, prefix: str) -> Listing:
        """All keys that begin with a prefix, as of one revision, likewise."""
        ...

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        """Write or delete (None) keys, if every key in `expected` has that revision (ABSENT: is not there). Returns
        the revision of the change; None if an expectation failed, and nothing was changed. Durable on return. Every
        key that is changed must be expected; ValueError. Raises TooLarge, OutcomeUnknown."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Listing | Changes, None]:
        """First all keys that begin with a prefix, then every change of them, in order, without a gap: where changes
        were missed, all keys again, as another Listing. Goes on by itself after the metadata could not be reached.
        Close the generator (`contextlib.aclosing`)."""
        ...

    def session(self, key: str, data: bytes, *, ttl_ms: int) -> AbstractAsyncContextManager[Session]:
        """Hold a key while the block runs; no other process may use the same `data`. The key goes at the block's end,
        or at most some seconds after `ttl_ms` when the process has died. Raises SessionTaken when another one holds it
        for longer than that, Unavailable."""
        ...


def check_change(expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> None:
    """Raises ValueError or TooLarge for what no store may be asked to do."""
    if not changes.keys() <= expected.keys():
        raise ValueError(f"changed without an expectation: {sorted(changes.keys() - expected.keys())}")
    if len(expected) > CAS_KEYS_MAX:
        raise TooLarge(f"{len(expected)} keys in one change of metadata; at most {CAS_KEYS_MAX}")
    sizes = [len(key.encode()) for key in expected]
    if max(sizes, default=0) > KEY_BYTES_MAX:
        raise TooLarge(f"a metadata key has at most {KEY_BYTES_MAX} bytes")
    size = sum(sizes) + sum(len(data) for data in changes.values() if data is not None)
    if size > CAS_BYTES_MAX:
        raise TooLarge(f"{size} bytes in one change of metadata; at most {CAS_BYTES_MAX}")
