"""One flipped bit in any file of a closed store on a real disk: `mq verify` names it, wherever it is.

tests/crash/test_bit_rot.py flips bits on a simulated disk and looks at what a *server* does; here it is the offline
check that must miss nothing: log, padding, unused space, index, ids of sends, snapshots, format, timer files. What is
then read is right or refused, and what is sent again is known. MQ_TORTURE_CYCLES=20000 flips more bits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from gateway.groups.coordinator.receipt_key import load_or_make_key
from gateway.groups.machines.events import Configured, encode_event
from gateway.main import offline as gateway_offline
from gateway.main.identity import cluster_id
from store.errors import AlreadyStored, FormatTooNew, IdentityReused, SequenceGone, StoreError
from store.files import OsFiles
from store.index import file as file_index
from store.limits import KiB
from store.offline.verify import VerifyReport, verify
from store.record_batch import Record, encode
from store.snapshot import Snapshot, SnapshotFiles
from store.store import Store
from store.types import Append, Identity, ProducerSequence, QueueKey, RequestPart
from tests.crash.driver import TOPIC, config_of, read_values, sequence_of, value_of
from tests.crash.real_disk import cycles
from timer import verify as timer_verify
from timer.checkpoint import Checkpoint, CheckpointFile
from timer.timer_log import MAGIC_DEFAULT, UNIT_BYTES, TimerLog
from timer.wheel import Wheel

FLIPS = cycles(500)


async def fill_store(root: Path, numbers: range) -> dict[int, list[bytes]]:
    """A closed store with three queues, tags on some records, these batches appended; what is in it."""
    store = await Store.open(config_of(root))
    topic, _ = await store.create_topic(TOPIC, 3)
    rng = Random(numbers.start)
    for number in numbers:
        queue = number % 3
        records = [Record(None, value_of(queue, number * 2 + n, rng.randrange(300)), 0) for n in range(2)]
        tags = (rng.getrandbits(60), 7) if number % 4 == 0 else ()
        key = QueueKey(topic.topic_id, queue)
        identity = identity_of(number)
        batch = encode(records)
        await store.append([Append(queue=key, batch=batch, record_count=2, tag_hashes=tags, identity=identity)])
    values = await read_values(store)
    await store.close()
    return values


def identity_of(number: int) -> Identity | None:
    """By which a batch of the store is known when it is sent again: half of them by nothing."""
    match number % 6:
        case 1:
            return Identity(message_ids=[b"%015da" % number, b"%015db" % number])
        case 2:
            return Identity(request=RequestPart(b"%016d" % number, b"12345678", (0, 1)))
        case 3:
            return Identity(producer=ProducerSequence(b"p" * 16, number))
    return None


async def is_known(store: Store, number: int) -> bool:
    """Whether the same batch, sent again, is answered with the place of the first one."""
    topic_id = store.topic(TOPIC).topic_id
    again = Append(
        queue=QueueKey(topic_id, number % 3),
        batch=encode([Record(None, b"again", 0)] * 2),
        record_count=2,
        identity=identity_of(number),
    )
    try:
        await store.append([again])
    except AlreadyStored as known:
        original = known.originals[0][0]
        return (original.queue, original.offset) == (again.queue, number // 3 * 2)
    except (SequenceGone, IdentityReused):
        return False
    return False


def make_gateway_files(root: Path) -> None:
    """The files the gateway keeps beside the store's, the groups' twice."""
    cluster_id(root, OsFiles())
    load_or_make_key(root, OsFiles())
    groups = SnapshotFiles(root, "groups", OsFiles())
    for _ in range(2):
        groups.save(Snapshot(0, encode_event(Configured("workers", {"retries": 3}))))


def make_timer(root: Path, log_end: int) -> None:
    """The files a timer leaves at a clean stop, some schedules in them."""
    (root / "timer").mkdir()
    files = OsFiles()
    timer_log = TimerLog(files, root / "timer" / "timerlog", file_units=40)
    timer_log.open(0)
    wheel = Wheel(files, root / "timer" / "wheel")
    for number in range(100):
        slot_s = 1_800_000_000 + number // 3
        previous = wheel.add(slot_s, timer_log.end)
        timer_log.append(previous, MAGIC_DEFAULT, slot_s * 1000, number * 8, 64, 0, 16, slot_s)
    unwritten = timer_log.unwritten()
    timer_log.write(unwritten)
    timer_log.written(unwritten)
    wheel.flush()
    assert log_end >= 100 * 8 + 64
    checkpoint = CheckpointFile(files, root / "timer" / "checkpoint")
    for generation in (1, 2):
        checkpoint.write(Checkpoint(100 * UNIT_BYTES, 100, 1_800_000_000 + generation, 1_800_000_002, 0, True))
    for opened in (timer_log, wheel, checkpoint):
        opened.close()


def whole_check(root: Path) -> tuple[VerifyReport, int]:
    """What `mq verify` does: the store, the timer, the gateway; the report, and the number of all findings."""
    report = verify(root)
    gateway_offline.verify(root, report)
    return report, report.finding_count + len(list(timer_verify.verify(root, log_end=report.log_end)))


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, list[bytes]]]:
    root = tmp_path_factory.mktemp("flips") / "data"
    with patch.object(file_index, "KEPT_BYTES_MAX", 0):
        asyncio.run(fill_store(root, range(120)))  # units in files, whatever the flushes met
    values = asyncio.run(fill_store(root, range(120, 150)))  # and, mostly, in the snapshot
    # A real store prepares more; zeros are zeros, and the flips should meet the rest of the files too.
    log_file = next((root / "commitlog").iterdir())
    used = len(log_file.read_bytes().rstrip(b"\0"))
    with log_file.open("r+b") as file:
        file.truncate(used // (4 * KiB) * 4 * KiB + 8 * KiB)
    make_timer(root, used)
    make_gateway_files(root)
    report, finding_count = whole_check(root)
    assert finding_count == 0, report.findings
    return root, values


def test_verify_names_every_flipped_bit_of_every_file(closed_store: tuple[Path, dict[int, list[bytes]]]) -> None:
    root, _ = closed_store
    rng = Random(2)
    kinds = Counter[str]()
    for path, at, bit in flips(root, FLIPS, rng):
        with flipped(path, at, bit):
            where = f"{path.relative_to(root)}, byte {at}, bit {bit}"
            try:
                report, finding_count = whole_check(root)
            except FormatTooNew:
                assert path.name == "format", where
                continue
            assert finding_count > 0, f"not found: {where}"
            if path.parent.name == "commitlog" and at < report.checkpoint:
                is_stain = all("not zero" in finding.reason for finding in report.findings)
                assert not report.is_clean or is_stain, f"not called damage: {where}"
                assert any(finding.path == str(path) for finding in report.findings), f"another file blamed: {where}"
        kinds[path.relative_to(root).parts[0]] += 1
    print(dict(kinds))
    assert {"commitlog", "consumequeue", "timer", "format", "dedup", "receipt-key.1", "groups.0"} <= set(kinds)
    assert {kind.partition(".")[0] for kind in kinds} >= {"index", "meta", "producers", "cluster"}


def test_no_flipped_bit_is_served(closed_store: tuple[Path, dict[int, list[bytes]]]) -> None:
    """Opened by a server, a damaged store serves what was sent, or refuses; it never serves something else."""
    root, values = closed_store
    rng = Random(3)
    outcomes = Counter[str]()
    saved = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and "timer" not in path.parts}
    for path, at, bit in flips(root, max(100, FLIPS // 10), rng):
        if path not in saved:
            continue
        with flipped(path, at, bit):
            outcomes[asyncio.run(outcome(root, values))] += 1
        restore(root, saved)
    print(dict(outcomes))
    assert outcomes["right"]
    assert outcomes["refused"]
    assert set(outcomes) <= {"right", "refused"}, outcomes


async def test_an_index_unit_that_leads_to_another_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right bytes from the wrong place: only the entry itself can tell."""
    monkeypatch.setattr(file_index, "KEPT_BYTES_MAX", 0)  # units are in files, and none in the snapshot
    root = tmp_path / "data"
    values = await fill_store(root, range(12))
    topic_directory = next(path for path in (root / "consumequeue").iterdir() if path.name != "1")
    units = topic_directory / "1" / f"{0:020}"
    content = units.read_bytes()
    for other in (content[60:80], (topic_directory / "0" / units.name).read_bytes()[:20]):
        units.write_bytes(other * 2 + content[40:])
        assert await outcome(root, values) == "refused"
        assert not verify(root).is_clean


async def outcome(root: Path, expected: dict[int, list[bytes]]) -> str:
    """Open, read everything: `right`, `refused`, or what is wrong."""
    try:
        store = await Store.open(config_of(root))
    except StoreError:
        return "refused"
    try:
        found = await read_values(store)
        numbers = [
            max(number for number in range(sum(map(len, expected.values())) // 2) if number % 6 == kind)
            for kind in (1, 2, 3)
        ]
        if not all([await is_known(store, number) for number in numbers]):
            return "sent again and stored twice"
    except StoreError:
        return "refused"
    finally:
        await store.close()
    for queue, values in found.items():
        for value in values:
            sequence_of(value, queue)
    return "right" if found == expected else "lost"


def flips(root: Path, count: int, rng: Random) -> Iterator[tuple[Path, int, int]]:
    """Random bits, half of them in the log, the others spread over the other files, however small. Of the wheel, which
    is huge and empty, only its pages in use."""
    log = sorted((root / "commitlog").iterdir())
    others = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size and path not in log)
    for number in range(count):
        path = rng.choice(log) if number % 2 else others[number // 2 % len(others)]
        size = path.stat().st_size
        at = rng.randrange(size)
        if path.name == "wheel":
            at = 1_800_000_000 % 1_209_600 * 32 + rng.randrange(34 * 32)
        yield path, at, rng.randrange(8)


@contextmanager
def flipped(path: Path, at: int, bit: int) -> Iterator[None]:
    """The file with one bit turned; turned back afterwards."""
    turn(path, at, bit)
    try:
        yield
    finally:
        turn(path, at, bit)


def turn(path: Path, at: int, bit: int) -> None:
    if at < path.stat().st_size:
        with path.open("r+b") as file:
            file.seek(at)
            [value] = file.read(1)
            file.seek(at)
            file.write(bytes([value ^ 1 << bit]))


def restore(root: Path, saved: dict[Path, bytes]) -> None:
    """Undo what a server did to its own files."""
    for path in [path for path in root.rglob("*") if path.is_file() and "timer" not in path.parts]:
        if path not in saved:
            path.unlink()
    for path, content in saved.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
