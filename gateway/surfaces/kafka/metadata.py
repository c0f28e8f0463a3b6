"""What there is and where: ApiVersions, Metadata, DescribeCluster, FindCoordinator."""

from __future__ import annotations

from functools import lru_cache

from gateway.api.cluster import own_number
from gateway.api.turns import few_a_turn
from gateway.auth.access import Permission
from gateway.cluster.metadata import MetadataError
from gateway.errors import RequestError
from gateway.routing.base import TopicView
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.apis import API_VERSIONS, APIS
from gateway.surfaces.kafka.errors import code_of
from gateway.surfaces.kafka.nodes import NOBODY, Place, Places, coordinator_of, nodes_of
from gateway.surfaces.kafka.schema import Encoded, Message, encode_array
from gateway.surfaces.kafka.session import Session
from gateway.surfaces.kafka.trail import record
from store.errors import StoreError, UnknownQueue
from store.topics import RESERVED_PREFIXES, is_name

TOPICS_PER_TURN = 200
GROUPS_PER_TURN = 2000  # to find one costs a microsecond or two

_GROUP, _TRANSACTION = 0, 1
_BROKERS, _CONTROLLERS = 1, 2
_NOT_ASKED = -(2**31)
_NOT_CREATED = {
    errors.INVALID_REQUEST: errors.INVALID_TOPIC,
    # The client asks again: when the metadata can be reached, or this node knows what another one has made.
    errors.NOT_CONTROLLER: errors.LEADER_NOT_AVAILABLE,
    errors.TOPIC_ALREADY_EXISTS: errors.LEADER_NOT_AVAILABLE,
}
"""What Metadata says of a topic that could not be made."""


def api_versions(version: int) -> tuple[int, Message]:
    """The version to answer a request for the served versions in, and the answer. A version that is not served is
    answered in version 0, which every client reads; a connection that were closed instead would be opened again and
    again."""
    api = APIS[API_VERSIONS]
    is_known = api.min_version <= version <= api.max_version
    keys = [{"api_key": one.key, "min_version": 0, "max_version": one.max_version} for one in APIS.values()]
    code = errors.NONE if is_known else errors.UNSUPPORTED_VERSION
    return version if is_known else 0, {"error_code": code, "api_keys": keys}


async def metadata(session: Session, version: int, request: Message) -> Message:
    """Topics, their partitions and where these are, and the nodes, at the addresses that are advertised to this client.
    A topic that is asked for by name and not there is made, where that is allowed."""
    gateway = session.gateway
    wanted = request["topics"]
    places = Places(session, version)
    topics: list[Message] = []
    if wanted is None or (version == 0 and not wanted):
        async for view in few_a_turn(gateway.routes_table.topics(), per_turn=TOPICS_PER_TURN):
            if session.may(Permission.DESCRIBE, topic=view.name):
                topics.append(await _topic(view, places, version))
    else:
        may_create = request.get("allow_auto_topic_creation", True) and gateway.config.kafka.auto_create_topics
        async for name in few_a_turn(dict.fromkeys(topic["name"] for topic in wanted), per_turn=TOPICS_PER_TURN):
            topics.append(await _named(session, name, places, version, may_create=may_create))
    return {
        "brokers": [
            {"node_id": node.number, "host": node.host, "port": node.port, "rack": node.rack}
            for node in places.nodes.values()
        ],
        "cluster_id": gateway.cluster_id,
        "controller_id": own_number(gateway.cluster),  # any node changes topics
        "topics": topics,
        "cluster_authorized_operations": _NOT_ASKED,
    }


async def _named(session: Session, name: str, places: Places, version: int, *, may_create: bool) -> Message:
    gateway = session.gateway
    if not session.may(Permission.DESCRIBE, topic=name):  # the same whether or not there is such a topic
        return {"name": name, "error_code": errors.TOPIC_AUTHORIZATION_FAILED}
    try:
        return await _topic(gateway.routes_table.topic(name), places, version)
    except UnknownQueue:
        if not may_create or not session.may(Permission.CREATE, topic=name):
            code = errors.UNKNOWN_TOPIC_OR_PARTITION if is_name(name) else errors.INVALID_TOPIC
            return {"name": name, "error_code": code}
    code, answer = errors.NONE, {}
    try:
        view = await gateway.admin.create_topic(name, gateway.config.partitions_default)
        answer = await _topic(view, places, version)
    except (StoreError, RequestError, MetadataError) as error:
        code = code_of(error)
        answer = {"name": name, "error_code": _NOT_CREATED.get(code, code)}
    await record(session, "topic.create", {"topic": name}, code, automatic=True)
    return answer


async def _topic(view: TopicView, places: Places, version: int) -> Message:
    return {
        "name": view.name,
        "is_internal": view.name.startswith(RESERVED_PREFIXES),
        "partitions": _partitions(await places.of(view), version),
        "topic_authorized_operations": _NOT_ASKED,
    }


@lru_cache(maxsize=64)
def _partitions(places: tuple[Place, ...], version: int) -> Encoded:
    """The partitions at these places: the same bytes for every topic that lies like this, encoded once."""
    partitions = [
        {
            "error_code": code, "partition_index": number, "leader_id": NOBODY if code else owner,
            "leader_epoch": epoch, "replica_nodes": [owner], "isr_nodes": [] if code else [owner],
        }
        for number, (owner, epoch, code) in enumerate(places)
    ]  # fmt: skip
    return encode_array("MetadataResponse", version, ("topics", "partitions"), partitions)


async def describe_cluster(session: Session, version: int, request: Message) -> Message:
    """The nodes."""
    gateway = session.gateway
    kind = request.get("endpoint_type", _BROKERS)
    if kind != _BROKERS:
        code = errors.MISMATCHED_ENDPOINT_TYPE if kind == _CONTROLLERS else errors.UNSUPPORTED_ENDPOINT_TYPE
        return {"error_code": code, "error_message": "This is a broker."}
    return {
        "cluster_id": gateway.cluster_id,
        "controller_id": own_number(gateway.cluster),
        "brokers": [
            {"broker_id": node.number, "host": node.host, "port": node.port, "rack": node.rack}
            for node in nodes_of(session).values()
        ],
        "error_message": None,
        "cluster_authorized_operations": _NOT_ASKED,
    }


async def find_coordinator(session: Session, version: int, request: Message) -> Message:
    """The node that keeps a group. There is none for transactions, which are not served."""
    kind = request.get("key_type", _GROUP)

    def found(group: str) -> Message:
        code = errors.NONE
        if kind != _GROUP:
            code = errors.UNSUPPORTED_VERSION if kind == _TRANSACTION else errors.INVALID_REQUEST
        elif not session.may(Permission.DESCRIBE, group=group) and not session.may(Permission.RECEIVE, group=group):
            code = errors.GROUP_AUTHORIZATION_FAILED
        node = None if code else coordinator_of(session, group)
        if node is None:
            return {"error_code": code or errors.COORDINATOR_NOT_AVAILABLE, "node_id": -1, "host": "", "port": -1}
        return {"error_code": code, "node_id": node.number, "host": node.host, "port": node.port}

    if version >= 4:
        groups = few_a_turn(request["coordinator_keys"], per_turn=GROUPS_PER_TURN)
        return {"coordinators": [{"key": group, **found(group)} async for group in groups]}
    return found(request["key"])
