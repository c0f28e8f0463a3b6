"""gateway.cluster.members over metadata in memory and simulated disks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gateway.cluster.members import (
    BROKERS,
    NODES,
    CannotJoin,
    Member,
    Membership,
    NameInUse,
    check_alone,
    check_node_name,
    decode_member,
    encode_member,
    join,
    membership_of,
)
from gateway.cluster.memory import MemoryMetadata
from gateway.cluster.record import NODE_NAME_CHARS_MAX
from gateway.cluster.topics import COUNTERS, Counters, decode_counters, decode_topic, key_of_topic
from store.topics import Topic
from tests.simdisk import SimDisk

ROOT = Path("/data")


def own(name: str, data: str = "") -> Member:
    return Member(
        name=name,
        number=0,
        data=data or f"data of {name}",
        address=f"http://{name}:1",
        url=f"http://{name}:2",
        room="east",
        kafka=("KAFKA://127.0.0.1:9092", "OUTSIDE://mq.example.org:9094"),
    )


def disk() -> SimDisk:
    made = SimDisk()
    made.make_dirs(ROOT)
    return made


def test_names_of_nodes_are_checked() -> None:
    for name in ("n1", "a", "-", "n" * NODE_NAME_CHARS_MAX):
        check_node_name(name)
    for name in ("", "N1", "n.1", "n/1", "ü", "n1\n", "n" * (NODE_NAME_CHARS_MAX + 1)):
        with pytest.raises(ValueError, match="a node's name"):
            check_node_name(name)


def test_a_member_is_read_as_it_was_written() -> None:
    assert decode_member("n1", encode_member(own("n1"))) == own("n1")
    without = replace(own("n1"), kafka=())
    assert b"kafka" not in encode_member(without)
    assert decode_member("n1", encode_member(without)) == without
    for data in (b"", b"{}", b"[]", encode_member(own("n1")).replace(b'"v":1', b'"v":2')):
        with pytest.raises(ValueError, match="not understood"):
            decode_member("n1", data)


def test_what_a_newer_program_says_of_a_member_is_kept_when_an_older_one_changes_it() -> None:
    newer = encode_member(own("n1")).replace(b'"v":1', b'"v":1,"zone":"a","disks":[1,2]')
    member = decode_member("n1", newer)
    assert replace(member, more=()) == own("n1")
    written = orjson.loads(encode_member(replace(member, draining=True)))
    assert written == orjson.loads(newer) | {"draining": True}


async def test_the_first_node_brings_its_topics_and_the_others_none() -> None:
    metadata, first, second = MemoryMetadata(), disk(), disk()
    topics = [Topic(16, "orders", 2), Topic(19, "bills", 1)]
    check_alone(ROOT, first)
    membership = await join(metadata, ROOT, first, own("n1"), topics, next_topic_id=21)
    assert membership == Membership("data of n1", "n1") == membership_of(ROOT, first)
    with pytest.raises(CannotJoin, match="start it with --node n1"):
        check_alone(ROOT, first)
    value = await metadata.get(key_of_topic("bills"))
    assert value is not None
    assert decode_topic(value.data).topic == topics[1]
    assert decode_topic(value.data).home_of(0) == "n1"
    with pytest.raises(CannotJoin, match="has topics of its own"):
        await join(metadata, ROOT, second, own("n2"), topics, next_topic_id=20)
    assert membership_of(ROOT, second) is None
    assert (await join(metadata, ROOT, second, own("n2"), [], next_topic_id=16)).cluster == "data of n1"
    members = await metadata.list(BROKERS)
    numbers = {key: decode_member(key, value.data).number for key, value in members.values.items()}
    assert numbers == {f"{BROKERS}n1": 0, f"{BROKERS}n2": 1}
    counted = await metadata.get(COUNTERS)
    assert counted is not None
    assert decode_counters(counted.data) == Counters(21, 2), "no id is given out twice"


async def test_a_node_that_joins_again_keeps_its_number_and_may_have_another_address() -> None:
    metadata, disks = MemoryMetadata(), {name: disk() for name in ("n1", "n2")}
    for name, its in disks.items():
        await join(metadata, ROOT, its, own(name), [], next_topic_id=16)
    moved = Member(name="n2", number=0, data="data of n2", address="http://other:1", url="http://n2:2")
    await join(metadata, ROOT, disks["n2"], moved, [], next_topic_id=16)
    value = await metadata.get(BROKERS + "n2")
    assert value is not None
    member = decode_member("n2", value.data)
    assert (member.number, member.address) == (1, "http://other:1")


async def test_what_only_a_node_has_was_deleted_unless_the_metadata_is_older() -> None:
    metadata, its = MemoryMetadata(), disk()
    await join(metadata, ROOT, its, own("n1"), [Topic(16, "orders", 2)], next_topic_id=17)
    await join(metadata, ROOT, its, own("n1"), [Topic(16, "deleted meanwhile", 2)], next_topic_id=17)
    assert await metadata.get(key_of_topic("deleted meanwhile")) is None
    with pytest.raises(CannotJoin, match="the metadata is older"):
        await join(metadata, ROOT, its, own("n1"), [Topic(17, "made later", 2)], next_topic_id=18)


async def test_a_data_directory_is_of_one_cluster_and_one_node() -> None:
    metadata, its = MemoryMetadata(), disk()
    await join(metadata, ROOT, its, own("n1"), [], next_topic_id=16)
    with pytest.raises(CannotJoin, match="start it with --node n1"):
        await join(metadata, ROOT, its, own("n2", "data of n1"), [], next_topic_id=16)
    with pytest.raises(CannotJoin, match="another data directory is node n1"):
        await join(metadata, ROOT, disk(), own("n1", "other data"), [], next_topic_id=16)
    with pytest.raises(CannotJoin, match="of which the metadata knows nothing"):
        await join(MemoryMetadata(), ROOT, its, own("n1"), [], next_topic_id=16)
    others = MemoryMetadata()
    await join(others, ROOT, disk(), own("n7"), [], next_topic_id=16)
    with pytest.raises(CannotJoin, match="the metadata is that of data of n7"):
        await join(others, ROOT, its, own("n1"), [], next_topic_id=16)


async def test_a_first_node_that_was_killed_before_its_directory_knew_joins_again_with_its_topics() -> None:
    metadata, its = MemoryMetadata(), disk()
    await join(metadata, ROOT, disk(), own("n1"), [Topic(16, "orders", 2)], next_topic_id=17)
    topics = [Topic(16, "orders", 2), Topic(17, "made alone meanwhile", 1)]
    assert (await join(metadata, ROOT, its, own("n1"), topics, next_topic_id=18)).node == "n1"
    assert await metadata.get(key_of_topic("made alone meanwhile")) is not None
    counted = await metadata.get(COUNTERS)
    assert counted is not None
    assert decode_counters(counted.data).topic_id == 18


async def test_a_name_without_a_store_is_free_when_its_session_has_ended() -> None:
    metadata = MemoryMetadata()
    first, second = (replace(own("n1", data), storeless=True) for data in ("a", "b"))
    assert b"storeless" not in encode_member(own("n1"))
    assert decode_member("n1", encode_member(first)) == first
    await join(metadata, ROOT, disk(), first, [], next_topic_id=16)
    async with metadata.session(NODES + "n1", b"{}", ttl_ms=1):
        with pytest.raises(NameInUse, match="another process is node n1"):
            await join(metadata, ROOT, disk(), second, [], next_topic_id=16)
        await join(metadata, ROOT, disk(), replace(own("n2"), storeless=True), [], next_topic_id=16)
    assert (await join(metadata, ROOT, disk(), second, [], next_topic_id=16)).cluster == "a"
    value = await metadata.get(BROKERS + "n1")
    assert value is not None
    assert decode_member("n1", value.data) == second, "with the number that it had"
    with pytest.raises(CannotJoin, match="choose another --node"):
        await join(metadata, ROOT, disk(), own("n1", "of a store"), [], next_topic_id=16)
    await join(metadata, ROOT, disk(), own("n3"), [], next_topic_id=16)
    with pytest.raises(CannotJoin, match="choose another --node"):
        await join(metadata, ROOT, disk(), replace(own("n3", "c"), storeless=True), [], next_topic_id=16)


async def test_a_session_that_begins_while_a_process_joins_keeps_it_out() -> None:
    metadata = MemoryMetadata()
    member = replace(own("n1"), storeless=True)
    await join(metadata, ROOT, disk(), member, [], next_topic_id=16)
    written = metadata.compare_and_set

    async def late(expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        await sessions.enter_async_context(metadata.session(NODES + "n1", b"{}", ttl_ms=1))
        metadata.compare_and_set = written  # type: ignore[method-assign]
        return await written(expected, changes)

    metadata.compare_and_set = late  # type: ignore[method-assign]
    async with AsyncExitStack() as sessions:
        with pytest.raises(NameInUse):
            await join(metadata, ROOT, disk(), replace(member, data="b"), [], next_topic_id=16)
