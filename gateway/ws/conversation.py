"""One socket's conversation: commands in, answers out through the outbox.

Commands are taken in the order they come. All but produces and what settles records (ack, nack, reject, extend) are
done before the next is taken. Those run side by side, so that many share one flush; they reach the store in the order
they came, and each is answered once it is durable. The bytes and the number of the unanswered are bounded: past that
the socket is not read.

What lasts longer than the connection is the session's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol, assert_never

from gateway.auth.access import NOBODY, Access
from gateway.codec.records import BATCH_REFUSED, Format, ProduceRecord, parse_raw_record, parse_records
from gateway.coordinator.api import Settled, TopicPartition
from gateway.http.admission import payer_of, rate_limited
from gateway.http.context import Gateway
from gateway.http.errors import LIMIT_ILLEGAL, RequestError, bad_request, error_of, invalid
from gateway.producer import BatchReceipt, Receipt
from gateway.ws import commands, protocol
from gateway.ws.commands import PERMISSIONS, Command
from gateway.ws.credit import CreditRefused
from gateway.ws.journal import Forgotten
from gateway.ws.outbox import Closing, Outbox
from gateway.ws.protocol import CloseCode
from gateway.ws.queue import Queue
from gateway.ws.reader import Reader
from gateway.ws.rights import Rights
from gateway.ws.session import REFUSALS, Refusal, Subscription
from gateway.ws.sessions import Sessions
from gateway.ws.stream import Stream

log = logging.getLogger(__name__)

WORK_BYTES_MAX = 16 * 1024 * 1024
"""Of the frames of one socket's unanswered produces and acks; a larger frame is taken when it is alone."""

WORK_COUNT_MAX = 1024
"""Unanswered produces and acks of one socket: each is a task."""

REFUSED_IN_A_ROW_MAX = 100
"""Commands refused for being too many, before the socket is closed."""


class StartTask(Protocol):
    """`asyncio.TaskGroup.create_task` of the group whose failure ends the socket."""

    def __call__(self, work: Coroutine[object, object, None], /) -> asyncio.Task[None]: ...


@dataclass(frozen=True, slots=True)
class Binary:
    """The payload of a binary frame, and whether it is one."""

    payload: memoryview | None = None


TEXT = Binary()


class Conversation:
    """Takes the frames of one socket. Its tasks belong to the caller's group; `close` ends the socket."""

    def __init__(
        self,
        gateway: Gateway,
        sessions: Sessions,
        outbox: Outbox,
        start_task: StartTask,
        *,
        rights: Rights,
        address: str,
        close: Callable[[CloseCode], None],
        frame_bytes_max: int,
    ) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._outbox = outbox
        self._start_task = start_task
        self._rights = rights
        self._address = address
        self._close = close
        self._frame_bytes_max = frame_bytes_max
        self.session = sessions.open(rights.access, close)
        self.session.attach(outbox, close)
        self._is_first = True
        self._refused_in_a_row = 0
        self._works: dict[asyncio.Task[None], int] = {}  # the value: bytes of its frame
        self._work_done = asyncio.Event()

    @property
    def access(self) -> Access:
        """The client's rights now."""
        return self._rights.access

    async def put(self, frame: bytes) -> None:
        """Send a frame. Raises OutboxClosed."""
        await self._outbox.put(frame)

    @property
    def work_count(self) -> int:
        """Produces and acks that are not answered yet."""
        return len(self._works)

    async def take(self, frame: str) -> None:
        """Do what one text frame asks for. Raises Closing for a frame that is none of ours (P2)."""
        self._gateway.stats.ws_received_frame_count += 1
        try:
            objects = commands.parse_frame(frame)
        except protocol.BadFrame as error:
            await self._bad_frame(error)
        except commands.TooManyCommands as error:
            log.warning("socket=%s closed: %s", self.session.name[:12], error)
            raise Closing(CloseCode.LIMIT) from None
        size = len(frame) // max(len(objects), 1)
        for one in objects:
            await self._take_one(one, size, TEXT)

    async def take_binary(self, frame: bytes) -> None:
        """Do what one binary frame asks for. Raises Closing for one that was not agreed on, or is none of ours."""
        self._gateway.stats.ws_received_frame_count += 1
        if not self.session.binary:
            raise Closing(CloseCode.UNSUPPORTED)
        try:
            header, payload = protocol.split_binary(frame)
        except protocol.BadFrame as error:
            await self._bad_frame(error)
        await self._take_one(header, len(frame), Binary(payload))

    async def go_away(self, reconnect_after_ms: int) -> None:
        """Say that the server stops; push no more messages; return when every produce and ack is answered."""
        await self.session.stop_pushing()
        await self._outbox.put(protocol.goaway_push(reconnect_after_ms, self.session.name))
        while self._works:
            self._work_done.clear()
            await self._work_done.wait()
        await self._outbox.flush()

    async def warn(self, in_ms: int) -> None:
        """Tell that the rights are about to end."""
        await self._outbox.put(protocol.auth_expiring_push(in_ms))

    async def subscribe(self, command: commands.Subscribe) -> None:
        """Make a subscription and answer. Raises what refuses it."""
        subscription, fields = await self.session.subscribe(command)
        try:
            await self._answer(command.id, fields)
        except BaseException:
            self.session.abandon(subscription)
            raise
        self.session.start(subscription)

    async def _bad_frame(self, error: protocol.BadFrame) -> None:
        await self._outbox.put(protocol.bad_frame_push(error))
        await self._outbox.flush()
        raise Closing(CloseCode.BAD_FRAME) from None

    async def _take_one(self, one: dict[str, object], size: int, binary: Binary) -> None:
        try:
            command = commands.parse_command(one)
            is_request = isinstance(command, commands.Produce | commands.Subscribe | commands.Seek)
            self.charge(size, requests=1 if is_request else 0)
            if binary.payload is not None and not isinstance(command, commands.Produce):
                raise invalid("op: only produce comes in binary frames")
            await self._do(command, size, binary)
        except REFUSALS as error:
            await self.refuse(commands.command_id(one), error)
        self._is_first = False

    def charge(self, size: int, *, requests: int = 1) -> None:
        """Rate limits: bytes of everything, and what makes the server work. Raises RequestError, Closing."""
        rates = self._gateway.rates
        if rates is None:
            return
        retry_after_ms = rates.spend(payer_of(self._rights.access, self._address), requests=requests, bytes_=size)
        if retry_after_ms is None:
            self._refused_in_a_row = 0
            return
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= REFUSED_IN_A_ROW_MAX:
            raise Closing(CloseCode.RATE_LIMITED)
        raise rate_limited(retry_after_ms)

    async def _do(self, command: Command, size: int, binary: Binary) -> None:
        if self._rights.access is NOBODY and not isinstance(command, commands.Hello | commands.Ping):
            log.info("socket=%s closed: a command before it said who it is", self.session.name[:12])
            raise Closing(CloseCode.UNAUTHORIZED)
        session = self.session
        match command:
            case commands.Produce():
                self._check("produce", topic=command.topic)
                await self.work(self._produce(command, self._records(command, binary)), size)
            case commands.Subscribe():
                await self.subscribe(command)
            case commands.Ack() | commands.Nack() | commands.Reject() | commands.Extend():
                await self.work(self._settle(command, self._group_of(command)), size)
            case commands.Release():
                self._release(command)
                await self._confirm(command)
            case commands.Seek():
                await self._seek(command)
            case commands.Permit():
                self._permit(command)
                await self._confirm(command)
            case commands.Pause() | commands.Resume():
                subscription = session.subscription(command.sub)
                subscription.ledger.paused = isinstance(command, commands.Pause)
                _credit_changed(subscription)
                await self._confirm(command)
            case commands.Unsubscribe():
                await self._works_settled(command.sub)
                await session.unsubscribe(command.sub)
                await self._confirm(command)
            case commands.Seen():
                self._seen(command)
                await self._answer(command.id, {})
            case commands.Ping():
                await self._outbox.put(protocol.pong(command.id, self._gateway.clock.now_ms()))
            case commands.Auth():
                self._renew(command.token)
                await self._answer(command.id, {"expires_at": self._rights.access.expires_at_ms})
            case commands.Hello():
                await self._hello(command)
            case _:
                assert_never(command)

    def _check(self, op: str, *, topic: str | None = None, group: str | None = None) -> None:
        permission = PERMISSIONS[op]
        assert permission is not None
        self._rights.access.check(permission, topic=topic, group=group)

    # ------------------------------------------------------------------------------------------------- answers

    async def _answer(self, id_: int | None, fields: dict[str, object]) -> None:
        if id_ is not None:
            await self._outbox.put(protocol.reply(id_, fields))

    async def _confirm(
        self,
        command: commands.Permit | commands.Pause | commands.Resume | commands.Unsubscribe | commands.Release,
    ) -> None:
        await self._answer(command.id, {"sub": command.sub})

    async def refuse(self, id_: int | None, error: Refusal) -> None:
        """Answer a command that cannot be done; without id, by a push."""
        answer = error_of(error)
        if answer.status == 500:  # the answer hides the cause
            log.error("socket=%s command failed", self.session.name[:12], exc_info=error)
        await self._outbox.put(protocol.error_push(answer) if id_ is None else protocol.refusal(id_, answer))

    # ------------------------------------------------------------------------------------------------- hello, auth

    async def _hello(self, command: commands.Hello) -> None:
        if not self._is_first:
            raise RequestError(409, protocol.HELLO_ORDER, "hello is the first command, and comes once.")
        if command.token is not None and self._gateway.authenticator.is_required:
            self._renew(command.token)
        if self._rights.access is NOBODY:
            raise Closing(CloseCode.UNAUTHORIZED)
        resumed = None
        if command.resume is not None:
            resumed = await self._sessions.resume(command.resume, self._rights.access, self._close)
        fields: dict[str, object] = {}
        if resumed is not None:
            fresh, self.session = self.session, resumed
            await self._sessions.leave(fresh, None, said_goodbye=True)
            await resumed.rewind(command.seen)
            fields = {
                "subs": resumed.state(),
                "ended": {name: protocol.error_fields(error) for name, error in resumed.ended.items()},
            }
            resumed.ended.clear()
        self.session.binary = command.binary or self.session.binary
        self.session.is_resumable = True
        await self._answer(command.id, {**self._welcome(resumed is not None), **fields})
        if resumed is not None:
            resumed.attach(self._outbox, self._close)

    def _renew(self, token: str) -> None:
        """Go on with the rights of a token. Raises Closing."""
        before = self._rights.access
        try:
            access = self._gateway.authenticator.access_of_token(token, self._address)
        except RequestError as error:
            log.info("socket=%s closed: %s", self.session.name[:12], error)
            raise Closing(CloseCode.UNAUTHORIZED) from None
        if before is not NOBODY and access.principal != before.principal:
            raise Closing(CloseCode.FORBIDDEN)
        self._rights.renew(access)
        self.session.access = access

    def _welcome(self, is_resumed: bool) -> dict[str, object]:
        limits = self._gateway.limits
        return {
            "session": self.session.name,
            "resumed": is_resumed,
            "binary": self.session.binary,
            "server": f"mq/{self._gateway.version}",
            "ping_ms": self._gateway.config.ws_ping_ms,
            "grace_ms": self._gateway.config.ws_session_grace_ms,
            "limits": {
                "max_frame": self._frame_bytes_max,
                "max_subs": limits.ws_subscriptions_max,
                "max_credit": limits.ws_credit_max,
                "max_credit_bytes": limits.ws_credit_bytes_max,
                "max_records": limits.records_per_request_max,
            },
        }

    # ------------------------------------------------------------------------------------------------- produce

    def _records(self, command: commands.Produce, binary: Binary) -> bytes | list[ProduceRecord]:
        """The records of a produce, or its raw batches. Raises RequestError."""
        records = command.records
        if command.format is None:
            if binary.payload is None or records is not None:
                raise invalid("format: batch needs a binary frame whose payload is RecordBatches, and no records")
            return bytes(binary.payload)
        limit = self._gateway.limits.records_per_request_max
        if isinstance(records, list) and len(records) > limit:
            raise RequestError(422, BATCH_REFUSED, f"{len(records)} records in one command; the limit is {limit}.")
        if binary.payload is None:
            return parse_records(records, command.format)
        return _binary_records(records, binary.payload)

    async def work(self, work: Coroutine[object, object, None], size: int) -> None:
        """Start what is answered later; waits first while too much is unanswered."""
        while self._works and (len(self._works) >= WORK_COUNT_MAX or sum(self._works.values()) + size > WORK_BYTES_MAX):
            self._work_done.clear()
            try:
                await self._work_done.wait()
            except BaseException:
                work.close()
                raise
        task = self._start_task(work)
        self._works[task] = size
        task.add_done_callback(self._forget_work)

    def _forget_work(self, task: asyncio.Task[None]) -> None:
        del self._works[task]
        self._work_done.set()

    async def _produce(self, command: commands.Produce, records: bytes | list[ProduceRecord]) -> None:
        producer = self._gateway.producer
        try:
            if isinstance(records, bytes):
                batches = await producer.produce_batches(
                    command.topic, records, partition=command.partition, acks=command.acks
                )
                reached = min(receipt.acks for receipt in batches)
                offsets = [_batch_receipt(receipt) for receipt in batches]
            else:
                receipts = await producer.produce(
                    command.topic,
                    records,
                    partition=command.partition,
                    json_values=command.format is Format.JSON,
                    acks=command.acks,
                )
                reached = min(receipt.acks for receipt in receipts)
                offsets = [shown_receipt(receipt) for receipt in receipts]
        except REFUSALS as error:
            await self.refuse(command.id, error)
            return
        if command.ack:
            await self._answer(command.id, {"acks": reached.name.lower(), "offsets": offsets})

    # ------------------------------------------------------------------------------------------------- subscriptions

    def _group_of(self, command: commands.Settle) -> Stream | Queue:
        """The subscription that a command settles something of. Raises RequestError."""
        subscription = self.session.subscription(command.sub)
        if isinstance(subscription, Reader):
            raise invalid("op: a reader has nothing to settle")
        if isinstance(subscription, Stream) and not (isinstance(command, commands.Ack) and command.up_to):
            raise invalid("op: stream mode commits offsets; ack with up_to or cursor")
        op = type(command).__name__.lower()
        self._check(op, group=subscription.group)
        return subscription

    async def _settle(self, command: commands.Settle, subscription: Stream | Queue) -> None:
        try:
            results = await _settled(command, subscription)
        except REFUSALS as error:
            await self.refuse(command.id, error)
            return
        await self._answer(command.id, {"results": results})

    async def _works_settled(self, sub: str) -> None:
        """Acks that came before an unsubscribe are done before it."""
        self.session.subscription(sub)
        while self._works:
            self._work_done.clear()
            await self._work_done.wait()

    def _release(self, command: commands.Release) -> None:
        subscription = self.session.subscription(command.sub)
        if not isinstance(subscription, Stream):
            raise invalid("op: only stream mode has partitions to release")
        self._check("release", group=subscription.group)
        subscription.release(
            [TopicPartition(topic, number) for topic, numbers in command.partitions.items() for number in numbers]
        )

    async def _seek(self, command: commands.Seek) -> None:
        subscription = self.session.subscription(command.sub)
        if isinstance(subscription, Queue):
            raise invalid("op: a queue has no place to move; reset the group")
        for topic in subscription.topics():
            self._check("seek", topic=topic, group=subscription.group)
        cursor = await subscription.seek(command.to)
        await self._answer(command.id, {"sub": command.sub, "cursor": cursor})

    def _permit(self, command: commands.Permit) -> None:
        subscription = self.session.subscription(command.sub)
        try:
            subscription.ledger.permit(command.messages, command.bytes)
        except CreditRefused as error:
            raise RequestError(422, LIMIT_ILLEGAL, f"permit: {error}") from None
        _credit_changed(subscription)

    def _seen(self, command: commands.Seen) -> None:
        for name, seq in command.subs.items():
            subscription = self.session.subscription(name)
            if isinstance(subscription, Queue):
                continue  # acks tell as much
            try:
                subscription.feed.journal.confirm(seq)
            except Forgotten as error:
                raise invalid(f"subs.{name}: {error}") from None


def _credit_changed(subscription: Subscription) -> None:
    if isinstance(subscription, Queue):
        subscription.credit_changed()
    else:
        subscription.feed.credit_changed()


async def _settled(command: commands.Settle, subscription: Stream | Queue) -> list[dict[str, object]]:
    """Do what settles records; the results to show. Raises what refuses it."""
    if isinstance(subscription, Stream):
        assert isinstance(command, commands.Ack)
        return [
            _place_result(place, error)
            for place, error in zip(command.up_to, await subscription.ack(command.up_to), strict=True)
        ]
    if isinstance(command, commands.Ack):
        if command.up_to:
            counts = await subscription.ack_up_to(command.up_to)
            return [
                {**_place_result(place, None), "count": count}
                for place, count in zip(command.up_to, counts, strict=True)
            ]
        return [_result(settled) for settled in await subscription.ack(command.receipts)]
    return [_result(settled) for settled in await subscription.settle(command)]


def _result(settled: Settled) -> dict[str, object]:
    shown: dict[str, object] = {"receipt": settled.receipt, "ok": settled.ok}
    if settled.new_receipt is not None:
        shown["new_receipt"] = settled.new_receipt
    if not settled.ok:
        shown["error_code"] = settled.error_code
        shown["error"] = settled.error
    return shown


def _place_result(place: commands.UpTo, error: RequestError | None) -> dict[str, object]:
    shown: dict[str, object] = {"topic": place.topic, "partition": place.partition, "ok": error is None}
    if error is not None:
        shown["error_code"] = error.error_code
        shown["error"] = error.message
    return shown


def _binary_records(records: object, payload: memoryview) -> list[ProduceRecord]:
    """Records whose keys and values are in the payload, one behind the other. Raises RequestError."""
    if not isinstance(records, list) or not records:
        raise invalid("records: must be an array of one or more objects")
    parsed: list[ProduceRecord] = []
    position = 0
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise bad_request(f"records[{number}]: must be a JSON object")
        parts: list[bytes | None] = []
        for name in ("key_len", "value_len"):
            length = record.pop(name, None)
            if length is None:
                parts.append(None)
                continue
            if length.__class__ is not int or not 0 <= length <= len(payload) - position:
                raise bad_request(f"records[{number}].{name}: {length!r} is not a length within the payload")
            parts.append(bytes(payload[position : position + length]))
            position += length
        for name in ("key", "value"):
            if name in record:
                raise invalid(f"records[{number}].{name}: is in the payload of a binary frame")
        try:
            parsed.append(parse_raw_record(record, parts[0], parts[1]))
        except RequestError as error:
            raise RequestError(
                error.status,
                error.error_code,
                error.message,
                validation_errors=[f"records[{number}]: {error.message}"],
            ) from None
    if position != len(payload):
        raise bad_request(f"The payload has {len(payload)} bytes; keys and values take {position}.")
    return parsed


def shown_receipt(receipt: Receipt) -> dict[str, object]:
    """What became of one record, as frames show it."""
    shown: dict[str, object] = {"partition": receipt.partition, "offset": receipt.offset}
    if receipt.schedule_id is not None:
        shown["schedule_id"] = receipt.schedule_id
        shown["deliver_at"] = receipt.deliver_at_ms
    if receipt.duplicate:
        shown["duplicate"] = True
    return shown


def _batch_receipt(receipt: BatchReceipt) -> dict[str, object]:
    return {"partition": receipt.partition, "offset": receipt.offset, "record_count": receipt.record_count}
