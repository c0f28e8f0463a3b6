"""Connections to a Kafka cluster: aiokafka's, with its metadata, SASL and TLS. Messages with batches are sent as they
are made here, and answers with batches read to where they stay (answers.py).

Appends and reads have connections of their own: a broker answers those of one connection in order, and a fetch that
waits would hold them up. Nothing is connected until it is needed, and a cluster that is away is asked anew each time.
aiokafka's client is semi-public: only what is named here is used of it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.errors import (
    BrokerResponseError,
    IllegalSaslStateError,
    InvalidPartitionsError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import InitProducerIdRequest
from aiokafka.structs import TopicPartition

from gateway.brokers.kafka.answers import connected, watch_over
from gateway.brokers.kafka.codes import (
    COORDINATOR_LOADING,
    LEADER_NOT_AVAILABLE,
    NONE,
    OF_THE_MOMENT,
    TOPIC_EXISTS,
    Outcome,
    Stored,
)
from gateway.brokers.kafka.port import Fetched, Refused, Rejected, TopicDiffers, TopicPlan, Unreached
from store.limits import BATCH_BYTES_MAX
from store.types import Buffer

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 10_000
PRODUCE_TIMEOUT_MS = 8_000
"""How long a leader waits for its replicas; less than the request's own."""

FIT_FRESH_S = 5.0
"""How long a topic that was fit is taken to be."""

TRY_TIMEOUT_S = 5.0
REFRESH_TIMEOUT_S = 2.0
REFRESH_PAUSE_S = 0.5
"""When metadata could not be had, it is asked for again only after this time, however many callers want it: a request
goes to all brokers in turn, and aiokafka logs a line for each that is away."""

PRODUCE_VERSIONS = (3, 7)
"""Of requests to append: from the first one with batches to the last one of which answers end where these do. What is
read of answers is in all of them."""

FETCH_VERSIONS = (5, 11)
"""Of requests for batches: from the first one whose answers say where a log begins to the last one before their fields
have tags. Kafka 2.1 and newer know one that may have batches packed by zstd."""

TRIES = 20
PAUSE_S = 0.1
ACKS_ALL = -1
READ_UNCOMMITTED = 0
EARLIEST, LATEST = -2, -1

TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}
"""What a topic has that partitions of mq lie in; another one is refused."""

KEPT_SETTINGS = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Likewise, of a topic of which Kafka may expire nothing: the defaults of a cluster may set either. No topic is made
with a limit of bytes: what was acknowledged is kept for its time."""

FINAL = (ssl.SSLError, SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError)
"""Errors that another try does not change: of a wrong password, certificate, mechanism or protocol."""

T = TypeVar("T")
Row = TypeVar("Row", bound=Sequence[Any])
"""Of an answer, about one partition: its number, an error, and more."""

_I32 = struct.Struct(">i")
_HEAD = struct.Struct(">ihhi")  # size of what follows, API, version, correlation id
_NAME = struct.Struct(">h")  # its length
_BODY = struct.Struct(">hhiih")  # transactional id (none), acks, timeout, count of topics, length of the name
_PLACE = struct.Struct(">ii")  # count of partitions, number
_ANSWERED = struct.Struct(">ih")  # count of topics, length of the name
_ROW = struct.Struct(">hqq")  # error, base offset, time of the append
_ERROR_AND_SESSION = struct.Struct(">hi")
_FETCHED = struct.Struct(">ihqqq")  # partition, error, end, last stable offset, start
_ABORTED = struct.Struct(">qq")  # producer, first offset
_SESSION_FROM, _REPLICA_FROM = 7, 11


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """How to get into a Kafka cluster, and how topics are made there."""

    servers: tuple[str, ...]
    tls: ssl.SSLContext | None = None
    user: str | None = None
    password: str = ""
    mechanism: str = "SCRAM-SHA-512"
    prefix: str = ""
    replication: int = 3
    min_insync: int = 2


class Links:
    """`Kafka` over aiokafka."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._clients: dict[str, AIOKafkaClient] = {}
        self._admin: AIOKafkaAdminClient | None = None
        self._connecting = asyncio.Lock()
        self._not_before_s: dict[AIOKafkaClient, float] = {}  # when metadata that could not be had may be asked for
        self._fit: dict[str, tuple[int, float]] = {}  # topics: how many partitions, and until when that is believed
        self.trouble: str | None = None
        """See `Kafka.trouble`."""

    async def close(self) -> None:
        """Leave the cluster."""
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
        self._not_before_s.clear()
        if self._admin is not None:
            await self._admin.close()
            self._admin = None

    def _settings(self) -> dict[str, Any]:
        own = self._address
        security = ("SASL_" if own.user is not None else "") + ("PLAINTEXT" if own.tls is None else "SSL")
        settings: dict[str, Any] = {
            "bootstrap_servers": list(own.servers),
            "client_id": "mq",
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "security_protocol": security if own.user is not None or own.tls is not None else "PLAINTEXT",
            "ssl_context": own.tls,
        }
        if own.user is not None:
            settings |= {
                "sasl_mechanism": own.mechanism, "sasl_plain_username": own.user, "sasl_plain_password": own.password
            }  # fmt: skip
        return settings

    async def _client(self, purpose: str) -> AIOKafkaClient:
        """The client for appends, or for all else. Raises Unreached."""
        if (client := self._clients.get(purpose)) is not None:
            return client
        async with self._connecting:
            if (client := self._clients.get(purpose)) is None:
                client = AIOKafkaClient(**self._settings())
                await self._reached(client.bootstrap(), client)
                self._clients[purpose] = client
            return client

    async def _administrator(self) -> AIOKafkaAdminClient:
        async with self._connecting:
            if self._admin is None:
                admin = AIOKafkaAdminClient(**self._settings())
                await self._reached(admin.start(), admin)
                self._admin = admin
            return self._admin

    async def _reached(self, connecting: Awaitable[None], client: AIOKafkaClient | AIOKafkaAdminClient) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            await connecting
        except (KafkaError, OSError, TimeoutError) as error:
            await client.close()
            has_answered = loop.time() - begun_s < TRY_TIMEOUT_S  # who is silent is not waited for once more
            tried = await self._tried() if has_answered else []
            self.trouble = "; ".join(reason for reason, _ in tried) or repr(error)
            raise Unreached(self.trouble) from error
        self.trouble = None

    async def check(self) -> None:
        """See `Kafka.check`."""
        tried = await self._tried()
        if len(tried) < len(self._address.servers):
            return  # some let us in
        self.trouble = "; ".join(reason for reason, _ in tried)
        if any(is_final for _, is_final in tried):
            raise Rejected(self.trouble)
        log.warning("Kafka cannot be reached yet error=%s", self.trouble)

    async def _tried(self) -> list[tuple[str, bool]]:
        """Why each server that cannot be used cannot, and whether not only for the moment: aiokafka logs that, and
        raises that there is none."""
        found = await asyncio.gather(*[self._tried_one(server) for server in self._address.servers])
        return [one for one in found if one is not None]

    async def _tried_one(self, server: str) -> tuple[str, bool] | None:
        host, _, port = server.rpartition(":")
        settings = self._settings()
        del settings["bootstrap_servers"]
        try:
            async with asyncio.timeout(TRY_TIMEOUT_S):
                connection = await create_conn(host.strip("[]"), int(port), **settings)
        except FINAL as error:
            return f"{server}: {error}", True
        except (KafkaError, OSError, TimeoutError) as error:
            return f"{server}: {str(error) or repr(error)}", False
        connection.close()
        return None

    async def _refreshed(self, client: AIOKafkaClient) -> None:
        """Look at the metadata again. aiokafka asks the brokers that it named last: where these are away, and it may be
        one that named itself alone, the addresses of the settings lead to the others."""
        loop = asyncio.get_running_loop()
        if (wait_s := self._not_before_s.get(client, 0.0) - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        is_known = False
        with suppress(TimeoutError, KafkaError, OSError):
            async with asyncio.timeout(REFRESH_TIMEOUT_S):
                is_known = await client.force_metadata_update()
        if not is_known:
            with suppress(TimeoutError, KafkaError, OSError):
                async with asyncio.timeout(REFRESH_TIMEOUT_S):
                    await client.bootstrap()
                    is_known = await client.force_metadata_update()
        self._not_before_s[client] = 0.0 if is_known else loop.time() + REFRESH_PAUSE_S

    async def _leader(self, client: AIOKafkaClient, topic: str, partition: int) -> int | None:
        """The node that leads a partition; None: none does, as far as is known."""
        at = TopicPartition(topic, partition)
        for is_last in (False, True):
            leader = client.cluster.leader_for_partition(at)
            if leader is not None and leader != -1:
                return int(leader)
            if not is_last:
                await self._refreshed(client)
        return None

    # ---- appends ---------------------------------------------------------------------------------------------------

    async def lane(self, topic: str, partition: int) -> _Lane | None:
        """See `Kafka.lane`."""
        try:
            client = await self._client("appends")
            node = await self._leader(client, topic, partition)
            if node is None or (connection := await connected(client, node)) is None:
                await self._refreshed(client)
                return None
            return _Lane(self, client, connection, topic, partition)
        except Unreached as error:
            log.warning("Kafka cannot be reached error=%s", error)
            return None

    async def produce(self, topic: str, partition: int, batch: Buffer) -> Outcome:
        """See `Kafka.produce`."""
        lane = await self.lane(topic, partition)
        return LEADER_NOT_AVAILABLE if lane is None else await lane.send(batch)

    async def new_producer(self) -> int:
        """See `Kafka.new_producer`."""
        client = await self._client("reads")
        for _ in range(TRIES):
            answer = await self._asked(client, client.get_random_node(), InitProducerIdRequest(None, 0))
            if answer.error_code == NONE:
                return int(answer.producer_id)
            if answer.error_code != COORDINATOR_LOADING:
                raise Refused(answer.error_code, "a producer id")
            await asyncio.sleep(PAUSE_S)
        raise Unreached("Kafka gives no producer id yet")

    # ---- reads -----------------------------------------------------------------------------------------------------

    async def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int) -> Fetched:
        """See `Kafka.fetch`."""
        row = await self._fetch(topic, partition, offset, max_bytes, wait_ms, READ_UNCOMMITTED)
        return Fetched(row.batches, row.start, row.end)

    async def _fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int, isolation: int
    ) -> _FetchedRow:
        request = FetchRequest(wait_ms, 1, max_bytes, isolation, [(topic, [(partition, offset, max_bytes)])])

        async def ask(client: AIOKafkaClient, node: int) -> _FetchedRow:
            return await self._answered(client, _fetched(client, node, request))

        return await self._of_leader(topic, partition, ask)

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `Kafka.bounds`."""
        start = await self._offset(topic, partition, EARLIEST)
        end = await self._offset(topic, partition, LATEST)
        return start, end

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """See `Kafka.offset_at`."""
        found = await self._offset(topic, partition, max(0, time_ms))
        return None if found < 0 else found

    async def _offset(self, topic: str, partition: int, time_ms: int) -> int:
        request = OffsetRequest(-1, READ_UNCOMMITTED, [(topic, [(partition, time_ms)])])

        async def ask(client: AIOKafkaClient, node: int) -> Sequence[Any]:
            [(_, [row])] = (await self._asked(client, node, request)).topics
            return tuple(row)

        return int((await self._of_leader(topic, partition, ask))[3])

    async def _of_leader(self, topic: str, partition: int, ask: Callable[[AIOKafkaClient, int], Awaitable[Row]]) -> Row:
        """What the leader of a partition answers about it; asked again when it is another one. Raises Unreached,
        Refused."""
        client = await self._client("reads")
        code = LEADER_NOT_AVAILABLE
        for _ in range(TRIES):
            node = await self._leader(client, topic, partition)
            if node is not None:
                row = await ask(client, node)
                code = row[1]
                if code == NONE:
                    return row
                if code not in OF_THE_MOMENT:
                    raise Refused(code, f"topic {topic}, partition {partition}")
            await asyncio.sleep(PAUSE_S)
            await self._refreshed(client)
        raise Unreached(f"partition {partition} of topic {topic} has no leader: Kafka's error {code}")

    async def _asked(self, client: AIOKafkaClient, node: int | None, request: Any) -> Any:
        async def send() -> Any:
            if node is None or not await client.ready(node):
                raise Unreached(f"node {node} of Kafka cannot be reached")
            watch_over(client._conns[node, ConnectionGroup.DEFAULT])
            return await client.send(node, request)

        return await self._answered(client, send())

    async def _answered(self, client: AIOKafkaClient, asked: Awaitable[T]) -> T:
        """Raises Unreached."""
        try:
            answer = await asked
        except (KafkaError, OSError, TimeoutError) as error:
            await self._refreshed(client)
            self.trouble = repr(error)
            raise Unreached(self.trouble) from error
        self.trouble = None
        return answer

    # ---- topics ----------------------------------------------------------------------------------------------------

    async def make_topic(self, plan: TopicPlan) -> None:
        """See `Kafka.make_topic`. What was just found to be fit is not looked at again: each partition asks."""
        partitions, until_s = self._fit.get(plan.name, (0, 0.0))
        now_s = asyncio.get_running_loop().time()
        if plan.partitions > partitions or now_s > until_s:
            await self._make_topic(plan)
            self._fit[plan.name] = plan.partitions, now_s + FIT_FRESH_S

    async def _make_topic(self, plan: TopicPlan) -> None:
        own = self._address
        settings = {
            **TOPIC_SETTINGS,
            "min.insync.replicas": str(own.min_insync),
            "max.message.bytes": str(BATCH_BYTES_MAX),
            **KEPT_SETTINGS,
            "retention.ms": str(plan.retention_ms),
        }
        new = NewTopic(plan.name, plan.partitions, own.replication, topic_configs=settings)
        admin = await self._administrator()
        if plan.older_than:
            there = await self._done(admin.list_topics())
            younger = sorted(set(plan.older_than).intersection(there))
            if younger and plan.name not in there:
                raise TopicDiffers(
                    f"topic {plan.name} is not in Kafka, but {', '.join(younger)} of the same prefix: it was deleted, "
                    "or these belong to a cluster with its metadata elsewhere. Choose another prefix; or delete these "
                    "too, to begin with an empty cluster"
                )
        answer = await self._done(admin.create_topics([new]))
        [(_, code, *message)] = answer.topic_errors
        if code == TOPIC_EXISTS:
            await self._check_topic(admin, plan)
        elif code != NONE:
            raise TopicDiffers(
                f"topic {plan.name} cannot be made in Kafka (error {code}): {message[0] if message else ''}"
            )
        else:
            log.info("topic made in Kafka topic=%s partitions=%d", plan.name, plan.partitions)

    async def _check_topic(self, admin: AIOKafkaAdminClient, plan: TopicPlan) -> None:
        [described] = await self._done(admin.describe_topics([plan.name]))
        partitions = described["partitions"]
        if not partitions:  # the broker that was asked has not heard yet of a topic that was just made
            raise Unreached(f"topic {plan.name} in Kafka is not known to all brokers yet")
        wrong = []
        if (replicas := min(len(one["replicas"]) for one in partitions)) < self._address.replication:
            wrong.append(f"it has {replicas} replicas, and needs {self._address.replication}")
        if plan.is_kept and len(partitions) != plan.partitions:
            wrong.append(f"it has {len(partitions)} partitions, and must have {plan.partitions}")
        found = await self._settings_of(admin, plan.name)
        wrong += [
            f"{name} is {found.get(name)}, and must be {value}"
            for name, value in {**TOPIC_SETTINGS, **(KEPT_SETTINGS if plan.is_kept else {})}.items()
            if found.get(name) != value
        ]
        least = {"min.insync.replicas": self._address.min_insync, "max.message.bytes": BATCH_BYTES_MAX}
        wrong += [
            f"{name} is {found.get(name)}, and must be {value} at least"
            for name, value in least.items()
            if int(found.get(name) or 0) < value
        ]
        if wrong:
            raise TopicDiffers(f"topic {plan.name} in Kafka is not fit for mq: {'; '.join(wrong)}")
        if len(partitions) < plan.partitions:
            await self._grow(admin, plan)

    async def _grow(self, admin: AIOKafkaAdminClient, plan: TopicPlan) -> None:
        try:
            await self._done(admin.create_partitions({plan.name: NewPartitions(plan.partitions)}))
        except Unreached as error:
            if isinstance(error.__cause__, InvalidPartitionsError):  # another node was faster
                return
            if isinstance(error.__cause__, BrokerResponseError):
                reason = f"topic {plan.name} in Kafka cannot have {plan.partitions} partitions: {error.__cause__}"
                raise TopicDiffers(reason) from error
            raise
        log.info("topic grown in Kafka topic=%s partitions=%d", plan.name, plan.partitions)

    async def _settings_of(self, admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
        [configs] = await self._done(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        [(code, message, _, _, entries)] = configs.resources
        if code != NONE:
            raise Refused(code, f"settings of topic {topic}: {message}")
        return {entry[0]: entry[1] for entry in entries}

    async def _done(self, asked: Awaitable[T]) -> T:
        """What the cluster answers an administrator. Raises Unreached, because of what aiokafka raises."""
        try:
            answer = await asked
        except BrokerResponseError as error:
            self.trouble = None
            raise Unreached(repr(error)) from error
        except (KafkaError, OSError, TimeoutError) as error:
            self.trouble = repr(error)
            if self._admin is not None:  # all brokers that it knows may be away: see `_refreshed`
                admin, self._admin = self._admin, None
                await admin.close()
            raise Unreached(repr(error)) from error
        self.trouble = None
        return answer

    async def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """See `Kafka.delete_before`."""
        admin = await self._administrator()
        await self._done(
            admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before_offset=offset)})
        )


class _FetchedRow(NamedTuple):
    """What an answer says of one partition; see `Fetched`. `stable`: the last stable offset; `aborted`: the producer
    and the first offset of each transaction in it that was aborted."""

    partition: int
    code: int
    end: int
    stable: int
    start: int
    aborted: Sequence[tuple[int, int]]
    batches: memoryview


class _Fetch:
    """Reads the answer to a request for batches of one partition."""

    def __init__(self, version: int) -> None:
        self._version = version

    def read(self, answer: memoryview) -> _FetchedRow:
        """See `Asked.read`."""
        at = _I32.size  # behind the throttle time
        if self._version >= _SESSION_FROM:
            code, _ = _ERROR_AND_SESSION.unpack_from(answer, at)
            at += _ERROR_AND_SESSION.size
            if code != NONE:
                return _FetchedRow(-1, code, -1, -1, -1, (), answer[:0])
        topics, name_bytes = _ANSWERED.unpack_from(answer, at)
        at += _ANSWERED.size + name_bytes
        (partitions,) = _I32.unpack_from(answer, at)
        if (topics, partitions) != (1, 1):
            raise ValueError(f"an answer about {topics} topics and {partitions} partitions, not one")
        at += _I32.size
        partition, code, end, stable, start = _FETCHED.unpack_from(answer, at)
        at += _FETCHED.size
        aborted_count = max(0, _I32.unpack_from(answer, at)[0])  # -1: null, which is none
        at += _I32.size
        aborted = [_ABORTED.unpack_from(answer, at + number * _ABORTED.size) for number in range(aborted_count)]
        at += aborted_count * _ABORTED.size + (_I32.size if self._version >= _REPLICA_FROM else 0)
        (size,) = _I32.unpack_from(answer, at)
        at += _I32.size
        if at + size > len(answer):
            raise ValueError(f"an answer of {len(answer)} bytes with {size} bytes of batches from byte {at} on")
        return _FetchedRow(partition, code, end, stable, start, aborted, answer[at : at + max(0, size)])


async def _fetched(client: AIOKafkaClient, node: int, request: FetchRequest) -> _FetchedRow:
    """Raises Unreached, KafkaError, OSError, TimeoutError."""
    if (connection := await connected(client, node)) is None:
        raise Unreached(f"node {node} of Kafka cannot be reached")
    low, high = connection._versions[FetchRequest.API_KEY]
    least, most = FETCH_VERSIONS
    if high < least or low > most:
        raise Unreached(f"it knows Fetch in versions {low} to {high}, and none of {least} to {most}")
    made = request.prepare({FetchRequest.API_KEY: (low, min(high, most))})
    correlation_id = connection._next_correlation_id()
    head = made.build_request_header(correlation_id=correlation_id, client_id=connection._client_id).encode()
    message = head + made.encode()
    answer: asyncio.Future[_FetchedRow] = asyncio.get_running_loop().create_future()
    connection._writer.write(_I32.pack(len(message)) + message)
    connection._requests.append((correlation_id, _Fetch(made.API_VERSION), answer))
    try:
        async with asyncio.timeout(connection._request_timeout):
            return await answer
    except TimeoutError:
        connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
        raise


class _Lane:
    """See `Lane`. It makes requests and reads their answers: what aiokafka makes of a request, of its answer and of who
    waits is a hundred calls a batch, and eight copies of it."""

    API_KEY = ProduceRequest.API_KEY

    def __init__(
        self, links: Links, client: AIOKafkaClient, connection: AIOKafkaConnection, topic: str, partition: int
    ) -> None:
        """Raises Unreached for a Kafka that knows none of PRODUCE_VERSIONS."""
        self._links, self._client, self._connection = links, client, connection
        self._topic, self._partition = topic, partition
        low, high = connection._versions[self.API_KEY]
        self._version = min(high, PRODUCE_VERSIONS[-1])
        if self._version < max(low, PRODUCE_VERSIONS[0]):
            least, most = PRODUCE_VERSIONS
            raise Unreached(f"it knows Produce in versions {low} to {high}, and none of {least} to {most}")
        name, own_name = topic.encode(), connection._client_id.encode()
        self._asked = b"".join((  # what all requests have between their numbers and the size of their batch
            _NAME.pack(len(own_name)), own_name,
            _BODY.pack(-1, ACKS_ALL, PRODUCE_TIMEOUT_MS, 1, len(name)), name, _PLACE.pack(1, partition),
        ))  # fmt: skip
        self._answered = b"".join((_ANSWERED.pack(1, len(name)), name, _PLACE.pack(1, partition)))

    def send(self, *parts: Buffer) -> asyncio.Future[Outcome]:
        """See `Lane.send`."""
        connection = self._connection
        waiting = _Waiting(self, connection._request_timeout)
        if (writer := connection._writer) is None:
            waiting.set_exception(KafkaConnectionError(f"the connection to {connection.host} has ended"))
            return waiting.outcome
        correlation_id = connection._next_correlation_id()
        batch_bytes = sum(map(len, parts))
        # Its own four bytes are not counted, those of the batch's size are.
        size = _HEAD.size + len(self._asked) + batch_bytes
        head = _HEAD.pack(size, self.API_KEY, self._version, correlation_id)
        try:
            writer.writelines((b"".join((head, self._asked, _I32.pack(batch_bytes))), *parts))
        except (OSError, RuntimeError) as error:  # the latter of a transport that has ended in this very turn
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
            waiting.set_exception(error)
            return waiting.outcome
        connection._requests.append((correlation_id, self, waiting))
        return waiting.outcome

    def read(self, answer: memoryview) -> Outcome:
        """See `Asked.read`."""
        if answer[: len(self._answered)] != self._answered or len(answer) < len(self._answered) + _ROW.size:
            raise ValueError(f"an answer of {len(answer)} bytes is none to a batch for {self._topic}/{self._partition}")
        code, base_offset, time_ms = _ROW.unpack_from(answer, len(self._answered))
        return Stored(base_offset, time_ms) if code == NONE else int(code)

    # ---- what becomes of a batch -------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Kafka has answered."""
        self._links.trouble = None

    def lost(self, error: BaseException) -> None:
        """An answer will not come."""
        log.warning("answer of Kafka lost topic=%s partition=%d error=%r", self._topic, self._partition, error)
        self._links.trouble = repr(error)

    def end(self) -> None:
        """An answer is late: what is behind it would be later still."""
        self._connection.close(reason=CloseReason.CONNECTION_TIMEOUT)

    async def look_again(self) -> None:
        """Another node may lead the partition: ask for the metadata."""
        await self._links._refreshed(self._client)


class _Waiting:
    """Who waits for the answer to one batch: of a future what an aiokafka connection asks for."""

    __slots__ = ("_is_told", "_lane", "_timer", "outcome")

    def __init__(self, lane: _Lane, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._lane = lane
        self._is_told = False
        self.outcome: asyncio.Future[Outcome] = loop.create_future()
        self._timer = loop.call_later(timeout_s, self._is_late)

    def done(self) -> bool:
        """Whether it is told, or nobody waits for it any more."""
        return self._is_told or self.outcome.done()

    def set_result(self, outcome: Outcome) -> None:
        """Kafka has answered."""
        self._tell()
        self._lane.answered()
        if outcome in OF_THE_MOMENT:
            self._look_again(outcome)
        else:
            self.outcome.set_result(outcome)

    def set_exception(self, error: BaseException) -> None:
        """It will not."""
        self._tell()
        self._lane.lost(error)
        self._look_again(None)

    def _is_late(self) -> None:
        if not self.done():
            self.set_exception(TimeoutError())
            self._lane.end()

    def _tell(self) -> None:
        self._is_told = True
        self._timer.cancel()

    def _look_again(self, outcome: Outcome) -> None:
        """Say what became of the batch once the metadata have been looked at."""
        looking = asyncio.ensure_future(self._lane.look_again())

        def ended(_: asyncio.Task[None]) -> None:
            if not self.outcome.done():
                self.outcome.set_result(outcome)

        looking.add_done_callback(ended)
        self.outcome.add_done_callback(lambda _: looking.cancel())
