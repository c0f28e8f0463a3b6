"""Reads what the parts of one server count, for `gateway/api/figures.py`: once a second, from memory.

Only the disk is asked apart, in a thread, every DISK_INTERVAL_S: a network file system may take its time.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from gateway.api.figures import TIMER_BEHIND_MS, Counters, Gauges, Reading, Trouble
from gateway.api.producer import Producer
from gateway.groups.coordinator.service import Coordinator
from gateway.main.admin import LocalAdmin
from gateway.main.all_timers import AllTimers
from gateway.main.loop_watch import LoopWatch
from gateway.main.memory import resident_bytes
from gateway.main.no_store import NoStore
from gateway.surfaces.http.context import Gateway
from store import Store
from timer.service import TimerService

DISK_INTERVAL_S = 5.0


class Readings:
    """The parts of one server. Call it for a reading; `run` keeps what is known of the disk fresh."""

    def __init__(
        self,
        gateway: Gateway,
        store: Store | NoStore,
        timer: TimerService | AllTimers,
        admin: LocalAdmin,
        groups: Coordinator,
        loop_watch: LoopWatch,
    ) -> None:
        self._gateway = gateway
        self._store = store
        self._timer = timer
        self._admin = admin
        self._groups = groups
        self._loop_watch = loop_watch
        self._disk: tuple[int | None, int | None] = None, None

    async def run(self) -> None:
        """Ask for the disk now and then, until cancelled."""
        while True:
            self._disk = await asyncio.to_thread(_disk_of, self._gateway.config.data)
            await asyncio.sleep(DISK_INTERVAL_S)

    def __call__(self) -> Reading:
        """Everything, as it is now."""
        groups = self._groups
        return Reading(
            counters=self._counters(self._gateway.producer),
            gauges=self._gauges(),
            troubles=self._troubles(),
            group_lags=groups.group_lags,
            lags_version=groups.lags_version,
            appended=self._store.appended,
            pending_by_topic=self._timer.pending_counts,
        )

    def _counters(self, producer: Producer) -> Counters:
        stats = self._gateway.stats
        return Counters(
            in_records=producer.record_count,
            in_bytes=producer.byte_count,
            out_records=stats.fetched_record_count + stats.ws_sent_message_count + stats.kafka.fetched_record_count,
            out_bytes=stats.fetched_byte_count + stats.ws_sent_byte_count + stats.kafka.fetched_byte_count,
            requests=sum(sum(route.statuses.values()) for route in stats.routes.values())
            + sum(stats.kafka.requests.values()),
        )

    def _gauges(self) -> Gauges:
        stats, routes = self._gateway.stats, self._admin.routes
        free_bytes, total_bytes = self._disk
        return Gauges(
            lag=sum(self._groups.group_lags.values()),
            pending=self._timer.pending_count,
            topics=len(routes),
            partitions=routes.partition_count,
            groups=self._groups.group_count,
            disk_free_bytes=free_bytes,
            disk_total_bytes=total_bytes,
            log_bytes=self._store.log_bytes,
            rss_bytes=_resident_bytes(),
            loop_p99_ms=self._loop_watch.take_late_p99_ms(),
            connections=stats.connection_count,
            sockets=stats.ws_socket_count,
        )

    def _troubles(self) -> list[Trouble]:
        troubles: list[Trouble] = []
        for reason in self._admin.ready():
            is_timer = reason == self._admin.timer_failure
            troubles.append(
                Trouble(
                    "timer_stopped" if is_timer else "store_stopped",
                    "error",
                    f"{'Delayed records are not delivered' if is_timer else 'No record is taken'}: {reason}.",
                    "Look into the log and at the disk (dmesg), then restart the server.",
                )
            )
        free_bytes, _ = self._disk
        floor_bytes = self._gateway.config.store.disk_floor_bytes
        if free_bytes is not None and free_bytes < floor_bytes:
            troubles.append(
                Trouble(
                    "disk_full",
                    "error",
                    f"{free_bytes} bytes of the disk are free, fewer than the {floor_bytes} that must stay so: sends "
                    "are refused.",
                    "Free space, or shorten store.retention_ms; sends go on by themselves.",
                )
            )
        elif free_bytes is not None and free_bytes < floor_bytes + 2 * self._gateway.config.store.commit_log_file_bytes:
            troubles.append(
                Trouble(
                    "disk_floor",
                    "warning",
                    f"{free_bytes} bytes of the disk are free: two log files more, and sends are refused.",
                    "Free space, or shorten store.retention_ms.",
                )
            )
        if (lag_ms := self._timer.read_lag_ms) > TIMER_BEHIND_MS and self._admin.timer_failure is None:
            troubles.append(
                Trouble(
                    "timer_behind",
                    "warning",
                    f"Delayed records are delivered {lag_ms / 1000:.0f} s late.",
                    "After a downtime this passes by itself; else too many are due at once for this disk.",
                )
            )
        trail = self._gateway.trail
        if trail is not None and trail.stats.is_failing:
            troubles.append(
                Trouble(
                    "trail_failing",
                    "warning",
                    "The trail of admin actions cannot be written.",
                    "Look at the disk: its lines wait in memory, and are lost beyond some thousand.",
                )
            )
        return troubles


def _resident_bytes() -> int | None:
    """Memory of this process; None where the system does not say."""
    try:
        return resident_bytes()
    except OSError:
        return None


def _disk_of(path: Path) -> tuple[int | None, int | None]:
    """Free and all bytes of the file system; None where it does not say."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None, None
    return usage.free, usage.total
