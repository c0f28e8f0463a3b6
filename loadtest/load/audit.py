"""What is checked when all users have gone: the whole log, and that each group gets what is left for it.

It knows what every process knows (the merged ledger), so the sender of a record and its consumer may have been in
different ones. The log must have every acknowledged record once, in the order of its key. A group must have had every
acknowledged record: what its users did not come to, the audit consumes as a member of the same group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import websocket

from loadtest.checks import KeyOrder
from loadtest.load.groups import LeaseHolder, StreamMember
from loadtest.load.ledger import LOG, QUEUE, QUEUE_FIRST, STREAM, RecordId
from loadtest.load.run import CheckFailed, Message, Run, identity
from loadtest.load.socket import Refused, Socket

STALL_S = 100.0
"""What has not come after so long without any arrival is lost: longer than any delay or lease, and than a group waits
for a member that is gone (30 s) and for the partitions of one that does not let go (60 s)."""

READY_POLL_S = 0.5
CREDIT = 10_000
SHOWN_COUNT = 3


def audit(run: Run) -> bool:
    """Check everything, each check one line of Locust's statistics; whether all is well. The run's groups end here."""
    _wait_until_ready(run)
    verdicts = [_log(run)]
    if STREAM in run.ways:
        verdicts.append(_group(run, STREAM, StreamMember))
    if QUEUE in run.ways:
        verdicts.append(_group(run, QUEUE, LeaseHolder))
        twice = run.ledger.twice.get(QUEUE_FIRST, 0)
        problem = f"{twice} records were acked twice as a first attempt" if twice else None
        verdicts.append(_told(run, "a record in a queue is leased to one at a time", 0, problem))
    return all(verdicts)


def _wait_until_ready(run: Run) -> None:
    """A server that was killed in the run may be recovering. Raises OSError, CheckFailed after STALL_S."""
    deadline_s = time.monotonic() + STALL_S
    while True:
        try:
            run.end_offsets()
        except (OSError, CheckFailed):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(READY_POLL_S)
        else:
            return


def _log(run: Run) -> bool:
    """Read the topic from its start to its end."""
    began_s = time.monotonic()
    order = KeyOrder()
    disorder: str | None = None
    next_offsets = {str(partition): 0 for partition in run.end_offsets()}
    ends: Mapping[int, int] | None = None

    def took(message: Message) -> None:
        nonlocal disorder
        next_offsets[str(message["partition"])] = message["offset"] + 1
        record = identity(message)
        run.ledger.consume(LOG, record)
        if "deliver_at" not in message:
            disorder = disorder or order.received(message["key"], record.sequence)

    def is_done() -> bool:
        nonlocal ends
        if ends is None and run.ledger.is_complete(LOG):
            ends = run.end_offsets()  # read on to here, for duplicates
        return ends is not None and all(next_offsets[str(partition)] >= end for partition, end in ends.items())

    def subscribe(socket: Socket) -> Callable[[Mapping[str, Any]], Sequence[Message]]:
        socket.subscribe(topics=[run.topic], credit=CREDIT, **{"from": {run.topic: next_offsets}})
        return lambda frame: frame.get("messages", ()) if frame.get("op") == "messages" else ()

    problem = _read(run, subscribe, took, is_done)
    took_ms = (time.monotonic() - began_s) * 1000
    twice = run.ledger.twice.get(LOG, 0)
    return all(
        (
            _told(run, "every acknowledged record is there", took_ms, _losses(run, LOG) or problem),
            _told(run, "every record is there once", took_ms, f"{twice} came twice" if twice else None),
            _told(run, "the log keeps the order of every key", took_ms, disorder),
        )
    )


def _group(run: Run, way: str, consumer: type[StreamMember] | type[LeaseHolder]) -> bool:
    """Consume what is left for a group."""
    began_s = time.monotonic()
    joined: list[StreamMember | LeaseHolder] = []

    def subscribe(socket: Socket) -> Callable[[Mapping[str, Any]], Sequence[Message]]:
        member = consumer(run, socket)
        joined.append(member)
        member.join("audit")
        return member.took

    def is_done() -> bool:
        return run.ledger.is_complete(way) and all(member.is_settled for member in joined)

    problem = _read(run, subscribe, lambda message: None, is_done)
    took_ms = (time.monotonic() - began_s) * 1000
    return _told(run, f"every acknowledged record came to the {way} group", took_ms, _losses(run, way) or problem)


def _read(
    run: Run,
    subscribe: Callable[[Socket], Callable[[Mapping[str, Any]], Sequence[Message]]],
    took: Callable[[Message], None],
    is_done: Callable[[], bool],
) -> str | None:
    """Take frames until it is done or nothing has come for STALL_S; why it could not be read, None when it could."""
    try:
        with Socket(run.host) as socket:
            messages_of = subscribe(socket)
            last_arrival_s = time.monotonic()
            while not is_done() and time.monotonic() - last_arrival_s < STALL_S:
                frame = socket.receive()
                for message in messages_of(frame) if frame is not None else ():
                    last_arrival_s = time.monotonic()
                    took(message)
    except (Refused, CheckFailed, OSError, websocket.WebSocketException) as error:
        return f"it could not be read: {str(error) or type(error).__name__}"
    return None


def _losses(run: Run, way: str) -> str | None:
    lost: list[RecordId] = list(run.ledger.lost(way))
    if not lost:
        return None
    shown = ", ".join(f"{one.sender}/{one.sequence}" for one in lost[:SHOWN_COUNT])
    return f"{len(lost)} of {run.ledger.acknowledged_count} lost, such as {shown}"


def _told(run: Run, name: str, took_ms: float, problem: str | None) -> bool:
    run.report("CHECK", name, took_ms=took_ms, problem=problem)
    return problem is None
