"""gateway.surfaces.http.answers: long lists."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gateway.surfaces.http.answers import ROWS_A_TURN, list_answer
from gateway.surfaces.http.buffers_body import JOINED_BYTES_MAX, BuffersBody


def text_of(response: web.Response) -> bytes:
    body = response.body
    assert isinstance(body, bytes | BuffersBody)
    return body.joined() if isinstance(body, BuffersBody) else body


@pytest.mark.parametrize("count", [0, 1, ROWS_A_TURN, ROWS_A_TURN + 1, 3 * ROWS_A_TURN])
async def test_a_list_is_rendered_in_turns_and_is_one_object(count: int) -> None:
    turn = 0
    made: dict[int, int] = {}

    async def counting() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    def row(number: int) -> dict[str, int]:
        made[turn] = made.get(turn, 0) + 1
        return {"number": number}

    request = make_mocked_request("GET", "/")
    running = asyncio.ensure_future(counting())
    await asyncio.sleep(0)
    fields = {"rows": "taken by the list", "total": count}
    response = await list_answer(request, fields, "rows", map(row, range(count)))
    running.cancel()
    assert orjson.loads(text_of(response)) == {"total": count, "rows": [{"number": number} for number in range(count)]}
    assert max(made.values(), default=0) <= ROWS_A_TURN


async def test_a_large_list_is_not_joined() -> None:
    request = make_mocked_request("GET", "/")
    response = await list_answer(request, {}, "rows", ["x" * 1_000] * (JOINED_BYTES_MAX // 1_000 + 1))
    assert isinstance(response.body, BuffersBody)
    assert len(orjson.loads(text_of(response))["rows"]) == JOINED_BYTES_MAX // 1_000 + 1
