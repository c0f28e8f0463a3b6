"""What an operator may choose about the timer. Units in names, trade-offs in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store.limits import KiB, MiB
from timer.schedule import ROLL_WINDOW_MS_MAX, ROLL_WINDOW_MS_MIN

DAY_MS = 86_400_000

FIRE_INTERVAL_MS_MAX = 25
"""Half of the 50 ms that a delivery may be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerConfig:
    """Settings of one timer. `root` is its directory."""

    root: Path

    delay_max_ms: int = 365 * DAY_MS
    """Longest delay a sender may ask for; checked where records come in."""

    roll_window_ms: int = 2 * DAY_MS
    """A record waiting longer is copied to the head of the log once in about this time. Must be shorter than the
    log's retention, or bodies would be deleted before they are due. Shorter means more copies."""

    pending_count_max: int = 20_000_000
    """Schedules that may be pending; further ones are refused. Each takes 52 bytes of disk besides its record."""

    slot_count_max: int = 2_000_000
    """Schedules that may be due in one second: what is to be delivered as fast as the disk takes it."""

    checkpoint_interval_ms: int = 1000
    """How often accepted schedules are made part of the timer's own files: what a restart after a crash repeats. Sooner
    when many schedule keys wait for it."""

    expire_interval_ms: int = 600_000
    """How often timer-log files that no pending schedule needs are looked for and removed."""

    open_ahead_ms: int = 8000
    """How long before its second a slot is loaded at the latest, so that its first millisecond is on time, and so that
    its records can be made ready before. Loading a second with tens of thousands may take two."""

    heap_count_max: int = 400_000
    """Schedules of open slots held in memory (about 75 bytes each); the rest of a fuller slot waits on disk."""

    fire_records_max: int = 10_000
    """Records delivered in one go. More is less work for each when very many are due: an accepted batch whose records
    are due at different times is decoded once in each go."""

    fire_interval_ms: int = 4
    """Goes of deliveries begin at least this far apart, so that what is due within it shares batches: at thousands of
    deliveries a second this is a quarter of the work, for that much more lateness at most; twice as far behind one that
    delivered many. A record that is due alone does not wait."""

    fire_bytes_max: int = 16 * MiB
    """Bytes of records delivered in one go (a single larger record still goes); about half of it as a rule."""

    batch_bytes_max: int = 512 * KiB
    """Due records of one queue become batches of about this size. Keep it below a quarter of the log's file size."""

    bodies_bytes_max: int = 64 * MiB
    """Memory for records that are due soon, as they will be delivered: when those of one accepted batch are due at
    different times, it need not be read each time. Half as much again is for where records start in accepted batches,
    and a quarter for records that were listed."""

    unwritten_bytes_max: int = 64 * MiB
    """Timer-log units that may wait for the disk; beyond it accepted schedules stay in the log until it is back."""

    timer_log_file_units: int = 1024 * KiB
    """Schedules in one timer-log file (52 bytes each)."""

    def __post_init__(self) -> None:
        if not ROLL_WINDOW_MS_MIN <= self.roll_window_ms <= ROLL_WINDOW_MS_MAX:
            raise ValueError(f"roll_window_ms must be from {ROLL_WINDOW_MS_MIN} to {ROLL_WINDOW_MS_MAX}")
        if not 1 <= self.open_ahead_ms <= 60_000:
            raise ValueError("open_ahead_ms must be from 1 to 60000")
        if not 0 <= self.fire_interval_ms <= FIRE_INTERVAL_MS_MAX:
            raise ValueError(f"fire_interval_ms must be from 0 to {FIRE_INTERVAL_MS_MAX}")
        if self.heap_count_max < 4 or self.fire_records_max < 1 or self.timer_log_file_units < 1:
            raise ValueError("heap_count_max must be at least 4; fire_records_max, timer_log_file_units at least 1")
        if self.pending_count_max < 1 or self.slot_count_max < 1:
            raise ValueError("pending_count_max and slot_count_max must be at least 1")
        for name in ("fire_bytes_max", "batch_bytes_max", "bodies_bytes_max", "unwritten_bytes_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        if min(self.delay_max_ms, self.checkpoint_interval_ms, self.expire_interval_ms) <= 0:
            raise ValueError("delay_max_ms, checkpoint_interval_ms and expire_interval_ms must be positive")


def check_retention(config: TimerConfig, retention_ms: int | None) -> None:
    """Raise ValueError when the log may lose a record before it is copied to the head of the log or delivered.

    The timer pins what it needs (`TimerService.needed_position`), so nothing would be lost; but the log would then grow
    to the roll window whatever its retention says, and who set it should know. `retention_ms` None: records are
    kept for ever.
    """
    if retention_ms is not None and config.roll_window_ms >= retention_ms:
        raise ValueError(
            f"timer.roll_window_ms ({config.roll_window_ms}) must be shorter than store.retention_ms ({retention_ms}): "
            "a delayed record is copied to the head of the log once in a roll window, before retention reaches it"
        )
