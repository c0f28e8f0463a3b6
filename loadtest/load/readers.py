"""Users that read without a group: over HTTP long polls, and over a WebSocket. They see every record, so they check
that a partition has no gap, that the records of a key come in the order in which they were sent, and when delayed ones
come.
"""

from __future__ import annotations

import random
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson
import websocket
from locust import FastHttpUser, User, constant, task

from loadtest.checks import KeyOrder
from loadtest.load.run import PARTITIONS, REQUEST_TIMEOUT_S, RUNS, Message, Run, identity
from loadtest.load.socket import Refused, Socket

POLL_MS = 1_000
POLL_RECORDS = 1_000
CREDIT = 5_000
RECONNECT_S = 1.0
READ_JSON = {"Accept": "application/vnd.kafka.json.v2+json"}


class Watch:
    """What a reader checks of the messages it gets, in the order in which they came."""

    def __init__(self, run: Run, *, sees_times: bool = True) -> None:
        self._run = run
        self._order = KeyOrder()
        self._next_offsets: dict[int, int] = {}
        self._sees_times = sees_times

    def begin(self, partition: int, offset: int) -> None:
        """The next message of a partition is this one; what came before does not count for the order."""
        self._next_offsets[partition] = offset
        self._order = KeyOrder()

    def take(self, messages: Sequence[Message]) -> None:
        """Check them."""
        for message in messages:
            expected = self._next_offsets.get(message["partition"], message["offset"])
            if message["offset"] != expected:
                problem = f"offset {message['offset']} came where {expected} was to come"
                self._run.report("CHECK", "no gap in a partition", took_ms=0, problem=problem)
            self._next_offsets[message["partition"]] = message["offset"] + 1
            if "deliver_at" in message:
                if self._sees_times:
                    self._run.check_time(message)
            elif (wrong := self._order.received(message["key"], identity(message).sequence)) is not None:
                self._run.report("CHECK", "order of a key", took_ms=0, problem=wrong)


class LongPoller(FastHttpUser):
    """Follows one partition over HTTP, from its start."""

    weight = 1
    wait_time = constant(0)
    network_timeout = REQUEST_TIMEOUT_S

    def on_start(self) -> None:
        self.run_ = RUNS[self.environment]
        self.watch = Watch(self.run_, sees_times=False)
        self.partition = random.randrange(PARTITIONS)
        self.offset = 0

    @task
    def poll(self) -> None:
        query = f"offset={self.offset}&timeout={POLL_MS}&max_records={POLL_RECORDS}"
        path = f"/topics/{self.run_.topic}/partitions/{self.partition}/records?{query}"
        response = self.client.get(path, headers=READ_JSON, name="long poll")
        if response.status_code == 200:
            messages = orjson.loads(response.content or b"[]")
            self.watch.take(messages)
            self.run_.metrics.count("long_poll", len(messages))
            self.offset = int(cast(Mapping[str, str], response.headers)["Mq-Next-Offset"])


class Consumer(ABC):
    """What is behind one socket: subscribes, and takes what comes. Used by users and, of groups, by the audit."""

    def __init__(self, run: Run, socket: Socket) -> None:
        self._run = run
        self._socket = socket

    @abstractmethod
    def join(self, name: str) -> None:
        """Subscribe; a member of a group that comes again by its name takes its own place. Raises Refused."""

    @abstractmethod
    def took(self, frame: Mapping[str, Any]) -> Sequence[Message]:
        """A frame: an answer to an own command, messages, a push about partitions. The messages that it had."""


class SocketUser(User):
    """What all users of a WebSocket do: connect, subscribe, and take one frame at a time.

    A socket that is lost is a failure; the user then comes again with a new one.
    """

    abstract = True
    wait_time = constant(0)
    name = "messages"
    consumer_type: type[Consumer]

    def on_start(self) -> None:
        self.run_ = RUNS[self.environment]
        self.member_name = secrets.token_hex(6)
        self.socket: Socket | None = None

    def on_stop(self) -> None:
        if self.socket is not None:
            self.socket.close()

    @task
    def read(self) -> None:
        try:
            if self.socket is None:
                self.socket = Socket(self.run_.host)
                self.consumer = self.consumer_type(self.run_, self.socket)
                self.consumer.join(self.member_name)
            frame = self.socket.receive()
            if frame is not None and (messages := self.consumer.took(frame)):
                self.count(messages)
        except (Refused, OSError, websocket.WebSocketException) as error:
            self.run_.report("WS", self.name, took_ms=0, problem=str(error) or type(error).__name__)
            if self.socket is not None:
                self.socket.close()
                self.socket = None
            time.sleep(RECONNECT_S)

    def count(self, messages: Sequence[Message]) -> None:
        """A frame in Locust's statistics: "response time" is from the store to the user, of its last message."""
        now_ms = time.time_ns() // 1_000_000
        took_ms = max(now_ms - messages[-1]["store_timestamp"], 0)
        self.run_.report("WS", self.name, took_ms=took_ms, size=len(messages))
        self.run_.metrics.count(self.name, len(messages))
        self.run_.metrics.time("push", took_ms)


class Follower(Consumer):
    """All partitions, from what is there when it comes."""

    def join(self, name: str) -> None:
        """Subscribe; the name is not remembered. Raises Refused."""
        self._watch = Watch(self._run)
        self._socket.subscribe(topics=[self._run.topic], credit=CREDIT, **{"from": "latest"})

    def took(self, frame: Mapping[str, Any]) -> Sequence[Message]:
        """A frame; the messages that it had."""
        if frame.get("op") != "messages":
            return ()
        messages = cast(list[Message], frame["messages"])
        self._watch.take(messages)
        return messages


class SocketReader(SocketUser):
    """Follows a topic over a WebSocket."""

    weight = 2
    name = "reader"
    consumer_type = Follower
