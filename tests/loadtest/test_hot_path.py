"""What the benchmark of small requests sends, and the table it makes."""

from __future__ import annotations

import asyncio

import pytest

from gateway.surfaces.http.connection import Client
from gateway.surfaces.http.fast_path import FastPath, Plain
from loadtest.bench.hot_path import BARE, HEADINGS, OTHER, THIS, TOPIC, Cost, lines_of, page_of, rows
from tests.clock import FakeClock
from tests.gateway.fake_broker import fake_gateway
from tests.gateway.security.kit import served
from tests.gateway.surfaces.http.plain_requests import ORDINARY, answer, request


async def test_every_row_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, broker = fake_gateway(FakeClock())
    await broker.create_topic(TOPIC, 4)
    taken, take = [], FastPath.take

    def noting(self: FastPath, meaning: Plain, data: bytes, start: int, client: Client) -> bool:
        is_taken = take(self, meaning, data, start, client)
        taken.append(is_taken)
        return is_taken

    monkeypatch.setattr(FastPath, "take", noting)
    every = rows("unknown")
    assert len({row.name for row in every}) == len(every)
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"{", ORDINARY))
        await answer(reader)
        for row in every:
            sent = row.request if row.variant is None else row.variant(1_000)
            writer.write(sent.encode(f"http://127.0.0.1:{port}"))
            head, _ = await answer(reader)
            assert head[9:12] in ("200", "201"), row.name
        writer.close()
    assert taken == [True] * len(every)
    assert broker.stored_count == len(every)


def test_a_row_shows_medians_and_the_ratios_of_its_rounds() -> None:
    costs = {
        THIS: [Cost(own, 2.0, 1_000.0) for own in (18.0, 20.0, 22.0, 20.0, 20.0)],
        OTHER: [Cost(own, 2.0, 500.0) for own in (36.0, 40.0, 44.0, 40.0, 40.0)],
        BARE: [Cost(own, 0.0, 1_000.0) for own in (18.0, 20.0, 22.0, 20.0, 20.0)],
    }
    ours, other, bare = lines_of("row", costs)
    assert ours == "| row | this | 20 | 2 | 1e+03 |  |  |  |"
    assert other.startswith("| row | other | 40 | 2 | 500 | 0.50 (0.50 - 0.50) | 0.52 (0.52 - 0.53) | 2.00")
    assert bare.split(" | ")[5] == "1.00 (1.00 - 1.00)"
    page = page_of({"this": "abc"}, {"row": costs})
    assert all(line in page for line in (ours, other, bare, "- this: abc"))
    assert f"| {' | '.join(HEADINGS)} |" in page
