"""gateway/api/quotas.py: as many topics and partitions as the limits say, and not one more, however many ask at
once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.api.quotas import TopicQuota
from gateway.errors import RequestError
from gateway.routing.table import RouteTable
from gateway.settings.limits import Limits
from store.topics import Topic
from tests.clock import FakeClock
from tests.gateway.fake_broker import FakeBroker
from tests.gateway.main.test_wiring import config_of, serving


def test_there_is_room_up_to_the_limits_and_what_is_coming_counts() -> None:
    there = RouteTable()
    there.put(Topic(16, "a", 2), FakeBroker(FakeClock()))
    quota = TopicQuota(Limits(topics_max=3, partitions_total_max=10), there)
    with quota.room_for(topics=1, partitions=4):
        with quota.room_for(topics=1, partitions=4):
            with pytest.raises(RequestError, match="3 topics") as refusal, quota.room_for(topics=1, partitions=0):
                pass
            assert refusal.value.error_code == 42950
            with pytest.raises(RequestError, match="10 partitions"), quota.room_for(topics=0, partitions=1):
                pass
        with pytest.raises(RequestError, match="10 partitions"), quota.room_for(topics=1, partitions=5):
            pass
    with pytest.raises(ValueError, match="failed"), quota.room_for(topics=2, partitions=8):
        raise ValueError("the creation failed")
    with quota.room_for(topics=2, partitions=8):
        pass


@pytest.mark.parametrize("name", ["topics_max", "partitions_total_max"])
def test_limits_have_a_least_value(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})


async def test_a_server_refuses_the_topic_and_the_partition_too_many(tmp_path: Path) -> None:
    settings = {"limits.topics_max": 3, "limits.partitions_total_max": 6}
    async with serving(config_of(tmp_path, **settings)) as session:

        async def put(name: str, partitions: int, method: str = "PUT") -> int:
            body = {"partitions": partitions}
            async with session.request(method, f"/mq/v1/topics/{name}", json=body) as response:
                return response.status

        statuses = await asyncio.gather(*(put(f"t{number}", 1) for number in range(6)))
        assert sorted(statuses) == [201] * 3 + [429] * 3, "at one moment too"
        first = f"t{statuses.index(201)}"
        assert await put(first, 1) == 200, "what is there already takes no room"
        assert await put(first, 5, "PATCH") == 429
        assert await put(first, 4, "PATCH") == 200
        async with session.delete(f"/mq/v1/topics/{first}") as response:
            assert response.status == 204
        assert await put("again", 4) == 201
