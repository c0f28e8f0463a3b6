"""What an operator may choose about the store. Units in names, trade-offs in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from store.limits import COMMIT_LOG_FILE_BYTES_MIN, ENTRY_BYTES_MAX, OWN_RESERVE_BYTES_MAX, MiB
from store.types import Acks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of one store. `root` is the data directory."""

    root: Path

    acks: Acks = Acks.FLUSHED
    """Level a send reaches when the request does not say. FLUSHED survives a power cut; WRITTEN is faster and may
    lose the last `flush_interval_ms` at a power cut (never at kill -9)."""

    flush_interval_ms: int = 500
    """What was only written is synced when half of this has passed, and appends go on beside it; when all of it has
    passed, they wait for the disk."""

    commit_log_file_bytes: int = 1024 * MiB
    """Size of one commit-log file: the unit of retention."""

    extent_bytes: int = 64 * MiB
    """How far ahead of its tail the log is prepared, so that a full disk shows before a send is accepted, and the
    fdatasync of small groups moves no metadata. Also what a store takes on disk besides its records."""

    retention_ms: int | None = 7 * 24 * 3_600_000
    """Records older than this go, a whole log file at a time. None keeps them for ever."""

    retention_bytes: int | None = None
    """Most bytes the log may take before its oldest files go. None sets no limit."""

    retention_interval_ms: int = 60_000
    """How often retention looks. It removes one file at a time, so that a large clean-up is spread out."""

    disk_floor_bytes: int = 256 * MiB
    """Free space the log never takes: sends are refused with DiskFull before the disk is really full."""

    append_bytes_max: int = 64 * MiB
    """Bytes that may wait for the writer; beyond it sends are refused with Overloaded."""

    tail_bytes_max: int = 32 * MiB
    """Most recent entries kept in memory, for 20 to 40 s, for readers that follow the log closely."""

    checkpoint_interval_ms: int = 5000
    """Longest time between two checkpoints while records arrive. A checkpoint flushes the indexes; recovery scans
    the log from the last one."""

    checkpoint_log_bytes: int = 64 * MiB
    """A checkpoint is also due when the log has grown by this much since the last one; by up to four times as much
    where each checkpoint has to write thousands of index files."""

    dedup_window_ms: int = 600_000
    """How long a repeated send is recognised by its `Idempotency-Key` or `msg_id`, from when it was stored."""

    dedup_ids_max: int = 1_000_000
    """Ids of the window kept in memory (50 to 110 bytes each). Sends that carry more are refused until older ones have
    left the window; none is forgotten early."""

    producer_expiry_ms: int = 7 * 24 * 3_600_000
    """How long the sequence of a numbered producer is remembered after its last batch."""

    producers_max: int = 10_000
    """Numbered producers remembered, counted for each partition they write to."""

    index: Literal["file", "rocksdb"] = "file"
    """Where consume queues live: files, or one RocksDB for more than some ten thousand queues (extra `rocksdb`).
    `mq index rebuild` turns one into the other."""

    consume_queue_file_units: int = 300_000
    """Index units (one a record) in one consume-queue file."""

    def __post_init__(self) -> None:
        if self.commit_log_file_bytes < COMMIT_LOG_FILE_BYTES_MIN:
            raise ValueError(f"commit_log_file_bytes must be at least {COMMIT_LOG_FILE_BYTES_MIN}")
        if self.extent_bytes <= 0 or self.flush_interval_ms <= 0 or self.checkpoint_interval_ms <= 0:
            raise ValueError("extent_bytes, flush_interval_ms and checkpoint_interval_ms must be positive")
        for name in ("retention_interval_ms", "append_bytes_max", "checkpoint_log_bytes", "consume_queue_file_units"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        if min(self.dedup_window_ms, self.dedup_ids_max, self.producer_expiry_ms, self.producers_max) <= 0:
            raise ValueError("dedup_window_ms, dedup_ids_max, producer_expiry_ms and producers_max must be positive")

    @property
    def own_reserve_bytes(self) -> int:
        """Prepared log that sends leave for the server's own notes (topics, progress of groups) on a full disk."""
        return min(OWN_RESERVE_BYTES_MAX, self.extent_bytes // 4)

    @property
    def entry_bytes_max(self) -> int:
        """Largest entry this store takes: an entry never spans files, and one must leave room for its neighbours."""
        return min(ENTRY_BYTES_MAX, self.commit_log_file_bytes // 4)
