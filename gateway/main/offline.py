"""The gateway's own small files in a data directory, read while no server runs: for `mq verify` and `mq dump`.

    cluster.N       the name of the directory (gateway/main/identity.py)
    groups.N        the state of the consumer groups (gateway/brokers/event_log.py)
    recurring.N     the recurring schedules, likewise
    cluster-metadata.N  what the nodes of a cluster agree on, where a node keeps it itself, likewise
    audit/*.jsonl   the trail of admin actions (gateway/api/trail_files.py)
    receipt-key.N   the key that signs receipts: a secret, never printed (gateway/groups/coordinator/receipt_key.py)

All but the trail have the frame of store/snapshot.py: two files, written in turn, of which a crash tears one at most.
Of a newest one that is rotten at rest the older one counts: an older state of the groups is brought up to date from the
log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from gateway.api import trail_files
from gateway.brokers.event_log import EventKind
from gateway.cluster.embedded import CLUSTER_EVENTS
from gateway.groups.coordinator.context import GROUP_EVENTS
from gateway.groups.coordinator.receipt_key import KEY_BYTES
from gateway.groups.coordinator.receipt_key import NAME as RECEIPT_KEY
from gateway.main.identity import CLUSTER
from gateway.recurring.definitions import RECURRING_EVENTS
from store.offline.verify import Finding, Severity, VerifyReport, check_snapshots
from store.snapshot import decode_snapshot

EVENT_KINDS: tuple[EventKind[Any], ...] = (GROUP_EVENTS, RECURRING_EVENTS, CLUSTER_EVENTS)
"""Whose snapshots there are."""

_DUMPED = (CLUSTER, RECEIPT_KEY, *(kind.snapshot_name for kind in EVENT_KINDS))


def verify(root: Path, report: VerifyReport) -> None:
    """Add what is wrong with these files to the report on the store, which knows what the log has. Nothing is written.
    Raises FormatTooNew."""
    check_snapshots(root, CLUSTER, report.add)
    key = check_snapshots(root, RECEIPT_KEY, report.add)
    if key is not None and len(key.content) != KEY_BYTES:
        reason = "not a key: the next start makes another one, and records on lease are delivered again"
        report.add(Finding(Severity.LEFTOVER, str(root / f"{RECEIPT_KEY}.0"), 0, reason))
    for kind in EVENT_KINDS:
        _verify_events(root, report, kind)


def _verify_events(root: Path, report: VerifyReport, kind: EventKind[Any]) -> None:
    path = str(root / f"{kind.snapshot_name}.0")
    snapshot = check_snapshots(root, kind.snapshot_name, report.add)
    events = report.offsets.get(kind.queue)
    low, high = (0, 0) if events is None else events
    next_offset = 0 if snapshot is None else snapshot.next_offset
    if next_offset < low:
        reason = f"no snapshot of the {kind.whose} reaches the first event in the log, {low}: restore a backup of it"
        report.add(Finding(Severity.DAMAGE, path, 0, reason))
    if next_offset > high and (events is not None or report.log_begin == 0):  # else all of them may have expired
        reason = f"a snapshot of the {kind.whose} is of offset {next_offset}, their events in the log end at {high}"
        report.add(Finding(Severity.DAMAGE, path, 0, reason))
    if snapshot is not None:
        try:
            kind.decode(snapshot.content.splitlines())
        except ValueError as error:
            report.add(Finding(Severity.DAMAGE, path, 0, str(error)))


def dump(path: Path) -> Iterator[dict[str, object]]:
    """The contents of one of these files. Raises ValueError when the path is none of them, PermissionError for the key,
    OSError when it cannot be read."""
    if path.suffix == ".jsonl":
        return trail_files.dump(path)
    name, _, number = path.name.rpartition(".")
    if number not in ("0", "1") or name not in _DUMPED:
        raise ValueError(f"{path} is not a cluster, groups, recurring, cluster-metadata or receipt-key file")
    if name == RECEIPT_KEY:
        raise PermissionError(f"{path} is a secret with which receipts can be forged, so it is not printed")
    return _dump(path, name)


def _dump(path: Path, name: str) -> Iterator[dict[str, object]]:
    decoded = decode_snapshot(path.read_bytes())
    if decoded is None:
        yield {"valid": False}
        return
    version, generation, snapshot = decoded
    yield {"valid": True, "version": version, "generation": generation, "next_offset": snapshot.next_offset}
    if name == CLUSTER:
        yield {"cluster": snapshot.content.decode("utf-8", "backslashreplace")}
        return
    for line in snapshot.content.splitlines():
        try:
            yield orjson.loads(line)
        except ValueError:
            yield {"damage": line.decode("utf-8", "backslashreplace")}
