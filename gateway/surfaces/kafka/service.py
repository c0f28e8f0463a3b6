"""Which function serves which request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.surfaces.http.answer_memory import Allowance
from gateway.surfaces.kafka import apis as api
from gateway.surfaces.kafka import group_requests, metadata, records, sasl, topics
from gateway.surfaces.kafka.apis import APIS
from gateway.surfaces.kafka.connection import Answer, Done
from gateway.surfaces.kafka.frames import Header
from gateway.surfaces.kafka.records import Producing
from gateway.surfaces.kafka.schema import Message, decode, encode
from gateway.surfaces.kafka.session import Session

Handler = Callable[[Session, int, Message], Awaitable[Message]]

HANDLERS: dict[int, Handler] = {
    api.METADATA: metadata.metadata,
    api.FIND_COORDINATOR: metadata.find_coordinator,
    api.DESCRIBE_CLUSTER: metadata.describe_cluster,
    api.LIST_OFFSETS: records.list_offsets,
    api.OFFSET_FOR_LEADER_EPOCH: records.offset_for_leader_epoch,
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
}
_BY_HAND = {api.PRODUCE, api.FETCH, api.API_VERSIONS, api.SASL_AUTHENTICATE}
assert HANDLERS.keys() | _BY_HAND == APIS.keys()


class Service:
    """Serves the requests of all connections; see `connection.Served`."""

    def begin_produce(self, session: Session, header: Header, frame: memoryview, done: Done) -> bool:
        """See `Served.begin_produce`."""
        producing = Producing(session, header, frame, done)
        if producing.is_large:
            return False
        producing.begin()
        return True

    async def serve_produce(self, session: Session, header: Header, frame: memoryview, done: Done) -> None:
        """See `Served.serve_produce`."""
        await Producing(session, header, frame, done).begin_in_turns()

    async def serve(self, session: Session, header: Header, frame: memoryview, answer: Answer) -> None:
        """See `Served.serve`."""
        if header.key == api.FETCH:
            gateway = session.gateway
            answer.allowance = Allowance(gateway.stats.answers, session.payer, gateway.limits.answering_bytes_max)
            answer.buffers = list(await records.fetch(session, header, frame, answer.allowance))
            return
        version = header.version
        if header.key == api.API_VERSIONS:
            version, message = metadata.api_versions(version)
        else:
            request = decode(f"{APIS[header.key].name}Request", version, frame, header.at)
            if header.key == api.SASL_AUTHENTICATE:
                message, goes_on = await sasl.sasl_authenticate(session, version, request)
                answer.is_last = not goes_on
            else:
                message = await HANDLERS[header.key](session, version, request)
        answer.buffers = (encode(f"{APIS[header.key].name}Response", version, message),)
