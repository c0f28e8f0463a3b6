"""Another node's embedded broker: `Broker` over links (peer_link.py) and HTTP. Its server is
gateway/surfaces/peer/server.py.

    appends            a link of their own: no other answer stands before theirs
    AT_ONCE            reads, delayed records, and what a move asks: a second link
    the rest           HTTP: what waits for something to happen, and what may be of any size
    a node of before   HTTP
    a process of this  one link
    machine

Batches pass as they are. Appends of many callers that wait go in one request, and one request is under way at a time:
so their order is that of the calls, and they share the other node's fdatasync. Meanwhile the next one gathers.

    the other node refused the connection    BrokerUnreachable: nothing was stored
    the answer did not arrive                 AnswerLost for appends and schedules; what only reads, or may be done
                                              twice, is BrokerUnreachable
    a code that does not fit                  likewise; the log says so
    the other node's store has stopped        likewise: StoreStopped is said of a node's own store

A queue of an embedded broker belongs to one epoch (gateway/cluster/move.py), so the queue that a call names says in
which epoch its caller believes; the broker answers SealedQueue for one that is over.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp

from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.cluster import peer_wire
from gateway.cluster.peer_auth import NotAuthentic, Secret, Stamp, check_code
from gateway.cluster.peer_light import LightWatches
from gateway.cluster.peer_link import (
    CODE_HEADER,
    CONNECT_TIMEOUT_S,
    HEAD_CODE_HEADER,
    MESSAGE_BYTES_MAX,
    PATH,
    STAMP_HEADER,
    Link,
    LinkLost,
    LinkRefused,
    NoLinks,
)
from gateway.cluster.peer_wire import Head, Message
from store.clock import Clock
from store.errors import Overloaded, StoreError, StoreStopped, UnknownQueue
from store.limits import MiB
from store.types import (
    Acks,
    Append,
    Appended,
    Boundary,
    Bounds,
    Buffer,
    ExportedIds,
    LightRead,
    LightWake,
    QueueKey,
    ReadResult,
)

log = logging.getLogger(__name__)

AT_ONCE = frozenset(
    (
        "read", "bounds", "offset_for_time", "light_bounds", "read_light", "light_names", "light_ends", "light_news",
        "create_queue", "seal_queue", "export_ids", "import_ids", "expire_queue", "schedule",
    )
)  # fmt: skip
"""Operations that wait for nothing but the other node's disk, or Kafka, and whose answers are bounded."""

ANSWER_BYTES_MAX = 64 * MiB
"""Over a link: a read of one entry, as large as entries are, and its head."""

NO_LINKS_S = 60.0
"""How long a node that knows no links, as it is of an older version, is not asked for one again."""

WAITING_BYTES_MAX = 64 * MiB
"""Bytes of appends that wait for one peer; beyond it they are refused."""

FIRST_KEPT_FRESH_S = 5.0
"""How long the first offset of a sealed queue is believed."""

FIRST_KEPT_MAX = 10_000
"""Sealed queues of which it is remembered."""

CALL_TIMEOUT_S = 10.0
WATCH_WAIT_MS = 25_000
TAKE_GROUP_MS = 20_000
"""How long another node may take, over the time of a call, to write a group that it takes."""

RETRY_S = 0.2


class _Call(NamedTuple):
    """One call of `append`."""

    appends: Sequence[Append]
    acks: Acks
    size: int
    done: asyncio.Future[list[Appended]]


class PeerBroker:
    """`Broker` on another node; `address` is `http://host:port` or `unix:/path`. An async context manager."""

    def __init__(self, name: str, address: str, secret: Secret, clock: Clock) -> None:
        self._name = name
        self._secret = secret
        self._reach(address)
        self._clock = clock
        self._sender = secrets.token_hex(8)
        self._number = 0
        self._waiting: deque[_Call] = deque()
        self._waiting_bytes = 0
        self._first_kept: dict[QueueKey, tuple[int, float]] = {}  # and until when it is believed
        self._away_since_s: float | None = None  # when it was first not reached; None: it answered the last time
        self._has_light = False
        self._light_watches = LightWatches(self._look, self.watch)
        self._sending: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._http: aiohttp.ClientSession

    def _reach(self, address: str) -> None:
        self._url = address.rstrip("/") + PATH
        self._is_unix = address.startswith("unix:")
        self._link: Link | None = None
        self._second_link: Link | None = None
        self._no_links_until_s = 0.0
        if not address.startswith("https:"):
            self._link = Link(address, self._secret, bytes_max=ANSWER_BYTES_MAX, stamp=self._stamp)
            self._second_link = Link(address, self._secret, bytes_max=ANSWER_BYTES_MAX, stamp=self._stamp)

    async def __aenter__(self) -> PeerBroker:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._light_watches.close()
        tasks = [*self._running, *([self._sending] if self._sending is not None else ())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for call in self._waiting:
            _settle(call, BrokerUnreachable(f"broker {self._name} is left"))
        self._waiting.clear()
        self._close_links()
        await self._http.close()

    def _close_links(self) -> None:
        for link in (self._link, self._second_link):
            if link is not None:
                link.close()

    @property
    def name(self) -> str:
        """See `Broker.name`."""
        return self._name

    @property
    def served_by(self) -> str:
        """See `Broker`."""
        return self._name

    def reach_at(self, address: str) -> None:
        """The node has been started again, and is at another address of the same kind (TCP)."""
        if not self._is_unix and address.rstrip("/") + PATH != self._url:
            self._close_links()
            self._reach(address)

    async def look_at_topic(self, name: str) -> None:
        """Have the other node look at a topic that was made, changed or deleted, in the metadata: it need not wait
        until its watch has come round. Raises as `bounds`."""
        await self._look("look_at_topic", {"name": name})

    async def ask(self, operation: str, head: Head, *, wait_ms: int = 0) -> Head:
        """What else the other process answers, beside a broker's operations (`PeerService`, `more`). Raises as
        `bounds`; so it must do no harm when it is done twice."""
        answered, _ = await self._look(operation, head, wait_ms=wait_ms)
        return answered

    async def take_group(self, group: str, events: bytes, *, size_bytes: int, revision: int) -> bool:
        """Have the other node take a group that leaves this one, if its owner's key still has that revision; whether
        it has it now. `events`: all that it is (gateway/groups/coordinator/handover.py). Raises what the other node
        raises, BrokerUnreachable, Unavailable: it has not; AnswerLost: it is not known."""
        head = {"group": group, "size": len(events), "size_bytes": size_bytes, "revision": revision}
        answered, _ = await self._ask("take_group", head, [events], wait_ms=TAKE_GROUP_MS)
        return bool(answered["taken"])

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def _ask(
        self, operation: str, head: Head, batches: Sequence[Buffer] = (), *, wait_ms: int = 0
    ) -> tuple[Head, memoryview]:
        """The answer. Raises what the other node raises, BrokerUnreachable, AnswerLost."""
        message = peer_wire.pack(head, batches)
        timeout_s = CALL_TIMEOUT_S + wait_ms / 1000
        try:
            answer = await self._answer(operation, message, timeout_s)
        except BrokerUnreachable as error:
            raise BrokerUnreachable(str(error), self._away_s()) from error
        except AnswerLost:
            self._away_s()
            raise
        self._away_since_s = None
        try:
            answered, rest = peer_wire.unpack(answer)
            if "error" in answered:
                raise self._error_of(answered)
        except (ValueError, TypeError, KeyError) as error:
            raise self._strange(error) from error
        return answered, rest

    def _away_s(self) -> float:
        """It was not reached now: for how long that has been so."""
        now_s = asyncio.get_running_loop().time()
        if self._away_since_s is None:
            self._away_since_s = now_s
        return now_s - self._away_since_s

    async def _answer(self, operation: str, message: Message, timeout_s: float) -> bytes:
        now_s = asyncio.get_running_loop().time()
        if (link := self._link_for(operation, now_s)) is not None:
            try:
                return await link.ask(operation, message, timeout_s)
            except NoLinks:
                self._no_links_until_s = now_s + NO_LINKS_S
            except LinkRefused as error:
                raise BrokerUnreachable(f"broker {self._name}: {error}") from error
            except LinkLost as error:
                raise AnswerLost(f"broker {self._name}: {error}") from error
        return await self._posted(operation, b"".join(message), timeout_s)

    def _link_for(self, operation: str, now_s: float) -> Link | None:
        """None: it is asked by HTTP."""
        if self._is_unix:
            return self._link
        if now_s < self._no_links_until_s:
            return None
        if operation == "append":
            return self._link
        return self._second_link if operation in AT_ONCE else None

    def _stamp(self) -> Stamp:
        self._number += 1
        return Stamp(self._sender, self._number, self._clock.now_ms())

    async def _posted(self, operation: str, body: bytes, timeout_s: float) -> bytes:
        stamp, secret = self._stamp(), self._secret.current
        head_code = secret.head_code(stamp, PATH + operation, len(body))
        code = secret.request_code(head_code, body)
        headers = {STAMP_HEADER: stamp.text, HEAD_CODE_HEADER: head_code, CODE_HEADER: code}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.post(self._url + operation, data=body, headers=headers) as response,
            ):
                answer = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise BrokerUnreachable(f"broker {self._name}: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AnswerLost(f"broker {self._name}: {type(error).__name__} {error}") from error
        try:
            check_code(secret.answer_code(code, response.status, answer), response.headers.get(CODE_HEADER, ""))
        except NotAuthentic as error:
            raise self._strange(error) from error
        return answer

    def _strange(self, error: Exception) -> AnswerLost:
        log.error("broker does not answer as a node of this cluster broker=%s error=%s", self._name, error)
        return AnswerLost(f"broker {self._name} does not answer as a node of this cluster: {error}")

    def _error_of(self, head: Head) -> StoreError:
        """A store that has stopped is another node's: its caller only learns that the outcome of the call is not known.
        Likewise for an error of a newer version."""
        error = peer_wire.error_of(head)
        is_unknown = isinstance(error, StoreStopped) or type(error) is StoreError
        return AnswerLost(f"broker {self._name}: {error}") if is_unknown else error

    async def _look(
        self, operation: str, head: Head, batches: Sequence[Buffer] = (), *, wait_ms: int = 0
    ) -> tuple[Head, memoryview]:
        """As `_ask`, for what changes nothing, or nothing when it is done twice."""
        try:
            return await self._ask(operation, head, batches, wait_ms=wait_ms)
        except AnswerLost as error:
            away_s = 0.0 if self._away_since_s is None else self._away_s()
            raise BrokerUnreachable(str(error), away_s) from error

    # ---- appends ---------------------------------------------------------------------------------------------------

    def expect_appends(self) -> None:
        """A partition is about to come to the other node: have the link over which sends to it go."""
        if (link := self._link_for("append", asyncio.get_running_loop().time())) is not None:
            self._beside(link.make(), "link")

    async def append(self, appends: Sequence[Append], *, acks: Acks) -> list[Appended]:
        """See `Broker.append`."""
        return await asyncio.shield(self.begin_append(appends, acks=acks))

    def begin_append(self, appends: Sequence[Append], *, acks: Acks) -> asyncio.Future[list[Appended]]:
        """See `Broker.begin_append`; what the other node refuses, the future says."""
        size = sum(len(append.batch) for append in appends)
        if self._waiting_bytes + size > WAITING_BYTES_MAX and self._waiting:
            raise Overloaded(f"{self._waiting_bytes} bytes wait for broker {self._name}; at most {WAITING_BYTES_MAX}")
        done: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(appends, acks, size, done))
        self._waiting_bytes += size
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all(), name=f"appends to {self._name}")
        return done

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # who else sends in this turn comes along
        while self._waiting:
            group: list[_Call] = []
            size = 0
            while self._waiting and (not group or size + self._waiting[0].size <= MESSAGE_BYTES_MAX):
                group.append(self._waiting.popleft())
                size += group[-1].size
            try:
                await self._send(group)
            except StoreError as error:
                for call in group:
                    _settle(call, error)
            except BaseException:
                for call in group:
                    _settle(call, AnswerLost(f"broker {self._name} is left before it answered"))
                raise
            finally:
                self._waiting_bytes -= size

    async def _send(self, group: Sequence[_Call]) -> None:
        calls = [[int(call.acks), [peer_wire.append_head(append) for append in call.appends]] for call in group]
        answered, _ = await self._ask(
            "append",
            {"calls": calls},
            [part for call in group for append in call.appends for part in peer_wire.append_parts(append)],
        )
        for call, answer in zip(group, answered["calls"], strict=True):
            if isinstance(answer, dict):
                _settle(call, self._error_of(answer))
            elif not call.done.done():
                call.done.set_result([peer_wire.appended_of(fields) for fields in answer])

    async def schedule(self, append: Append, *, acks: Acks, keys: Sequence[bytes | None] = ()) -> Appended:
        """See `Broker.schedule`."""
        head = {
            "append": peer_wire.append_head(append),
            "acks": int(acks),
            "keys": [None if key is None else key.hex() for key in keys],
            "light": self._has_light,
        }
        answered, _ = await self._ask("schedule", head, [append.batch])
        return peer_wire.appended_of(answered["appended"])

    # ---- reads -----------------------------------------------------------------------------------------------------

    async def read(
        self,
        queue: QueueKey,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int | None = None,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:
        """See `Broker.read`."""
        head = {"queue": queue, "offset": offset, "max_bytes": max_bytes, "end": end_offset}
        if tag_hashes is not None:
            head["tags"] = sorted(tag_hashes)
        return peer_wire.read_result(*await self._look("read", head))

    async def bounds(self, queue: QueueKey) -> Bounds:
        """See `Broker.bounds`."""
        answered, _ = await self._look("bounds", {"queue": queue})
        return Bounds(*answered["bounds"])

    async def offset_for_time(self, queue: QueueKey, time_ms: int, boundary: Boundary) -> int:
        """See `Broker.offset_for_time`."""
        head = {"queue": queue, "time_ms": time_ms, "boundary": boundary.value}
        answered, _ = await self._look("offset_for_time", head)
        return int(answered["offset"])

    async def first_kept(self, queue: QueueKey) -> int:
        """See `Broker.first_kept`. It only rises, as records expire."""
        now_s = asyncio.get_running_loop().time()
        first, until_s = self._first_kept.get(queue, (0, 0.0))
        if now_s >= until_s:
            with suppress(BrokerUnreachable):
                first = (await self.bounds(queue)).min_offset
            if len(self._first_kept) >= FIRST_KEPT_MAX:
                self._first_kept.clear()
            self._first_kept[queue] = first, now_s + FIRST_KEPT_FRESH_S
        return first

    def watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> Callable[[], None]:
        """See `Broker.watch`. At first, and after the other node could not be reached, all queues are told."""
        task = self._beside(self._watch(topic_id, wake), "watch")

        def call_off() -> None:
            task.cancel()

        return call_off

    def _beside(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"{name} of {self._name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _watch(self, topic_id: int, wake: Callable[[Mapping[QueueKey, int]], None]) -> None:
        token, number = "", 0
        while True:
            head = {"topic_id": topic_id, "token": token, "number": number, "wait_ms": WATCH_WAIT_MS}
            try:
                answered, _ = await self._look("changes", head, wait_ms=WATCH_WAIT_MS)
            except UnknownQueue:
                wake({})
                return
            except StoreError:
                if token:
                    wake({})
                token = ""
                await asyncio.sleep(RETRY_S)
                continue
            token, number = answered["token"], answered["number"]
            if answered["queues"]:  # the first time all of them: some may have changed before it was asked
                wake({QueueKey(topic_id, queue_id): end for queue_id, end in answered["queues"]})

    # ---- light queues ----------------------------------------------------------------------------------------------

    async def light_bounds(self, queue: QueueKey, name: bytes) -> Bounds:
        """See `Store.light_bounds`."""
        answered, _ = await self._look("light_bounds", {"queue": queue, "name": name.decode()})
        return Bounds(*answered["bounds"])

    async def read_light(
        self, queue: QueueKey, name: bytes, offset: int, *, max_records: int, max_bytes: int
    ) -> LightRead:
        """See `Store.read_light`."""
        head = {"queue": queue, "name": name.decode(), "offset": offset, "records": max_records, "bytes": max_bytes}
        return peer_wire.light_read(*await self._look("read_light", head))

    async def light_names(self, queue: QueueKey, prefix: bytes, *, after: bytes, count: int) -> list[bytes]:
        """See `Store.light_names`."""
        head = {"queue": queue, "prefix": prefix.decode(), "after": after.decode(), "count": count}
        answered, _ = await self._look("light_names", head)
        return [name.encode() for name in answered["names"]]

    def note_light(self) -> None:
        """See `LightQueues.note_light`: the node hears of it with each schedule, and notes it before it takes the
        first. It notes appends by itself."""
        self._has_light = True

    def watch_light(self, queue: QueueKey, name: bytes, end: int | None, wake: LightWake) -> Callable[[], None]:
        """See `LightQueues.watch_light`."""
        return self._light_watches.watch(queue, name, end, wake)

    # ---- queues ----------------------------------------------------------------------------------------------------

    async def create_queue(self, queue: QueueKey) -> None:
        """See `Broker.create_queue`."""
        await self._look("create_queue", {"queue": queue})

    async def seal_queue(self, queue: QueueKey) -> int:
        """See `Broker.seal_queue`."""
        answered, _ = await self._look("seal_queue", {"queue": queue})
        return int(answered["end"])

    async def export_ids(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> ExportedIds:
        """See `Broker.export_ids`."""
        head = {"queue": queue, "into": into, "shift": shift, "since": since}
        return _exported(*await self._look("export_ids", head))

    async def leave_queue(self, queue: QueueKey, *, into: QueueKey, shift: int, since: int) -> tuple[int, ExportedIds]:
        """See `NodeBroker.leave_queue`. A node of before only seals, and is asked for the ids then."""
        head = {"queue": queue, "into": into, "shift": shift, "since": since}
        answered, rest = await self._look("seal_queue", head)
        end = int(answered["end"])
        if "next" in answered:
            return end, _exported(answered, rest)
        return end, await self.export_ids(queue, into=into, shift=shift, since=since)

    async def import_ids(self, content: bytes) -> None:
        """See `Broker.import_ids`."""
        await self._look("import_ids", {"size": len(content)}, [content])

    async def expire_queue(self, queue: QueueKey, before_offset: int) -> None:
        """See `Broker.expire_queue`."""
        await self._look("expire_queue", {"queue": queue, "before": before_offset})


def _exported(head: Head, rest: memoryview) -> ExportedIds:
    return ExportedIds(bytes(rest), int(head["next"]), bool(head["last"]))


def _settle(call: _Call, error: StoreError) -> None:
    if not call.done.done():
        call.done.set_exception(error)
