"""The bench of light queues: a small run of each part measures, and ends; sockets that are refused end it too."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import queues
from loadtest.bench.parts import Part, as_dicts
from loadtest.bench.push_work import Frames, connect
from loadtest.bench.queues import PARTS, InboxPath, Options, as_markdown
from loadtest.bench.request import RunFailed
from loadtest.process import running_server


@pytest.mark.parametrize(("name", "row_count"), [("rows", 3), ("many", 3), ("inboxes", 3)])
async def test_a_small_run_of_each_part(
    name: str, row_count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MANY", (1_000,))
    monkeypatch.setattr(queues, "RATE", 50)
    monkeypatch.setattr(queues, "SETTLE_S", 0.1)
    rows = await PARTS[name](Options(tmp_path, rounds=1, scale=0.0001))
    assert len(rows) == row_count
    assert all(value > 0 for row in rows for value in row.ours)
    page = as_markdown({name: Part({}, as_dicts(rows))})
    assert all(row.work in page for row in rows)


async def test_a_subscription_that_is_refused_ends_the_run(tmp_path: Path) -> None:
    with running_server(tmp_path) as ours:  # there is no such topic
        path = InboxPath(ours.url, 1)
        socket = await connect(ours.url, "/ws/v1", lambda _: None, path.decode)
        socket.say({"id": 1, "op": "subscribe", "sub": "s", "topics": ["none"], "queue": "user/0", "credit": 1})
        with pytest.raises(RunFailed, match=r"1 of 1 sockets have no subscription: .*40401"):
            await queues._all_subscribed([socket])
        socket.close()


async def test_a_socket_that_the_server_closes_is_no_frame() -> None:
    socket = Frames(lambda _: None, lambda payload: 1)
    closed = []
    socket._transport = type("T", (), {"close": lambda _: closed.append(True)})()  # type: ignore[assignment]
    socket.data_received(b"HTTP/1.1 101 \r\n\r\n" + b"\x81\x02{}" + b"\x88\x02\x03\xe9")
    assert (socket.count, socket.decoded_count, socket.closed_with, closed) == (1, 1, b"\x03\xe9", [True])
