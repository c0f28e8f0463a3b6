"""Users that send over HTTP. Each has a key of its own and waits for every answer, so the order of a key is known."""

from __future__ import annotations

import itertools
import random
import secrets

import orjson
from locust import FastHttpUser, between, task

from loadtest.load.run import REQUEST_TIMEOUT_S, RUNS

BATCH_RECORDS = 100
DELAYED_RECORDS = 20
DELAY_MIN_MS, DELAY_MAX_MS = 50, 3_000
JSON_RECORDS = {"Content-Type": "application/vnd.kafka.json.v2+json"}


class Sender(FastHttpUser):
    """What all senders do."""

    abstract = True
    network_timeout = REQUEST_TIMEOUT_S

    def on_start(self) -> None:
        self.run_ = RUNS[self.environment]
        self.sender = secrets.token_hex(6)
        self.sequences = itertools.count()

    def send(self, count: int, name: str, *, delayed: bool = False) -> None:
        """Send `count` records in one request. Only a 200 makes them acknowledged."""
        numbers = [next(self.sequences) for _ in range(count)]
        records = [self._record(number, delayed) for number in numbers]
        response = self.client.post(
            f"/topics/{self.run_.topic}",
            data=orjson.dumps({"records": records}).decode(),
            headers=JSON_RECORDS,
            name=name,
        )
        if response.status_code == 200:
            self.run_.ledger.acknowledge(self.sender, numbers[0], numbers[-1] + 1)
            self.run_.metrics.count("acknowledged", count)

    def _record(self, number: int, delayed: bool) -> dict[str, object]:
        made: dict[str, object] = {"key": self.sender, "value": {"sender": self.sender, "sequence": number}}
        if delayed:
            made["delay_ms"] = random.randint(DELAY_MIN_MS, DELAY_MAX_MS)
        return made


class SingleSender(Sender):
    """One record a request."""

    weight = 4
    wait_time = between(0.005, 0.02)

    @task
    def send_one(self) -> None:
        self.send(1, "send 1")


class BatchSender(Sender):
    """Many records a request."""

    weight = 2
    wait_time = between(0.05, 0.15)

    @task
    def send_batch(self) -> None:
        self.send(BATCH_RECORDS, f"send {BATCH_RECORDS}")


class DelayedSender(Sender):
    """Records that fall due within seconds."""

    weight = 1
    wait_time = between(0.1, 0.3)

    @task
    def send_delayed(self) -> None:
        self.send(DELAYED_RECORDS, f"send {DELAYED_RECORDS} delayed", delayed=True)
