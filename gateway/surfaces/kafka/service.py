"""Which function serves which request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.api.turns import ITEMS_PER_TURN, aside
from gateway.surfaces.http.answer_memory import SMALL_BYTES, Allowance
from gateway.surfaces.http.reading import let_go
from gateway.surfaces.kafka import acls, group_requests, metadata, offsets, records, sasl, topics
from gateway.surfaces.kafka import apis as api
from gateway.surfaces.kafka.apis import APIS
from gateway.surfaces.kafka.connection import Answer, Done
from gateway.surfaces.kafka.fetch import read_fetch
from gateway.surfaces.kafka.frames import Header
from gateway.surfaces.kafka.produce import TooMany, read_produce
from gateway.surfaces.kafka.records import Producing
from gateway.surfaces.kafka.schema import Message, decode, encode
from gateway.surfaces.kafka.session import Session
from store.limits import KiB, MiB
from store.turns import others_turn

Handler = Callable[[Session, int, Message], Awaitable[Message]]

IN_LOOP_BYTES = 16 * KiB
"""Requests up to this size are read, and their responses written, in the event loop: a millisecond or two."""

PRODUCED_IN_LOOP = 2 * ITEMS_PER_TURN
"""Partitions of a Produce request, however many bytes they have, that is read in the event loop."""

LARGE_AT_ONCE = 2
"""Larger ones that are served at a time, but for those that wait for others: each may be 20,000 elements, which take
ten times the memory of their bytes."""

HANDLERS: dict[int, Handler] = {
    api.METADATA: metadata.metadata,
    api.FIND_COORDINATOR: metadata.find_coordinator,
    api.DESCRIBE_CLUSTER: metadata.describe_cluster,
    api.LIST_OFFSETS: offsets.list_offsets,
    api.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    api.INIT_PRODUCER_ID: records.init_producer_id,
    api.DELETE_RECORDS: records.delete_records,
    api.CREATE_TOPICS: topics.create_topics,
    api.DELETE_TOPICS: topics.delete_topics,
    api.CREATE_PARTITIONS: topics.create_partitions,
    api.DESCRIBE_CONFIGS: topics.describe_configs,
    api.ALTER_CONFIGS: topics.alter_configs,
    api.INCREMENTAL_ALTER_CONFIGS: topics.incremental_alter_configs,
    api.SASL_HANDSHAKE: sasl.sasl_handshake,
    api.JOIN_GROUP: group_requests.join_group,
    api.SYNC_GROUP: group_requests.sync_group,
    api.HEARTBEAT: group_requests.heartbeat,
    api.LEAVE_GROUP: group_requests.leave_group,
    api.OFFSET_COMMIT: group_requests.offset_commit,
    api.OFFSET_FETCH: group_requests.offset_fetch,
    api.DESCRIBE_GROUPS: group_requests.describe_groups,
    api.LIST_GROUPS: group_requests.list_groups,
    api.DELETE_GROUPS: group_requests.delete_groups,
    api.OFFSET_DELETE: group_requests.offset_delete,
    api.DESCRIBE_ACLS: acls.describe_acls,
    api.CREATE_ACLS: acls.create_acls,
    api.DELETE_ACLS: acls.delete_acls,
}
_BY_HAND = {api.PRODUCE, api.FETCH, api.API_VERSIONS, api.SASL_AUTHENTICATE}
assert HANDLERS.keys() | _BY_HAND == APIS.keys()


class Service:
    """Serves the requests of all connections; see `connection.Served`."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    def begin_produce(self, session: Session, header: Header, frame: memoryview, done: Done) -> bool:
        """See `Served.begin_produce`."""
        try:
            request = session.reader.read(frame, header.at, header.version, PRODUCED_IN_LOOP)
        except TooMany:
            return False
        producing = Producing(session, header.version, request, done)
        if producing.takes_turns:
            return False
        producing.begin()
        return True

    async def serve_produce(self, session: Session, header: Header, frame: memoryview, done: Done) -> None:
        """See `Served.serve_produce`."""
        await others_turn()
        read = partial(read_produce, frame, header.at, header.version)
        try:
            request = read(PRODUCED_IN_LOOP)
        except TooMany:
            request = await aside(read, is_long=True)
        await Producing(session, header.version, request, done).begin_in_turns()

    async def serve(self, session: Session, header: Header, frame: memoryview, answer: Answer) -> None:
        """See `Served.serve`."""
        if len(frame) <= IN_LOOP_BYTES or header.key in _WAITING:
            await self._serve(session, header, frame, answer)
            return
        async with self._large:
            await self._serve(session, header, frame, answer)

    async def _serve(self, session: Session, header: Header, frame: memoryview, answer: Answer) -> None:
        version, is_large = header.version, len(frame) > IN_LOOP_BYTES
        if is_large:
            await others_turn()
        if header.key == api.FETCH:
            gateway = session.gateway
            answer.allowance = Allowance(gateway.stats.answers, session.payer, gateway.limits.answering_bytes_max)
            if is_large:
                wanted = await aside(partial(read_fetch, frame, header.at, version), is_long=True)
                fetched = await records.fetch(session, version, wanted, answer.allowance)
                answer.buffers = await aside(partial(list, fetched), is_long=True)
            else:
                wanted = read_fetch(frame, header.at, version)
                answer.buffers = list(await records.fetch(session, version, wanted, answer.allowance))
            return
        if header.key == api.API_VERSIONS:
            version, message = metadata.api_versions(version)
        else:
            request = await aside(
                partial(decode, f"{APIS[header.key].name}Request", version, frame, header.at),
                is_long=is_large,
            )
            if header.key == api.SASL_AUTHENTICATE:
                message, goes_on = await sasl.sasl_authenticate(session, version, request)
                answer.is_last = not goes_on
            else:
                message = await HANDLERS[header.key](session, version, request)
        encoded = await aside(
            partial(encode, f"{APIS[header.key].name}Response", version, message),
            is_long=is_large or header.key in _LISTS,
        )
        if len(encoded) > LARGE_BYTES:
            for rows in message.values():
                if isinstance(rows, list):
                    await let_go(rows, OBJECTS_FACTOR * len(encoded))
        if len(encoded) > SMALL_BYTES:
            gateway = session.gateway
            answer.allowance = Allowance(gateway.stats.answers, session.payer, gateway.limits.answering_bytes_max)
            if not answer.allowance.hold(len(encoded)):
                answer.is_last, answer.buffers = True, None  # there is no code for it; the client comes back by itself
                return
        answer.buffers = (encoded,)


LARGE_BYTES = 1 * MiB
"""What a response of this size was made of is freed in turns: settings of 10,000 topics are 100,000 dicts."""

OBJECTS_FACTOR = 4
"""How much dearer to free what a response is made of is than parsed JSON of its size."""

_WAITING = frozenset((api.FETCH, api.JOIN_GROUP, api.SYNC_GROUP))
_LISTS = frozenset((api.METADATA, api.OFFSET_FETCH, api.DESCRIBE_GROUPS, api.LIST_GROUPS, api.DESCRIBE_CONFIGS))
"""Their responses may be large, however small the request."""
