"""The dearest requests of Kafka's protocol: as many elements as one may have, the largest frames, the most of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.surfaces.kafka import apis
from gateway.surfaces.kafka.apis import APIS
from gateway.surfaces.kafka.by_hand import write_count, write_text
from gateway.surfaces.kafka.schema import ELEMENTS_MAX, encode
from store.limits import PARTITIONS_MAX

Message = Mapping[str, Any]
TOPIC = "wide"

_HEAD = struct.Struct(">ihhih")
_I32 = struct.Struct(">i")
_FETCHED = struct.Struct(">iqi")


def framed(key: int, body: bytes, version: int) -> bytes:
    """A request as it goes over the wire."""
    tags = b"\0" if version >= APIS[key].flexible else b""
    return _HEAD.pack(10 + len(tags) + len(body), key, version, 1, -1) + tags + body


def asked(key: int, message: Message, version: int | None = None) -> bytes:
    """A request, in its latest version."""
    version = APIS[key].max_version if version is None else version
    return framed(key, bytes(encode(f"{APIS[key].name}Request", version, dict(message))), version)


def produce(topic: str, records: bytes, count: int) -> bytes:
    """A request to append these records to so many partitions."""
    version = apis.APIS[apis.PRODUCE].flexible - 1
    body = bytearray(struct.pack(">hhi", -1, -1, 1000))
    write_count(body, 1, flexible=False)
    write_text(body, topic, flexible=False)
    write_count(body, count, flexible=False)
    for number in range(count):
        body += struct.pack(">ii", number % PARTITIONS_MAX, len(records)) + records
    return framed(apis.PRODUCE, bytes(body), version)


def fetch(topic: str, count: int) -> bytes:
    """A request for the records of so many partitions."""
    version = 4
    body = bytearray(struct.pack(">iiiib", -1, 100, 1, 64 << 20, 0))
    write_count(body, 1, flexible=False)
    write_text(body, topic, flexible=False)
    write_count(body, count, flexible=False)
    for number in range(count):
        body += _FETCHED.pack(number % PARTITIONS_MAX, 0, 1 << 20)
    return framed(apis.FETCH, bytes(body), version)


def create_topics(names: Sequence[str]) -> bytes:
    """A request for topics of one partition."""
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    return asked(apis.CREATE_TOPICS, {"topics": topics, "timeout_ms": 30_000})


def in_crowd(names: Sequence[str]) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """API, name and bytes of the requests that go through all topics. `names`: those that one may describe at once."""
    described = [
        {"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in names[: ELEMENTS_MAX // 2]
    ]
    cases: tuple[tuple[int, str, Message], ...] = (
        (apis.METADATA, "all of", {"topics": None, "allow_auto_topic_creation": False}),
        (apis.METADATA, "by name,", {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}),
        (apis.DESCRIBE_CONFIGS, "of all of", {"resources": described}),
        (apis.LIST_GROUPS, "all, with", {}),
    )
    for key, name, message in cases:
        yield APIS[key].name, name, lambda key=key, message=message: asked(key, message)  # type: ignore[misc]


def _elements(of: Callable[[int], object], count: int = ELEMENTS_MAX - 100) -> list[Any]:
    return [of(number) for number in range(count)]


def requests(
    batch: bytes, headed: Mapping[str, Callable[[], bytes]] | None = None
) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """API, name and bytes of each. `batch`: the one with the most records; `headed`: those with many headers."""
    names = {"topics": _elements(lambda number: {"name": f"none{number}"}), "allow_auto_topic_creation": False}
    wide = {"topics": _elements(lambda number: {"name": TOPIC}), "allow_auto_topic_creation": False}

    def partitions(**fields: object) -> list[Any]:
        """All partitions of a topic, again and again."""
        return _elements(lambda number: {"partition_index": number % PARTITIONS_MAX, **fields})

    def topics(topic: str = TOPIC, **fields: object) -> list[Any]:
        return [{"name": topic, "partitions": partitions(**fields)}]

    def each(field: str, of: Callable[[int], object], **others: object) -> Callable[[], Message]:
        return lambda: {field: _elements(of), **others}

    group = {"group_id": "k", "member_id": ""}
    cases: tuple[tuple[int, str, Callable[[], Message]], ...] = (
        (apis.METADATA, "the most names", lambda: names),
        (apis.METADATA, "one topic again and again", lambda: wide),
        (apis.METADATA, "all topics", lambda: {"topics": None, "allow_auto_topic_creation": False}),
        (apis.LIST_OFFSETS, "the most", lambda: {"topics": topics(timestamp=-1)}),
        (apis.LIST_OFFSETS, "of no topic", lambda: {"topics": topics("none", timestamp=-1)}),
        (apis.LIST_OFFSETS, "by time", lambda: {"topics": topics(timestamp=1)}),
        (apis.OFFSET_COMMIT, "the most", lambda: {**group, "topics": topics(committed_offset=0)}),
        (apis.OFFSET_COMMIT, "of no topic", lambda: {**group, "topics": topics("none", committed_offset=0)}),
        (apis.OFFSET_FETCH, "the most", lambda: {
            "groups": [{"group_id": "k", "topics": [
                {"name": TOPIC, "partition_indexes": _elements(lambda number: number % PARTITIONS_MAX)}]}]}),
        (apis.OFFSET_FETCH, "all, again and again", lambda: {
            "groups": _elements(lambda number: {"group_id": "k", "topics": None})}),
        (apis.FIND_COORDINATOR, "the most", each("coordinator_keys", str)),
        (apis.JOIN_GROUP, "the most protocols", each(
            "protocols", lambda number: {"name": str(number), "metadata": b""}, group_id="k", member_id="",
            session_timeout_ms=10_000, protocol_type="consumer")),
        (apis.SYNC_GROUP, "the most", each(
            "assignments", lambda number: {"member_id": str(number), "assignment": b""}, group_id="k", member_id="m",
            generation_id=1)),
        (apis.LEAVE_GROUP, "the most", each("members", lambda number: {"member_id": str(number)}, group_id="k")),
        (apis.DESCRIBE_GROUPS, "the most", each("groups", lambda number: "k")),
        (apis.DELETE_GROUPS, "of none", each("groups_names", lambda number: f"none{number}")),
        (apis.CREATE_TOPICS, "that are there", each(
            "topics", lambda number: {"name": TOPIC, "num_partitions": 1, "replication_factor": 1})),
        (apis.DELETE_TOPICS, "that are not there", each("topic_names", lambda number: f"none{number}")),
        (apis.CREATE_PARTITIONS, "that are there", each(
            "topics", lambda number: {"name": TOPIC, "count": 1, "assignments": None})),
        (apis.DESCRIBE_CONFIGS, "one topic again and again", each(
            "resources", lambda number: {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": None})),
        (apis.ALTER_CONFIGS, "of nothing", each(
            "resources", lambda number: {"resource_type": 2, "resource_name": f"none{number}"})),
        (apis.INCREMENTAL_ALTER_CONFIGS, "the most of one topic", lambda: {"resources": [
            {"resource_type": 2, "resource_name": TOPIC, "configs": _elements(
                lambda number: {"name": "x", "config_operation": 0, "value": "1"})}]}),
        (apis.DELETE_RECORDS, "of no partition", lambda: {"topics": topics("none", offset=0)}),
        (apis.OFFSET_FOR_LEADER_EPOCH, "the most", lambda: {"topics": [
            {"topic": TOPIC, "partitions": _elements(
                lambda number: {"partition": number % PARTITIONS_MAX, "leader_epoch": 0})}]}),
    )  # fmt: skip
    for key, name, message in cases:
        yield APIS[key].name, name, lambda key=key, message=message: asked(key, message())  # type: ignore[misc]
    most = ELEMENTS_MAX - 100
    yield "Produce", "the most partitions, without records", lambda: produce(TOPIC, b"", most)
    yield "Produce", "the most partitions of no topic", lambda: produce("none", b"", most)
    yield "Produce", "batch of tiny records", lambda: produce("orders", batch, 1)
    for name, make in (headed or {}).items():
        yield "Produce", name, lambda make=make: produce("orders", make(), 1)  # type: ignore[misc]
    yield "Fetch", "the most partitions", lambda: fetch(TOPIC, most)
    yield "Fetch", "the most partitions of no topic", lambda: fetch("none", most)
    yield "Fetch", "the largest batches", lambda: fetch("large", 1) + fetch("tiny", 1)
    yield "ApiVersions", "10,000 in a row", lambda: asked(apis.API_VERSIONS, {}, 0) * 10_000
    yield "ApiVersions", "too many elements", lambda: framed(apis.METADATA, _I32.pack(1 << 22) + bytes(1 << 23), 0)
