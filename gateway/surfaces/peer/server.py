"""This node's broker, for the other nodes: the server of gateway/cluster/peer.py. It belongs on a listener that clients
do not reach; a caller that does not know the cluster's secret is answered 401 and nothing else.

One route, `POST /peer/v1/<operation>`. The body is read when its head has proved to be of a node of the cluster: a
stranger takes no memory. `POST /peer/v1/link` makes its connection a link (gateway/cluster/peer_link.py).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, cast

from aiohttp import hdrs, web

from gateway.brokers.base import Broker, LightQueues, NodeBroker
from gateway.cluster import peer_wire
from gateway.cluster.peer_auth import NONCE_BYTES, NotAuthentic, Secret, SeenRequests, Stamp, check_code, parse_stamp
from gateway.cluster.peer_link import (
    CODE_HEADER,
    HEAD_CODE_HEADER,
    LINK,
    MESSAGE_BYTES_MAX,
    PATH,
    STAMP_HEADER,
    switching,
)
from gateway.cluster.peer_wire import Batches, Head, Message
from gateway.surfaces.peer.connection import LinkConnection
from gateway.surfaces.peer.light import light_operations
from store.clock import Clock
from store.errors import StoreError, UnknownQueue
from store.limits import MiB
from store.types import Acks, Append, Appended, Boundary, ExportedIds, QueueKey

log = logging.getLogger(__name__)

BODY_BYTES_MAX = MESSAGE_BYTES_MAX + 64 * MiB
"""The largest single append, and a head."""

WAIT_MS_MAX = 60_000
REFUSED_LOG_INTERVAL_S = 10.0
"""How often a line about refused requests is written."""

FORGET_S = 60.0
"""Changes of a topic that was not asked for this long are not noted any more."""


async def nothing(_: object) -> None:
    """Topics come from nowhere else."""


async def _no_groups(_group: str, _events: bytes, _size_bytes: int, _revision: int) -> bool:
    """There are none here."""
    return False


class PeerService:
    """Answers operations. `queues_of` names all queues of a topic. `know` learns of topics, by id, that other nodes may
    have learned of before; it returns at once when it knows them all. `look_at` applies what the metadata says of a
    topic, by name. `more`: operations that are no broker's, by name. `take_group` takes a group that leaves another
    node; see `PeerBroker.take_group`."""

    def __init__(
        self,
        broker: NodeBroker,
        secret: Secret,
        clock: Clock,
        *,
        queues_of: Callable[[int], Sequence[QueueKey]],
        know: Callable[[Collection[int]], Awaitable[None]] = nothing,
        look_at: Callable[[str], Awaitable[None]] = nothing,
        more: Mapping[str, Callable[[Head], Awaitable[Head]]] | None = None,
        take_group: Callable[[str, bytes, int, int], Awaitable[bool]] = _no_groups,
    ) -> None:
        self._broker = broker
        self._secret = secret
        self._clock = clock
        self._queues_of = queues_of
        self._know = know
        self._look_at = look_at
        self.take_group = take_group
        self._seen = SeenRequests()
        self._changes: dict[int, _TopicChanges] = {}
        self._links: set[LinkConnection] = set()
        self.refused_count = 0
        self._quiet_until_s = 0.0
        self._operations: dict[str, Callable[[Head, Batches], Awaitable[Message]]] = {
            "append": self._append,
            "schedule": self._schedule,
            "read": self._read,
            "bounds": self._bounds,
            "offset_for_time": self._offset_for_time,
            "changes": self._changed,
            "create_queue": self._create_queue,
            "seal_queue": self._seal_queue,
            "export_ids": self._export_ids,
            "import_ids": self._import_ids,
            "expire_queue": self._expire_queue,
            "look_at_topic": self._look_at_topic,
            "take_group": self._take_group,
            **light_operations(broker, self._queue_of),
            **{name: _plain(answer) for name, answer in (more or {}).items()},
        }

    def application(self) -> web.Application:
        """The application of the internal listener."""
        made = web.Application(client_max_size=BODY_BYTES_MAX)
        made.router.add_post(PATH + LINK, self._link)
        made.router.add_post(PATH + "{operation}", self._answer)
        made.on_shutdown.append(self._end_links)
        made.on_response_prepare.append(_nameless)
        made.on_cleanup.append(self._close)
        return made

    async def _close(self, _: web.Application) -> None:
        self.close()

    def close(self) -> None:
        """Follow no topic any more."""
        for changes in self._changes.values():
            changes.close()
        self._changes.clear()

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            secret, code, body = await self._asked(request)
        except NotAuthentic as error:
            self._refused(str(request.remote), error)
            return web.Response(status=401)
        answer = b"".join(await self.done(request.match_info["operation"], body))
        return web.Response(body=answer, headers={CODE_HEADER: secret.answer_code(code, 200, answer)})

    async def _asked(self, request: web.Request) -> tuple[Secret, str, bytes]:
        """A request's secret, code and body. Raises NotAuthentic."""
        stamp = parse_stamp(request.headers.get(STAMP_HEADER, ""))
        secret, head_code = self._secret_of(request, stamp)
        self._seen.check(stamp, self._clock.now_ms())
        body = await request.read()
        code = secret.request_code(head_code, body)
        check_code(code, request.headers.get(CODE_HEADER, ""))
        return secret, code, body

    async def _link(self, request: web.Request) -> web.Response:
        """Answer frames on this connection until it ends. aiohttp has it back then, as if it had never been away."""
        try:
            secret, code, body = await self._asked(request)
        except NotAuthentic as error:
            self._refused(str(request.remote), error)
            return web.Response(status=401)
        transport, http = request.transport, request.protocol
        if transport is None:
            return web.Response(status=400)
        nonce, remote = secrets.token_hex(NONCE_BYTES), str(request.remote)
        try:
            come, answered = secret.link_codes(body.decode(), nonce)
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        ended = asyncio.Event()
        link = LinkConnection(
            self.done, BODY_BYTES_MAX, lambda reason: self._refused(remote, NotAuthentic(reason)),
            codes=(come, answered), is_good=lambda: self._secret.accepts(secret),
        )  # fmt: skip

        def lost(error: Exception | None) -> None:
            http.connection_lost(error)
            ended.set()

        link.on_lost = lost
        transport.write(switching(nonce, secret.answer_code(code, 101, nonce.encode())))
        link.connection_made(transport)
        transport.set_protocol(link)
        self._links.add(link)
        try:
            await ended.wait()
        finally:
            self._links.discard(link)
            link.end()
        return web.Response()

    async def _end_links(self, _: web.Application) -> None:
        for link in list(self._links):
            link.end()

    def _secret_of(self, request: web.Request, stamp: Stamp) -> tuple[Secret, str]:
        """The secret that made a request's head, and its code. Raises NotAuthentic when none that is accepted did."""
        refused: NotAuthentic | None = None
        for secret in self._secret.accepted:
            code = secret.head_code(stamp, request.path, request.content_length or 0)
            try:
                check_code(code, request.headers.get(HEAD_CODE_HEADER, ""))
            except NotAuthentic as error:
                refused = error
            else:
                return secret, code
        assert refused is not None
        raise refused

    def _refused(self, remote: str, error: NotAuthentic) -> None:
        self.refused_count += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + REFUSED_LOG_INTERVAL_S
            log.warning(
                "a request that is not of this cluster was refused peer=%s count=%d error=%s",
                remote, self.refused_count, error,
            )  # fmt: skip

    async def done(self, name: str, body: bytes) -> Message:
        """The message that answers one of a sender who was found to be of this cluster."""
        try:
            head, rest = peer_wire.unpack(body)
            return await self._operations[name](head, Batches(rest))
        except StoreError as error:
            return peer_wire.pack(peer_wire.error_head(error))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            log.error("a node asks for what is not understood operation=%s error=%r", name, error)
            return peer_wire.pack(peer_wire.error_head(peer_wire.malformed(error)))

    async def _append(self, head: Head, batches: Batches) -> Message:
        """Every call by itself; all are begun, in their order, before any is waited for."""
        calls = [
            (Acks(acks), [peer_wire.append_of(append, batches) for append in appends])
            for acks, appends in head["calls"]
        ]
        await self._know({append.queue.topic_id for _, appends in calls for append in appends})
        begun = [self._begun(appends, acks) for acks, appends in calls]
        return peer_wire.pack({"calls": [await _outcome(each) for each in begun]})

    def _begun(self, appends: Sequence[Append], acks: Acks) -> asyncio.Future[list[Appended]] | StoreError:
        try:
            return self._broker.begin_append(appends, acks=acks)
        except StoreError as error:
            return error

    async def _queue_of(self, head: Head) -> QueueKey:
        queue = QueueKey(*head["queue"])
        await self._know((queue.topic_id,))
        return queue

    async def _schedule(self, head: Head, batches: Batches) -> Message:
        append = peer_wire.append_of(head["append"], batches)
        if head.get("light", False):
            cast(LightQueues, self._broker).note_light()
        keys = [None if key is None else bytes.fromhex(key) for key in head["keys"]]
        return peer_wire.pack({"appended": await self._broker.schedule(append, acks=Acks(head["acks"]), keys=keys)})

    async def _read(self, head: Head, _: Batches) -> Message:
        tags = head.get("tags")
        return peer_wire.read_message(
            await self._broker.read(
                await self._queue_of(head),
                head["offset"],
                max_bytes=min(head["max_bytes"], MESSAGE_BYTES_MAX),
                end_offset=head["end"],
                tag_hashes=None if tags is None else frozenset(tags),
            )
        )

    async def _bounds(self, head: Head, _: Batches) -> Message:
        queue = await self._queue_of(head)
        return peer_wire.pack({"bounds": await self._broker.bounds(queue)})

    async def _offset_for_time(self, head: Head, _: Batches) -> Message:
        queue, boundary = await self._queue_of(head), Boundary(head["boundary"])
        return peer_wire.pack({"offset": await self._broker.offset_for_time(queue, head["time_ms"], boundary)})

    async def _create_queue(self, head: Head, _: Batches) -> Message:
        queue = await self._queue_of(head)
        await self._broker.create_queue(queue)
        return peer_wire.pack({})

    async def _seal_queue(self, head: Head, _: Batches) -> Message:
        queue = QueueKey(*head["queue"])
        if "into" not in head:  # it is not left: a node of before, or one that reads what was taken over
            return peer_wire.pack({"end": await self._broker.seal_queue(queue)})
        end, part = await self._broker.leave_queue(queue, **_telling(head))
        return _exported(part, {"end": end})

    async def _export_ids(self, head: Head, _: Batches) -> Message:
        return _exported(await self._broker.export_ids(QueueKey(*head["queue"]), **_telling(head)), {})

    async def _import_ids(self, head: Head, batches: Batches) -> Message:
        await self._broker.import_ids(batches.take(head["size"]))
        return peer_wire.pack({})

    async def _expire_queue(self, head: Head, _: Batches) -> Message:
        await self._broker.expire_queue(QueueKey(*head["queue"]), head["before"])
        return peer_wire.pack({})

    async def _look_at_topic(self, head: Head, _: Batches) -> Message:
        await self._look_at(str(head["name"]))
        return peer_wire.pack({})

    async def _take_group(self, head: Head, batches: Batches) -> Message:
        taken = await self.take_group(
            str(head["group"]), batches.take(head["size"]), int(head["size_bytes"]), int(head["revision"])
        )
        return peer_wire.pack({"taken": taken})

    async def _changed(self, head: Head, _: Batches) -> Message:
        """Which queues of a topic have got records since a number, and their ends, waiting for the first; all of them
        for who has no number of ours. Raises UnknownQueue when the topic is gone."""
        topic_id = int(head["topic_id"])
        await self._know((topic_id,))
        queues = self._queues_of(topic_id)
        now_s = asyncio.get_running_loop().time()
        for idle in [each for each in self._changes.values() if not each.waiting and now_s - each.asked_s > FORGET_S]:
            idle.close()
            del self._changes[idle.topic_id]
        if (changes := self._changes.get(topic_id)) is None:
            changes = self._changes[topic_id] = _TopicChanges(self._broker, topic_id)
        number = changes.number
        if head["token"] != changes.token:
            changed = [(queue.queue_id, (await self._broker.bounds(queue)).max_offset) for queue in queues]
        else:
            await changes.wait(head["number"], min(head["wait_ms"], WAIT_MS_MAX) / 1000)
            if changes.is_gone:
                raise UnknownQueue(f"topic id {topic_id} does not exist")
            number, changed = changes.number, changes.since(head["number"])
        changes.asked_s = asyncio.get_running_loop().time()
        return peer_wire.pack({"token": changes.token, "number": number, "queues": changed})


async def _nameless(_: web.Request, response: web.StreamResponse) -> None:
    """Strangers are not told what answers them."""
    response.headers.pop(hdrs.SERVER, None)


class _TopicChanges:
    """Which queues of one topic got records when."""

    def __init__(self, broker: Broker, topic_id: int) -> None:
        self.topic_id = topic_id
        self.token = secrets.token_hex(4)
        self.number = 0
        self.is_gone = False
        self.waiting = 0
        self.asked_s = 0.0
        self._last: dict[int, tuple[int, int]] = {}  # queue id → number of its last change, its end
        self._wake = asyncio.Event()
        self.close = broker.watch(topic_id, self._note)

    def _note(self, ends: Mapping[QueueKey, int]) -> None:
        self.is_gone = self.is_gone or not ends
        self.number += 1
        for queue, end in ends.items():
            self._last[queue.queue_id] = self.number, end
        self._wake.set()
        self._wake = asyncio.Event()

    async def wait(self, number: int, timeout_s: float) -> None:
        """Return when there is more than `number`, or after a time."""
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                while self.number <= number and not self.is_gone:
                    await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1

    def since(self, number: int) -> list[tuple[int, int]]:
        """Queue ids, and where these queues end."""
        return [(queue_id, end) for queue_id, (last, end) in self._last.items() if last > number]


def _telling(head: Head) -> dict[str, Any]:
    return {"into": QueueKey(*head["into"]), "shift": head["shift"], "since": head["since"]}


def _exported(part: ExportedIds, head: Head) -> Message:
    return peer_wire.pack({**head, "next": part.next_position, "last": part.is_last}, [part.content])


def _plain(answer: Callable[[Head], Awaitable[Head]]) -> Callable[[Head, Batches], Awaitable[Message]]:
    async def packed(head: Head, _: Batches) -> Message:
        return peer_wire.pack(await answer(head))

    return packed


async def _outcome(begun: asyncio.Future[list[Appended]] | StoreError) -> list[Appended] | Head:
    if isinstance(begun, StoreError):
        return peer_wire.error_head(begun)
    try:
        return await begun
    except StoreError as error:
        return peer_wire.error_head(error)
