"""What kombu asks of a transport.

mq://:TOKEN@host:8082            over http; mqs:// over https (or `broker_use_ssl`)
broker_transport_options         token, group, lease, lease_max, send_timeout, partitions, max_attempts: docs/celery.md
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from queue import Empty
from typing import Any

from amqp.exceptions import ChannelError, ConnectionError
from kombu.entity import TRANSIENT_DELIVERY_MODE
from kombu.exceptions import OperationalError
from kombu.transport import virtual

from mq.connection import TokenSource
from mq.errors import Closed, ConnectionLost, MqError, Refused
from mq.kombu.link import Arrival, Inbox, Intake, Link, link_to
from mq.kombu.messages import tag_of, topic_of_exchange, topic_of_queue

DEFAULT_PORT = 8082
GROUP = "celery"
LEASE = "60s"
LEASE_MAX = "365d"
"""A task may run as long as its process lives; time limits are Celery's."""
SEND_TIMEOUT_S = 30.0
MAX_ATTEMPTS = 1_000
"""Each delivery counts, also one that a worker gives back unseen when it stops."""
PREFETCH_UNLIMITED = 1_000
"""Messages that a consumer without a prefetch count may hold."""
ABSENT_S = 10.0
"""How long a queue that was not declared is not asked for again: each result of `rpc://` would."""
GET_S = 0.25
"""How long `basic_get` waits for a message, from when the server has agreed to deliver one."""


class QoS(virtual.QoS):  # type: ignore[misc]
    """Which message a delivery tag is of. The server counts what is held: it sends no more than the prefetch count.

    Acks may come from any thread: every operation on the dict is one step for the interpreter."""

    restore_at_shutdown = False

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._held: dict[str, Arrival] = {}

    def hold(self, arrival: Arrival) -> None:
        """A message is being delivered."""
        self._held[arrival.payload["properties"]["delivery_tag"]] = arrival

    def can_consume(self) -> bool:
        """Always: see above."""
        return True

    def append(self, message: Any, delivery_tag: str) -> None:
        """kombu delivers it; `hold` has it."""

    def ack(self, delivery_tag: str) -> None:
        """Done with it. Returns at once; should the ack be lost, the message comes again."""
        self._settle(delivery_tag, "ack")

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Again, at once; or never again: to the dead letters."""
        if requeue:
            self._settle(delivery_tag, "nack", delay_ms=0)
        else:
            self._settle(delivery_tag, "reject", reason="rejected by the consumer")

    def restore_unacked(self) -> list[Any]:
        """Give back everything that is held."""
        for delivery_tag in list(self._held):
            self.reject(delivery_tag, requeue=True)
        return []

    def _settle(self, delivery_tag: str, op: str, **fields: object) -> None:
        arrival = self._held.pop(delivery_tag, None)
        if arrival is not None:
            arrival.settle(op, **fields)


class Channel(virtual.Channel):  # type: ignore[misc]
    """A channel: one subscription over its durable queues, and the queues that live with it."""

    QoS = QoS
    supports_fanout = True
    do_restore = False

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._transport = connection
        self._intake: Intake | None = None
        self._no_ack: set[str] = set()

    # ------------------------------------------------------------------------------------------------- queues

    def _new_queue(self, queue: str, **options: Any) -> None:
        link = self._link
        if options.get("auto_delete") or options.get("exclusive"):
            link.declare_ephemeral(queue, id(self))
            link.bind_ephemeral(queue, topic_of_exchange(""), tag_of(queue), lambda key: key == queue)
        elif link.ephemeral(queue) is None:
            partitions = self._transport.option("partitions")
            link.create(topic_of_queue(queue), **({} if partitions is None else {"partitions": partitions}))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return self._link.ephemeral(queue) is not None or self._link.has(topic_of_queue(queue))

    def _size(self, queue: str) -> int:
        if self._link.ephemeral(queue) is not None:
            return 0
        return self._link.size(topic_of_queue(queue), self._transport.group)

    def _purge(self, queue: str) -> int:
        if self._link.ephemeral(queue) is not None:
            return 0
        self._prepare_group()
        return self._link.purge(topic_of_queue(queue), self._transport.group)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if self._link.ephemeral(queue) is None:
            self._link.delete(topic_of_queue(queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue, and its messages."""
        if self._link.ephemeral(queue) is not None:
            self._release_ephemerals(queue)
        elif not (if_empty and self._size(queue)):
            self._delete(queue)
            self.state.queue_bindings_delete(queue)

    def _release_ephemerals(self, name: str | None = None) -> None:
        for queue in self._link.release_ephemerals(id(self), name):
            self.state.queue_bindings_delete(queue)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        link = self._link
        if link.ephemeral(queue) is None:
            return  # kombu's table is enough: who sends to a durable queue declares it
        kind = self.typeof(exchange).type
        if kind == "direct":
            tag = tag_of(routing_key)
            link.bind_ephemeral(queue, topic_of_exchange(exchange), tag, lambda key: key == routing_key)
        elif kind == "topic":
            matches = re.compile(pattern or "").match
            link.bind_ephemeral(queue, topic_of_exchange(exchange), None, lambda key: matches(key) is not None)
        else:
            link.bind_ephemeral(queue, topic_of_exchange(exchange), None, lambda key: True)

    # ------------------------------------------------------------------------------------------------- sending

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Store a message in the durable queues that it is for, and tell the queues that live with processes."""
        self._inplace_augment_message(message, exchange, routing_key)
        link = self._link
        if exchange:
            kind = self.typeof(exchange)
            try:
                found = kind.lookup(self.get_table(exchange), exchange, routing_key, None)
            except KeyError:  # an exchange that was not declared here
                found = set()
            queues = {queue for queue in found if link.ephemeral(queue) is None}
            is_for_others = kind.type != "direct" or not queues
        else:
            # The queue of a reply lives in the process that asked. No topic has its name, and a token that may not
            # ask about topics of any name learns nothing. What must not be lost is never taken for a reply.
            is_transient = message["properties"].get("delivery_mode") == TRANSIENT_DELIVERY_MODE
            is_durable = link.ephemeral(routing_key) is None and link.has(
                topic_of_queue(routing_key), absent_s=ABSENT_S, hidden_is_absent=is_transient
            )
            queues = {routing_key} if is_durable else set()
            is_for_others = not is_durable
        for queue in queues:
            self._put(queue, message)
        if is_for_others:
            self._put_fanout(exchange, message, routing_key)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        timeout_s = self._transport.send_timeout_s
        with _told_as_operational():
            self._link.send(topic_of_queue(queue), message, timeout_s)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        timeout_s = self._transport.send_timeout_s
        with _told_as_operational():
            self._link.publish(topic_of_exchange(exchange), message, tag_of(routing_key), timeout_s)

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Text stays text, which tools can read; bytes are written in base64."""
        if isinstance(body, str):
            return body, "utf-8"
        return super().encode_body(body, "base64")  # type: ignore[no-any-return]

    def cancel_delayed(self, queue: str, key: str) -> bool:
        """Cancel the message of this schedule key (Celery: the id of the task) that waits for its time; False when none
        is pending."""
        return self._link.cancel(topic_of_queue(queue), key)

    # ------------------------------------------------------------------------------------------------- consuming

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        """Take from a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        if (ephemeral := self._link.ephemeral(queue)) is not None:
            self._link.loop.soon(ephemeral.deliver_to, self._transport.inbox)
        else:
            self._want()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Take no more from the consumer's queue."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or not self._transport.is_of_this_process:
            return
        link = self._link
        if (ephemeral := link.ephemeral(queue)) is not None:
            link.loop.soon(ephemeral.deliver_to, Inbox(link.loop))
        else:
            self._want()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """At most so many messages that are not settled; 0 is PREFETCH_UNLIMITED."""
        self.qos.prefetch_count = prefetch_count
        self._want()

    def _want(self) -> None:
        link = self._link
        queues = [queue for queue in self._active_queues if link.ephemeral(queue) is None]
        if self._intake is None or self._intake.link is not link:
            if not queues:
                return
            self._intake = self._new_intake(self._transport.inbox)
        link.loop.soon(self._intake.want, queues, self.qos.prefetch_count or PREFETCH_UNLIMITED)

    def _prepare_group(self) -> None:
        transport = self._transport
        self._link.prepare_group(transport.group, transport.option("max_attempts", MAX_ATTEMPTS))

    def _new_intake(self, inbox: Inbox) -> Intake:
        self._prepare_group()
        transport = self._transport
        return Intake(
            self._link, self, inbox, group=transport.group, lease=transport.option("lease", LEASE),
            lease_max=transport.option("lease_max", LEASE_MAX),
        )  # fmt: skip

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """One message, if there is one: of a durable queue by a subscription for this message."""
        link = self._link
        ephemeral = link.ephemeral(queue)
        if ephemeral is not None:
            arrival = ephemeral.inbox.take()
            if arrival is None:
                raise Empty
            return arrival.payload
        inbox = Inbox(link.loop)
        intake = self._new_intake(inbox)
        link.loop.soon(intake.want, [queue], 1)
        try:
            link.call(intake.ready)
            arrival = inbox.take(GET_S)
        finally:
            link.loop.soon(intake.retire)
        if arrival is None:
            raise Empty
        self.qos.hold(arrival)
        return arrival.payload

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """The next message of a queue, or None; of an empty durable queue GET_S after the server's answer."""
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.qos.ack(message.delivery_tag)
        return message

    def deliver(self, arrival: Arrival, callback: Callable[[dict[str, Any]], object]) -> None:
        """Hand a message of a durable queue to its consumer."""
        if arrival.queue in self._no_ack:
            arrival.settle("ack")
        else:
            self.qos.hold(arrival)
        callback(arrival.payload)

    # ------------------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Give back what is held."""
        if not self.closed and self._transport.is_of_this_process:
            intake = self._intake
            if intake is not None:
                try:
                    intake.link.call(intake.close)
                except MqError:
                    intake.link.loop.soon(intake.retire)
            self._release_ephemerals()
        super().close()

    def abandon(self) -> None:
        """The connection is given up. What was delivered stays leased: its tasks may be running."""
        if self._transport.is_of_this_process:
            if self._intake is not None:
                self._intake.link.loop.soon(self._intake.retire)
            self._release_ephemerals()

    @property
    def _link(self) -> Link:
        return self._transport.link


class Transport(virtual.Transport):  # type: ignore[misc]
    """A connection of kombu. All of a process to one server share one link."""

    Channel = Channel
    default_port = DEFAULT_PORT
    driver_type = "mq"
    driver_name = "mq-py"
    connection_errors = (ConnectionError, Closed, ConnectionLost)
    channel_errors = (ChannelError, Refused)
    scheme = "http"

    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._options: dict[str, Any] = dict(client.transport_options)
        self._link: Link | None = None
        self._inbox: Inbox | None = None
        self._hub: Any = None

    def option(self, name: str, default: Any = None) -> Any:
        """One of `broker_transport_options`."""
        value = self._options.get(name)
        return default if value is None else value

    @property
    def group(self) -> str:
        """The group that consumes."""
        return str(self.option("group", GROUP))

    @property
    def send_timeout_s(self) -> float:
        """How long a message may take to be stored, in seconds."""
        return float(self.option("send_timeout", SEND_TIMEOUT_S))

    @property
    def link(self) -> Link:
        """The link of this process: after a fork, another."""
        if self._link is None or self._link.pid != os.getpid():
            self._link = self._linked()
            self._inbox = None
        return self._link

    @property
    def is_of_this_process(self) -> bool:
        """Whether this was connected here, and not by a process that forked us."""
        return self._link is not None and self._link.pid == os.getpid()

    @property
    def inbox(self) -> Inbox:
        """What has come for the consumers of this connection."""
        link = self.link
        if self._inbox is None:
            self._inbox = Inbox(link.loop)
        return self._inbox

    def driver_version(self) -> str:
        """The version of the client."""
        return version("mq-py")

    # ------------------------------------------------------------------------------------------------- its life

    def establish_connection(self) -> Any:
        """Connect, and ask the server whether it is ready."""
        self._link = self._linked()
        return super().establish_connection()

    def _linked(self) -> Link:
        client = self.client
        secret: TokenSource | None = self.option("token") or client.password or None
        path = (client.virtual_host or "").strip("/")
        context = _context(client.ssl)
        scheme = "https" if client.ssl else self.scheme
        port = client.port or self.default_port
        host = client.hostname or "localhost"
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" + (f"/{path}" if path else "")
        return link_to(url, secret, context, self.send_timeout_s)

    def verify_connection(self, connection: Any) -> bool:
        """Whether the link can come back by itself, if it is lost at all."""
        return self._link is not None and self._link.is_usable

    def close_connection(self, connection: Any) -> None:
        """Close the channels, each of which gives back what it holds."""
        super().close_connection(connection)
        self._end_inbox()

    def _collect(self, connection: Any) -> None:
        """kombu gives up a connection, after an error or a fork."""
        for channel in [*self.channels, *self._avail_channels]:
            channel.abandon()
        self.channels.clear()
        self._avail_channels.clear()
        self._end_inbox()

    def _end_inbox(self) -> None:
        inbox, self._inbox = self._inbox, None
        hub, self._hub = self._hub, None
        if inbox is None or not self.is_of_this_process:
            return
        if hub is not None:
            # Children of the pool have the file open too, so that closing it here would not end its watch.
            with suppress(KeyError, OSError, ValueError):
                hub.remove_reader(inbox.bell())
        inbox.quiet()
        inbox.close()

    # ------------------------------------------------------------------------------------------------- events

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises socket.timeout when none comes in time."""
        until_s = None if timeout is None else time.monotonic() + timeout
        inbox = self.inbox
        while True:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            arrival = inbox.take(left_s)
            if arrival is None:
                raise TimeoutError  # which is socket.timeout, as kombu calls it
            if self._deliver_arrival(arrival):
                return

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Have `on_readable` called when something has come."""
        self._hub = loop
        loop.add_reader(self.inbox.bell(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """No more."""
        self._hub = None
        if self._inbox is not None:
            loop.remove_reader(self._inbox.bell())

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Deliver what has come. Raises what ended a subscription."""
        inbox = self._inbox
        if inbox is None:
            return  # closed
        inbox.quiet()
        try:
            while (arrival := inbox.take()) is not None:
                self._deliver_arrival(arrival)
        except BaseException:
            inbox.ring()  # the rest is still there
            raise

    def _deliver_arrival(self, arrival: Arrival) -> bool:
        """False if no consumer here wants it any more."""
        callback = self._callbacks.get(arrival.queue)
        intake = arrival.intake
        if arrival.is_lost:
            return False
        if callback is None:
            arrival.settle("nack", delay_ms=0)
            return False
        if intake is None:
            callback(arrival.payload)
        else:
            intake.channel.deliver(arrival, callback)
        return True


class SecureTransport(Transport):
    """The same over https."""

    scheme = "https"


@contextmanager
def _told_as_operational() -> Iterator[None]:
    """A send that was not answered in time is kombu's OperationalError, which is not tried again: the message may still
    be stored, when the server is back."""
    try:
        yield
    except ConnectionLost as error:
        raise OperationalError(f"{error}; the message may be stored later all the same") from error


def _context(given: Any) -> Any:
    """`broker_use_ssl` as aiohttp takes it: True, a context, or a dict with ca_certs, certfile and keyfile."""
    if not isinstance(given, dict):
        return given if given else True
    context = ssl.create_default_context(cafile=given.get("ca_certs"))
    if given.get("certfile"):
        context.load_cert_chain(given["certfile"], given.get("keyfile"))
    if given.get("cert_reqs") == ssl.CERT_NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
