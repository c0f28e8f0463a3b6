"""A backup of a whole cluster, made while it runs, and a cluster made of one. By hand of an operator who can read the
data directories of all nodes: the nodes take no part.

    OUT/timers/<node>/   what its timer alone knows (timer/copying.py)                    1, of all nodes
    OUT/nodes/<node>/    its data directory, as `mq backup` copies it                     2, one after the other
    OUT/metadata.json    all keys but sessions, as of one revision                        3
    OUT/cluster.json     what this is; written last: without it the backup was cut off    4

Why the order makes a cut that a cluster can be made of:

    metadata last     no directory knows of a topic, queue or epoch that the metadata does not. That the metadata knows
                      of more than a directory is made good by a takeover of everything (gateway/cluster/restoring.py)
    timers first      a schedule that a timer knows as done was delivered before any directory was copied, so its record
                      is in the copy of whichever node got it. One that it does not know as done is in the copy of its
                      own log; whether it was delivered before the other node was copied, the records there say by
                      their message ids: then it is consumed in the restored log (`settle_schedules`), else it fires
    groups            one that moved meanwhile may have left a directory before that was copied, and have come to
                      another one after that was: the one that it came to is copied again

So everything that was acknowledged before the backup began is in it, once. What lies on a Kafka cluster is not:
records, delayed records and groups alike (`ClusterBackup.on_kafka`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import orjson

from gateway.cluster.members import BROKERS, CLUSTER, FORMATS, NODES, OWNERS, membership_of
from gateway.cluster.metadata import ABSENT, CAS_BYTES_MAX, CAS_KEYS_MAX, Listing, Metadata
from gateway.cluster.mover import PARTITIONS
from gateway.cluster.record import decode
from gateway.cluster.restoring import restored
from gateway.cluster.topics import TOPICS, decode_topic
from gateway.routing.delivery import message_id_of
from gateway.settings.config import GatewayConfig
from store import Store
from store.clock import SystemClock
from store.errors import StoreError
from store.files import OsFiles
from store.offline.directory import Found, judge, log_files, sync_path
from store.topics import TIMER_QUEUE
from store.types import Acks, Entry, Source
from timer.changes import TOMBSTONE_TOPIC_ID, Change, Reason, encode_changes
from timer.copying import checkpoint_in, copy_timer, units_in
from timer.timer_log import MAGIC_DELETE, Unit

MANIFEST, METADATA = "cluster.json", "metadata.json"
COPIES_MAX = 5
"""Of one directory, while groups keep moving to it."""

CLOCKS_MS = 60_000
"""By how much the clocks of nodes may differ, with room to spare (`peer_auth.CLOCK_SKEW_MS_MAX`)."""

_TOMBSTONES_AT_ONCE = 1_000

Copy = Callable[[Path, Path], object]
"""Copies a data directory, durably, to a path that does not exist."""


class NoBackup(StoreError):
    """A backup cannot be made, or used; the text says why."""


@dataclass(frozen=True, slots=True)
class ClusterBackup:
    """What a backup is of. Everything that was acknowledged before `began_ms` is in it, but what partitions, and shards
    of delayed records and groups, have on Kafka clusters: `on_kafka` of them, as the backup was made."""

    cluster: str
    began_ms: int
    ended_ms: int
    nodes: Sequence[str]
    without: Sequence[str]
    on_kafka: int = 0


class Restored(NamedTuple):
    """What was done. `settled`: schedules that had been delivered to other nodes already."""

    partitions: int
    settled: int


def directories(roots: Sequence[Path]) -> dict[str, Path]:
    """Data directories by the name of their node. Raises NoBackup."""
    found: dict[str, Path] = {}
    for root in roots:
        membership = membership_of(root, OsFiles()) if (root / "commitlog").is_dir() else None
        if membership is None:
            raise NoBackup(f"{root} is no data directory of a node of a cluster")
        if membership.node in found:
            raise NoBackup(f"{root} and {found[membership.node]} are both node {membership.node}")
        found[membership.node] = root
    return found


async def back_up(
    metadata: Metadata, roots: Mapping[str, Path], out: Path, copy: Copy, *, without: Sequence[str] = ()
) -> ClusterBackup:
    """Copy a cluster into a directory that is made; see the module. `without`: nodes whose directories cannot be had,
    and whose records are not in the backup. Durable on return, but for the name of `out`, which is the caller's. Raises
    NoBackup, Unavailable, and what copying raises."""
    listing = await metadata.list("")
    cluster = _checked(listing, roots, without)
    began_ms = SystemClock().now_ms()
    (out / "nodes").mkdir(parents=True)
    for name, root in roots.items():
        await asyncio.to_thread(copy_timer, root, out / "timers" / name)
    left = dict(roots)
    for _ in range(COPIES_MAX):
        listing = await metadata.list("")
        for name, root in left.items():
            target = out / "nodes" / name
            if target.exists():
                shutil.rmtree(target)
            await asyncio.to_thread(copy, root, target)
        last = await metadata.list("")
        left = {name: roots[name] for name in _came_to(listing, last) if name in roots}
        if not left:
            break
    else:
        raise NoBackup(f"groups keep moving to {', '.join(left)}: wait until nothing drains, and begin again")
    ended_ms = SystemClock().now_ms()
    made = ClusterBackup(cluster, began_ms, ended_ms, sorted(roots), sorted(without), _on_kafka(last))
    kept = {key: value.data.decode() for key, value in last.values.items() if not key.startswith((NODES, FORMATS))}
    _write(out / METADATA, {"v": 1, "revision": last.revision, "values": kept})
    _write(out / MANIFEST, {"v": 1, **_fields(made)})
    return made


def _checked(listing: Listing, roots: Mapping[str, Path], without: Sequence[str]) -> str:
    found = listing.values.get(CLUSTER)
    if found is None:
        raise NoBackup("the metadata knows of no cluster: is it where the settings say, under this prefix?")
    cluster = found.data.decode()
    brokers = {key.removeprefix(BROKERS) for key in listing.values if key.startswith(BROKERS)}
    for name, root in roots.items():
        membership = membership_of(root, OsFiles())
        if membership is None or membership.cluster != cluster or name not in brokers:
            raise NoBackup(f"{root} is not of cluster {cluster}")
    if missing := sorted(brokers - roots.keys() - set(without)):
        raise NoBackup(f"node {missing[0]} has no --data: name its directory, or say --without {missing[0]}")
    return cluster


def _on_kafka(listing: Listing) -> int:
    """How many partitions and shards have anything on a Kafka cluster."""
    records = [decode(value.data) for key, value in listing.values.items() if key.startswith(PARTITIONS)]
    return sum(any(segment.pid is not None for segment in record.segments) for record in records)


def _came_to(before: Listing, after: Listing) -> set[str]:
    """The nodes to which names that had another owner have come."""
    return {
        orjson.loads(value.data)["node"]
        for key, value in after.values.items()
        if key.startswith(OWNERS) and (was := before.values.get(key)) is not None and was.revision != value.revision
    }


# ---- the way back ----------------------------------------------------------------------------------------------------


def read_backup(source: Path) -> tuple[ClusterBackup, dict[str, bytes]]:
    """What a backup is, and its keys. Raises NoBackup."""
    try:
        made = orjson.loads((source / MANIFEST).read_bytes())
        listed = orjson.loads((source / METADATA).read_bytes())
        if (made.pop("v"), listed["v"]) != (1, 1):
            raise NoBackup(f"{source} is of a newer version")
        return ClusterBackup(**made), {key: data.encode() for key, data in listed["values"].items()}
    except FileNotFoundError as error:
        raise NoBackup(f"{source} has no {Path(error.filename).name}: it is no backup, or one cut off") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoBackup(f"{source} is not understood: {error!r}") from error


async def restore(
    metadata: Metadata,
    source: Path,
    roots: Mapping[str, Path],
    copy: Copy,
    configured: Callable[[Path], GatewayConfig],
) -> Restored:
    """Make the directories of all nodes of a backup, and the metadata of their cluster. The key that says which cluster
    it is comes last, and without it no node starts: so a restore that was killed is no cluster. `configured`: the
    settings of a server on a directory. Raises NoBackup, Unavailable, and what copying raises."""
    made, values = read_backup(source)
    if sorted(roots) != sorted(made.nodes):
        raise NoBackup(f"the backup is of nodes {', '.join(made.nodes)}: name a directory for each of them")
    _check_on_nodes(values)
    found = restored(values, SystemClock().now_ms())
    if CLUSTER in (await metadata.list("")).values:
        raise NoBackup("there is a cluster under this prefix: choose another one, or remove it")
    for name, root in roots.items():
        await asyncio.to_thread(copy, source / "nodes" / name, root)
        timer = source / "timers" / name
        if (timer / "checkpoint").exists():
            await asyncio.to_thread(_copy_tree, timer, root / "timer")
    settled = 0
    delivered = await asyncio.to_thread(_delivered_ids, roots.values(), _since_ms(source, made))
    for name, root in roots.items():
        settled += await settle_schedules(configured(root), name, delivered, made.ended_ms + CLOCKS_MS)
    await _put(metadata, found)
    return Restored(sum(key.startswith("partitions/") for key in found), settled)


def _check_on_nodes(values: Mapping[str, bytes]) -> None:
    """Raises NoBackup when a partition was on a Kafka cluster: where its records there end is known there alone, and an
    offset that was given since must not be given again."""
    by_id = {
        record.topic.topic_id: record.topic.name
        for key, data in values.items()
        if key.startswith(TOPICS) and (record := decode_topic(data)).attached is None
    }
    ids = {
        int(key.removeprefix(PARTITIONS).partition("/")[0]) for key, data in values.items() if _is_on_kafka(key, data)
    }
    if names := sorted(by_id[topic_id] for topic_id in ids & by_id.keys()):
        raise NoBackup(
            f"partitions of {', '.join(names)} were on a Kafka cluster when the backup was made, and cannot be "
            "restored: move partitions to nodes before a backup (mq partition move TOPIC --all --to NODE)"
        )


def _is_on_kafka(key: str, data: bytes) -> bool:
    return key.startswith(PARTITIONS) and decode(data).open_segment.pid is not None


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)
    owner = target.parent.stat()
    for path in (target, *target.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, owner.st_uid, owner.st_gid)
        sync_path(path)
    sync_path(target.parent)


def _since_ms(source: Path, made: ClusterBackup) -> int:
    """From when on records may be those of schedules that their timers do not know as done."""
    marks = [made.began_ms]
    for name in made.nodes:
        timer = source / "timers" / name
        if (timer / "checkpoint").exists() and (checkpoint := checkpoint_in(timer)) is not None:
            marks.append(checkpoint.read_mark_s * 1000)
    return min(marks) - CLOCKS_MS


def _delivered_ids(roots: Iterable[Path], since_ms: int) -> set[bytes]:
    """The message ids of records that were stored since a time."""
    found: set[bytes] = set()
    for root in roots:
        for entry in _entries(root):
            if entry.store_time_ms >= since_ms and entry.identity is not None:
                found.update(entry.identity.message_ids)
    return found


def _entries(root: Path) -> Iterator[Entry]:
    for _, piece, _ in judge(log_files(root)[0], 0):
        if isinstance(piece, Found):
            yield piece.entry


async def settle_schedules(config: GatewayConfig, node: str, delivered: set[bytes], until_ms: int) -> int:
    """Consume, in the log of a restored directory, the schedules whose records other nodes have already; how many.
    `delivered`: message ids of records there. `until_ms`: what is due later was not delivered. Durable on return;
    what was consumed by an earlier call is not met again."""
    left = await asyncio.to_thread(_left, config.data, node, delivered, until_ms)
    if left:
        store = await Store.open(replace(config.store, index="file"))  # what a backup has, whatever there was
        try:
            for first in range(0, len(left), _TOMBSTONES_AT_ONCE):
                changes = [
                    Change(-1, Reason.CANCELLED, unit=unit) for unit in left[first : first + _TOMBSTONES_AT_ONCE]
                ]
                await store.append([encode_changes(changes, SystemClock().now_ms())], acks=Acks.FLUSHED)
        finally:
            await store.close()
    return len(left)


def _left(root: Path, node: str, delivered: set[bytes], until_ms: int) -> list[Unit]:
    """Schedules that the copies of a node's timer and log hold for pending, and whose records are elsewhere."""
    pending: dict[Source, Unit] = {}
    next_offset = 0
    timer = root / "timer"
    if (timer / "checkpoint").exists() and (checkpoint := checkpoint_in(timer)) is not None:
        next_offset = checkpoint.queue_offset
        for unit in units_in(timer, checkpoint):
            if unit.slot_s >= checkpoint.read_mark_s and unit.due_ms <= until_ms and not unit.magic & MAGIC_DELETE:
                pending[Source(unit.entry_position, unit.record_index)] = unit
    consumed: set[Source] = set()
    for entry in _entries(root):
        consumed.update(entry.sources)
        if entry.queue == TIMER_QUEUE and entry.base_offset >= next_offset:
            for index, delay in enumerate(entry.delays):
                if delay.topic_id != TOMBSTONE_TOPIC_ID and delay.due_ms <= until_ms:
                    pending[Source(entry.position, index)] = Unit(
                        -1, 0, delay.due_ms, entry.position, entry.size, index, delay.topic_id, 0
                    )
    own = node.encode()
    return [
        unit for source, unit in pending.items() if source not in consumed and message_id_of(own, source) in delivered
    ]


async def _put(metadata: Metadata, values: Mapping[str, bytes]) -> None:
    """Write all keys, and the one that says which cluster it is when all others are there; what an earlier restore left
    goes."""
    there = (await metadata.list("")).values
    changes: dict[str, bytes | None] = {key: None for key in there if key not in values}
    changes.update((key, data) for key, data in values.items() if key != CLUSTER)
    some: dict[str, bytes | None] = {}
    size = 0
    for key, data in (*changes.items(), (CLUSTER, values[CLUSTER])):
        own = len(key.encode()) + len(data or b"")
        if len(some) == CAS_KEYS_MAX or size + own > CAS_BYTES_MAX or (some and key == CLUSTER):
            await _set(metadata, some, there)
            some, size = {}, 0
        some[key] = data
        size += own
    await _set(metadata, some, there)


async def _set(metadata: Metadata, changes: Mapping[str, bytes | None], there: Mapping[str, object]) -> None:
    expected = {key: getattr(there.get(key), "revision", ABSENT) for key in changes}
    if await metadata.compare_and_set(expected, changes) is None:
        raise NoBackup("something else writes under this prefix")


def _fields(made: ClusterBackup) -> dict[str, object]:
    return {
        "cluster": made.cluster, "began_ms": made.began_ms, "ended_ms": made.ended_ms, "nodes": list(made.nodes),
        "without": list(made.without),
    }  # fmt: skip


def _write(path: Path, fields: Mapping[str, object]) -> None:
    path.write_bytes(orjson.dumps(fields, option=orjson.OPT_INDENT_2) + b"\n")
    sync_path(path)
    sync_path(path.parent)
