"""`groupId`: tells the server how far a stream is, so that its lag shows beside that of other consumers.

The position of a stream is in Spark's checkpoint and nowhere else; this is for people who watch. So it is done in a
thread of its own, never fails the stream, and of several positions only the newest is reported.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark_mq.client import Client
from pyspark_mq.errors import MqError
from pyspark_mq.offsets import Offsets

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""How long the end of a stream waits for its last report."""


class LagReporter:
    """Reports the positions of one stream. Methods may be called from one thread; none raises."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group
        self._reported: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()
        self._newest: Offsets | None = None
        self._under_way: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mq-lag")

    def report(self, offsets: Offsets) -> None:
        """The stream has everything before these offsets. Returns at once."""
        with self._lock:
            self._newest = offsets
            if self._under_way is None or self._under_way.done():
                self._under_way = self._thread.submit(self._run)

    def close(self) -> None:
        """Wait for the last report, but not long, and make no more."""
        self.wait()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Wait for the last report, but not long."""
        with self._lock:
            under_way = self._under_way
        try:
            if under_way is not None:
                under_way.result(CLOSE_TIMEOUT_S)
        except TimeoutError:
            log.warning("the position of group %s was not reported in time", self._group)

    def _run(self) -> None:
        while True:
            with self._lock:
                offsets, self._newest = self._newest, None
                if offsets is None:
                    self._under_way = None
                    return
            try:
                self._send(offsets)
            except MqError as error:
                log.warning("the position of group %s could not be reported: %s", self._group, error)

    def _send(self, offsets: Offsets) -> None:
        for topic, partitions in offsets.items():
            for partition, offset in partitions.items():
                if self._reported.get((topic, partition)) != offset:
                    self._client.move_group(self._group, topic, partition, offset)
                    self._reported[topic, partition] = offset
