"""gateway/surfaces/console/served.py: the page at `/`, JSON for programs, the page's files and nothing else."""

from __future__ import annotations

import re

import pytest

from gateway.surfaces.console import served
from gateway.surfaces.console.served import PAGE, POLICY, YEAR_S, console_files
from tests.gateway.conftest import Client

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def test_the_root_shows_people_the_console_and_programs_what_this_is(client: Client) -> None:
    page = await client.get("/", headers=BROWSER)
    text = await page.text()
    assert (page.status, page.content_type) == (200, "text/html")
    assert page.headers["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY
    assert not re.search(r"<style|style=|<script>| on[a-z]+=|https?:", text)
    for link in re.findall(r'(?:href|src)="([^"]+)"', text):
        assert (await client.get(f"/{link}")).status == 200, link
    for accept in ("*/*", "application/json", "application/vnd.kafka.v2+json"):
        answer = await client.get("/", headers={"Accept": accept})
        shown = await answer.json(content_type=None)
        assert shown["name"] == "mq"
        assert "Accept" in answer.headers.getall("Vary")
        for path in set(shown) - {"name", "version"}:
            assert (await client.get(shown[path])).status == 200, path
    assert "Accept" in page.headers.getall("Vary")
    assert (await client.post("/")).status == 200


async def test_files_are_served_as_what_they_are_and_not_again(client: Client) -> None:
    assert PAGE in console_files()
    for name in console_files():
        answer = await client.get(f"/console/{name}")
        assert (answer.status, answer.headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert answer.headers["Cache-Control"] == "no-cache"
        etag = answer.headers["ETag"]
        for tags, status in ((etag, 304), (f'"x", W/{etag}', 304), ('"x"', 200)):
            again = await client.get(f"/console/{name}", headers={"If-None-Match": tags})
            assert (again.status, again.headers["ETag"]) == (status, etag)
    etag = (await client.get("/", headers=BROWSER)).headers["ETag"]
    assert (await client.get("/", headers={**BROWSER, "If-None-Match": etag})).status == 304
    script = await client.get("/console/console.js", headers={"Accept-Encoding": "gzip"})
    assert script.headers["Content-Encoding"] == "gzip"


@pytest.mark.parametrize(
    "name", ["nothing.js", "../served.py", "..%2fserved.py", "%2e%2e/served.py", "__init__.py", "static"]
)
async def test_nothing_else_is_served(client: Client, name: str) -> None:
    assert (await client.get(f"/console/{name}")).status == 404


def test_a_name_with_a_hash_is_kept_for_good() -> None:
    assert served._HASHED.search("console-1a2b3c4d.js")
    assert not served._HASHED.search("console.js")
    assert YEAR_S == 365 * 86_400
