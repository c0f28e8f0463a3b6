"""Topics: created, shown, deleted. `client.topics`."""

from __future__ import annotations

from typing import Any

from mq.http import Http, segment


class Topics:
    """Over HTTP; each raises Refused."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def create(self, topic: str, partitions: int | None = None, **settings: object) -> dict[str, Any]:
        """Create a topic; `settings` as `PUT /mq/v1/topics/{topic}` takes them. Creating an equal one again is fine."""
        body = {**settings, **({} if partitions is None else {"partitions": partitions})}
        answer: dict[str, Any] = await self._http.call("PUT", f"/mq/v1/topics/{segment(topic)}", None, body)
        return answer

    async def list(self) -> list[str]:
        """The names of all topics that the token may describe."""
        answer = await self._http.call("GET", "/mq/v1/topics")
        return [one["topic"] for one in answer["topics"]]

    async def get(self, topic: str) -> dict[str, Any]:
        """One topic, with the bounds of its partitions."""
        answer: dict[str, Any] = await self._http.call("GET", f"/mq/v1/topics/{segment(topic)}")
        return answer

    async def delete(self, topic: str) -> None:
        """Delete a topic and its records."""
        await self._http.call("DELETE", f"/mq/v1/topics/{segment(topic)}")
