"""The museum: deliberate bugs of the kind that has cost other brokers data, each killed by a named test.

A crash harness that nothing has ever failed proves little. Each exhibit changes a few words of a copy of the store; the
test named beside it, as it runs on every push, must fail on the copy (`make mutants`). That the words to be changed are
still there is checked on every push, so that the museum follows the code.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CRASHES = "tests/properties/test_store_crash.py"
ERRORS = "tests/crash/test_disk_errors.py"
ROT = "tests/crash/test_bit_rot.py"
ENTRY = "tests/store/log/test_entry.py"
COMMIT_LOG = "tests/store/log/test_commit_log.py"
RESERVE = "tests/store/test_full_disk.py"
LIGHT = "tests/store/test_light_queues.py"
IDEMPOTENCY = "tests/properties/test_repeats_crash.py"

MUTANT_TIMEOUT_S = 600
"""A mutant that hangs for so long has not been killed by a test; it fails, and is ended with all its processes."""


class Mutant(NamedTuple):
    """One bug: in `path`, `old` becomes `new`; `killer` is the test that must notice."""

    name: str
    path: str
    old: str
    new: str
    killer: str


MUTANTS = [
    Mutant(
        "ack before the kernel's sync has ended",
        "store/log/commit_log.py",
        "            await outcome\n",
        "            outcome.add_done_callback(lambda ended: ended.exception())\n",
        CRASHES,
    ),
    Mutant(
        "count what was written during a flush as flushed",
        "store/log/commit_log.py",
        "        self.durable_position = unsynced.end\n",
        "        self.durable_position = self.end_position\n",
        CRASHES,
    ),
    Mutant(
        "sync beside a flush that is under way",
        "store/log/writer.py",
        "        if sync and self._flush is not None:\n",
        "        if not is_asked and sync and self._flush is not None:\n",
        "tests/store/log/test_writer.py",
    ),
    Mutant(
        "go on for ever beside a flush that hangs",
        "store/log/writer.py",
        "            oldest is not None and now >= oldest + self._flush_interval_s\n",
        "            False\n",
        CRASHES,
    ),
    Mutant(
        "forget that a flush has failed",
        "store/log/writer.py",
        "            flush.result()\n",
        "            flush.exception()\n",
        "tests/store/log/test_writer.py",
    ),
    Mutant(
        "take the end of the kernel's sync for its success",
        "store/kernel_sync.py",
        "        if result:\n",
        "        if False:\n",
        "tests/store/test_kernel_sync.py",
    ),
    Mutant(
        "ack before fdatasync", "store/log/writer.py", "        self._log.sync(unsynced)\n", "        pass\n", CRASHES
    ),
    Mutant(
        "show records before they are durable",
        "store/log/writer.py",
        "                self._write_inline(group, written)\n",
        "                self._write_inline(group, written)\n"
        "                make_entries()\n                self._publish(entries)\n",
        ERRORS,
    ),
    Mutant(
        "answer at the end of a turn what asks for a sync",
        "store/log/writer.py",
        "            and all(call.acks is Acks.WRITTEN for call in self._waiting)\n",
        "",
        "tests/store/log/test_writer.py",
    ),
    Mutant(
        "write at the end of a turn beside a group under way",
        "store/log/writer.py",
        "            not (self._group or self._stopping)\n",
        "            not self._stopping\n",
        "tests/store/log/test_writer.py",
    ),
    Mutant(
        "never flush what was written at the end of a turn",
        "store/log/writer.py",
        "                self._unsynced_since = self._loop.time()\n                self._set_alarm()\n",
        "                self._unsynced_since = self._loop.time()\n",
        "tests/store/log/test_writer.py",
    ),
    Mutant(
        "write at the end of a turn however long the disk has done nothing",
        "store/log/writer.py",
        "            and not self._is_behind(self._loop.time())\n",
        "",
        "tests/store/log/test_writer.py",
    ),
    Mutant(
        "go on after a failed fdatasync, and retry it",
        "store/log/commit_log.py",
        "        self._failed = True\n",
        "        self._failed = False\n",
        ERRORS,
    ),
    Mutant(
        "take a full disk found by fdatasync for a refused write",
        "store/log/commit_log.py",
        "                self._write_zeros(file, self.prepared_position - start, size)\n",
        "                self._write_zeros(file, self.prepared_position - start, size)\n"
        "                file.datasync()\n",
        ERRORS,
    ),
    Mutant(
        "do not sync the directory of a new file",
        "store/log/commit_log.py",
        "        if start in self._unnamed:\n",
        "        if False:\n",
        ERRORS,
    ),
    Mutant(
        "forget that a half-made file has no durable name",
        "store/log/commit_log.py",
        """            self._unnamed.add(start)
        try:
            if zero:
                self._write_zeros""",
        """            self._unnamed.add(start)
        else:
            self._unnamed.clear()
        try:
            if zero:
                self._write_zeros""",
        COMMIT_LOG,
    ),
    Mutant(
        "keep the offsets of refused appends",
        "store/log/writer.py",
        "        self._waiting_bytes = 0\n        self._next_offsets.clear()\n",
        "        self._waiting_bytes = 0\n",
        ERRORS,
    ),
    Mutant(
        "keep the offsets of refused appends in light queues",
        "store/log/writer.py",
        "        self._next_offsets.clear()\n        self._light_ends.clear()\n        for call in refused:\n",
        "        self._next_offsets.clear()\n        for call in refused:\n",
        LIGHT,
    ),
    Mutant(
        "keep in memory where every light queue ends",
        "store/log/writer.py",
        "                del ends[name]\n",
        "                pass\n",
        LIGHT,
    ),
    Mutant(
        "begin a light queue that comes back at an offset it had",
        "store/log/writer.py",
        "                offset = base_offset + first_record  # L2\n",
        "                offset = 0\n",
        LIGHT,
    ),
    Mutant(
        "write rows of light queues that a power cut may take",
        "store/index/light.py",
        "            if cells[-2] >= checkpoint:\n",
        "            if False:\n",
        CRASHES,
    ),
    Mutant(
        "forget rows of light queues that a flush leaves behind",
        "store/index/light.py",
        "            for appended in left:\n                self._add(appended)\n",
        "",
        CRASHES,
    ),
    Mutant(
        "count records before their rows of light queues are written",
        "store/index/rocksdb.py",
        "                self._light.write(light_work, checkpoint, pauses_s)\n"
        "                self._write(work, begun, checkpoint, pauses_s, is_rebuilding=is_rebuilding)\n",
        "                self._write(work, begun, checkpoint, pauses_s, is_rebuilding=is_rebuilding)\n"
        "                self._light.write(light_work, checkpoint, pauses_s)\n",
        CRASHES,
    ),
    Mutant(
        "show records in light queues that the partition has given up",
        "store/index/light.py",
        "        if first is None or first.partition_offset >= low:\n",
        "        if True:\n",
        LIGHT,
    ),
    Mutant(
        "leave rows of light queues behind when their log file goes",
        "store/index/light.py",
        "        for key in self._rows:\n            batch.delete(key, light)\n",
        "",
        LIGHT,
    ),
    Mutant(
        "forget where a light queue ends when the first of its records go",
        "store/index/light.py",
        "            over = [key for key, end in ends if end == _OFFSET.pack(last_offsets[key] + 1)]\n",
        "            over = [key for key, _ in ends]\n",
        CRASHES,
    ),
    Mutant(
        "keep the end of a light queue whose records are all gone",
        "store/index/light.py",
        "            over = [key for key, end in ends if end == _OFFSET.pack(last_offsets[key] + 1)]\n",
        "            over = [key for key, end in ends if not end]\n",
        LIGHT,
    ),
    Mutant(
        "leave the light queues of a deleted topic",
        "store/index/rocksdb.py",
        "        self._light.drop_topic(topic_id, batch)\n",
        "",
        LIGHT,
    ),
    Mutant(
        "leave out rows of light queues that are replayed",
        "store/index/light.py",
        "        if entry.light is not None and entry.light.is_assigned:\n            self.added_count",
        "        if entry.light is not None and entry.light.is_assigned and self._database().has_light:\n"
        "            self.added_count",
        LIGHT,
    ),
    Mutant(
        "give sends under way the same offset in a light queue",
        "store/log/writer.py",
        "            ends[name] = offset + count\n",
        "            pass\n",
        LIGHT,
    ),
    Mutant(
        "take rows for written that a flush of light queues has failed to write",
        "store/index/light.py",
        "            self._flushing.append(self._pending)\n",
        "            self._flushing = [self._pending]\n",
        LIGHT,
    ),
    Mutant(
        "say that rows of light queues agree with the log, unseen",
        "store/offline/index_check_rocksdb.py",
        "        if self._light is None or self._light.get(keys) != values:  # type: ignore[arg-type]\n",
        "        if False:\n",
        LIGHT,
    ),
    Mutant(
        "build the index of light queues again from what the log no longer has",
        "store/index/rocksdb.py",
        "            if rebuild:\n                self._light.clear()\n",
        "",
        LIGHT,
    ),
    Mutant(
        "name light queues in a directory that an older program would open",
        "store/store.py",
        "                raise_format(self.config.root, self._files, LIGHT_FORMAT)\n",
        "                pass\n",
        LIGHT,
    ),
    Mutant(
        "serve what a row of a light queue points to, unseen",
        "store/store.py",
        "            if entry.light is None or not entry.light.has(LightRow(record_index, name, unit.offset)):\n",
        "            if entry.light is None:\n",
        LIGHT,
    ),
    Mutant(
        "leave the position out of what makes an entry valid",
        "store/log/entry.py",
        "    if own_position != position:\n",
        "    if False:\n",
        ENTRY,
    ),
    Mutant(
        "do not check the CRC",
        "store/log/entry.py",
        "    if crc32c(view[at + _CRC_FROM : at + length]) != crc:\n",
        "    if False:\n",
        ROT,
    ),
    Mutant(
        "cut the log at the first bad entry, whatever follows",
        "store/log/recovery.py",
        "            _refuse_rot(log, damage, position, size)\n",
        "            pass\n",
        ROT,
    ),
    Mutant(
        "trust what the page cache shows after a kill",
        "store/log/commit_log.py",
        "            position = durable_from\n",
        "            position = end\n",
        CRASHES,
    ),
    Mutant(
        "leave the torn tail behind the end",
        "store/log/commit_log.py",
        "            for chunk_at, size in self.nonzero_chunks(end):\n",
        "            for chunk_at, size in ():\n",
        CRASHES,
    ),
    Mutant(
        "believe of what was scanned that all of it is durable",
        "store/log/recovery.py",
        "            durable_position = max(durable_position, found.durable_position)\n",
        "            durable_position = max(durable_position, found.end)\n",
        CRASHES,
    ),
    Mutant(
        "scan headers without their CRC",
        "store/log/entry.py",
        "            or crc32c(view[at + _CRC_FROM : end]) != crc\n",
        "",
        CRASHES,
    ),
    Mutant(
        "scan headers wherever they say they belong",
        "store/log/entry.py",
        "            own_position != at + skew\n            or extension_bytes\n",
        "            extension_bytes\n",
        ENTRY,
    ),
    Mutant(
        "take a damaged database for a broken disk",
        "store/index/rocksdb.py",
        "            if any(sign in str(error) for sign in _DAMAGE_SIGNS):\n",
        "            if False:\n",
        "tests/crash/test_rocksdb_index.py",
    ),
    Mutant(
        "count rows of the database as durable without a sync",
        "store/index/rocksdb.py",
        "        database.sync()\n\n    def _put_bound",
        "\n    def _put_bound",
        "tests/store/index/test_consume_queues.py",
    ),
    Mutant(
        "index what a power cut may take",
        "store/store.py",
        "            until = min(self._published_position, self._log.durable_position)\n            flush",
        "            until = self._published_position\n            flush",
        CRASHES,
    ),
    Mutant(
        "count index units before they are durable",
        "store/index/file.py",
        """            self._write_all(written)
            self._snapshots.save(Snapshot(checkpoint, content))
""",
        """            self._snapshots.save(Snapshot(checkpoint, content))
            self._write_all(written)
""",
        CRASHES,
    ),
    Mutant(
        "keep units in the snapshot and forget them at a start",
        "store/index/file.py",
        "        if kept:\n            queue.pending = kept\n",
        "        if kept:\n",
        CRASHES,
    ),
    Mutant(
        "take units for written that the snapshot keeps",
        "store/index/file.py",
        "            for queue, count, end in written:\n",
        "            for queue, count, end in work:\n",
        CRASHES,
    ),
    Mutant(
        "serve what the index points to, unseen",
        "store/store.py",
        '    """Index units have no checksum;',
        '    return\n    """Index units have no checksum;',
        "tests/crash/test_bitflips.py",
    ),
    Mutant(
        "call everything durable that was written",
        "store/log/writer.py",
        "                    durable_position=log.durable_position,\n",
        "                    durable_position=place,\n",
        CRASHES,
    ),
    Mutant(
        "answer a higher level than was reached",
        "store/log/writer.py",
        "self._answer(group, entries, Acks.FLUSHED if sync else Acks.WRITTEN)",
        "self._answer(group, entries, Acks.FLUSHED)",
        "tests/store/test_store.py",
    ),
    Mutant(
        "let the store time step back with the clock",
        "store/log/writer.py",
        "store_time_ms = max(self._last_store_time_ms, self._clock.now_ms())",
        "store_time_ms = self._clock.now_ms()",
        "tests/store/test_store.py",
    ),
    Mutant(
        "give the id of a deleted topic to the next one",
        "store/topics.py",
        "        del self._by_name[topic.name], self._by_id[topic.topic_id]\n",
        "        del self._by_name[topic.name], self._by_id[topic.topic_id]\n        self._next_id = topic.topic_id\n",
        "tests/store/test_topics.py",
    ),
    Mutant(
        "do not reach the disk at all",
        "store/files.py",
        "        os.fdatasync(self._fd)\n",
        "        pass\n",
        "tests/crash/test_power_cut.py",
    ),
    Mutant(
        "take rot for a torn tail when verifying",
        "store/offline/directory.py",
        "    if piece.position < durable_position:\n        return True\n",
        "    return False\n",
        "tests/store/offline/test_verify.py",
    ),
    Mutant(
        "read the ids of recent sends from nowhere after a kill",
        "store/store.py",
        "            if isinstance(entry, Entry) and entry.identity is not None:\n",
        "            if False:\n",
        IDEMPOTENCY,
    ),
    Mutant(
        "remember a numbered batch that a power cut may take",
        "store/store.py",
        "is_durable=entry.position < self._log.durable_position",
        "is_durable=True",
        IDEMPOTENCY,
    ),
    Mutant(
        "forget to save a sequence once it has become durable",
        "store/dedup/idempotency.py",
        "        self._producers_changed = self._producers.has_unsaved\n",
        "        self._producers_changed = False\n",
        IDEMPOTENCY,
    ),
    Mutant(
        "save ids of entries that a power cut may take",
        "store/store.py",
        "self._idempotency.saving(until, ",
        "self._idempotency.saving(self._published_position, ",
        IDEMPOTENCY,
    ),
    Mutant(
        "count ids as saved that are not durable",
        "store/dedup/journal.py",
        "                size += file.pwritev([encode_block(some)], size)\n            file.datasync()\n",
        "                size += file.pwritev([encode_block(some)], size)\n",
        IDEMPOTENCY,
    ),
    Mutant(
        "forget the ids of sends that are on their way",
        "store/store.py",
        "        self._idempotency.begin(appends, outcome)\n",
        "",
        "tests/store/dedup/test_idempotency.py",
    ),
    Mutant(
        "take a producer's last batch, sent again, for its next",
        "store/dedup/known.py",
        "        if number <= newest:\n",
        "        if number < newest:\n",
        "tests/store/dedup/test_known.py",
    ),
    Mutant(
        "let sends take the room of what the server has to note",
        "store/log/writer.py",
        "            end if is_own else end + self._config.own_reserve_bytes,\n",
        "            end,\n",
        RESERVE,
    ),
    Mutant(
        "refuse what the server has to note at the disk floor",
        "store/log/writer.py",
        "            below_floor=is_own,\n",
        "            below_floor=False,\n",
        RESERVE,
    ),
    Mutant(
        "give up a checkpoint with whoever waits for it",
        "store/store.py",
        "        await to_its_end(self._save_checkpoint_now())\n",
        "        await self._save_checkpoint_now()\n",
        "tests/store/test_store.py",
    ),
    Mutant(
        "give up a topic change with whoever waits for it",
        "store/topic_changes.py",
        "        return await uncancelled(told)\n",
        "        return await told\n",
        "tests/store/test_store.py",
    ),
    Mutant(
        "forget what a flush was to write when nobody finishes it",
        "store/index/file.py",
        "        for key in self._dirty:\n            queue = self._queues[key]\n            pending",
        "        dirty, self._dirty = self._dirty, set()\n"
        "        for key in dirty:\n            queue = self._queues[key]\n            pending",
        "tests/store/index/test_consume_queues.py",
    ),
    Mutant(
        "sync the new directories of the index only when they were not there",
        "store/index/file.py",
        "(queue.directory, queue.directory.parent, self._directory, self._directory.parent)",
        "(queue.directory,)",
        "tests/store/index/test_consume_queues.py",
    ),
    Mutant(
        "let the owner of a buffer change what readers get",
        "store/log/writer.py",
        "    if isinstance(whole, bytes):\n",
        "    if not isinstance(batch, bytearray):\n",
        "tests/store/log/test_writer.py",
    ),
    Mutant(
        "remember the head of a batch that nobody followed",
        "store/store.py",
        "            if entry.queue.topic_id not in APPLIED and _is_whole(entry):\n",
        "            if entry.queue.topic_id not in APPLIED:\n",
        "tests/store/test_store.py",
    ),
    Mutant(
        "tell who began to watch late of the head of a batch",
        "store/store.py",
        "                if _is_whole(entry):\n                    told[entry.queue] = entry\n",
        "                told[entry.queue] = entry\n",
        "tests/store/test_store.py",
    ),
    Mutant(
        "keep a view of what was not given",
        "store/log/writer.py",
        "    if isinstance(whole, bytearray) and append.is_given and",
        "    if isinstance(batch, memoryview) and isinstance(whole, bytearray) and",
        "tests/store/log/test_writer.py",
    ),
    Mutant(
        "take a file that expired under a reader for damage",
        "store/store.py",
        "            if runs[0].position >= self._log.first_position:\n                raise\n",
        "            raise\n",
        "tests/store/test_store.py",
    ),
    Mutant(
        "say that ids agree with the log, unseen",
        "store/offline/idempotency_check.py",
        "        if row != _ids_of(row_of(entry, identity)):\n",
        "        if False:\n",
        "tests/store/offline/test_idempotency_check.py",
    ),
    Mutant(
        "leave out the progress of consumer groups when repairing",
        "store/offline/repair.py",
        "                shutil.copy(path, self._out / path.name)\n\n    def _tell",
        "                pass\n\n    def _tell",
        "tests/store/offline/test_idempotency_check.py",
    ),
    Mutant(
        "give a lost offset to nobody when repairing",
        "store/offline/repair.py",
        "                first = part.end\n",
        "                break\n",
        "tests/store/offline/test_repair.py",
    ),
    Mutant(
        "move the end of a repaired log to where it was not",
        "store/offline/repair.py",
        "        self._log_end = max(self._log_end, self._checkpoint)\n",
        "        pass\n",
        "tests/store/offline/test_repair.py",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_exhibit_still_fits_the_code(mutant: Mutant) -> None:
    assert (REPOSITORY / mutant.path).read_text().count(mutant.old) == 1


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_killed(mutant: Mutant, tmp_path: Path) -> None:
    for name in ("store", "tests"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    victim = tmp_path / mutant.path
    victim.write_text(victim.read_text().replace(mutant.old, mutant.new))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MQ_TORTURE_", "PYTEST_"))}
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.killer],
        cwd=tmp_path,
        env={**kept, "CI": "1"},  # the examples that a push tries, whatever the dice
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = run.communicate(timeout=MUTANT_TIMEOUT_S)
    finally:  # whatever ended this: a mutant may go round for ever, in processes of its own
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 1, f"survived {mutant.killer}\n{told[-2000:]}"
    assert "error" not in told.splitlines()[-1], f"the mutant did not even load\n{told[-2000:]}"
