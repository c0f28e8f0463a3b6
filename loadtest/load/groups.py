"""Users that consume in a group over a WebSocket. All users of one kind are one group, in whatever process they are.

Stream mode: each user is a member that owns some partitions. Messages of a partition come without a gap from where it
was assigned. What a member has committed never comes to it again; a record that came to a former owner and was not
committed may. Queue mode: records are leased to any caller, and acked one by one. A record whose ack as a first
attempt was answered is no other consumer's first attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from loadtest.load.ledger import QUEUE, QUEUE_FIRST, STREAM
from loadtest.load.readers import Consumer, SocketUser, Watch
from loadtest.load.run import Message, Run, identity
from loadtest.load.socket import SUB, Socket

CREDIT = 2_000
LEASE_MS = 10_000
LEASE_OVER = 40951
NOT_THE_OWNER = 40959


class StreamMember(Consumer):
    """A member's side of stream mode: takes frames in, commits what came."""

    def __init__(self, run: Run, socket: Socket) -> None:
        super().__init__(run, socket)
        self._watch = Watch(run, sees_times=False)
        self._acks: dict[int, tuple[int, int]] = {}
        self._committed: dict[int, int] = {}
        """Where each partition goes on after the commits that this member has an answer to."""

    def join(self, name: str) -> None:
        """Subscribe; a member that comes again by its name takes its own place. Raises Refused."""
        self._run.ways.add(STREAM)
        group = self._run.group(STREAM)
        answer = self._socket.subscribe(
            topics=[self._run.topic], mode="stream", group=group, member=name, start="earliest", credit=CREDIT
        )
        self._owns(str(answer.get("cursor", "")))

    @property
    def is_settled(self) -> bool:
        """Whether every ack has been answered."""
        return not self._acks

    def took(self, frame: Mapping[str, Any]) -> Sequence[Message]:
        """A frame; the messages that it had."""
        if "id" in frame:
            self._answered(frame)
        elif frame["op"] == "assigned":
            self._owns(frame["cursor"])
        elif frame["op"] == "revoked":
            if not frame.get("lost"):
                self._socket.send({"op": "release", "sub": SUB, "partitions": frame["partitions"]})
        elif frame["op"] == "messages":
            messages = cast(list[Message], frame["messages"])
            self._consume(messages)
            return messages
        return ()

    def _consume(self, messages: Sequence[Message]) -> None:
        self._watch.take(messages)
        for message in messages:
            if not self._run.ledger.consume(STREAM, identity(message)):
                self._run.metrics.count("redelivered")
        last = messages[-1]
        place = {"topic": self._run.topic, "partition": last["partition"], "offset": last["offset"]}
        number = self._socket.send({"op": "ack", "sub": SUB, "up_to": [place]})
        self._acks[number] = (last["partition"], last["offset"] + 1)

    def _owns(self, cursor: str) -> None:
        """From now on these partitions come from these places: not from before a commit that was answered."""
        for text in filter(None, cursor.split(";")):
            name, _, offset = text.partition("=")
            partition = int(name.rpartition(":")[2])
            if int(offset) < self._committed.get(partition, 0):
                problem = f"partition {partition} goes on at {offset}, behind a commit of {self._committed[partition]}"
                self._run.report("CHECK", "a commit is kept", took_ms=0, problem=problem)
            self._watch.begin(partition, int(offset))

    def _answered(self, frame: Mapping[str, Any]) -> None:
        partition, next_offset = self._acks.pop(frame["id"], (-1, 0))
        if partition < 0:
            return  # of a release
        result = frame["results"][0] if frame["ok"] else frame
        if result["ok"]:
            self._committed[partition] = max(next_offset, self._committed.get(partition, 0))
        elif result["error_code"] != NOT_THE_OWNER:  # that one is right: another has the partition by now
            self._run.report("CHECK", "commit", took_ms=0, problem=str(result))


class LeaseHolder(Consumer):
    """A consumer's side of queue mode: every message is acked."""

    def __init__(self, run: Run, socket: Socket) -> None:
        super().__init__(run, socket)
        self._acks: dict[int, Sequence[Message]] = {}

    def join(self, name: str) -> None:
        """Subscribe; leases know no names. Raises Refused."""
        self._run.ways.add(QUEUE)
        group = self._run.group(QUEUE)
        self._socket.subscribe(
            topics=[self._run.topic], mode="queue", group=group, credit=CREDIT, invisible_ms=LEASE_MS
        )

    @property
    def is_settled(self) -> bool:
        """Whether every ack has been answered."""
        return not self._acks

    def took(self, frame: Mapping[str, Any]) -> Sequence[Message]:
        """A frame; the messages that it had."""
        if "id" in frame:
            self._answered(frame)
        elif frame["op"] == "messages":
            messages = cast(list[Message], frame["messages"])
            for message in messages:  # it came: what is lost afterwards (our ack, its answer) is no loss of records
                if not self._run.ledger.consume(QUEUE, identity(message)):
                    self._run.metrics.count("redelivered")
            receipts = [message["receipt"] for message in messages]
            number = self._socket.send({"op": "ack", "sub": SUB, "receipts": receipts})
            self._acks[number] = messages
            return messages
        return ()

    def _answered(self, frame: Mapping[str, Any]) -> None:
        messages = self._acks.pop(frame["id"], ())
        if not frame["ok"]:
            self._run.report("CHECK", "ack", took_ms=0, problem=str(frame))
            return
        for message, result in zip(messages, frame.get("results", ()), strict=False):
            if result["ok"]:
                self._settled(message)
            elif result["error_code"] != LEASE_OVER:  # that one is right: we were too slow
                self._run.report("CHECK", "ack", took_ms=0, problem=str(result))

    def _settled(self, message: Message) -> None:
        record = identity(message)
        if message["attempt"] == 1 and not self._run.ledger.consume(QUEUE_FIRST, record):
            problem = f"record {record.sequence} of {record.sender} was acked twice as a first attempt"
            self._run.report("CHECK", "leased to one at a time", took_ms=0, problem=problem)


class StreamConsumer(SocketUser):
    """A member of the group in stream mode."""

    weight = 2
    name = STREAM
    consumer_type = StreamMember


class QueueConsumer(SocketUser):
    """A consumer of the group in queue mode."""

    weight = 2
    name = QUEUE
    consumer_type = LeaseHolder
