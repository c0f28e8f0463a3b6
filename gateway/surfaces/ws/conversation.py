"""One socket's conversation: commands in, answers out through the outbox.

Commands are taken in the order they come. All but produces and what settles records (ack, nack, reject, extend) are
done before the next is taken. Those run side by side (`in_flight.py`): they reach the store in the order they came, and
each is answered once it is durable.

What lasts longer than the connection is the session's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn, assert_never

from gateway.api.errors import error_of
from gateway.api.light import check_receives
from gateway.api.shapes import commands as plain
from gateway.api.turns import in_turns
from gateway.auth.access import NOBODY, Access
from gateway.codec.json_steps import STEP_BYTES
from gateway.errors import LIMIT_ILLEGAL, RequestError, draining, invalid
from gateway.groups.machines.errors import GroupElsewhere
from gateway.groups.protocol import Settled, TopicPartition
from gateway.surfaces.http.admission import payer_of, rate_limited
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.idempotency import command_identity
from gateway.surfaces.http.reading import let_go
from gateway.surfaces.ws import commands, parse, protocol
from gateway.surfaces.ws.commands import PERMISSIONS, Command
from gateway.surfaces.ws.credit import CreditRefused
from gateway.surfaces.ws.elsewhere import Elsewhere
from gateway.surfaces.ws.in_flight import InFlight, StartTask
from gateway.surfaces.ws.outbox import Closing, Outbox
from gateway.surfaces.ws.protocol import CloseCode
from gateway.surfaces.ws.queue import Queue
from gateway.surfaces.ws.rights import Rights
from gateway.surfaces.ws.sends import records_in_steps
from gateway.surfaces.ws.session import REFUSALS, Refusal, Session, already_subscribed
from gateway.surfaces.ws.sessions import Sessions
from gateway.surfaces.ws.settling import answered, check_settles, settle
from gateway.surfaces.ws.stream import Stream
from gateway.surfaces.ws.turn_sends import TurnSends

log = logging.getLogger(__name__)

COMMANDS_AT_ONCE = 256
"""Commands of one frame that are done before it is others' turn."""

REFUSED_IN_A_ROW_MAX = 100
"""Commands refused for being too many, before the socket is closed."""

_REQUESTS = ("produce", "subscribe", "seek")
"""Ops that count as a request where requests are limited; the bytes of all do."""

_OPS_OF_STRANGERS = ("hello", "ping")


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
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._outbox = outbox
        self._rights = rights
        self._address = address
        self._close = close
        self._frame_bytes_max = frame_bytes_max
        self._elsewhere = elsewhere
        self.in_flight = InFlight(start_task)
        self._sends = TurnSends(gateway.producer, sessions.turn_batches, self.in_flight, outbox, self._answer_later)
        self.session = sessions.open(rights.access, close, address)
        self.session.attach(outbox, close)
        self._is_first = True
        self._is_leaving = False
        self._refused_in_a_row = 0

    @property
    def access(self) -> Access:
        """The client's rights now."""
        return self._rights.access

    async def put(self, frame: bytes) -> None:
        """Send a frame. Raises OutboxClosed."""
        await self._outbox.put(frame)

    # ------------------------------------------------------------------------------------------------- frames

    async def take(self, frame: str) -> None:
        """Do what one text frame asks for. Raises Closing for a frame that is none of ours (P2)."""
        self._gateway.stats.ws_received_frame_count += 1
        is_large = len(frame) > STEP_BYTES
        try:
            objects = await in_turns(parse.parse_frame_in_steps(frame)) if is_large else parse.parse_frame(frame)
        except protocol.BadFrame as error:
            await self._bad_frame(error)
        except parse.TooManyCommands as error:
            log.warning("socket=%s closed: %s", self.session.name[:12], error)
            raise Closing(CloseCode.LIMIT) from None
        size_bytes = len(frame) // max(len(objects), 1)
        for number, one in enumerate(objects, 1):
            await self._take_one(one, size_bytes, None)
            if number % COMMANDS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if is_large and isinstance(records := one.get("records"), list):
                await let_go(records, len(frame))

    async def take_binary(self, frame: bytes) -> None:
        """Do what one binary frame asks for. Raises Closing for one that was not agreed on, or is none of ours."""
        self._gateway.stats.ws_received_frame_count += 1
        if not self.session.binary:
            raise Closing(CloseCode.UNSUPPORTED)
        try:
            header, payload = protocol.split_binary(frame)
        except protocol.BadFrame as error:
            await self._bad_frame(error)
        await self._take_one(header, len(frame), payload)

    async def _bad_frame(self, error: protocol.BadFrame) -> NoReturn:
        await self._outbox.put(protocol.bad_frame_push(error))
        await self._outbox.flush()
        raise Closing(CloseCode.BAD_FRAME) from None

    async def _take_one(self, one: dict[str, object], size_bytes: int, payload: memoryview | None) -> None:
        op = one.get("op")
        if self._rights.access is NOBODY and op not in _OPS_OF_STRANGERS:
            log.info("socket=%s closed: a command before it said who it is", self.session.name[:12])
            raise Closing(CloseCode.UNAUTHORIZED)
        try:
            self.charge(size_bytes, requests=1 if op in _REQUESTS else 0)
            command = parse.parse_command(one, self._gateway.limits)
            if payload is not None and not isinstance(command, commands.Produce):
                raise invalid("op: only produce comes in binary frames")
            if self._elsewhere is None or not await self._passed_on(self._elsewhere, command, one):
                await self._do(command, size_bytes, payload)
        except REFUSALS as error:
            await self.refuse(parse.command_id(one), error)
        self._is_first = False

    async def _passed_on(self, elsewhere: Elsewhere, command: Command, one: Mapping[str, object]) -> bool:
        """Whether a command is one for another node, and passed on to it. Raises RequestError, Closing."""
        if isinstance(command, commands.Subscribe):
            if elsewhere.of(command.sub) is not None:
                raise already_subscribed(command.sub)
            node = None if command.group is None else elsewhere.node_of(command.group)
            if node is None:
                return False
            self.check_staying()
            self.session.check_room(command.sub, elsewhere.count)
            relay = await elsewhere.to(node, binary=self.session.binary)
        elif (found := elsewhere.of(one.get("sub"))) is not None:
            relay = found
        else:
            return False
        await relay.send(one)
        return True

    def charge(self, size_bytes: int, *, requests: int = 1) -> None:
        """Rate limits: bytes of everything, and what makes the server work. Raises RequestError, Closing."""
        rates = self._gateway.rates
        if rates is None:
            return
        payer = payer_of(self._rights.access, self._address)
        retry_after_ms = rates.spend(payer, requests=requests, bytes_=size_bytes)
        if retry_after_ms is None:
            self._refused_in_a_row = 0
            return
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= REFUSED_IN_A_ROW_MAX:
            raise Closing(CloseCode.RATE_LIMITED)
        raise rate_limited(retry_after_ms)

    # ------------------------------------------------------------------------------------------------- commands

    async def _do(self, command: Command, size_bytes: int, payload: memoryview | None) -> None:
        session = self.session
        match command:
            case commands.Produce():
                await self._produce(command, size_bytes, payload)
            case commands.Subscribe():
                self.check_staying()
                await self.subscribe(command)
            case commands.Ack() | plain.Nack() | plain.Reject() | plain.Extend():
                await self._settle(command, size_bytes)
            case plain.Release():
                self._release(command)
                await self._confirm(command)
            case commands.Seek():
                await self._seek(command)
            case plain.Permit():
                self._permit(command)
                await self._confirm(command)
            case plain.Pause() | plain.Resume():
                paused = session.subscription(command.sub)
                paused.ledger.paused = isinstance(command, plain.Pause)
                paused.credit_changed()
                await self._confirm(command)
            case plain.Unsubscribe():
                session.subscription(command.sub)
                await self.in_flight.settled()  # acks that came before are done before
                await session.unsubscribe(command.sub)
                await self._confirm(command)
            case plain.Seen():
                await self._seen(command)
                await self._answer(command.id, {})
            case plain.Ping():
                await self._outbox.put(protocol.pong(command.id, self._gateway.clock.now_ms()))
            case plain.Auth():
                await self._renew(command.token)
                await self._answer(command.id, {"expires_at": self._rights.access.expires_at_ms})
            case plain.Hello():
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
        command: plain.OfSubscription,
    ) -> None:
        await self._answer(command.id, {"sub": command.sub})

    async def refuse(self, id_: int | None, error: Refusal) -> None:
        """Answer a command that cannot be done; without id, by a push."""
        answer = error_of(error)
        if answer.hides_cause:
            log.error("socket=%s command failed", self.session.name[:12], exc_info=error)
        await self._outbox.put(protocol.error_push(answer) if id_ is None else protocol.refusal(id_, answer))

    async def _answer_later(
        self, id_: int | None, work: Awaitable[dict[str, object]], *, is_wanted: bool = True
    ) -> None:
        """Answer with what comes out of `work`, if that `is_wanted`, or with what refused it. When its group has gone
        to another node, nothing was done: the socket closes as when the server stops, and the client, which comes back,
        asks again there."""
        try:
            fields = await work
        except GroupElsewhere as error:
            log.info("socket=%s closed: %s", self.session.name[:12], error)
            self._close(CloseCode.SHUTDOWN)
        except REFUSALS as error:
            await self.refuse(id_, error)
        else:
            await self._answer(id_ if is_wanted else None, fields)

    # ------------------------------------------------------------------------------------------------- hello, auth

    async def _hello(self, command: plain.Hello) -> None:
        if not self._is_first:
            raise RequestError(protocol.HELLO_ORDER, "hello is the first command, and comes once.")
        if command.token is not None and self._gateway.authenticator.is_required:
            await self._renew(command.token)
        if self._rights.access is NOBODY:
            raise Closing(CloseCode.UNAUTHORIZED)
        resumed = None
        if command.resume is not None:
            resumed = await self._sessions.resume(command.resume, self._rights.access, self._close, self._address)
        fields: dict[str, object] = {}
        if resumed is not None:
            fresh, self.session = self.session, resumed
            await self._sessions.leave(fresh, None, said_goodbye=True)
            await resumed.rewind(command.seen or {})
            subs, ended = await self._resume_elsewhere(resumed, command)
            ended |= {name: protocol.error_fields(error) for name, error in resumed.ended.items()}
            fields = {"subs": {**resumed.state(), **subs}, "ended": ended}
        self.session.binary = command.binary or self.session.binary
        self.session.is_resumable = True
        await self._answer(command.id, {**self._welcome(resumed is not None), **fields})
        if resumed is not None:
            resumed.attach(self._outbox, self._close)
            if self._elsewhere is not None:
                self._elsewhere.go_on()

    async def _resume_elsewhere(
        self, resumed: Session, command: plain.Hello
    ) -> tuple[dict[str, object], dict[str, object]]:
        """What other nodes have of a session that goes on: states, and what has ended."""
        kept, resumed.elsewhere = resumed.elsewhere, {}
        if self._elsewhere is None or not kept:
            return {}, {}
        return await self._elsewhere.resume(kept, command.seen or {}, binary=bool(resumed.binary or command.binary))

    async def _renew(self, token: str) -> None:
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
        if self._elsewhere is not None:
            await self._elsewhere.renew(token)

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

    # ------------------------------------------------------------------------------------------------- the server stops

    async def go_away(self, reconnect_after_ms: int) -> None:
        """Say that the server stops; push no more messages; return when every produce and ack is answered."""
        self._is_leaving = True
        if self._elsewhere is not None:
            self._elsewhere.leave()
        await self.session.stop_pushing()
        await self._outbox.put(protocol.goaway_push(reconnect_after_ms, self.session.name))
        await self.in_flight.settled()
        await self._outbox.flush()

    def check_staying(self) -> None:
        """Refuse to begin something when the server is about to stop. Raises RequestError."""
        if self._is_leaving:
            raise draining()

    async def end(self, code: CloseCode | None, *, said_goodbye: bool) -> None:
        """The connection has ended. Other nodes keep what is this client's as long as this one does."""
        await self.in_flight.settled()  # acks are written to their end, and the session has them settled
        if self._elsewhere is not None:
            self.session.elsewhere = self._elsewhere.kept()
            is_over = said_goodbye or (not self.session.is_resumable and code is not CloseCode.SHUTDOWN)
            await self._elsewhere.end(said_goodbye=is_over)
        await self._sessions.leave(self.session, code, said_goodbye=said_goodbye)

    async def warn(self, in_ms: int) -> None:
        """Tell that the rights are about to end."""
        await self._outbox.put(protocol.auth_expiring_push(in_ms))

    # ------------------------------------------------------------------------------------------------- records

    async def _produce(self, command: commands.Produce, size_bytes: int, payload: memoryview | None) -> None:
        self._check("produce", topic=command.topic)
        self.check_staying()
        topic = self._gateway.routes_table.topic(command.topic)
        count_max = self._gateway.limits.records_per_request_max
        steps = records_in_steps(command, payload, count_max, raw_keys=topic.raw_keys, size_bytes=size_bytes)
        sent = await in_turns(steps)
        identity = None
        if command.idempotency_key is not None:
            identity = command_identity(self._rights.access.principal, topic.topic_id, command.idempotency_key)
        await self._sends.begin(command, topic, sent, identity, size_bytes)

    async def _settle(self, command: commands.Settle, size_bytes: int) -> None:
        subscription = check_settles(command, self.session.subscription(command.sub))
        self._check(type(command).__name__.lower(), group=subscription.group)
        if isinstance(subscription, Queue) and isinstance(command, commands.Ack) and not command.up_to:
            await self._ack(command, subscription, size_bytes)
        else:
            await self.in_flight.start(self._answer_later(command.id, settle(command, subscription)), size_bytes)

    async def _ack(self, command: commands.Ack, queue: Queue, size_bytes: int) -> None:
        """Begin an ack, which takes a task only where its answer is not what, and not when, nearly all are."""
        await self.in_flight.room(size_bytes)
        acking = queue.begin_ack(command.receipts)
        acking.add_done_callback(partial(self._acked, command.id, size_bytes))
        self.in_flight.hold(acking, size_bytes)

    def _acked(self, id_: int | None, size_bytes: int, acking: asyncio.Future[Sequence[Settled]]) -> None:
        if acking.cancelled() or acking.exception() is None:
            if id_ is None or acking.cancelled():
                return
            if self._outbox.send_at_once(protocol.reply(id_, answered(acking.result()))):
                return
        self.in_flight.start_now(self._answer_acked(id_, acking), size_bytes)

    async def _answer_acked(self, id_: int | None, acking: asyncio.Future[Sequence[Settled]]) -> None:
        await self._answer_later(id_, _answered(acking))

    # ------------------------------------------------------------------------------------------------- subscriptions

    async def subscribe(self, command: commands.Subscribe) -> None:
        """Make a subscription and answer. Raises what refuses it."""
        subscription, fields = await self.session.subscribe(command)
        try:
            await self._answer(command.id, fields)
        except BaseException:
            self.session.abandon(subscription)
            raise
        self.session.start(subscription)

    def _release(self, command: plain.Release) -> None:
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
            raise invalid("op: a queue has no offset to move; reset the group")
        check_receives(self._rights.access, subscription.topics(), subscription.queue)
        if subscription.group is not None:
            self._check("seek", group=subscription.group)
        cursor = await subscription.seek(command.to)
        await self._answer(command.id, {"sub": command.sub, "cursor": cursor})

    def _permit(self, command: plain.Permit) -> None:
        subscription = self.session.subscription(command.sub)
        try:
            subscription.ledger.permit(command.messages or 0, command.bytes or 0)
        except CreditRefused as error:
            raise RequestError(LIMIT_ILLEGAL, f"permit: {error}") from None
        subscription.credit_changed()

    async def _seen(self, command: plain.Seen) -> None:
        elsewhere = self._elsewhere
        own = {name: seq for name, seq in command.subs.items() if elsewhere is None or elsewhere.of(name) is None}
        if elsewhere is not None and len(own) < len(command.subs):
            await elsewhere.seen(command.subs)
        seen = [(self.session.subscription(name), seq) for name, seq in own.items()]
        for subscription, seq in seen:
            if seq > subscription.seq:
                raise invalid(
                    f"subs.{subscription.name}: frame {seq} was never sent; the last one was {subscription.seq}"
                )
        for subscription, seq in seen:
            subscription.confirm(seq)


async def _answered(acking: asyncio.Future[Sequence[Settled]]) -> dict[str, object]:
    return answered(await acking)
