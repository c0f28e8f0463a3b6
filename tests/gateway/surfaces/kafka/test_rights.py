"""Kafka's port is a way in like the others: what a caller may not see looks like what is not there, headers that are
the server's own are refused, and acts of administration are in the trail.

The caller may do everything to topics `mine*` and to the group `shared`, in which somebody consumes `theirs` as well.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.codec import tags
from gateway.surfaces.kafka import apis, errors
from gateway.surfaces.kafka.apis import APIS
from gateway.surfaces.kafka.groups import subscription_bytes
from gateway.surfaces.kafka.schema import decode
from loadtest.turns.kafka import asked, fetch, produce
from store.record_batch import Record, encode
from tests.gateway.security.test_server import client_of, config_of, running, token_for
from tests.waiting import PATIENCE_S

HIDDEN, MISSING = "theirs", "nobody"  # of one length, as answers are compared byte by byte
HIDDEN_GROUP, MISSING_GROUP = "g-theirs", "g-nobody"
GROUP = "shared"


class Caller:
    """A Kafka client that knows no more than bytes."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def connect(self, token: str) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert (await self.ask(apis.SASL_HANDSHAKE, {"mechanism": "PLAIN"}))["error_code"] == 0
        told = await self.ask(apis.SASL_AUTHENTICATE, {"auth_bytes": b"\0x\0" + token.encode()})
        assert told["error_code"] == 0, told

    async def raw(self, request: bytes) -> bytes:
        """The response behind its correlation id."""
        self._writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return (await self._reader.readexactly(size))[4:]

    async def ask(self, key: int, message: dict[str, Any], version: int | None = None) -> dict[str, Any]:
        api = APIS[key]
        version = api.max_version if version is None else version
        said = await self.raw(asked(key, message, version))
        at = int(version >= api.flexible)
        return decode(f"{api.name}Response", version, said, at)

    async def close(self) -> None:
        self._writer.close()


@dataclass
class World:
    root: aiohttp.ClientSession
    admin: Caller
    mine: Caller

    async def trail(self, action: str) -> list[dict[str, Any]]:
        async with self.root.get(f"/mq/v1/audit?action={action}") as answer:
            return list((await answer.json())["entries"])


@asynccontextmanager
async def _world(directory: Path) -> AsyncIterator[World]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = config_of(directory, **{"kafka.port": port})
    admin_token, _ = token_for(config, "admin", "admin")
    mine_token, _ = token_for(config, "mine", "admin:topic:mine*", f"admin:group:{GROUP}", "admin:group:mine*")
    async with running(config) as url, client_of(url, admin_token) as root:
        for topic in ("mine", HIDDEN):
            assert (await root.put(f"/mq/v1/topics/{topic}", json={"partitions": 1})).status == 201
            assert (await root.post(f"/topics/{topic}", data=b'{"records":[{"value":"of %s"}]}' % topic.encode())).ok
        admin, mine = Caller(port), Caller(port)
        await admin.connect(admin_token)
        await mine.connect(mine_token)
        try:
            yield World(root, admin, mine)
        finally:
            await admin.close()
            await mine.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with _world(tmp_path) as made:
        yield made


def ways(topic: str, group: str) -> dict[str, bytes]:
    """Every request that names a topic, or a group."""
    partition = {"partition_index": 0}
    committed = {"topics": [{"name": topic, "partitions": [{**partition, "committed_offset": 0}]}]}
    config = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
    resource = {"resource_type": 2, "resource_name": topic}
    member = {"group_id": group, "member_id": "m", "generation_id": 1}
    batch = bytes(encode([Record(None, b"1", 0)]))
    return {
        "metadata": asked(apis.METADATA, {"topics": [{"name": topic}]}),
        "list offsets": asked(apis.LIST_OFFSETS, {"topics": [{"name": topic, "partitions": [
            {**partition, "timestamp": -1}]}]}),
        "produce": produce(topic, batch, 1),
        "fetch": fetch(topic, 1),
        "commit": asked(apis.OFFSET_COMMIT, {"group_id": GROUP, "member_id": "", **committed}),
        "committed": asked(apis.OFFSET_FETCH, {"groups": [{"group_id": GROUP, "topics": [
            {"name": topic, "partition_indexes": [0]}]}]}),
        "create": asked(apis.CREATE_TOPICS, {"topics": [
            {"name": topic, "num_partitions": 1, "replication_factor": 1}]}),
        "delete": asked(apis.DELETE_TOPICS, {"topic_names": [topic]}),
        "grow": asked(apis.CREATE_PARTITIONS, {"topics": [{"name": topic, "count": 2, "assignments": None}]}),
        "describe configs": asked(apis.DESCRIBE_CONFIGS, {"resources": [{**resource, "configuration_keys": None}]}),
        "alter configs": asked(apis.INCREMENTAL_ALTER_CONFIGS, {"resources": [{**resource, "configs": [config]}]}),
        "replace configs": asked(apis.ALTER_CONFIGS, {"resources": [resource]}),
        "delete records": asked(apis.DELETE_RECORDS, {"topics": [{"name": topic, "partitions": [
            {**partition, "offset": 0}]}]}),
        "epoch": asked(apis.OFFSET_FOR_LEADER_EPOCH, {"topics": [{"topic": topic, "partitions": [
            {"partition": 0, "leader_epoch": 0}]}]}),
        "coordinator": asked(apis.FIND_COORDINATOR, {"coordinator_keys": [group]}),
        "join": asked(apis.JOIN_GROUP, {"group_id": group, "member_id": "", "session_timeout_ms": 10_000,
                                        "protocol_type": "consumer", "protocols": [
                                            {"name": "range", "metadata": subscription_bytes(["mine"])}]}),
        "sync": asked(apis.SYNC_GROUP, {**member, "assignments": []}),
        "heartbeat": asked(apis.HEARTBEAT, member),
        "leave": asked(apis.LEAVE_GROUP, {"group_id": group, "members": [{"member_id": "m"}]}),
        "group's commit": asked(apis.OFFSET_COMMIT, {"group_id": group, "member_id": "", **committed}),
        "group's offsets": asked(apis.OFFSET_FETCH, {"groups": [{"group_id": group, "topics": None}]}),
        "describe group": asked(apis.DESCRIBE_GROUPS, {"groups": [group]}),
        "take back": asked(apis.OFFSET_DELETE, {"group_id": GROUP, "topics": [
            {"name": topic, "partitions": [partition]}]}),
        "group's take back": asked(apis.OFFSET_DELETE, {"group_id": group, "topics": []}),
        "delete group": asked(apis.DELETE_GROUPS, {"groups_names": [group]}),
    }  # fmt: skip


async def test_a_hidden_topic_or_group_is_answered_like_one_that_is_not_there(world: World) -> None:
    commit = {"topics": [{"name": "mine", "partitions": [{"partition_index": 0, "committed_offset": 0}]}]}
    made = await world.admin.ask(apis.OFFSET_COMMIT, {"group_id": HIDDEN_GROUP, "member_id": "", **commit})
    assert made["topics"][0]["partitions"][0]["error_code"] == 0
    missing = ways(MISSING, MISSING_GROUP)
    for name, request in ways(HIDDEN, HIDDEN_GROUP).items():
        hidden_said, missing_said = await world.mine.raw(request), await world.mine.raw(missing[name])
        assert hidden_said.replace(HIDDEN.encode(), MISSING.encode()) == missing_said, name
    async with world.root.get(f"/mq/v1/topics/{HIDDEN}/offsets") as answer:
        assert [one["end_offset"] for one in (await answer.json())["partitions"]] == [1]


async def test_lists_and_groups_of_several_topics_leave_out_what_is_hidden(world: World) -> None:
    assert [one["name"] for one in (await world.mine.ask(apis.METADATA, {"topics": None}))["topics"]] == ["mine"]
    both = {"topics": [
        {"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 0}]} for topic in ("mine", HIDDEN)
    ]}  # fmt: skip
    for group in (GROUP, HIDDEN_GROUP):
        await world.admin.ask(apis.OFFSET_COMMIT, {"group_id": group, "member_id": "", **both})
    assert [one["group_id"] for one in (await world.mine.ask(apis.LIST_GROUPS, {}))["groups"]] == [GROUP]
    fetched = await world.mine.ask(apis.OFFSET_FETCH, {"groups": [{"group_id": GROUP, "topics": None}]})
    assert [one["name"] for one in fetched["groups"][0]["topics"]] == ["mine"]
    join = {
        "group_id": GROUP, "member_id": "", "session_timeout_ms": 10_000, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription_bytes(["mine", HIDDEN])}],
    }  # fmt: skip
    joined = await world.admin.ask(apis.JOIN_GROUP, join, 3)
    assert joined["error_code"] == errors.NONE
    told = await world.mine.raw(asked(apis.DESCRIBE_GROUPS, {"groups": [GROUP]}))
    assert b"mine" in told
    assert HIDDEN.encode() not in told
    assert HIDDEN.encode() in await world.admin.raw(asked(apis.DESCRIBE_GROUPS, {"groups": [GROUP]}))


async def test_headers_that_are_the_server_s_own_are_refused(world: World) -> None:
    own = {name for name in vars(tags) if name.endswith("_HEADER")}
    names = {getattr(tags, name) for name in own} | {"mq-", "mq-anything"}
    for name in sorted(names):
        batch = bytes(encode([Record(None, b"1", 0), Record(None, b"1", 0, [(name, b"x")])]))
        said = await world.mine.raw(produce("mine", batch, 1))
        # topics: count, name, partitions: count, index, error code
        at = 4 + 2 + len("mine") + 4 + 4
        code = int.from_bytes(said[at : at + 2], "big", signed=True)
        assert (code == errors.NONE) is (name in tags.SENT_HEADERS), name
    async with world.root.get("/mq/v1/topics/mine/offsets") as answer:
        stored = [one["end_offset"] for one in (await answer.json())["partitions"]]
    assert stored == [1 + 2 * len(tags.SENT_HEADERS)], "a batch is refused as a whole"


async def test_what_a_kafka_client_administers_is_in_the_trail(world: World) -> None:
    mine = {"topics": [{"name": "mine-2", "num_partitions": 1, "replication_factor": 1}]}
    await world.mine.ask(apis.CREATE_TOPICS, mine)
    await world.mine.ask(apis.CREATE_TOPICS, {"topics": [{**mine["topics"][0], "name": HIDDEN}]})
    await world.mine.ask(apis.METADATA, {"topics": [{"name": "mine-3"}], "allow_auto_topic_creation": True})
    config = {"name": "retention.ms", "config_operation": 0, "value": "60000"}
    await world.mine.ask(
        apis.INCREMENTAL_ALTER_CONFIGS,
        {"resources": [{"resource_type": 2, "resource_name": "mine-2", "configs": [config]}]},
    )
    await world.mine.ask(
        apis.DELETE_RECORDS, {"topics": [{"name": "mine", "partitions": [{"partition_index": 0, "offset": -1}]}]}
    )
    await world.mine.ask(apis.DELETE_GROUPS, {"groups_names": ["mine-g"]})  # what was refused waits for what was done
    await world.mine.ask(apis.DELETE_TOPICS, {"topic_names": ["mine-2"]})

    def told(entries: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        """The oldest first, without those of the preparation."""
        return [
            (*one["object"].values(), one["outcome"]) for one in reversed(entries) if one["principal"] == "mine"
        ]  # fmt: skip

    # What was refused is in files of its own: the order of lines of one millisecond is not known.
    assert Counter(told(await world.trail("topic.create"))) == Counter(
        [("mine-2", "done"), (HIDDEN, "refused"), ("mine-3", "done")]
    )
    assert told(await world.trail("topic.delete")) == [("mine-2", "done")]
    assert told(await world.trail("topic.delete_records")) == [("mine", "done")]
    assert told(await world.trail("group.delete")) == [("mine-g", "refused")]
    (altered,) = await world.trail("topic.alter")
    assert (altered["object"], altered["details"]) == ({"topic": "mine-2"}, {"configs": {"retention.ms": "60000"}})
    assert (altered["principal"], altered["address"]) == ("mine", "127.0.0.1")
