"""Another client that uses the victim meanwhile: it sends single records, some of them delayed, and reads them all.

What it has been told is stored must be there at the end, and sends and due timers must go on whatever is done to the
server by others.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import aiohttp
import orjson

from loadtest.attack.curves import Point
from loadtest.bench.payloads import JSON_TYPE
from loadtest.checks import Deliveries

TOPIC = "steady"
SEND_INTERVAL_S = 0.05
RETRY_INTERVAL_S = 0.02
DELAYED_EVERY = 5
DELAY_MS = 100
POLL_MS = 1_000
TIMEOUT_S = 10.0
PATIENCE_S = 15.0
"""How long what was acknowledged may take to come, when nothing is sent any more."""


class Steady:
    """One sender and one reader of a topic of their own."""

    def __init__(self, session: aiohttp.ClientSession, began_s: float) -> None:
        """`began_s`: when the run did, by `time.monotonic`."""
        self._session = session
        self._began_s = began_s
        self.deliveries: Deliveries[int] = Deliveries()
        self.gap_ms: list[Point] = []
        """At each acknowledgement: how long after the one before."""

        self.late_ms: list[Point] = []
        """At each delivery of a delayed record: how late it was, by the server's clock."""

        self.refused_count = 0
        self.early_count = 0
        self._acknowledged_s = self._now_s()

    async def begin(self) -> None:
        """Make the topic, and store a first record. Raises ClientError."""
        async with self._session.put(f"/mq/v1/topics/{TOPIC}", json={"partitions": 1}) as response:
            response.raise_for_status()
        self._acknowledged_s = self._now_s()

    async def send(self) -> None:
        """Send until cancelled."""
        number = 0
        while True:
            record: dict[str, Any] = {"value": number}
            if number % DELAYED_EVERY == 0:
                record["delay_ms"] = DELAY_MS
            if await self._is_acknowledged(record):
                self.deliveries.sent([number])
                now_s = self._now_s()
                self.gap_ms.append(Point(now_s, (now_s - self._acknowledged_s) * 1000))
                self._acknowledged_s = now_s
            else:
                self.refused_count += 1
            number += 1
            await asyncio.sleep(SEND_INTERVAL_S)

    def gap_now_ms(self) -> Point:
        """As if the next acknowledgement came now: a sender that waits must show."""
        now_s = self._now_s()
        return Point(now_s, (now_s - self._acknowledged_s) * 1000)

    async def read(self) -> None:
        """Read until cancelled."""
        offset = 0
        headers = {"Accept": JSON_TYPE}
        while True:
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                path = f"/topics/{TOPIC}/partitions/0/records?offset={offset}&timeout={POLL_MS}"
                async with self._session.get(path, headers=headers, timeout=_TIMEOUT) as response:
                    body = await response.read()
                    if response.status == 200:
                        offset = int(response.headers["Mq-Next-Offset"])
                        self._took(orjson.loads(body))
                        continue
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def settle(self) -> str | None:
        """Wait until everything acknowledged by now has come; what is lost or was early, None when nothing is."""
        lost = self.deliveries.lost  # as yet: sends go on, so never all of them have come
        until_s = self._now_s() + PATIENCE_S
        while lost and self._now_s() < until_s:
            await asyncio.sleep(RETRY_INTERVAL_S)
            lost &= self.deliveries.lost
        if not lost:
            return f"{self.early_count} delayed records were early" if self.early_count else None
        return f"{len(lost)} of {self.deliveries.sent_count} acknowledged records are lost, such as {min(lost)}"

    def _took(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            self.deliveries.received(record["value"])
            if "deliver_at" in record:
                late_ms = record["store_timestamp"] - record["deliver_at"]
                self.late_ms.append(Point(self._now_s(), late_ms))
                self.early_count += late_ms < 0

    async def _is_acknowledged(self, record: dict[str, Any]) -> bool:
        body = orjson.dumps({"records": [record]})
        headers = {"Content-Type": JSON_TYPE}
        try:
            async with self._session.post(f"/topics/{TOPIC}", data=body, headers=headers, timeout=_TIMEOUT) as response:
                await response.read()
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s


_TIMEOUT = aiohttp.ClientTimeout(total=TIMEOUT_S)
