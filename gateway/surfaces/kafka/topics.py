"""Topics and what is chosen for them: CreateTopics, DeleteTopics, CreatePartitions, DescribeConfigs, AlterConfigs,
IncrementalAlterConfigs. Each act leaves a line in the trail, as by HTTP.

A topic's settings are `retention.ms`, `max.message.bytes` (of one record) and `mq.headers` (docs/kafka.md). Others are
shown as they are here, so that tools that read them go on, and can be set to nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from gateway.api.cluster import ALONE_NUMBER, own_number
from gateway.api.turns import ACTS_PER_TURN, few_a_turn
from gateway.auth.access import Permission
from gateway.cluster.metadata import MetadataError
from gateway.codec.topic_configs import CONFIG_ILLEGAL, KAFKA_NAMES, kafka_changes, kafka_text
from gateway.errors import RequestError
from gateway.routing.base import TopicView, topic_id_of
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.errors import code_of
from gateway.surfaces.kafka.schema import Message
from gateway.surfaces.kafka.session import Session
from gateway.surfaces.kafka.trail import record
from store.errors import IllegalTopic, StoreError, TopicExists
from store.limits import BATCH_BYTES_MAX
from store.topic_changes import CREATED_TOGETHER_MAX
from store.topics import TopicConfig, is_name

TOPIC, BROKER = 2, 4
_SET, _DELETE = 0, 1
_DEFAULT_SOURCE, _TOPIC_SOURCE, _BROKER_SOURCE = 5, 1, 4
_BOOLEAN, _STRING, _INT, _LONG, _LIST = 1, 2, 3, 5, 7


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def _outcome(
    session: Session, action: str, topic: str, work: Callable[[], Awaitable[object]], **details: object
) -> tuple[int, str | None]:
    """The error code and message of an act on a topic, which is done and recorded."""
    code, message = errors.NONE, None
    try:
        await work()
    except _Refused as refusal:
        code, message = refusal.code, str(refusal)
    except (StoreError, RequestError, MetadataError) as error:
        code, message = _code_of(error), str(error)
    await record(session, action, {"topic": topic}, code, **details)
    return code, message


def _code_of(error: StoreError | RequestError | MetadataError) -> int:
    if isinstance(error, RequestError) and error.error_code == CONFIG_ILLEGAL:
        return errors.INVALID_CONFIG
    if isinstance(error, TopicExists):
        return errors.TOPIC_ALREADY_EXISTS
    if isinstance(error, IllegalTopic):
        text = str(error)
        if text.startswith("a topic has"):
            return errors.INVALID_PARTITIONS
        return errors.INVALID_CONFIG if "_ms" in text or "_bytes" in text else errors.INVALID_TOPIC
    return code_of(error)


def _check(session: Session, permission: Permission, topic: str) -> None:
    if not session.may(permission, topic=topic):
        raise _Refused(errors.TOPIC_AUTHORIZATION_FAILED, f"Not allowed: {permission.value} topic {topic[:200]}.")


def _check_once(name: str, named_count: int) -> None:
    if named_count > 1:
        raise _Refused(errors.INVALID_REQUEST, f"The request names topic {name[:200]} {named_count} times.")


def _view(session: Session, name: str) -> TopicView:
    """A topic. Raises UnknownQueue, and _Refused for a name that none can have."""
    if not is_name(name):
        raise _Refused(errors.INVALID_TOPIC, f"No topic is named {name[:200]}.")
    return session.gateway.routes_table.topic(name)


def _check_assigned(session: Session, assignments: Iterable[Message]) -> None:
    """Raises _Refused for partitions that are to be on certain nodes, but for those of a server that is alone."""
    if session.gateway.cluster is None:
        if any(one["broker_ids"] != [ALONE_NUMBER] for one in assignments):
            raise _Refused(errors.INVALID_REPLICA_ASSIGNMENT, f"There is one node, {ALONE_NUMBER}.")
    elif any(True for _ in assignments):
        text = "New partitions are spread over the nodes that are there; move them afterwards."
        raise _Refused(errors.INVALID_REPLICA_ASSIGNMENT, text)


async def create_topics(session: Session, version: int, request: Message) -> Message:
    """Make topics, many at a time so that they share writes; durable when answered."""
    topics = list({topic["name"]: topic for topic in request["topics"]}.values())
    counts = Counter(topic["name"] for topic in request["topics"])
    answers: list[Message] = []
    for first in range(0, len(topics), CREATED_TOGETHER_MAX):
        begun = [
            asyncio.create_task(
                _create_topic(session, version, topic, counts[topic["name"]], validate_only=request["validate_only"])
            )
            async for topic in few_a_turn(topics[first : first + CREATED_TOGETHER_MAX], per_turn=ACTS_PER_TURN)
        ]
        answers += await asyncio.gather(*begun)
    return {"topics": answers}


async def _create_topic(
    session: Session, version: int, topic: Message, named_count: int, *, validate_only: bool
) -> Message:
    """Make one topic, which the request names so often; what is answered of it."""
    gateway = session.gateway
    name = topic["name"]
    made: list[TopicView] = []

    async def create() -> None:
        _check(session, Permission.CREATE, name)
        _check_once(name, named_count)
        count = topic["num_partitions"]
        if topic["assignments"]:
            if count != -1 or topic["replication_factor"] != -1:
                text = "Partitions and replicas are either assigned or counted; where they are assigned, both are -1."
                raise _Refused(errors.INVALID_REQUEST, text)
            _check_assigned(session, topic["assignments"])
            count = len(topic["assignments"])
            if sorted(one["partition_index"] for one in topic["assignments"]) != list(range(count)):
                raise _Refused(errors.INVALID_REPLICA_ASSIGNMENT, "Each partition from 0 on is to be assigned once.")
        elif topic["replication_factor"] not in (-1, 1):
            raise _Refused(errors.INVALID_REPLICATION_FACTOR, "A record is on one node: the replication factor is 1.")
        if count == -1:
            count = gateway.config.partitions_default
        if not 1 <= count <= gateway.limits.partitions_max:
            limit = gateway.limits.partitions_max
            raise _Refused(errors.INVALID_PARTITIONS, f"A topic has 1 to {limit} partitions.")
        if any(one["value"] is None for one in topic["configs"]):
            raise _Refused(errors.INVALID_CONFIG, "A setting has no value.")
        config = TopicConfig().changed(_changes((one["name"], one["value"]) for one in topic["configs"]))
        if topic_id_of(gateway.routes_table, name) is not None:
            raise TopicExists(f"Topic {name} exists.")
        if not validate_only:
            made.append(await gateway.admin.create_topic(name, count, config))

    code, message = await _outcome(
        session, "topic.create", name, create, partitions=topic["num_partitions"], kafka=True
    )
    answer: Message = {"name": name, "error_code": code, "error_message": message}
    if version >= 5:
        answer["configs"] = []
        if made:
            answer |= {"num_partitions": made[0].partitions, "replication_factor": 1}
            answer["configs"] = _as_created(made[0], session)
    return answer


def _as_created(view: TopicView, session: Session) -> list[Message]:
    names = ("name", "value", "read_only", "config_source", "is_sensitive")
    return [{name: config[name] for name in names} for config in _topic_configs(session, view)]


async def delete_topics(session: Session, version: int, request: Message) -> Message:
    """Delete topics and their records; durable when answered."""
    answers = []
    counts: Counter[str] = Counter(request["topic_names"])
    async for name in few_a_turn(counts, per_turn=ACTS_PER_TURN):

        async def delete(name: str = name) -> None:
            _check(session, Permission.DELETE, name)
            _check_once(name, counts[name])
            session.gateway.routes_table.topic(name)  # one that is not there need not be looked for on disk
            await session.gateway.admin.delete_topic(name)

        code, message = await _outcome(session, "topic.delete", name, delete)
        answer: Message = {"name": name, "error_code": code}
        if version >= 5:
            answer["error_message"] = message
        answers.append(answer)
    return {"responses": answers}


async def create_partitions(session: Session, version: int, request: Message) -> Message:
    """Give topics more partitions; durable when answered."""
    answers = []
    counts = Counter(topic["name"] for topic in request["topics"])
    named = {topic["name"]: topic for topic in request["topics"]}
    async for topic in few_a_turn(named.values(), per_turn=ACTS_PER_TURN):
        name, count = topic["name"], topic["count"]

        async def grow(topic: Message = topic, name: str = name, count: int = count) -> None:
            _check(session, Permission.CREATE, name)
            _check_once(name, counts[name])
            view = session.gateway.routes_table.topic(name)
            if count <= view.partitions:
                raise _Refused(errors.INVALID_PARTITIONS, f"Topic {name} has {view.partitions} partitions.")
            if topic["assignments"] is not None and len(topic["assignments"]) != count - view.partitions:
                text = f"{count - view.partitions} partitions are new, {len(topic['assignments'])} are assigned."
                raise _Refused(errors.INVALID_REPLICA_ASSIGNMENT, text)
            _check_assigned(session, topic["assignments"] or ())
            if not request["validate_only"]:
                await session.gateway.admin.grow_topic(name, count)

        code, message = await _outcome(session, "topic.alter", name, grow, partitions=count)
        answers.append({"name": name, "error_code": code, "error_message": message})
    return {"results": answers}


# ------------------------------------------------------------------------------------------------------ settings


def _changes(configs: Iterable[tuple[str, str | None]]) -> dict[str, int | str | None]:
    """Settings by Kafka's names as changes of ours. -1 is Kafka's "as long as the server keeps it". Raises
    RequestError."""
    return kafka_changes((name, None if name == "retention.ms" and value == "-1" else value) for name, value in configs)


async def incremental_alter_configs(session: Session, version: int, request: Message) -> Message:
    """Change settings of topics; durable and in force when answered."""
    return {"responses": [await _altered(session, one, _stepwise, request) async for one in _resources(request)]}


async def alter_configs(session: Session, version: int, request: Message) -> Message:
    """Replace all settings of topics; durable and in force when answered."""
    return {"responses": [await _altered(session, one, _replaced, request) async for one in _resources(request)]}


def _resources(request: Message) -> AsyncIterator[Message]:
    """What the request is about: what it names twice, as it names it last."""
    named = {(one["resource_type"], one["resource_name"]): one for one in request["resources"]}
    return few_a_turn(named.values(), per_turn=ACTS_PER_TURN)


def _stepwise(resource: Message) -> dict[str, int | str | None]:
    changes: dict[str, int | str | None] = {}
    for one in resource["configs"]:
        if one["config_operation"] not in (_SET, _DELETE):
            raise _Refused(errors.INVALID_CONFIG, f"{one['name']}: is no list; set or delete it.")
        if one["config_operation"] == _SET:
            _check_given(one)
        changes |= _changes([(one["name"], one["value"] if one["config_operation"] == _SET else None)])
    return changes


def _check_given(config: Message) -> None:
    if config["value"] is None:
        raise _Refused(errors.INVALID_REQUEST, f"{config['name']}: has no value.")


def _replaced(resource: Message) -> dict[str, int | str | None]:
    for one in resource["configs"]:
        _check_given(one)
    return dict.fromkeys(KAFKA_NAMES) | _changes((one["name"], one["value"]) for one in resource["configs"])


async def _altered(
    session: Session,
    resource: Message,
    changes_of: Callable[[Message], dict[str, int | str | None]],
    request: Message,
) -> Message:
    name = resource["resource_name"]

    async def alter() -> None:
        if resource["resource_type"] != TOPIC:
            raise _Refused(errors.INVALID_REQUEST, "Only topics have settings that Kafka clients can change.")
        if not name:
            raise _Refused(errors.INVALID_REQUEST, "A topic has a name.")
        _check(session, Permission.CREATE, name)
        _view(session, name)
        changes = changes_of(resource)
        if not request["validate_only"]:
            await session.gateway.admin.configure_topic(name, changes)

    configs = {one["name"]: one["value"] for one in resource["configs"]}
    code, message = await _outcome(session, "topic.alter", name, alter, configs=configs)
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": resource["resource_type"],
        "resource_name": name,
    }


async def describe_configs(session: Session, version: int, request: Message) -> Message:
    """The settings of topics, and of the server as far as Kafka's tools ask for them."""
    results = []
    async for resource in _resources(request):
        kind, name, wanted = resource["resource_type"], resource["resource_name"], resource["configuration_keys"]
        answer: Message = {"resource_type": kind, "resource_name": name, "error_message": None, "configs": []}
        try:
            if kind == TOPIC:
                _check(session, Permission.DESCRIBE, name)
                configs = _topic_configs(session, _view(session, name))
            elif kind == BROKER and name in ("", str(own_number(session.gateway.cluster))):
                if not session.may(Permission.OPERATE):
                    raise _Refused(errors.CLUSTER_AUTHORIZATION_FAILED, "Not allowed: operate here.")
                configs = _broker_configs(session)
            else:
                own = own_number(session.gateway.cluster)
                raise _Refused(errors.INVALID_REQUEST, f"Only topics and this node, {own}, have settings here.")
        except _Refused as refusal:
            answer |= {"error_code": refusal.code, "error_message": str(refusal)}
        except StoreError as error:
            answer |= {"error_code": code_of(error), "error_message": str(error)}
        else:
            answer["configs"] = [config for config in configs if wanted is None or config["name"] in wanted]
        results.append(answer)
    return {"results": results}


def _config(name: str, value: object, kind: int, *, source: int = _DEFAULT_SOURCE, read_only: bool = True) -> Message:
    return {
        "name": name, "value": kafka_text(value), "read_only": read_only, "config_source": source, "config_type": kind,
        "documentation": None, "is_sensitive": False, "synonyms": [],
    }  # fmt: skip


def _topic_configs(session: Session, view: TopicView) -> list[Message]:
    store = session.gateway.config.store
    chosen = view.config
    retention_ms = chosen.retention_ms or store.retention_ms
    return [
        _config("cleanup.policy", "delete", _LIST),
        _config("compression.type", "producer", _STRING),
        _config("max.message.bytes", chosen.max_message_bytes or BATCH_BYTES_MAX, _INT, read_only=False,
                source=_DEFAULT_SOURCE if chosen.max_message_bytes is None else _TOPIC_SOURCE),
        _config("message.timestamp.type", "CreateTime", _STRING),
        _config("min.insync.replicas", 1, _INT),
        _config("mq.headers", bool(chosen.mq_headers), _BOOLEAN, read_only=False,
                source=_DEFAULT_SOURCE if chosen.mq_headers is None else _TOPIC_SOURCE),
        _config("retention.bytes", -1, _LONG),
        _config("retention.ms", -1 if retention_ms is None else retention_ms, _LONG, read_only=False,
                source=_DEFAULT_SOURCE if chosen.retention_ms is None else _TOPIC_SOURCE),
        _config("segment.bytes", store.commit_log_file_bytes, _INT),
        _config("unclean.leader.election.enable", False, _BOOLEAN),
    ]  # fmt: skip


def _broker_configs(session: Session) -> list[Message]:
    config = session.gateway.config
    retention_ms = config.store.retention_ms
    return [
        _config("auto.create.topics.enable", config.kafka.auto_create_topics, _BOOLEAN, source=_BROKER_SOURCE),
        _config("default.replication.factor", 1, _INT),
        _config("log.cleanup.policy", "delete", _LIST),
        _config("log.retention.ms", -1 if retention_ms is None else retention_ms, _LONG, source=_BROKER_SOURCE),
        _config("message.max.bytes", BATCH_BYTES_MAX, _INT),
        _config("min.insync.replicas", 1, _INT),
        _config("num.partitions", config.partitions_default, _INT, source=_BROKER_SOURCE),
        _config("offsets.topic.replication.factor", 1, _INT),
    ]  # fmt: skip
