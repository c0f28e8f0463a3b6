"""mq/http.py: what is asked again, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from mq.connection import Connection
from mq.errors import ConnectionLost, NotReached, Refused
from mq.http import RETRY_S, Http
from mq.transport import Response, Transport

DONE = Response(200, b'{"done": true}')
BUSY = Response(503, b'{"error_code": 50301, "message": "it moves", "retriable": true}', 2.0)
STOPPED = Response(503, b'{"error_code": 50301, "message": "for good", "retriable": false}')
LOST, NOT_REACHED = ConnectionLost("lost"), NotReached("refused")


class Server:
    """Answers what it is told to; time passes in pauses alone."""

    def __init__(self, *answers: Response | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.now_s = 0.0
        self.conversation = self
        self.state = "open"

    async def request(self, *_: object) -> Response:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def token(self) -> None:
        return None

    def monotonic_s(self) -> float:
        return self.now_s

    def later(self, delay_s: float, call: Callable[[], object]) -> Server:
        self.now_s += delay_s
        call()
        return self

    def cancel(self) -> None:
        """The timer has fired."""

    async def call(self, method: str, body: Mapping[str, Any] | None = None) -> Any:
        http = Http(cast(Transport, self), cast(Connection, self), cast(Any, self))
        return await http.call(method, "/path", body=body)


@pytest.mark.behaviour(48)
@pytest.mark.parametrize(
    ("method", "first"),
    [("GET", BUSY), ("POST", BUSY), ("GET", LOST), ("GET", NOT_REACHED), ("POST", NOT_REACHED)],
)
async def test_what_was_not_done_or_only_looks_is_asked_again(method: str, first: Response | Exception) -> None:
    server = Server(first, first, DONE)
    assert await server.call(method) == {"done": True}
    assert server.asked == 3
    assert server.now_s >= (4.0 if first is BUSY else 0.0), "no sooner than the server has said"


@pytest.mark.parametrize(
    ("method", "first", "error"),
    [("POST", LOST, ConnectionLost), ("GET", STOPPED, Refused), ("POST", STOPPED, Refused)],
)
async def test_what_may_have_been_done_or_never_will_be_is_not(
    method: str, first: Response | Exception, error: type[Exception]
) -> None:
    server = Server(first, DONE)
    with pytest.raises(error):
        await server.call(method)
    assert server.asked == 1


async def test_it_is_given_up_after_a_while_and_when_the_client_is_closed() -> None:
    server = Server(BUSY)
    with pytest.raises(Refused, match="it moves"):
        await server.call("GET")
    assert RETRY_S / 2 < server.now_s <= RETRY_S
    server.state = "closed"
    asked = server.asked
    with pytest.raises(Refused):
        await server.call("GET")
    assert server.asked == asked + 1
