"""`/examples/`: the page, the client it is written with, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from gateway.surfaces.native.examples import MEDIA_TYPES, file_of
from tests.gateway.conftest import Client


@pytest.mark.parametrize("path", ["/examples/", "/examples/chat.html"])
async def test_the_page_and_its_files_are_served_as_what_they_are(client: Client, path: str) -> None:
    page = await client.get(path)
    assert (page.status, page.content_type) == (200, "text/html")
    text = await page.text()
    names = set(re.findall(r'from "\./([^"]+)"', text))
    assert names == {"mq.js"}
    for name in names:
        script = await client.get(f"/examples/{name}")
        assert (script.status, script.content_type) == (200, "text/javascript")
        assert "WebSocket" in await script.text()
        assert script.headers["X-Content-Type-Options"] == "nosniff"


async def test_without_its_slash_it_sends_there_so_that_its_links_hold(client: Client) -> None:
    response = await client.get("/examples", allow_redirects=False)
    assert (response.status, response.headers["Location"]) == (308, "examples/")
    response = await client.get("/examples?topic=a%26b", allow_redirects=False)
    assert response.headers["Location"] == "examples/?topic=a%26b"
    assert (await client.get("/examples")).url.path == "/examples/"


@pytest.mark.parametrize("path", ["/examples/", "/examples/chat.html"])
async def test_a_browser_is_allowed_the_pages_own_scripts_and_styles_and_this_server(client: Client, path: str) -> None:
    page = await client.get(path)
    text = await page.text()
    policy = page.headers["Content-Security-Policy"]
    for kind in ("script", "style"):
        inline = re.findall(rf"<{kind}[^>]*>(.*?)</{kind}>", text, re.DOTALL)
        assert len(inline) == 1
        digest = base64.b64encode(hashlib.sha256(inline[0].encode()).digest()).decode()
        assert f"{kind}-src" in policy
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r'(?:src|href)="https?:|style="|onclick=', text)


@pytest.mark.parametrize(
    "name",
    ["nothing.js", "../http/examples.py", "..%2fhttp%2fexamples.py", "%2e%2e/config.py", "..\\config.py",
     "mq.js%00.html", "/etc/passwd", "%2fetc%2fpasswd", ".", "__init__.py", "MQ.JS"],
)  # fmt: skip
async def test_nothing_else_is_served_whatever_a_path_says(client: Client, name: str) -> None:
    response = await client.get(f"/examples/{name}")
    text = await response.text()
    assert response.status in (200, 404)
    if response.status == 200:  # the client itself has made it the page's own path
        assert response.url.path in ("/examples/", "/examples")
        assert "<title>" in text
    assert "import" not in text or "<title>" in text
    assert "root:" not in text


def test_every_file_is_part_of_the_package() -> None:
    for name in MEDIA_TYPES:
        assert len(file_of(name).body) > 1000


def test_the_chat_has_at_most_a_hundred_lines_of_script() -> None:
    text = file_of("chat.html").body.decode()
    [script] = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert script.count("\n") <= 100
