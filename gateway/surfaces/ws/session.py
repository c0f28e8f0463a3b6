"""What a client has on this server beyond one connection: its subscriptions, and for whom they are.

A connection is attached to at most one session, and a session to at most one connection. While one is attached, each
subscription has a task that pushes. Without one, nothing is pushed, and nothing else changes: members stay, leases run.
`Sessions` decides how long that may last.

A subscription that cannot go on ends with an `error` push, or, when no socket is attached, with an entry in `ended`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from gateway.api.errors import error_of
from gateway.api.light import check_receives, names_begin
from gateway.api.tasks import Tasks, stop
from gateway.auth.access import Access, Permission
from gateway.brokers.base import BrokerUnreachable
from gateway.cluster.metadata import MetadataError
from gateway.errors import LIMIT_ILLEGAL, RequestError
from gateway.groups.machines.errors import GroupElsewhere, GroupError
from gateway.routing.patience import AGAIN_S
from gateway.settings.limits import Limits
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.ws import protocol
from gateway.surfaces.ws.commands import Form, Mode, Subscribe
from gateway.surfaces.ws.credit import Credit, CreditRefused, Ledger
from gateway.surfaces.ws.elsewhere import Kept
from gateway.surfaces.ws.feed import Feed, Source, Sources
from gateway.surfaces.ws.frame_cache import Wanted
from gateway.surfaces.ws.journal import FRAMES_MAX, Forgotten, Journal
from gateway.surfaces.ws.light import LightSource, LightStream
from gateway.surfaces.ws.outbox import Outbox, OutboxClosed
from gateway.surfaces.ws.protocol import CloseCode
from gateway.surfaces.ws.queue import Queue
from gateway.surfaces.ws.reader import FOLLOWED_PARTITIONS_MAX, Positions, Reader
from gateway.surfaces.ws.stream import Stream
from store.errors import StoreError

log = logging.getLogger(__name__)

Subscription = Reader | Stream | LightStream | Queue
Refusal = RequestError | GroupError | StoreError | MetadataError
"""What may end a subscription, or refuse a command, without being a fault of ours."""

REFUSALS = (RequestError, GroupError, StoreError, MetadataError)


@dataclass(slots=True)
class _Running:
    """A subscription, and the tasks that keep it and push for it."""

    subscription: Subscription
    keeping: asyncio.Task[None] | None = None
    pushing: asyncio.Task[None] | None = None


class Session:
    """The subscriptions of one client. `tasks` and everything in it belong to the server, not to a connection."""

    def __init__(self, gateway: Gateway, sources: Sources, access: Access) -> None:
        self.name = f"sess_{secrets.token_urlsafe(18)}"
        self.access = access
        self.binary = False
        self.is_resumable = False
        """Its client has been told its name."""

        self.ended: dict[str, RequestError] = {}
        """Subscriptions that met an error: their clients have been told, or have been gone by then."""

        self.elsewhere: Mapping[str, Kept] = {}
        """Subscriptions that other nodes have, by node, while its client's connection is lost."""

        self.is_broken = False
        """One of its tasks met a fault of ours."""

        self._gateway = gateway
        self._sources = sources
        self._tasks = Tasks(self._fault)
        self._running: dict[str, _Running] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._outbox: Outbox | None = None
        self._close: Callable[[CloseCode], None] | None = None

    # Connections

    def attach(self, outbox: Outbox, close: Callable[[CloseCode], None]) -> None:
        """Push through this connection from here on. `close` ends it."""
        assert self._outbox is None
        self._outbox = outbox
        self._close = close
        for running in self._running.values():
            self._start_pushing(running, outbox)

    async def detach(self) -> None:
        """The connection is gone: push nothing more."""
        self._outbox = self._close = None
        for running in list(self._running.values()):
            await stop(running.pushing)
            running.pushing = None

    async def rewind(self, seen: Mapping[str, int]) -> None:
        """Take back what the client has not seen. A subscription for which that is not known ends."""
        assert self._outbox is None
        for name, running in list(self._running.items()):
            try:
                await running.subscription.rewind(seen.get(name, 0))
            except Forgotten as error:
                refusal = RequestError(protocol.CANNOT_RESUME, f"Subscription {name} cannot go on: {error}.")
                await self._end(name, refusal)
            except REFUSALS as error:
                await self._end(name, error)

    def state(self) -> dict[str, object]:
        """What its client must know to go on."""
        return {name: self._state(running.subscription) for name, running in self._running.items()}

    # Subscriptions

    @property
    def subscriptions(self) -> list[Subscription]:
        """Those that have not ended."""
        return [running.subscription for running in self._running.values()]

    def subscription(self, name: str) -> Subscription:
        """Raises RequestError."""
        try:
            return self._running[name].subscription
        except KeyError:
            raise RequestError(protocol.NO_SUCH_SUBSCRIPTION, f"This socket has no subscription {name}.") from None

    def check_room(self, name: str, elsewhere_count: int = 0) -> None:
        """Whether there may be a subscription of this name, beside so many that other nodes have. Raises
        RequestError."""
        if name in self._running:
            raise already_subscribed(name)
        count_max = self._gateway.limits.ws_subscriptions_max
        if len(self._running) + elsewhere_count >= count_max:
            raise RequestError(protocol.TOO_MANY, f"A socket may have {count_max} subscriptions; use another one.")

    async def subscribe(self, command: Subscribe) -> tuple[Subscription, dict[str, object]]:
        """Make a subscription; it and the fields of the answer. Nothing is pushed before `start`.

        Raises RequestError, GroupError, StoreError.
        """
        self.check_room(command.sub)
        check_receives(self.access, command.topics, command.queue)
        if command.group is not None:
            self.access.check(Permission.RECEIVE, group=command.group)
        subscription = self._made(command)
        self.ended.pop(command.sub, None)
        fields = await self._tasks.whole(_opened(subscription), unheard=subscription.end)
        return subscription, {
            "sub": command.sub,
            "mode": command.mode.value,
            **fields,
            "credit": subscription.ledger.messages.left,
        }

    def abandon(self, subscription: Subscription) -> None:
        """Undo `subscribe`: its answer could not be sent."""
        self._tasks.finish(subscription.end())

    def start(self, subscription: Subscription) -> None:
        """Push. The answer to `subscribe` is on its way."""
        running = self._running[subscription.name] = _Running(subscription)
        self._gateway.stats.ws_subscription_count += 1
        if isinstance(subscription, Stream | LightStream):
            running.keeping = self._tasks.start(self._keep(subscription))
        if self._outbox is not None:
            self._start_pushing(running, self._outbox)

    async def unsubscribe(self, name: str) -> None:
        """End a subscription; none of its messages is queued after this. Raises RequestError."""
        self.subscription(name)
        await self._end(name, None)

    def refresh_soon(self) -> None:
        """Topics or rights may have changed. One that is slow to take the news holds up no other. Where nothing has
        changed, as nearly always, there is no task: one for each of 15,000 sockets kept the loop busy for a second."""
        is_free = self._refreshing is None or self._refreshing.done()
        if is_free and not all(self._is_current(running.subscription) for running in self._running.values()):
            self._refreshing = self._tasks.start(self.refresh())

    async def refresh(self) -> None:
        """Look at topics and rights again."""
        for subscription in self.subscriptions:
            try:
                self._check_rights(subscription)
                await subscription.refresh()
            except BrokerUnreachable:  # what is new there can be begun when its node is back
                asyncio.get_running_loop().call_later(AGAIN_S, self.refresh_soon)
            except REFUSALS as error:
                await self._end(subscription.name, error)
            except OutboxClosed:
                return

    async def close(self, *, leave: bool) -> None:
        """End for good. `leave`: members leave and leases go back; otherwise they stay until the client returns."""
        await self.detach()
        for name, running in list(self._running.items()):
            if leave:
                await self._end(name, None)
            else:
                await stop(running.keeping)
        self._gateway.stats.ws_subscription_count -= len(self._running)
        self._running.clear()
        await self._tasks.close()

    async def stop_pushing(self) -> None:
        """Push nothing more, although the connection stays for a while: the server stops."""
        for running in list(self._running.values()):
            await stop(running.pushing)
            running.pushing = None

    # Inside

    def _check_rights(self, subscription: Subscription) -> None:
        if subscription.is_named:
            check_receives(self.access, subscription.topics(), subscription.queue)
        if subscription.group is not None:
            self.access.check(Permission.RECEIVE, group=subscription.group)

    def _is_current(self, subscription: Subscription) -> bool:
        try:
            self._check_rights(subscription)
        except RequestError:
            return False
        return subscription.is_current()

    def _partitions_left(self) -> int:
        return FOLLOWED_PARTITIONS_MAX - sum(subscription.partition_count() for subscription in self.subscriptions)

    def _made(self, command: Subscribe) -> Subscription:
        gateway = self._gateway
        form = command.form or (Form.BINARY if self.binary else Form.JSON)
        if form is not Form.JSON and not self.binary:
            raise RequestError(422, f'format: {form.value} needs "binary": true in hello.')
        ledger = ledger_of(command, gateway.limits)
        journal = Journal(FRAMES_MAX if self.is_resumable else 0)
        begin = None if command.queue is None else names_begin(command.queue)
        wanted = Wanted(form, command.batch, command.filter, begin)
        outlives_topics = command.pattern is not None or command.mode is Mode.STREAM
        source: Source = self._sources.partitions
        positions: Positions = gateway.consumer
        if command.queue is not None and begin is None:
            source = positions = self._light_source(command.queue)
        feed = Feed(
            command.sub,
            source,
            wanted,
            ledger,
            journal,
            stats=self._sources.stats,
            check_topic=lambda topic: self.access.check(Permission.RECEIVE, topic=topic),
            outlives_topics=outlives_topics,
        )
        if command.mode is Mode.READER:
            return Reader(
                command,
                feed,
                routes=gateway.routes_table,
                positions=positions,
                access=self._rights,
                partitions_left=self._partitions_left,
            )
        if command.mode is Mode.STREAM and command.queue is not None:
            return LightStream(
                command,
                feed,
                groups=gateway.groups,
                routes=gateway.routes_table,
                positions=positions,
                access=self._rights,
                partitions_left=self._partitions_left,
            )
        if command.mode is Mode.STREAM:
            return Stream(
                command,
                feed,
                groups=gateway.groups,
                routes=gateway.routes_table,
                consumer=gateway.consumer,
                access=self._rights,
                partitions_left=self._partitions_left,
                tasks=self._tasks,
            )
        return Queue(
            command,
            ledger,
            form=form,
            consumer_name=self.name[:16],
            groups=gateway.groups,
            routes=gateway.routes_table,
            access=self._rights,
            all_leases=gateway.leases,
            tasks=self._tasks,
            clock=gateway.clock,
            stats=gateway.stats,
        )

    def _light_source(self, name: str) -> LightSource:
        sources = self._sources
        return LightSource(
            name.encode(),
            sources.light_reader,
            sources.light_rendering,
            self._gateway.consumer,
            self._gateway.routes_table,
        )

    def _rights(self) -> Access:
        return self.access

    def _state(self, subscription: Subscription) -> dict[str, object]:
        ledger = subscription.ledger
        state: dict[str, object] = {
            "mode": subscription.mode.value,
            "seq": subscription.seq,
            **subscription.state(),
            "credit": ledger.messages.left,
            "paused": ledger.paused,
        }
        if ledger.bytes is not None:
            state["credit_bytes"] = ledger.bytes.left
        return state

    def _start_pushing(self, running: _Running, outbox: Outbox) -> None:
        assert running.pushing is None
        running.pushing = self._tasks.start(self._push(running.subscription, outbox))

    async def _push(self, subscription: Subscription, outbox: Outbox) -> None:
        try:
            await subscription.push(outbox)
        except REFUSALS as error:
            await self._end(subscription.name, error)
        except OutboxClosed:
            pass  # the connection ends, and says so itself

    async def _keep(self, subscription: Stream | LightStream) -> None:
        try:
            await subscription.keep()
        except* REFUSALS as failures:
            error = failures.exceptions[0]
            assert isinstance(error, REFUSALS)
            await self._end(subscription.name, error)

    async def _end(self, name: str, error: Refusal | None) -> None:
        """End one subscription; with an error, say so. When its group has gone to another node, the socket closes as
        when the server stops: its client comes back, and goes on there as the member that it was."""
        if isinstance(error, GroupElsewhere) and self._close is not None:
            log.info("socket=%s subscription=%s: %s", self.name[:12], name, error)
            self._close(CloseCode.SHUTDOWN)
            return
        running = self._running.pop(name, None)
        if running is None:
            return
        self._gateway.stats.ws_subscription_count -= 1
        if error is not None:
            log.warning("socket=%s subscription=%s ended: %s", self.name[:12], name, error)
            self.ended[name] = answer = error_of(error)
            if len(self.ended) > self._gateway.limits.ws_subscriptions_max:
                del self.ended[next(iter(self.ended))]
        await self._tasks.whole(_wound_up(running, asyncio.current_task()))
        if error is not None and self._outbox is not None:
            with suppress(OutboxClosed):
                await self._outbox.put(protocol.error_push(answer, sub=name))

    def _fault(self, error: BaseException) -> None:
        if isinstance(error, REFUSALS):
            log.info("socket=%s error after the end of its command: %s", self.name[:12], error)
            return
        log.error("socket=%s failed", self.name[:12], exc_info=error)
        self.is_broken = True
        if self._close is not None:
            self._close(CloseCode.INTERNAL)


def already_subscribed(name: str) -> RequestError:
    """The refusal of a second subscription of one name."""
    return RequestError(protocol.ALREADY_SUBSCRIBED, f"This socket has a subscription {name} already.")


async def _opened(subscription: Subscription) -> dict[str, object]:
    """Open it, or leave nothing of it: a member that may not have what it was given has joined nevertheless."""
    try:
        return await subscription.open()
    except BaseException:
        await subscription.end()
        raise


async def _wound_up(running: _Running, caller: asyncio.Task[object] | None) -> None:
    for task in (running.pushing, running.keeping):
        if task is not caller:
            await stop(task)
    await running.subscription.end()


def ledger_of(command: Subscribe, limits: Limits) -> Ledger:
    """The credit a subscription begins with. Raises RequestError."""
    credit_max, credit_bytes_max = limits.ws_credit_max, limits.ws_credit_bytes_max
    try:
        wanted = min(protocol.CREDIT_DEFAULT, credit_max) if command.credit is None else command.credit
        messages = Credit(credit_max).widened(wanted)
        bytes_ = None if command.credit_bytes is None else Credit(credit_bytes_max).widened(command.credit_bytes)
    except CreditRefused as error:
        raise RequestError(LIMIT_ILLEGAL, f"credit: {error}") from None
    return Ledger(messages, bytes_, auto=command.auto_credit)
