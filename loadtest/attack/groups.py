"""Attacks by many groups, many partitions and many members."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import orjson

from loadtest.attack.attack import Attack, Kept
from loadtest.attack.attacker import JSON, NO_ANSWER, NOT_TRIED, Attacker
from loadtest.turns.kafka import TOPIC as KAFKA_TOPIC

WIDE = "wide"
STORM = "storm"
SUBSCRIPTIONS_MAX = 64
V2 = {"Content-Type": "application/vnd.kafka.v2+json"}


async def make_wide_topics(attacker: Attacker, *, topics: int, partitions: int, **_: int) -> None:
    """Topics with so many partitions each."""
    await attacker.each(topics, lambda number: attacker.make_topic(f"{WIDE}-{number}", partitions), at_a_time=4)


async def make_only_wide_topics(attacker: Attacker, *, topics: int, partitions: int, **_: int) -> None:
    """As `make_wide_topics`, when the one of the row for Kafka is gone: there may be 100,000 partitions in all."""
    await attacker.delete_topic(KAFKA_TOPIC)
    await make_wide_topics(attacker, topics=topics, partitions=partitions)


async def many_groups(attacker: Attacker, *, groups: int, topics: int, partitions: int, seconds: int) -> None:
    """A receive from all partitions in the name of group after group."""
    names = [f"{WIDE}-{number}" for number in range(topics)]
    body = orjson.dumps({"topics": names, "start": "earliest"})
    until_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        if time.monotonic() < until_s:
            await attacker.ask("POST", f"/mq/v1/groups/g{topics}-{number}/messages:receive", body=body, headers=JSON)
        else:
            attacker.saw(NOT_TRIED)

    await attacker.each(groups, one, at_a_time=8)


async def make_storm_topic(attacker: Attacker, *, partitions: int, **_: int) -> None:
    """The topic whose group is stormed."""
    await attacker.make_topic(STORM, partitions)


async def member_storm(attacker: Attacker, *, members: int, partitions: int, seconds: int) -> None:
    """Members of one group join by WebSocket as fast as they can, and go without a word."""
    until_s = time.monotonic() + seconds

    async def some(number: int) -> None:
        """One socket's worth of members."""
        first = number * SUBSCRIPTIONS_MAX
        count = min(SUBSCRIPTIONS_MAX, members - first)
        if time.monotonic() > until_s:
            attacker.saw(NOT_TRIED, count)
            return
        socket = await attacker.session.ws_connect("/ws/v1", max_msg_size=0, compress=0)
        joins = [_join(member) for member in range(first, first + count)]
        await socket.send_str("\n".join(orjson.dumps(join).decode() for join in joins))
        answered = await _answers(attacker, socket, count, until_s)
        attacker.saw(NO_ANSWER, count - answered) if answered < count else None

    await attacker.each(-(-members // SUBSCRIPTIONS_MAX), some, at_a_time=16)


def _join(member: int) -> dict[str, Any]:
    return {
        "id": member, "op": "subscribe", "sub": f"s{member}", "topics": [STORM], "mode": "stream", "group": STORM,
        "member": f"m{member}",
    }  # fmt: skip


async def _answers(attacker: Attacker, socket: aiohttp.ClientWebSocketResponse, count: int, until_s: float) -> int:
    """Count the answers to so many joins; how many there were in time."""
    answered = 0
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(until_s - time.monotonic(), 1)):
            async for frame in socket:
                told = orjson.loads(frame.data)
                if "id" in told:
                    answered += 1
                    attacker.saw("joined" if told["ok"] else told["error_code"])
                if answered == count:
                    break
    except TimeoutError:
        pass
    return answered


async def consumer_instances(attacker: Attacker, *, instances: int, partitions: int, seconds: int) -> None:
    """Consumer instances of the REST Proxy, each with a subscription, which are not called again."""
    until_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        if time.monotonic() > until_s:
            attacker.saw(NOT_TRIED)
            return
        settings = orjson.dumps({"name": f"i{number}", "format": "json"})
        made = await attacker.ask("POST", "/consumers/instances", body=settings, headers=V2)
        if made.status == 200:
            path = f"/consumers/instances/instances/i{number}/subscription"
            await attacker.ask("POST", path, body=orjson.dumps({"topics": [STORM]}), headers=V2)

    await attacker.each(instances, one, at_a_time=16)


ATTACKS = (
    Attack(
        name="member-storm",
        tried="{members} members that join one group of {partitions} partitions, within {seconds} s, and are gone",
        run=member_storm, prepare=make_storm_topic,
        full={"members": 10_000, "partitions": 64, "seconds": 40},
        short={"members": 64, "partitions": 16, "seconds": 2},
    ),
    Attack(
        name="consumer-instances",
        tried="{instances} consumer instances with a subscription each, within {seconds} s, never called again",
        run=consumer_instances, prepare=make_storm_topic,
        full={"instances": 10_100, "partitions": 64, "seconds": 40},
        short={"instances": 50, "partitions": 16, "seconds": 1},
        keeps=Kept("instances", "an instance and its member are remembered for five minutes", 8_000),
    ),
    Attack(
        name="many-groups",
        tried="a receive from a topic of {partitions} partitions for each of {groups} groups, within {seconds} s",
        run=many_groups, prepare=make_wide_topics,
        full={"groups": 600, "topics": 1, "partitions": 1024, "seconds": 60},
        short={"groups": 20, "topics": 1, "partitions": 256, "seconds": 2},
    ),
    Attack(
        name="many-topics",
        tried="one receive that names {topics} topics of {partitions} partitions each",
        run=many_groups, prepare=make_only_wide_topics,
        full={"groups": 1, "topics": 97, "partitions": 1024, "seconds": 60},
        short={"groups": 1, "topics": 4, "partitions": 256, "seconds": 2},
    ),
)  # fmt: skip
