"""The requests about groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, OffsetFetch, OffsetDelete,
DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from gateway.api.turns import ACTS_PER_TURN, few_a_turn
from gateway.auth.access import Permission
from gateway.cluster.metadata import MetadataError
from gateway.errors import RequestError
from gateway.groups.machines.config import GroupConfig
from gateway.groups.machines.copies import check_group_name
from gateway.groups.machines.errors import GroupActive, GroupError, IllegalRequest, UnknownGroup, UnknownMember
from gateway.groups.machines.membership import MEMBER_ID_BYTES_MAX
from gateway.groups.machines.progress import COMMIT_METADATA_BYTES_MAX
from gateway.groups.machines.subscription import Subscription
from gateway.groups.protocol import (
    CommittedPosition,
    GroupDescription,
    MemberKey,
    MemberView,
    OffsetCommit,
    TopicPartition,
)
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.errors import code_of
from gateway.surfaces.kafka.groups import (
    CONSUMER,
    NO_TOPICS,
    JoinAsked,
    KafkaMember,
    Refused,
    assignment_of,
    kafka_member,
    subscription_bytes,
    subscription_of,
)
from gateway.surfaces.kafka.nodes import is_elsewhere
from gateway.surfaces.kafka.schema import Malformed, Message
from gateway.surfaces.kafka.session import Session
from gateway.surfaces.kafka.trail import record
from store.errors import IllegalTopic, StoreError, UnknownQueue

COMMITTED_PER_TURN = 1_000
"""Partitions whose committed offset is looked up in one turn of the event loop."""

ANSWERED_PER_TURN = 2_000
"""Partitions of an answer that are written down in one turn."""

GROUPS_PER_TURN = 200
"""Groups of a list that are looked at in one turn."""

_NO_GENERATION = -1
_STATES = {"empty": "Empty", "stable": "Stable", "rebalancing": "PreparingRebalance"}
_NOT_ASKED = -(2**31)
_Errors = (Refused, GroupError, StoreError, RequestError, MetadataError, Malformed)
_NOT_NOW = (errors.STORAGE_ERROR, errors.NOT_ENOUGH_REPLICAS, errors.NOT_CONTROLLER)


def _code(error: Exception) -> int:
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, Malformed):
        return errors.INCONSISTENT_PROTOCOL
    code = code_of(error)
    return errors.COORDINATOR_NOT_AVAILABLE if code in _NOT_NOW else code


def _check(session: Session, group: str, permission: Permission = Permission.RECEIVE) -> None:
    try:
        check_group_name(group)
    except (IllegalRequest, IllegalTopic) as error:
        raise Refused(errors.INVALID_GROUP_ID) from error
    if not session.may(permission, group=group):
        raise Refused(errors.GROUP_AUTHORIZATION_FAILED)
    if is_elsewhere(session, group):
        raise Refused(errors.NOT_COORDINATOR)


# ------------------------------------------------------------------------------------------------------ members


async def join_group(session: Session, version: int, request: Message) -> Message:
    """Come into a group, or join again; waits for the other members while all of them are Kafka's."""
    try:
        joined = await session.groups.join(_asked(session, version, request))
    except _Errors as error:
        member_id = error.member_id if isinstance(error, Refused) and error.member_id else request["member_id"]
        return {
            "error_code": _code(error), "generation_id": _NO_GENERATION, "protocol_type": None,
            "protocol_name": None if version >= 7 else "", "leader": "", "member_id": member_id, "members": [],
        }  # fmt: skip
    members = [
        {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
        for member_id, instance_id, metadata in joined.members
    ]
    return {
        "generation_id": joined.generation, "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol_name, "leader": joined.leader, "member_id": joined.member_id,
        "members": members,
    }  # fmt: skip


def _asked(session: Session, version: int, request: Message) -> JoinAsked:
    group = request["group_id"]
    _check(session, group)
    limits = GroupConfig()
    session_ms = request["session_timeout_ms"]
    if not limits.session_timeout_ms_min <= session_ms <= limits.session_timeout_ms_max:
        raise Refused(errors.INVALID_SESSION_TIMEOUT)
    protocol_type = request["protocol_type"]
    protocols = {one["name"]: one["metadata"] for one in request["protocols"]}
    instance_id = request.get("group_instance_id")
    # Other members are told these names, by versions in which a string has at most 32,767 bytes as well.
    if any(len(name.encode()) > MEMBER_ID_BYTES_MAX for name in (instance_id or "", protocol_type, *protocols)):
        raise Refused(errors.INVALID_REQUEST)
    topics, owned, room = subscription_of(protocol_type, next(iter(protocols.values()), b""))
    # A member that may not read a topic would leave its partitions unread, so it is given none of them.
    wanted = frozenset(topic for topic in topics if session.may(Permission.RECEIVE, topic=topic))
    rebalance_ms = request.get("rebalance_timeout_ms", -1)
    member = KafkaMember(
        client_id=session.client_id[:200],
        client_host=session.address,
        instance_id=instance_id,
        rebalance_timeout_ms=session_ms if rebalance_ms < 0 else min(rebalance_ms, limits.session_timeout_ms_max),
        protocol_type=protocol_type,
        protocols=protocols,
    )
    subscription = Subscription(wanted) if wanted else Subscription(pattern=NO_TOPICS)
    return JoinAsked(group, request["member_id"], session_ms, member, subscription, owned, version >= 4, room)


async def sync_group(session: Session, version: int, request: Message) -> Message:
    """Tell the assignment (the leader), and be told one's own part of it."""
    try:
        _check(session, request["group_id"])
        assignment = await session.groups.sync(
            request["group_id"],
            MemberKey(request["member_id"], request["generation_id"]),
            request.get("group_instance_id"),
            {one["member_id"]: one["assignment"] for one in request["assignments"]},
            protocol=(request.get("protocol_type"), request.get("protocol_name")),
        )
    except _Errors as error:
        return {"error_code": _code(error), "assignment": b"", "protocol_type": None, "protocol_name": None}
    return {
        "assignment": assignment,
        "protocol_type": request.get("protocol_type"),
        "protocol_name": request.get("protocol_name"),
    }


async def heartbeat(session: Session, version: int, request: Message) -> Message:
    """A sign of life; the answer says whether to join again."""
    try:
        _check(session, request["group_id"])
        member = MemberKey(request["member_id"], request["generation_id"])
        session.groups.heartbeat(request["group_id"], member, request.get("group_instance_id"))
    except _Errors as error:
        return {"error_code": _code(error)}
    return {}


async def leave_group(session: Session, version: int, request: Message) -> Message:
    """Go, one member or several."""
    group = request["group_id"]
    leaving = request["members"] if version >= 3 else [{"member_id": request["member_id"], "group_instance_id": None}]
    answers: list[Message] = []
    try:
        _check(session, group)
    except Refused as refusal:
        return {"error_code": refusal.code, "members": answers}
    async for one in few_a_turn(leaving, per_turn=ACTS_PER_TURN):
        code = errors.NONE
        try:
            await session.groups.leave(group, one["member_id"], one["group_instance_id"])
        except _Errors as error:
            code = _code(error)
        answers.append(
            {"member_id": one["member_id"], "group_instance_id": one["group_instance_id"], "error_code": code}
        )
    if version < 3:
        return {"error_code": answers[0]["error_code"]}
    return {"members": answers}


# ------------------------------------------------------------------------------------------------------ offsets


async def offset_commit(session: Session, version: int, request: Message) -> Message:
    """Commit offsets, all that name a partition that there is; durable when answered."""
    group, member_id, generation = (
        request["group_id"],
        request["member_id"],
        request.get("generation_id_or_member_epoch", -1),
    )
    group_code = errors.NONE
    commits: dict[TopicPartition, OffsetCommit] = {}
    codes: dict[TopicPartition, int] = {}
    try:
        _check(session, group)
        for topic in request["topics"]:
            code = errors.NONE
            count = 0
            if not session.may(Permission.RECEIVE, topic=topic["name"]):
                code = errors.TOPIC_AUTHORIZATION_FAILED
            else:
                try:
                    count = session.gateway.routes_table.topic(topic["name"]).partitions
                except UnknownQueue:
                    code = errors.UNKNOWN_TOPIC_OR_PARTITION
            async for one in few_a_turn(topic["partitions"]):
                number, offset = one["partition_index"], one["committed_offset"]
                own = code or (errors.NONE if 0 <= number < count else errors.UNKNOWN_TOPIC_OR_PARTITION)
                text = one["committed_metadata"] or ""
                if not own and offset < 0:
                    own = errors.INVALID_REQUEST
                if not own and len(text.encode()) > COMMIT_METADATA_BYTES_MAX:
                    own = errors.OFFSET_METADATA_TOO_LARGE
                codes[place := TopicPartition(topic["name"], number)] = own
                if not own:
                    commits[place] = OffsetCommit(*place, offset, text)
        if commits:
            member = MemberKey(member_id, generation) if member_id or generation >= 0 else None
            session.groups.check_instance(group, member_id, request.get("group_instance_id"))
            await session.gateway.groups.commit(group, list(commits.values()), member)
    except GroupActive:
        group_code = errors.UNKNOWN_MEMBER_ID  # no member, in a group that has members
    except UnknownMember:
        group_code = errors.UNKNOWN_MEMBER_ID if _is_known(session, group) else errors.ILLEGAL_GENERATION
    except _Errors as error:
        group_code = _code(error)
    topics = []
    async for topic in few_a_turn(request["topics"]):
        name = topic["name"]
        partitions = [
            {
                "partition_index": one["partition_index"],
                "error_code": codes.get(TopicPartition(name, one["partition_index"]), 0) or group_code,
            }
            async for one in few_a_turn(topic["partitions"], per_turn=ANSWERED_PER_TURN)
        ]
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _is_known(session: Session, group: str) -> bool:
    try:
        session.gateway.groups.describe(group)
    except UnknownGroup:
        return False
    return True


async def offset_delete(session: Session, version: int, request: Message) -> Message:
    """Take back what is committed in partitions of topics that no member consumes; durable when answered."""
    group = request["group_id"]
    try:
        _check(session, group, Permission.DELETE)
        session.gateway.groups.describe(group)
    except _Errors as error:
        return {"error_code": _code(error)}
    topics = []
    async for topic in few_a_turn(request["topics"], per_turn=ACTS_PER_TURN):
        name, numbers = topic["name"], [one["partition_index"] for one in topic["partitions"]]
        code, known = errors.NONE, range(0)
        try:
            if not session.may(Permission.RECEIVE, topic=name):
                raise Refused(errors.TOPIC_AUTHORIZATION_FAILED)
            known = range(session.gateway.routes_table.topic(name).partitions)
            await session.gateway.groups.forget_offsets(group, name, [number for number in numbers if number in known])
        except GroupActive:
            code = errors.GROUP_SUBSCRIBED_TO_TOPIC
        except _Errors as error:
            code = _code(error)
        await record(session, "group.reset", {"group": group}, code, topic=name, partitions=numbers, forgotten=True)
        partitions = [
            {
                "partition_index": number,
                "error_code": code or (errors.NONE if number in known else errors.UNKNOWN_TOPIC_OR_PARTITION),
            }
            for number in numbers
        ]
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


async def offset_fetch(session: Session, version: int, request: Message) -> Message:
    """What is committed: in the partitions that are named, or in all."""
    if version >= 8:
        groups = []
        async for one in few_a_turn({one["group_id"]: one for one in request["groups"]}.values(), per_turn=1):
            code, topics = await _committed(session, one["group_id"], one["topics"])
            groups.append({"group_id": one["group_id"], "topics": topics, "error_code": code})
        return {"groups": groups}
    code, topics = await _committed(session, request["group_id"], request["topics"])
    answer: Message = {"topics": topics}
    if version >= 2:
        answer["error_code"] = code
    elif code:  # it has no other place in this version
        answer["topics"] = [await _refused_in(topic, code) for topic in request["topics"]]
    return answer


async def _refused_in(topic: Message, code: int) -> Message:
    """What is answered for the partitions of a topic when nothing is told."""
    partitions = [
        {"partition_index": number, "committed_offset": -1, "metadata": "", "error_code": code}
        async for number in few_a_turn(topic["partition_indexes"], per_turn=ANSWERED_PER_TURN)
    ]
    return {"name": topic["name"], "partitions": partitions}


async def _committed(session: Session, group: str, wanted: Sequence[Message] | None) -> tuple[int, list[Message]]:
    groups = session.gateway.groups
    try:
        may_describe = session.may(Permission.DESCRIBE, group=group)
        _check(session, group, Permission.DESCRIBE if may_describe else Permission.RECEIVE)
        if wanted is None:
            try:
                names: Sequence[str] = groups.describe(group).view.topics
            except UnknownGroup:
                names = ()
            wanted = [
                {"name": name, "partition_indexes": range(session.gateway.routes_table.topic(name).partitions)}
                for name in names
                if session.may(Permission.DESCRIBE, topic=name)
            ]
            return errors.NONE, [
                topic
                for topic in [await _committed_in(session, group, one, leave_out=True) for one in wanted]
                if topic["partitions"]
            ]
        return errors.NONE, [await _committed_in(session, group, one, leave_out=False) for one in wanted]
    except _Errors as error:
        return _code(error), []


async def _committed_in(session: Session, group: str, topic: Message, *, leave_out: bool) -> Message:
    """What is committed in partitions of a topic; `leave_out` those where nothing is."""
    name, numbers = topic["name"], topic["partition_indexes"]
    positions: dict[int, CommittedPosition] = {}
    code = errors.NONE
    if not session.may(Permission.DESCRIBE, topic=name):
        code = errors.TOPIC_AUTHORIZATION_FAILED
    else:
        with suppress(UnknownQueue):  # nothing is committed there, as in any partition that there is not
            count = session.gateway.routes_table.topic(name).partitions
            there = [TopicPartition(name, number) for number in numbers if 0 <= number < count]
            async for first in few_a_turn(range(0, len(there), COMMITTED_PER_TURN), per_turn=1):
                some = there[first : first + COMMITTED_PER_TURN]
                positions |= {one.partition: one for one in await session.gateway.groups.committed(group, some)}
    partitions = []
    async for number in few_a_turn(numbers, per_turn=ANSWERED_PER_TURN):
        position = positions.get(number)
        offset = None if position is None else position.offset
        if offset is None and leave_out:
            continue
        partitions.append(
            {
                "partition_index": number,
                "committed_offset": -1 if offset is None else offset,
                "metadata": "" if position is None else position.metadata,
                "error_code": code,
            }
        )
    return {"name": name, "partitions": partitions}


# ------------------------------------------------------------------------------------------------------ groups


async def describe_groups(session: Session, version: int, request: Message) -> Message:
    """Members of groups, and what they have."""
    found = []
    async for group in few_a_turn(dict.fromkeys(request["groups"]), per_turn=1):  # of a thousand members each, maybe
        answer: Message = {
            "group_id": group, "group_state": "", "protocol_type": "", "protocol_data": "", "members": [],
            "authorized_operations": _NOT_ASKED,
        }  # fmt: skip
        try:
            _check(session, group, Permission.DESCRIBE)
            answer |= _described(session, session.gateway.groups.describe(group))
        except UnknownGroup:
            answer["group_state"] = "Dead"
        except _Errors as error:
            answer["error_code"] = _code(error)
        found.append(answer if version >= 3 else {k: v for k, v in answer.items() if k != "authorized_operations"})
    return {"groups": found}


def _described(session: Session, description: GroupDescription) -> Message:
    members = [_member(session, view) for view in description.members]
    kafka = [kafka for view in description.members if (kafka := kafka_member(view.member)) is not None]
    is_consumer = all(one.protocol_type == CONSUMER for one in kafka)
    protocol = next(iter(kafka[0].protocols)) if len(kafka) == len(members) and kafka else "mq"
    return {
        "group_state": _STATES[description.view.state],
        "protocol_type": CONSUMER if is_consumer else kafka[0].protocol_type,
        "protocol_data": protocol if members else "",
        "members": members,
    }


def _member(session: Session, view: MemberView) -> Message:
    """A member as Kafka's tools read it, whatever it is, without topics that the client may not see."""
    member = view.member
    kafka = kafka_member(member)
    consumer = kafka is None or kafka.protocol_type == CONSUMER
    metadata = b"" if kafka is None else next(iter(kafka.protocols.values()), b"")
    if consumer:
        topics, owned, _ = subscription_of(CONSUMER, metadata)
        told = {*(member.subscription.topics if kafka is None else topics), *(one.topic for one in owned)}
        seen = [topic for topic in sorted(told) if session.may(Permission.DESCRIBE, topic=topic)]
        if kafka is None or len(seen) < len(told):
            metadata = subscription_bytes(seen)
    assigned = [one for one in view.share.assigned if session.may(Permission.DESCRIBE, topic=one.topic)]
    return {
        "member_id": member.member_id,
        "group_instance_id": None if kafka is None else kafka.instance_id,
        "client_id": member.member_id if kafka is None else kafka.client_id,
        "client_host": "" if kafka is None else f"/{kafka.client_host}",
        "member_metadata": metadata,
        "member_assignment": assignment_of(assigned) if consumer else view.share.note,
    }


async def list_groups(session: Session, version: int, request: Message) -> Message:
    """The groups that the client may describe."""
    states = request.get("states_filter") or ()
    groups = []
    async for name in few_a_turn(session.gateway.groups.names(), per_turn=GROUPS_PER_TURN):
        if not session.may(Permission.DESCRIBE, group=name):
            continue
        with suppress(UnknownGroup):  # it was deleted meanwhile
            state = _STATES[session.gateway.groups.view(name).state]
            if not states or state in states:
                groups.append({"group_id": name, "protocol_type": CONSUMER, "group_state": state})
    return {"groups": groups}


async def delete_groups(session: Session, version: int, request: Message) -> Message:
    """Forget groups without members; durable when answered."""
    results = []
    async for group in few_a_turn(request["groups_names"], per_turn=ACTS_PER_TURN):
        code = errors.NONE
        try:
            _check(session, group, Permission.DELETE)
            await session.gateway.groups.delete(group)
            for told in session.gateway.on_group_deleted:
                told(group)
        except GroupActive:
            code = errors.NON_EMPTY_GROUP
        except _Errors as error:
            code = _code(error)
        await record(session, "group.delete", {"group": group}, code)
        results.append({"group_id": group, "error_code": code})
    return {"results": results}
