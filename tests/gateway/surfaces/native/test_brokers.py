"""gateway/surfaces/native/brokers.py, through HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from gateway.cluster.mover import Move
from gateway.routing.table import RouteTable, Segment
from gateway.surfaces.http.context import Gateway
from store.data_format import VERSION as DATA_VERSION
from store.types import QueueKey
from tests.gateway.conftest import Client
from tests.gateway.fake_broker import FakeBroker


async def ask(client: Client, path: str) -> Any:
    """The answer; of an error its code."""
    response = await client.get(f"/mq/v1{path}")
    answer = await response.json()
    return answer["error_code"] if response.status >= 400 else answer


async def test_brokers_say_how_they_are(client: Client, gateway: Gateway, broker: FakeBroker) -> None:
    (row,) = (await ask(client, "/brokers"))["brokers"]
    idle = {"broker": "local", "kind": "embedded", "url": None, "reasons": [], "partitions": 4, "room": None}
    on_it = {"sealed_segments": 0, "groups": None, "on_kafka": None, "balancing": False}
    assert row == {**idle, **on_it, "state": "up", "latency_ms": None, "excluded_until_ms": None}
    assert (await client.post("/topics/orders", json={"records": [{"value": "MQ=="}]})).status == 200
    (row,) = (await ask(client, "/brokers"))["brokers"]
    assert row["latency_ms"] > 0
    broker.reasons = ["the disk has failed"]
    (row,) = (await ask(client, "/brokers"))["brokers"]
    assert (row["state"], row["reasons"]) == ("stopped", ["the disk has failed"])
    assert await ask(client, "/brokers?x=1") == 422


async def test_a_server_that_is_alone_has_nowhere_to_move_partitions(client: Client, broker: FakeBroker) -> None:
    path = "/mq/v1/topics/orders/partitions"
    stays = await client.post(f"{path}/0/move", json={"to": "local"})
    assert (stays.status, (await stays.json())["owner"]) == (200, "local")
    assert (await client.post(f"{path}/0/move", json={"to": "n2"})).status == 404
    assert (await client.post(f"{path}/4/move", json={"to": "local"})).status == 404
    assert (await client.post(f"{path}/0/move", json={})).status == 422
    assert (await client.patch("/mq/v1/brokers/local", json={"draining": True})).status == 404
    for taken in (f"{path}/0/takeover", "/mq/v1/brokers/local/takeover"):
        assert (await client.post(taken, json={"accept_offline": True})).status == 404
        for body in ({"accept_offline": False}, {}):
            assert (await client.post(taken, json=body)).status == 422
    assert (await client.patch("/mq/v1/brokers/local", json={"draining": 1})).status == 422
    assert len((await ask(client, "/topics/orders/routes?limit=3"))["partitions"]) == 3
    assert await ask(client, "/topics/nothing/routes") == 40401


class FakeCluster:
    """A node of a cluster of three, one of which is away, with three moves."""

    name = "local"
    kafka = ()
    blocked = "partition 1 of orders cannot go to n2: it is full"
    members: Mapping[str, object] = MappingProxyType(
        {
            name: SimpleNamespace(
                name=name, draining=name == "n3", balancing=name == "n2", url=f"http://{name}", storeless=False
            )
            for name in ("local", "n2", "n3", "n4")
        }
    )

    def is_there(self, name: str) -> bool:
        return name != "n4"

    def is_gone(self, name: str) -> bool:
        return False

    def trouble(self, name: str) -> str | None:
        return None

    def owned_counts(self, _: str) -> dict[str, int]:
        return {"n3": 1}

    def owned_on_kafka(self) -> dict[str, int]:
        return {"n3": 2, "local": 5}

    def kafka_of(self, topic_id: int, partition: int) -> str | None:
        return None

    def moves(self) -> dict[tuple[int, int], Move]:
        topic_ids = ((16, 1), (16, 2), (99, 0), (16, 3))
        return {at: Move("local", "n2", "seal", 1_700_000_000_000 + at[1]) for at in topic_ids}


async def test_moves_under_way_and_plans(client: Client, gateway: Gateway) -> None:
    assert await ask(client, "/moves") == {"moves": [], "next_cursor": None, "total": 0}
    assert await ask(client, "/brokers/local/plan?draining=true") == 409, "there is no other broker"
    assert await ask(client, "/brokers/local/plan?draining=false") == {"moves": [], "total": 0}
    object.__setattr__(gateway, "cluster", FakeCluster())
    first = await ask(client, "/moves?limit=2")
    assert first["total"] == 3, "a topic that is gone has none"
    assert first["moves"][0] == {
        "topic": "orders", "partition": 1, "source": "local", "to": "n2", "step": "seal", "since_ms": 1_700_000_000_001,
    }  # fmt: skip
    second = await ask(client, f"/moves?limit=2&cursor={first['next_cursor']}")
    assert [row["partition"] for row in (*first["moves"], *second["moves"])] == [1, 2, 3]
    assert second["next_cursor"] is None
    rows = (await ask(client, "/routes"))["partitions"]
    assert [row["moves_to"] for row in rows] == [None, "n2", "n2", "n2"]
    assert [row["segments"][-1]["state"] for row in rows] == ["open", "moving", "moving", "moving"]
    brokers = [(row["broker"], row["kind"], row["state"]) for row in (await ask(client, "/brokers"))["brokers"]]
    assert brokers == [
        ("local", "embedded", "up"), ("n2", "peer", "up"), ("n3", "peer", "draining"), ("n4", "peer", "offline"),
    ]  # fmt: skip
    gateway.routes_table.formats["n2"] = DATA_VERSION - 1  # type: ignore[attr-defined]
    reasons = {row["broker"]: row["reasons"] for row in (await ask(client, "/brokers"))["brokers"]}
    assert reasons == {
        "local": [FakeCluster.blocked],
        "n2": [
            "it takes its share from those with the most: 0 of 2 partitions",
            "its program is older than this one: what needs a newer data format waits until it is upgraded",
        ],
        "n3": [
            "it is to have nothing, and has 1 partitions and groups: they go to the brokers with the fewest",
            "it owns 2 partitions and shards on Kafka clusters: other nodes take them over",
        ],
        "n4": ["its node has not been heard of for some seconds: what is on it waits for it, or for a takeover"],
    }
    drain = await ask(client, "/brokers/local/plan?draining=true&limit=3")
    assert drain["total"] == 4
    assert drain["moves"] == [
        {"topic": "orders", "partition": number, "source": "local", "to": "n2"} for number in range(3)
    ]
    share = await ask(client, "/brokers/n3/plan?draining=0")
    assert [(row["source"], row["to"]) for row in share["moves"]] == [("local", "n3")]
    assert await ask(client, "/brokers/n4/plan?draining=0") == 409
    assert await ask(client, "/brokers/n9/plan?draining=1") == 404
    for path in ("/brokers/local/plan", "/brokers/local/plan?draining=yes", "/moves?limit=201"):
        assert await ask(client, path) in (422, 42253), path


class StorelessCluster(FakeCluster):
    """Likewise; n2 and those that are away have no store."""

    members = MappingProxyType(
        {
            name: SimpleNamespace(
                name=name, draining=name == "n3", balancing=name == "n2", url=f"http://{name}",
                storeless=name not in ("local", "n3"), number=number,
            )
            for number, name in enumerate(("local", "n2", "n3", "n4", "n5"))
        }
    )  # fmt: skip
    owned: Mapping[str, int] = MappingProxyType({"n3": 2, "local": 5, "n4": 1})

    def is_there(self, name: str) -> bool:
        return name not in ("n4", "n5")

    def is_gone(self, name: str) -> bool:
        return name in ("n4", "n5")

    def owned_on_kafka(self) -> dict[str, int]:
        return dict(self.owned)

    async def set_draining(self, name: str, draining: bool) -> None:
        pass


async def test_nothing_is_planned_to_go_to_a_node_without_a_store(client: Client, gateway: Gateway) -> None:
    object.__setattr__(gateway, "cluster", StorelessCluster())
    assert await ask(client, "/brokers/local/plan?draining=true") == 409, "there is no other one with a store"
    assert await ask(client, "/brokers/n2/plan?draining=false") == 409
    assert await ask(client, "/brokers/n2/plan?draining=true") == {"moves": [], "total": 0}
    reasons = {row["broker"]: row["reasons"] for row in (await ask(client, "/brokers"))["brokers"]}
    assert reasons["n3"] == [
        "it is to have nothing, and has 1 partitions and groups: they go to the brokers with the fewest",
        "it owns 2 partitions and shards on Kafka clusters: other nodes take them over",
    ]
    assert reasons["n2"] == ["it takes its share of what others own on Kafka clusters"]
    on_kafka = {row["broker"]: row["on_kafka"] for row in (await ask(client, "/brokers"))["brokers"]}
    assert on_kafka == {"local": 5, "n2": 0, "n3": 2, "n4": 1}
    assert reasons["n4"] == ["its node has not been heard of, and has no store: other nodes go on with what it had"]


async def test_a_node_without_a_store_that_is_away_is_listed_while_something_is_left_of_it(
    client: Client, gateway: Gateway
) -> None:
    cluster = StorelessCluster()
    object.__setattr__(gateway, "cluster", cluster)

    async def listed() -> list[str]:
        return [row["broker"] for row in (await ask(client, "/brokers"))["brokers"]]

    async def numbers() -> list[int]:
        answer = await (await client.get("/brokers")).json()
        v3 = await (await client.get(f"/v3/clusters/{gateway.cluster_id}/brokers")).json()
        assert [row["broker_id"] for row in v3["data"]] == answer["brokers"]
        return list(answer["brokers"])

    assert (await listed(), await numbers()) == (["local", "n2", "n3", "n4"], [0, 1, 2, 3]), "n4 owns a partition"
    cluster.owned = {"n3": 3, "local": 5}
    assert (await listed(), await numbers()) == (["local", "n2", "n3"], [0, 1, 2])
    gateway.routes_table.formats["n5"] = DATA_VERSION - 1  # type: ignore[attr-defined]
    assert (await listed(), await numbers()) == (["local", "n2", "n3", "n5"], [0, 1, 2, 4]), "a format waits for it"
    drained = await client.patch("/mq/v1/brokers/n4", json={"draining": True})
    assert (drained.status, (await drained.json())["state"]) == (200, "offline"), "it can be said of any"


async def test_what_a_node_that_is_away_owns_on_kafka_is_not_taken_over_by_hand_nor_counted_as_its_own(
    client: Client, gateway: Gateway, broker: FakeBroker
) -> None:
    """For other nodes the route of such a partition leads to the node that owns it."""
    taken: list[int] = []

    class Away(FakeCluster):
        kafka = ("kafka1",)

        def kafka_of(self, topic_id: int, partition: int) -> str | None:
            return "kafka1" if partition % 2 else None

        def owned(self, *_: str) -> list[str]:
            return []

        async def take_over(self, topic: str, partition: int, to: str | None) -> None:
            taken.append(partition)

    routes = gateway.routes_table
    assert isinstance(routes, RouteTable)
    away = FakeBroker(broker.clock)
    away.name = "n4"
    chains = [(Segment(away, QueueKey(16, number)),) for number in range(4)]
    routes.set_chains(routes.topic("orders"), chains)
    object.__setattr__(gateway, "cluster", Away())
    counts = {row["broker"]: row["partitions"] for row in (await ask(client, "/brokers"))["brokers"]}
    assert counts == {"kafka1": 2, "local": 0, "n2": 0, "n3": 0, "n4": 2}
    answer = await client.post("/mq/v1/brokers/n4/takeover", json={"accept_offline": True})
    assert (await answer.json(), taken) == ({"broker": "n4", "partitions": 2, "groups": []}, [0, 2])


async def test_partitions_are_chains_of_segments(client: Client, gateway: Gateway, broker: FakeBroker) -> None:
    other = FakeBroker(broker.clock)
    other.name = "other"
    routes = gateway.routes_table
    assert isinstance(routes, RouteTable)
    moved = (
        Segment(broker, QueueKey(16, 1), 0, 0, 100),
        Segment(other, QueueKey(16, 7), 100, 5),
    )
    await broker.create_topic("alpha", 1)
    chains = [routes.chain("orders", number) for number in range(4)]
    routes.set_chains(routes.topic("orders"), [chains[0], moved, *chains[2:]])
    rows: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await ask(client, f"/routes?limit=2{cursor}")
        assert page["total"] == 5
        rows += page["partitions"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert [(row["topic"], row["partition"]) for row in rows] == [("alpha", 0), *(("orders", n) for n in range(4))]
    assert rows[2] == {
        "topic": "orders",
        "partition": 1,
        "owner": "other",
        "moves_to": None,
        "segments": [
            {"broker": "local", "first_offset": 0, "end_offset": 100, "state": "sealed"},
            {"broker": "other", "first_offset": 100, "end_offset": None, "state": "open"},
        ],
    }
    assert (await ask(client, "/routes?topic=alpha"))["total"] == 1
    assert await ask(client, "/routes?topic=nope") == 40401
    for query, code in (("limit=0", 42253), ("limit=201", 42253), ("cursor=x", 40050)):
        assert await ask(client, f"/routes?{query}") == code
    names = [row["broker"] for row in (await ask(client, "/brokers"))["brokers"]]
    assert names == ["local", "other"]
