"""gateway/surfaces/openapi/served.py and page.py through HTTP; and that tests/contract.py notices what is not
declared."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from gateway.main.routes import ROUTES
from gateway.surfaces.openapi.errors import MEANINGS
from gateway.surfaces.openapi.page import CONTENT_SECURITY_POLICY
from gateway.surfaces.openapi.served import DOCUMENTS
from tests.gateway.conftest import Client

AnyClient = TestClient[web.Request, web.Application]


class Page(HTMLParser):
    """The ids, links and open elements of a page."""

    VOID = ("meta", "input", "wbr", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids += [named["id"] or ""] if "id" in named else []
        self.links += [named["href"] or ""] if tag == "a" else []
        self.loaded += [value or "" for name, value in attrs if name in ("src", "srcset", "style", "onclick")]
        if tag == "link":
            self.loaded.append(named.get("href") or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_the_documents_are_served_under_their_names(client: Client) -> None:
    for path, key in (("/openapi.json", "openapi"), ("/openapi", "openapi"), ("/asyncapi.json", "asyncapi")):
        response = await client.get(path)
        document = await response.json()
        assert (response.status, response.content_type) == (200, "application/json")
        assert document[key].startswith("3.")
        assert document["info"]["version"] == "1.2.3"


async def test_a_document_is_made_once_and_compressed_for_those_who_ask(client: Client) -> None:
    response = await client.get("/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert (await response.json())["openapi"] == "3.1.1"
    assert client.app is not None
    documents = client.app[DOCUMENTS]
    assert documents.openapi is documents.openapi


async def test_the_page_is_whole_in_itself(client: Client) -> None:
    response = await client.get("/docs")
    text = await response.text()
    assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert response.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    page = Page(text)
    assert page.open == []
    assert page.loaded == []
    assert "connect-src 'self';" in CONTENT_SECURITY_POLICY
    assert not re.search(r"url\(|@import|https?://(?!localhost)", text)
    assert len(page.ids) == len(set(page.ids))
    broken = [link for link in page.links if link.startswith("#") and link[1:] not in page.ids]
    assert broken == []
    assert {link for link in page.links if not link.startswith("#")} == {"/openapi.json", "/asyncapi.json"}


async def test_the_page_has_every_route_error_and_op(client: Client) -> None:
    text = re.sub(r"<wbr>|</?i>", "", await (await client.get("/docs")).text())
    for row in ROUTES:
        if not row.path.startswith("/kafka/"):
            assert f'<code class="path">{row.path}</code>' in text, row.path
    for code in MEANINGS:
        assert f'id="error-{code}"' in text
    for op in ("subscribe", "messages", "goaway"):
        assert f'<code class="path">{op}</code>' in text


# What holds answers against the document

ANSWERS: list[tuple[str, web.Response]] = [
    ("is not declared", web.Response(status=418)),
    ("is not declared", web.Response(text="x", content_type="text/csv")),
    ("the header Mq-Unknown", web.json_response({"status": "ok"}, headers={"Mq-Unknown": "1"})),
    ("Additional properties", web.json_response({"status": "ok", "more": 1})),
    ("required property", web.json_response({})),
]


@pytest.mark.parametrize(("said", "answer"), ANSWERS, ids=[str(number) for number in range(len(ANSWERS))])
async def test_an_answer_that_is_not_declared_fails_whoever_gets_it(
    aiohttp_client: Callable[[web.Application], Awaitable[AnyClient]], said: str, answer: web.Response
) -> None:
    async def healthz(_: web.Request) -> web.Response:
        answer.headers["X-Request-Id"] = "1"
        return answer

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    client = await aiohttp_client(application)
    with pytest.raises(AssertionError, match=said):
        await (await client.get("/healthz")).read()


async def test_an_error_code_that_is_not_declared_fails_too(
    aiohttp_client: Callable[[web.Application], Awaitable[AnyClient]],
) -> None:
    async def refused(_: web.Request) -> web.Response:
        return web.json_response({"error_code": 40950, "message": "m"}, status=409, headers={"X-Request-Id": "1"})

    application = web.Application()
    application.router.add_post("/topics/orders", refused)
    client = await aiohttp_client(application)
    with pytest.raises(AssertionError, match="40950 is not one of"):
        await (await client.post("/topics/orders", data=b"{}")).read()
