"""The dashboard: the file is what the generator makes, and shows every metric of a real server, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.main.dashboard import dashboard, served_metrics
from tests.e2e.server import REPOSITORY, Server

FILE = REPOSITORY / "docs" / "deploy" / "grafana.json"
NAME = re.compile(r"\b((?:mq|process)_[a-z_]+)\b(?=\{)")


def expressions() -> list[str]:
    made = json.loads(FILE.read_text())
    panels = [panel for row in made["panels"] for panel in (row, *row.get("panels", ()))]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


async def test_the_file_is_what_the_metrics_give(tmp_path: Path) -> None:
    made = dashboard(await served_metrics(tmp_path))
    assert json.loads(FILE.read_text()) == made, "run make dashboard"


async def test_every_metric_of_a_server_has_a_panel_and_every_panel_a_metric(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        await server.start()
        async with aiohttp.ClientSession(server.url) as session, session.get("/metrics") as answer:
            text = await answer.text()
    finally:
        await server.end()
    families = list(text_string_to_metric_families(text))
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum"), "gauge": ("",)}
    names = {family.name + end for family in families for end in ends[family.type]}
    shown = {name for expression in expressions() for name in NAME.findall(expression)}
    assert shown - names == set()
    assert {name for name in names if not name.endswith("_sum")} - shown == set()


@pytest.mark.parametrize("key", ["id", "gridPos"])
def test_panels_do_not_share_a_place_or_a_number(key: str) -> None:
    panels = json.loads(FILE.read_text())["panels"]
    for inside in [panels, *(panel["panels"] for panel in panels if panel.get("panels"))]:
        found = [json.dumps(panel[key]) for panel in inside]
        assert len(set(found)) == len(found)
