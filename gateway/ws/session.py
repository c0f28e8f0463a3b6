"""One socket's conversation: commands in, answers and pushes out through the outbox.

Commands are taken in the order they come. All but `produce` are done before the next is taken. Produces run side by
side, so that many share one flush; they reach the store in the order they came, and each is answered once it is
durable. The bytes of unanswered produces are bounded: past that the socket is not read.

A subscription that cannot go on ends with an `error` push; the socket and its other subscriptions stay.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from typing import Protocol, assert_never

from gateway.codec.records import BATCH_REFUSED, Format, parse_records
from gateway.consumer import AtTime, OffsetSpec
from gateway.http.context import Gateway
from gateway.http.errors import LIMIT_ILLEGAL, PARTITION_NOT_FOUND, RequestError, error_of
from gateway.producer import Receipt
from gateway.ws import protocol
from gateway.ws.credit import Credit, CreditRefused, Ledger
from gateway.ws.outbox import Closing, Outbox
from gateway.ws.protocol import CloseCode, Command
from gateway.ws.subscription import Place, Subscription, out_of_range
from store.errors import StoreError

log = logging.getLogger(__name__)

PRODUCE_BYTES_MAX = 16 * 1024 * 1024
"""Characters of the frames of one socket's unanswered produces; a larger frame is taken when it is alone."""

PRODUCE_COUNT_MAX = 1024
"""Unanswered produces of one socket: each is a task."""

PLACES_MAX = 4096
"""Partitions all subscriptions of a socket follow: each is a task."""


class StartTask(Protocol):
    """`asyncio.TaskGroup.create_task` of the group whose failure ends the socket."""

    def __call__(self, work: Coroutine[object, object, None], /) -> asyncio.Task[None]: ...


class Session:
    """Takes the frames of one socket. Its tasks belong to the caller's group."""

    def __init__(self, gateway: Gateway, outbox: Outbox, start_task: StartTask) -> None:
        self.name = f"sess_{secrets.token_hex(8)}"
        self._gateway = gateway
        self._outbox = outbox
        self._start_task = start_task
        self._subscriptions: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}
        self._place_count = 0
        self._produces: dict[asyncio.Task[None], int] = {}  # the value: characters of its frame
        self._produce_done = asyncio.Event()

    @property
    def produce_count(self) -> int:
        """Produces that are not answered yet."""
        return len(self._produces)

    async def take(self, frame: str) -> None:
        """Do what one text frame asks for. Raises Closing for a frame that is none of ours (P2)."""
        self._gateway.stats.ws_received_frame_count += 1
        try:
            commands = protocol.parse_frame(frame)
        except protocol.BadFrame as error:
            await self._outbox.put(protocol.bad_frame_push(error))
            await self._outbox.flush()
            raise Closing(CloseCode.BAD_FRAME) from None
        for command in commands:
            try:
                await self._do(protocol.parse_command(command), len(frame) // len(commands))
            except (RequestError, StoreError) as error:
                await self._refuse(protocol.command_id(command), error)

    async def go_away(self, reconnect_after_ms: int) -> None:
        """Say that the server stops; push no more messages; return when every produce is answered."""
        for name in list(self._subscriptions):
            await self._end(name)
        await self._outbox.put(protocol.goaway_push(reconnect_after_ms))
        while self._produces:
            self._produce_done.clear()
            await self._produce_done.wait()
        await self._outbox.flush()

    async def _do(self, command: Command, size: int) -> None:
        match command:
            case protocol.Produce():
                await self._start_produce(command, size)
            case protocol.Subscribe():
                await self._subscribe(command)
            case protocol.Permit():
                self._permit(command)
                await self._confirm(command)
            case protocol.Pause():
                self._subscription(command.sub).pause()
                await self._confirm(command)
            case protocol.Resume():
                self._subscription(command.sub).resume()
                await self._confirm(command)
            case protocol.Unsubscribe():
                self._subscription(command.sub)
                await self._end(command.sub)
                await self._confirm(command)
            case protocol.Ping():
                await self._outbox.put(protocol.pong(command.id, self._gateway.clock.now_ms()))
            case protocol.Hello():
                await self._answer(command.id, self._welcome())
            case _:
                assert_never(command)

    # ------------------------------------------------------------------------------------------------- answers

    async def _answer(self, id_: int | None, fields: dict[str, object]) -> None:
        if id_ is not None:
            await self._outbox.put(protocol.reply(id_, fields))

    async def _confirm(
        self, command: protocol.Permit | protocol.Pause | protocol.Resume | protocol.Unsubscribe
    ) -> None:
        await self._answer(command.id, {"sub": command.sub})

    async def _refuse(self, id_: int | None, error: RequestError | StoreError) -> None:
        answer = error_of(error)
        if answer.status == 500:  # the answer hides the cause
            log.error("socket=%s command failed", self.name, exc_info=error)
        await self._outbox.put(protocol.error_push(answer) if id_ is None else protocol.refusal(id_, answer))

    def _welcome(self) -> dict[str, object]:
        limits = self._gateway.limits
        return {
            "session": self.name,
            "resumed": False,
            "binary": False,
            "server": f"mq/{self._gateway.version}",
            "ping_ms": self._gateway.config.ws_ping_ms,
            "limits": {
                "max_frame": limits.ws_frame_bytes_max,
                "max_subs": limits.ws_subscriptions_max,
                "max_credit": limits.ws_credit_max,
                "max_credit_bytes": limits.ws_credit_bytes_max,
                "max_records": limits.records_per_request_max,
            },
        }

    # ------------------------------------------------------------------------------------------------- produce

    async def _start_produce(self, command: protocol.Produce, size: int) -> None:
        records = command.records
        if isinstance(records, list) and len(records) > self._gateway.limits.records_per_request_max:
            limit = self._gateway.limits.records_per_request_max
            raise RequestError(422, BATCH_REFUSED, f"{len(records)} records in one command; the limit is {limit}.")
        while self._produces and (
            len(self._produces) >= PRODUCE_COUNT_MAX or sum(self._produces.values()) + size > PRODUCE_BYTES_MAX
        ):
            self._produce_done.clear()
            await self._produce_done.wait()
        task = self._start_task(self._produce(command))
        self._produces[task] = size
        task.add_done_callback(self._forget_produce)

    def _forget_produce(self, task: asyncio.Task[None]) -> None:
        del self._produces[task]
        self._produce_done.set()

    async def _produce(self, command: protocol.Produce) -> None:
        try:
            receipts = await self._gateway.producer.produce(
                command.topic,
                parse_records(command.records, command.format),
                partition=command.partition,
                json_values=command.format is Format.JSON,
                acks=command.acks,
            )
        except (RequestError, StoreError) as error:
            await self._refuse(command.id, error)
            return
        if command.ack:
            reached = min(receipt.acks for receipt in receipts)
            offsets = [_receipt(receipt) for receipt in receipts]
            await self._answer(command.id, {"acks": reached.name.lower(), "offsets": offsets})

    # ------------------------------------------------------------------------------------------------- subscribe

    async def _subscribe(self, command: protocol.Subscribe) -> None:
        gateway = self._gateway
        limits = gateway.limits
        if command.sub in self._subscriptions:
            raise RequestError(
                409, protocol.ALREADY_SUBSCRIBED, f"This socket has a subscription {command.sub} already."
            )
        if len(self._subscriptions) >= limits.ws_subscriptions_max:
            raise RequestError(
                429,
                protocol.TOO_MANY,
                f"A socket may have {limits.ws_subscriptions_max} subscriptions; use another one.",
            )
        ledger = _ledger(command, limits.ws_credit_max, limits.ws_credit_bytes_max)
        partitions: dict[str, list[int]] = {}
        epochs: dict[str, str] = {}
        for name in command.topics:
            topic = gateway.routes_table.topic(name)
            partitions[name] = list(range(topic.partitions))
            epochs[name] = str(topic.topic_id)
        if self._place_count + sum(map(len, partitions.values())) > PLACES_MAX:
            raise RequestError(429, protocol.TOO_MANY, f"A socket may follow {PLACES_MAX} partitions; use another one.")
        await self._check_epochs(command, epochs, partitions)
        places = [
            await self._place(name, partition, command.start)
            for name, numbers in partitions.items()
            for partition in numbers
        ]
        _check_all_named(command.start, partitions)
        subscription = Subscription(
            command.sub,
            places,
            fetch=gateway.consumer.fetch,
            ledger=ledger,
            batch=command.batch,
            outbox=self._outbox,
            stats=gateway.stats,
        )
        await self._answer(
            command.id,
            {
                "sub": command.sub,
                "epochs": epochs,
                "partitions": partitions,
                "cursor": subscription.cursor,
                "credit": ledger.messages.left,
            },
        )
        self._place_count += len(places)
        gateway.stats.ws_subscription_count += 1
        task = self._start_task(self._run(subscription))
        self._subscriptions[command.sub] = subscription, task
        task.add_done_callback(lambda _: self._forget_subscription(command.sub, len(places)))

    async def _place(self, topic: str, partition: int, start: protocol.Start) -> Place:
        """Where a partition starts. Raises RequestError when that is out of its range."""
        consumer = self._gateway.consumer
        spec: OffsetSpec
        match start:
            case protocol.From():
                spec = start.value
            case protocol.FromTime(timestamp_ms):
                spec = AtTime(timestamp_ms)
            case protocol.FromOffsets(offsets):
                spec = offsets.get(topic, {}).get(partition, "earliest")
        offset = await consumer.resolve_offset(topic, partition, spec)
        place = Place(topic, partition, offset)
        if isinstance(spec, int):
            bounds = await consumer.bounds(topic, partition)
            if not bounds.min_offset <= offset <= bounds.max_offset:
                raise out_of_range(place, bounds.min_offset, bounds.max_offset)
        return place

    async def _check_epochs(
        self, command: protocol.Subscribe, epochs: dict[str, str], partitions: dict[str, list[int]]
    ) -> None:
        """A cursor is good for the topic it came from, not for a later one of the same name."""
        for topic, epoch in command.epochs.items():
            if epoch != epochs[topic]:
                bounds = [await self._gateway.consumer.bounds(topic, partition) for partition in partitions[topic]]
                raise RequestError(
                    409,
                    protocol.EPOCH_CHANGED,
                    f"Topic {topic} was created anew: its offsets are not those of the cursor.",
                    details={
                        "topic": topic,
                        "epoch": epochs[topic],
                        "partitions": [
                            {"partition": partition, "beginning_offset": low, "end_offset": high}
                            for partition, (low, high) in zip(partitions[topic], bounds, strict=True)
                        ],
                    },
                )

    async def _run(self, subscription: Subscription) -> None:
        """Push until cancelled, or until a partition cannot be read: then say so."""
        try:
            await subscription.run()
        except* (RequestError, StoreError) as failures:
            error = failures.exceptions[0]
            assert isinstance(error, RequestError | StoreError)
            log.warning("socket=%s subscription=%s ended: %s", self.name, subscription.name, error)
            await self._outbox.put(protocol.error_push(error_of(error), sub=subscription.name))

    def _permit(self, command: protocol.Permit) -> None:
        try:
            self._subscription(command.sub).permit(command.messages, command.bytes)
        except CreditRefused as error:
            raise RequestError(422, LIMIT_ILLEGAL, f"permit: {error}") from None

    def _subscription(self, name: str) -> Subscription:
        try:
            return self._subscriptions[name][0]
        except KeyError:
            raise RequestError(404, protocol.NO_SUCH_SUBSCRIPTION, f"This socket has no subscription {name}.") from None

    async def _end(self, name: str) -> None:
        """Stop a subscription; none of its messages is queued after this."""
        _, task = self._subscriptions[name]
        task.cancel()
        await asyncio.wait((task,))

    def _forget_subscription(self, name: str, place_count: int) -> None:
        del self._subscriptions[name]
        self._place_count -= place_count
        self._gateway.stats.ws_subscription_count -= 1


def _ledger(command: protocol.Subscribe, credit_max: int, credit_bytes_max: int) -> Ledger:
    try:
        wanted = min(protocol.CREDIT_DEFAULT, credit_max) if command.credit is None else command.credit
        messages = Credit(credit_max).widened(wanted)
        bytes_ = None if command.credit_bytes is None else Credit(credit_bytes_max).widened(command.credit_bytes)
    except CreditRefused as error:
        raise RequestError(422, LIMIT_ILLEGAL, f"credit: {error}") from None
    return Ledger(messages, bytes_, auto=command.auto_credit)


def _check_all_named(start: protocol.Start, partitions: dict[str, list[int]]) -> None:
    """Every partition that `from` names must exist."""
    if isinstance(start, protocol.FromOffsets):
        for topic, offsets in start.offsets.items():
            for partition in offsets:
                if partition >= len(partitions[topic]):
                    raise RequestError(404, PARTITION_NOT_FOUND, f"from: topic {topic} has no partition {partition}.")


def _receipt(receipt: Receipt) -> dict[str, object]:
    shown: dict[str, object] = {"partition": receipt.partition, "offset": receipt.offset}
    if receipt.schedule_id is not None:
        shown["schedule_id"] = receipt.schedule_id
        shown["deliver_at"] = receipt.deliver_at_ms
    return shown
