"""The gateway's own files offline: what `mq verify` says of them, and what `mq dump` prints (gateway.main.offline)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.groups.coordinator.receipt_key import load_or_make_key
from gateway.groups.machines.events import Configured, DocumentPut, encode_event
from gateway.main.identity import cluster_id
from gateway.main.offline import dump, verify
from gateway.recurring.definitions import RECURRING_EVENTS, Versions
from store.errors import FormatTooNew
from store.files import OsFiles
from store.offline.verify import Severity, VerifyReport
from store.snapshot import Snapshot, SnapshotFiles
from store.topics import OFFSETS_QUEUE, RECURRING_QUEUE
from store.types import Bounds

FILES = OsFiles()
NINE_EVENTS = Bounds(0, 9)
EVENTS = [Configured("workers", {"retries": 3}), DocumentPut("workers", "place", b"7")]


def make(root: Path, *, next_offset: int = 7) -> None:
    """Every file the gateway keeps, the groups' twice."""
    cluster_id(root, FILES)
    load_or_make_key(root, FILES)
    groups = SnapshotFiles(root, "groups", FILES)
    for offset in (next_offset - 1, next_offset):
        groups.save(Snapshot(offset, b"\n".join(map(encode_event, EVENTS))))
    recurring = SnapshotFiles(root, "recurring", FILES)
    recurring.save(Snapshot(next_offset, RECURRING_EVENTS.encode(Versions(3))))


def checked(root: Path, *, events: Bounds | None = NINE_EVENTS, log_begin: int = 0) -> list[tuple[Severity, str]]:
    report = VerifyReport(
        log_begin=log_begin, offsets={} if events is None else {OFFSETS_QUEUE: events, RECURRING_QUEUE: events}
    )
    verify(root, report)
    return [(finding.severity, finding.reason) for finding in report.findings]


def test_whole_files_are_clean_and_so_is_a_directory_without_any(tmp_path: Path) -> None:
    assert checked(tmp_path, events=None) == []
    make(tmp_path)
    assert checked(tmp_path) == []
    assert checked(tmp_path, events=Bounds(7, 9), log_begin=4096) == []
    assert checked(tmp_path, events=None, log_begin=4096) == [], "all events have expired"


def _tear(*names: str) -> Callable[[Path], None]:
    def tear(root: Path) -> None:
        for name in names:
            content = bytearray((root / name).read_bytes())
            content[30] ^= 0xFF
            (root / name).write_bytes(content)

    return tear


def _save(name: str, snapshot: Snapshot) -> Callable[[Path], None]:
    def save(root: Path) -> None:
        files = SnapshotFiles(root, name, FILES)
        files.load()
        files.save(snapshot)

    return save


@pytest.mark.parametrize(
    ("spoil", "severity", "reason"),
    [
        (_tear("groups.0"), Severity.LEFTOVER, "the other one counts"),
        (_tear("groups.0", "groups.1"), Severity.DAMAGE, "and the other one too"),
        (_tear("cluster.1"), Severity.LEFTOVER, "a snapshot fails its check"),
        (_save("groups", Snapshot(10, b"")), Severity.DAMAGE, "is of offset 10, their events in the log end at 9"),
        (_save("groups", Snapshot(8, b'{"event":"?"}')), Severity.DAMAGE, "is not understood"),
        (_tear("recurring.1"), Severity.LEFTOVER, "a snapshot fails its check"),
        (_save("recurring", Snapshot(10, b"")), Severity.DAMAGE, "recurring schedules is of offset 10"),
        (_save("recurring", Snapshot(8, b'{"event":"?"}')), Severity.DAMAGE, "is not understood"),
        (_save("receipt-key", Snapshot(0, b"short")), Severity.LEFTOVER, "not a key"),
    ],
)
def test_what_is_wrong_is_told(spoil: Callable[[Path], None], severity: Severity, reason: str, tmp_path: Path) -> None:
    make(tmp_path)
    spoil(tmp_path)
    findings = checked(tmp_path)
    assert {found for found, _ in findings} == {severity}
    assert reason in findings[-1][1]


def test_groups_that_begin_behind_what_retention_has_left_are_damage(tmp_path: Path) -> None:
    make(tmp_path, next_offset=4)
    findings = checked(tmp_path, events=Bounds(5, 9), log_begin=4096)
    for (severity, reason), whose in zip(findings, ("consumer groups", "recurring schedules"), strict=True):
        assert severity is Severity.DAMAGE
        assert f"of the {whose} reaches the first event in the log, 5" in reason


def test_a_newer_format_is_not_judged(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "groups.1"
    newer = SnapshotFiles(tmp_path / "newer", "groups", FILES)
    (tmp_path / "newer").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("store.snapshot.VERSION", 2)
        newer.save(Snapshot(1, b""))
    path.write_bytes((tmp_path / "newer" / "groups.1").read_bytes())
    with pytest.raises(FormatTooNew):
        checked(tmp_path)


def test_each_file_is_printed_but_the_key(tmp_path: Path) -> None:
    make(tmp_path)
    head, *events = list(dump(tmp_path / "groups.0"))
    assert head == {"valid": True, "version": 1, "generation": 2, "next_offset": 7}
    assert [event["event"] for event in events] == ["configured", "document_put"]
    assert list(dump(tmp_path / "recurring.1"))[1:] == [{"event": "versions", "next_version": 3}]
    [_, cluster] = dump(tmp_path / "cluster.1")
    assert cluster == {"cluster": cluster_id(tmp_path, FILES)}
    with pytest.raises(PermissionError, match="a secret"):
        dump(tmp_path / "receipt-key.1")
    with pytest.raises(ValueError, match="not a cluster, groups"):
        dump(tmp_path / "groups.7")


def test_damage_is_printed(tmp_path: Path) -> None:
    make(tmp_path)
    _save("groups", Snapshot(8, b'{"event":"configured"}\nnot JSON'))(tmp_path)
    assert list(dump(tmp_path / "groups.1"))[1:] == [{"event": "configured"}, {"damage": "not JSON"}]
    _tear("groups.1")(tmp_path)
    assert list(dump(tmp_path / "groups.1")) == [{"valid": False}]
