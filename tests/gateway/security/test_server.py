"""The whole server with authentication and TLS on: real store, real files, real certificates.

Covers gateway.surfaces.native.tickets, gateway.surfaces.http.access_log, gateway.main.tls and gateway.settings.tls.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.auth.policy import PolicyError
from gateway.auth.tokens import change_tokens, mint
from gateway.main import reload, wiring
from gateway.main.tls import TlsError
from gateway.settings.config import GatewayConfig, build
from loadtest.certificates import write_certificate
from tests.waiting import PATIENCE_S

MiB = 1024 * 1024
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json", "Accept": "application/json"}


def config_of(root: Path, **settings: object) -> GatewayConfig:
    small = {"store.commit_log_file_bytes": 16 * MiB, "store.extent_bytes": 1 * MiB}
    return build({"data": root, "port": 0, "shutdown_timeout_ms": 2000, "auth.enabled": True, **small, **settings})


@asynccontextmanager
async def running(config: GatewayConfig) -> AsyncIterator[str]:
    """The URL of a running server."""
    stopping = asyncio.Event()
    announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.ensure_future(wiring.run(config, announce=announced.set_result, stopping=stopping))
    await asyncio.wait((server, announced), return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        await server
    try:
        yield announced.result()
    finally:
        stopping.set()
        await asyncio.wait_for(server, PATIENCE_S)


def token_for(config: GatewayConfig, principal: str, *scopes: str) -> tuple[str, str]:
    """A new token in the server's file, and its id."""
    token, record = mint(principal, scopes, now_ms=int(time.time() * 1000) - 1)
    change_tokens(config.auth.tokens_path, lambda tokens: tokens.update({record.id: record}))
    return token, record.id


def client_of(url: str, token: str | None, **options: object) -> aiohttp.ClientSession:
    headers = dict(JSON) if token is None else {**JSON, "Authorization": f"Bearer {token}"}
    return aiohttp.ClientSession(url, headers=headers, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "RELOAD_INTERVAL_S", 0.02)


async def until(condition: object) -> None:
    """Wait until an async condition holds."""
    assert callable(condition)
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_tokens_come_and_go_without_a_restart(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with running(config) as url:
        token, id_ = token_for(config, "ann", "admin")
        async with client_of(url, token) as client:

            async def is_in() -> bool:
                return (await client.get("/topics")).status == 200

            async def is_out() -> bool:
                return (await client.get("/topics")).status == 401

            await until(is_in)
            change_tokens(config.auth.tokens_path, lambda tokens: tokens.__delitem__(id_))
            await until(is_out)


def put_in_place(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


async def test_the_trail_says_which_tokens_and_rules_were_read_anew(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    admin, admin_id = token_for(config, "root", "admin")
    async with running(config) as url, client_of(url, admin) as client:

        async def reloads(count: int) -> list[dict[str, object]]:
            found: list[dict[str, object]] = []

            async def are_there() -> bool:
                nonlocal found
                answer = await client.get("/mq/v1/audit?action=access.reload")
                found = (await answer.json())["entries"][::-1]
                return len(found) >= count

            await until(are_there)
            return found

        _, id_ = token_for(config, "ann", "admin")
        assert (await reloads(1))[0]["details"] == {
            "tokens_added": [id_], "rules_changed": False, "keys_changed": False,
        }  # fmt: skip
        change_tokens(config.auth.tokens_path, lambda tokens: tokens.__delitem__(id_))
        assert (await reloads(2))[1]["details"]["tokens_removed"] == [id_]  # type: ignore[index]
        put_in_place(config.auth.acl_path, "[[acl")  # one that is just being written is empty, and no mistake
        failed = (await reloads(3))[2]
        assert (failed["outcome"], failed["principal"], failed["token_id"]) == ("failed", "server", None)
        assert str(config.auth.acl_path) in str(failed["error"])
        put_in_place(config.auth.acl_path, '[[acl]]\nprincipal = "*"\nallow = ["reader:topic:a"]\n')
        assert (await reloads(4))[3]["details"] == {"rules_changed": True, "keys_changed": False}
        response = await client.put("/mq/v1/topics/orders", json={"partitions": 1})
        (made,) = (await (await client.get("/mq/v1/audit?action=topic.create")).json())["entries"]
        assert (made["principal"], made["token_id"], made["object"]) == ("root", admin_id, {"topic": "orders"})
        assert made["request_id"] == response.headers["X-Request-Id"]
        assert "mq_audit_written_total" in await (await client.get("/metrics")).text()
    async with running(config) as url, client_of(url, admin) as client:
        entries = (await (await client.get("/mq/v1/audit")).json())["entries"]
        assert [entry["action"] for entry in entries] == ["topic.create", *["access.reload"] * 4]


async def test_everybody_sees_and_does_only_what_is_theirs(tmp_path: Path) -> None:
    """Names in bodies and queries, in lists, and behind ids: what the route's row cannot judge."""
    config = config_of(tmp_path)
    admin, _ = token_for(config, "admin", "admin")
    mine, _ = token_for(config, "mine", "admin:topic:mine*", "admin:group:mine*")
    async with running(config) as url, client_of(url, admin) as root, client_of(url, mine) as client:
        for topic in ("mine", "theirs"):
            assert (await root.put(f"/mq/v1/topics/{topic}", json={"partitions": 1})).status == 201
        later = b'{"records":[{"value":1,"delay_ms":600000}]}'
        ids = {}
        for topic in ("mine", "theirs"):
            answer = await (await root.post(f"/topics/{topic}", data=later)).json()
            ids[topic] = answer["offsets"][0]["schedule_id"]
        allowed: list[str] = []

        async def status(method: str, path: str, **options: object) -> int:
            async with client.request(method, path, **options) as response:  # type: ignore[arg-type]
                return response.status

        # Lists
        assert await (await client.get("/topics")).json() == ["mine"]
        topics = (await (await client.get("/mq/v1/topics")).json())["topics"]
        assert [topic["topic"] for topic in topics] == ["mine"]
        for query in ("", "?include=value", "?from=0&to=99999999999999"):
            page = await (await client.get(f"/mq/v1/schedules{query}")).json()
            assert [schedule["topic"] for schedule in page["schedules"]] == ["mine"], query
            assert page["total"] == 1
        counts = await (await client.get("/mq/v1/schedules:histogram")).json()
        assert counts["total"] == 1
        # Ids of what is not theirs to see name nothing, whatever became of it
        theirs, own = ids["theirs"], ids["mine"]
        answer = await (await root.post("/topics/theirs", data=later)).json()
        delivered = answer["offsets"][0]["schedule_id"]
        assert (await root.post(f"/mq/v1/schedules/{delivered}:fire")).status == 200
        assert (await root.delete(f"/mq/v1/schedules/{delivered}")).status == 409
        topic_id = (await (await root.get("/mq/v1/topics/theirs")).json())["topic_id"]
        assert (await root.get(f"/mq/v1/messages/{topic_id}-0-0")).status == 200
        for method, path, options in (
            *(
                one
                for schedule in (theirs, delivered)
                for one in (
                    ("GET", f"/mq/v1/schedules/{schedule}", {}),
                    ("PATCH", f"/mq/v1/schedules/{schedule}", {"json": {"delay_ms": 1}}),
                    ("POST", f"/mq/v1/schedules/{schedule}:fire", {}),
                    ("DELETE", f"/mq/v1/schedules/{schedule}", {}),
                )
            ),
            ("GET", f"/mq/v1/messages/{topic_id}-0-0", {}),
            ("GET", f"/mq/v1/messages/{topic_id + 1000}-0-0", {}),
        ):
            if await status(method, path, **options) != 404:
                allowed.append(f"{method} {path}")
        # By a topic in the query or the body
        for method, path, options in (
            ("GET", f"/mq/v1/schedules/{theirs}?topic=theirs", {}),
            ("DELETE", f"/mq/v1/schedules/{theirs}?topic=theirs", {}),
            ("DELETE", "/mq/v1/schedules?topic=theirs", {}),
            ("GET", "/mq/v1/schedules?topic=theirs", {}),
            ("GET", "/mq/v1/schedules:histogram?topic=theirs", {}),
            ("POST", "/admin/topics", {"json": {"topic_name": "theirs-2", "partitions_count": 1}}),
            ("POST", "/topics/theirs", {"data": later}),
            ("POST", "/topics/%25DLQ%25mine", {"data": later}),
            ("POST", "/topics/%25RETRY%25mine", {"data": later}),
            ("POST", "/mq/v1/groups/mine/messages:receive", {"json": {"topics": ["theirs"]}}),
            ("POST", "/mq/v1/groups/theirs/messages:receive", {"json": {"topics": ["mine"]}}),
            ("GET", "/mq/v1/topics/mine/sse?topics=mine,theirs", {}),
            ("GET", "/mq/v1/topics/mine/sse?group=theirs&ack=auto", {}),
            ("GET", "/mq/v1/topics/mine/sse?group=mine&ack=auto&topics=theirs", {}),
            ("GET", "/metrics", {}),
        ):
            if await status(method, path, **options) != 403:
                allowed.append(f"{method} {path}")
        assert allowed == []
        assert await status("GET", f"/mq/v1/schedules/{own}") == 200
        assert await status("DELETE", f"/mq/v1/schedules/{own}") == 204
        page = await (await root.get("/mq/v1/schedules")).json()
        assert [schedule["topic"] for schedule in page["schedules"]] == ["theirs"]


async def test_a_pattern_reaches_only_topics_the_caller_may_read(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    admin, _ = token_for(config, "admin", "admin")
    mine, _ = token_for(config, "mine", "reader:topic:mine", "reader:group:mine")
    async with running(config) as url, client_of(url, admin) as root, client_of(url, mine) as client:
        for topic in ("mine", "theirs"):
            assert (await root.put(f"/mq/v1/topics/{topic}", json={"partitions": 1})).status == 201
            await root.post(f"/topics/{topic}", data=b'{"records":[{"value":"%s"}]}' % topic.encode())
        v2 = {"Content-Type": "application/vnd.kafka.v2+json", "Accept": "application/vnd.kafka.json.v2+json"}
        settings = {"name": "i", "format": "json", "auto.offset.reset": "earliest"}
        assert (await client.post("/consumers/mine", json=settings, headers=v2)).status == 200
        at = "/consumers/mine/instances/i"
        response = await client.post(f"{at}/subscription", json={"topic_pattern": ".*"}, headers=v2)
        assert response.status in (204, 403)
        for _ in range(3):
            response = await client.get(f"{at}/records?timeout=300", headers=v2)
            assert "theirs" not in (text := await response.text()), text


async def test_a_ticket_opens_one_socket_and_a_stranger_none(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    token, _ = token_for(config, "ann", "admin")
    async with running(config) as url, client_of(url, token) as client, client_of(url, None) as stranger:
        assert (await stranger.post("/mq/v1/tickets")).status == 401
        response = await client.post("/mq/v1/tickets")
        assert response.headers["Cache-Control"] == "no-store"
        ticket = (await response.json())["ticket"]
        async with stranger.ws_connect(f"/ws/v1?ticket={ticket}") as socket:
            await socket.send_json({"id": 1, "op": "ping"})
            assert (await socket.receive_json())["op"] == "pong"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await stranger.ws_connect(f"/ws/v1?ticket={ticket}")
        assert refusal.value.status == 401


async def test_a_ticket_opens_one_event_stream(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    token, _ = token_for(config, "ann", "admin")
    async with running(config) as url, client_of(url, token) as client, client_of(url, None) as stranger:
        await client.put("/mq/v1/topics/orders", json={"partitions": 1})
        for query in ("from=earliest", "group=billing&ack=auto"):
            ticket = (await (await client.post("/mq/v1/tickets")).json())["ticket"]
            path = f"/mq/v1/topics/orders/sse?{query}&ticket={ticket}"
            async with stranger.get(path) as stream:
                assert (stream.status, stream.content_type) == (200, "text/event-stream"), await stream.text()
            assert (await stranger.get(path)).status == 401
        ticket = (await (await client.post("/mq/v1/tickets")).json())["ticket"]
        refused = await stranger.get(f"/mq/v1/topics/orders/sse?tickets=x&ticket={ticket}")
        assert (await refused.json())["message"] == "Unrecognized parameter: tickets"


async def test_secrets_are_nowhere_in_what_the_server_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Logs at their most talkative, access log, metrics, error bodies: nothing holds a token, a ticket or a value."""
    config = config_of(tmp_path, access_log=True, log_level="debug")
    token, id_ = token_for(config, "ann", "admin")
    wrong = "mq_" + "wrongid" + "_" + "W" * 43
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        async with running(config) as url, client_of(url, None) as client:
            ticket = ""
            for headers in ({"Authorization": f"Bearer {token}"}, {"X-Api-Key": token}):
                response = await client.post("/mq/v1/tickets", headers=headers)
                ticket = (await response.json())["ticket"]
                said.append(str(response.headers))
            for headers in (
                {"Authorization": f"Bearer {token}"}, {"Authorization": f"Bearer {wrong}"},
                {"Authorization": f"Digest {token}"}, {"Authorization": f"Basic {token}"}, {"X-Api-Key": wrong},
                {"Authorization": f"Bearer {token}", "X-Api-Key": token},
            ):  # fmt: skip
                for path in ("/topics", f"/topics?token={token}", "/metrics", "/nothing", "/mq/v1/info",
                             f"/ws/v1?ticket={wrong}", f"/ws/v1?ticket={ticket}&x=1"):  # fmt: skip
                    response = await client.get(path, headers=headers)
                    said += [await response.text(), str(response.headers)]
                body = b'{"records":[{"value":"private-value","tag":5}]}'
                response = await client.post("/topics/x", headers=headers, data=body)
                said += [await response.text(), str(response.headers)]
    captured = capfd.readouterr()
    emitted = "\n".join([*said, caplog.text, captured.out, captured.err])
    assert "principal=ann" in emitted
    assert "method=GET path=/topics?token " in emitted
    digest = config.auth.tokens_path.read_text().split('"sha256": "')[1][:64]
    for secret in (token, token.split("_", 2)[2], wrong, wrong.split("_", 2)[2], digest, "private-value"):
        assert secret not in emitted
    assert ticket not in caplog.text + captured.out + captured.err
    assert id_


async def test_certificates_are_replaced_under_open_connections(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    first = write_certificate(cert, key)
    config = config_of(tmp_path / "data", **{"tls.cert_file": cert, "tls.key_file": key})
    token, _ = token_for(config, "ann", "admin")
    async with running(config) as url:
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(cert))
        async with client_of(url, token, connector=aiohttp.TCPConnector(ssl=trusting)) as client:
            response = await client.get("/topics")
            assert response.status == 200
            connection = client.connector
            second = write_certificate(cert, key)
            assert first != second

            async def is_replaced() -> bool:
                port = int(url.rpartition(":")[2])
                return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port)) == second

            await until(is_replaced)
            assert (await client.get("/topics")).status == 200  # over the connection of the old one
            assert connection is client.connector
            cert.write_text("no certificate")
            await asyncio.sleep(0.1)
            assert await is_replaced()


async def test_old_tls_is_refused(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    config = config_of(tmp_path / "data", **{"tls.cert_file": cert, "tls.key_file": key, "tls.minimum": "1.3"})
    async with running(config) as url:
        port = int(url.rpartition(":")[2])
        for maximum, is_fine in ((ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context(cafile=str(cert))
            context.maximum_version = maximum
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
                writer.close()
                assert is_fine
            except (ssl.SSLError, ConnectionError):
                assert not is_fine


async def test_a_server_with_bad_files_does_not_start(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    other_cert, other_key = tmp_path / "other.pem", tmp_path / "other-key.pem"
    write_certificate(cert, key)
    write_certificate(other_cert, other_key)
    locked = tmp_path / "locked.pem"
    write_certificate(tmp_path / "unused.pem", locked, password=b"secret")
    for files, message in (
        ((cert, other_key), "not that of the certificate"),
        ((cert, tmp_path / "missing"), "missing: No such file"),
        ((key, key), "no certificate"),
        ((cert, locked), "has a password"),
    ):
        config = config_of(tmp_path / "data", **{"tls.cert_file": files[0], "tls.key_file": files[1]})
        with pytest.raises(TlsError, match=message):
            async with running(config):
                pass
    config = config_of(tmp_path / "data", **{"auth.acl_file": tmp_path / "missing"})
    with pytest.raises(PolicyError, match="missing"):
        async with running(config):
            pass


async def test_a_token_for_one_light_queue_sees_one_inbox(tmp_path: Path) -> None:
    config = config_of(tmp_path, **{"store.index": "rocksdb"})
    admin, _ = token_for(config, "root", "admin")
    browser, _ = token_for(config, "ann", "receive:topic:orders/user/42", "receive:group:ann")
    async with running(config) as url, client_of(url, admin) as root, client_of(url, browser) as ann:
        assert (await root.put("/mq/v1/topics/orders", json={"partitions": 1})).status == 201
        records = [{"value": 1, "queues": ["user/42", "user/421"]}, {"value": 2}]
        assert (await root.post("/topics/orders", json={"records": records})).status == 200
        inbox = await ann.get("/mq/v1/topics/orders/queues/user%2F42/records")
        assert [record["value"] for record in (await inbox.json())["records"]] == [1]
        for path in (
            "/mq/v1/topics/orders/queues/user%2F421/records",
            "/mq/v1/topics/orders/queues/user%2F4/records",
            "/mq/v1/topics/orders/messages?key=1",
            "/topics/orders/partitions/0/records",
            "/mq/v1/topics/orders",
        ):
            assert (await ann.get(path)).status == 403, path
        leased: list[tuple[int, int]] = []
        for queue in ({"queue": "user/42"}, {"queue": "user/421"}, {}):
            answer = await ann.post("/mq/v1/groups/ann/messages:receive", json={"topics": ["orders"], **queue})
            leased.append((answer.status, len((await answer.json()).get("messages", ()))))
        assert leased == [(200, 1), (403, 0), (403, 0)]
        other = await ann.post("/mq/v1/groups/bob/messages:receive", json={"topics": ["orders"], "queue": "user/42"})
        assert other.status == 403
        assert (await ann.post("/topics/orders", json={"records": records})).status == 403
