"""etcd's own ways to fail: restarts, compaction, leases that go although they are renewed, wrong passwords.

Covers gateway.cluster.etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import orjson
import pytest
from aiohttp import web

from gateway.cluster import etcd as etcd_module
from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.metadata import ABSENT, Changes, Listing, MetadataError, OutcomeUnknown, Unavailable, Value
from tests.gateway.cluster.etcd_server import EtcdServer, etcd_metadata, free_port, ready
from tests.waiting import PATIENCE_S, until


async def change(store: EtcdMetadata, key: str, data: bytes) -> int:
    found = await store.get(key)
    revision = await store.compare_and_set({key: ABSENT if found is None else found.revision}, {key: data})
    assert revision is not None
    return revision


async def test_a_watch_goes_on_over_a_restart_without_a_gap(etcd: EtcdServer) -> None:
    async with asyncio.timeout(PATIENCE_S), etcd_metadata(etcd) as store, aclosing(store.watch("")) as watch:
        assert isinstance(await anext(watch), Listing)
        for number in range(2):
            revision = await change(store, "a", str(number).encode())
            assert await anext(watch) == Changes(revision, {"a": Value(str(number).encode(), revision)})
            etcd.stop()
            etcd.start()
            await ready(store)


async def test_a_watch_lists_all_keys_again_when_what_it_missed_is_compacted(etcd: EtcdServer) -> None:
    async with asyncio.timeout(PATIENCE_S), etcd_metadata(etcd) as store, aclosing(store.watch("")) as watch:
        await anext(watch)
        await change(store, "a", b"1")
        await anext(watch)
        etcd.stop()
        etcd.start()
        async with etcd_metadata(etcd) as other:  # while the watch is not read, what it missed is compacted away
            other._config = replace(other._config, prefix=store._config.prefix)
            await change(other, "a", b"2")
            revision = await change(other, "b", b"3")
            await other._call("/v3/kv/compaction", {"revision": str(revision)})
            seen: Listing | Changes = await anext(watch)
            while not (isinstance(seen, Listing) or "b" in seen.values):
                seen = await anext(watch)
            assert isinstance(seen, Listing)
            assert seen.values["b"] == Value(b"3", revision)
            assert seen.values["a"].data == b"2"


async def test_a_silent_watch_is_opened_again(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "WATCH_SILENT_S", 0.1)
    opened = 0
    plain = EtcdMetadata._watched

    def counted(self: EtcdMetadata, prefix: str, revision: int) -> AsyncGenerator[Changes | None, None]:
        nonlocal opened
        opened += 1
        return plain(self, prefix, revision)  # type: ignore[return-value]

    monkeypatch.setattr(EtcdMetadata, "_watched", counted)
    async with asyncio.timeout(PATIENCE_S), etcd_metadata(etcd) as store, aclosing(store.watch("")) as watch:
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await until(lambda: opened > 2, pause_s=0.01)
        revision = await change(store, "a", b"1")
        assert await waiting == Changes(revision, {"a": Value(b"1", revision)})


async def test_a_list_comes_page_by_page_and_whole(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "LIST_PAGE_KEYS", 7)
    monkeypatch.setattr(etcd_module, "LIST_PAGE_BYTES", 2_000)
    async with EtcdMetadata(etcd.config) as metadata:
        await ready(metadata)
        changes: Changes = {f"pages/{number:03d}": b"%03d" % number * (1 + number) for number in range(90)}
        revision = await metadata.compare_and_set(dict.fromkeys(changes, ABSENT), changes)
        listing = await metadata.list("pages/")
        assert listing.revision == revision
        assert {key: value.data for key, value in listing.values.items()} == changes


async def test_a_lease_that_is_lost_is_replaced_and_the_key_written_again(etcd: EtcdServer) -> None:
    async with asyncio.timeout(PATIENCE_S), etcd_metadata(etcd) as store, aclosing(store.watch("")) as watch:
        await anext(watch)
        async with store.session("nodes/n1", b"1", ttl_ms=1000) as session:
            await anext(watch)
            leases = (await store._call("/v3/lease/leases", {}))["leases"]
            for lease in leases:
                await store._call("/v3/lease/revoke", {"ID": lease["ID"]})
            assert (await anext(watch)).values == {"nodes/n1": None}
            assert (await anext(watch)).values["nodes/n1"] is not None
            await until(lambda: session.is_held, pause_s=0.01)
            assert session.loss_count == 1


async def test_a_session_is_not_held_while_etcd_is_away(etcd: EtcdServer) -> None:
    async with etcd_metadata(etcd) as store, store.session("nodes/n1", b"1", ttl_ms=1000) as session:
        async with asyncio.timeout(PATIENCE_S):
            etcd.stop()
            await until(lambda: not session.is_held, pause_s=0.01)
            with pytest.raises(Unavailable):
                await store.get("nodes/n1")
            etcd.start()
            await until(lambda: session.is_held, pause_s=0.01)
            found = await store.get("nodes/n1")
            assert found is not None
            assert found.data == b"1"


async def test_a_wrong_password_is_said(etcd: EtcdServer) -> None:
    async with etcd_metadata(etcd) as store, EtcdMetadata(replace(store._config, password="wrong")) as stranger:
        with pytest.raises(MetadataError, match="let root in"):
            await stranger.get("a")
        with pytest.raises(MetadataError, match="let root in"):
            await anext(stranger.watch(""))


async def test_a_token_that_has_expired_is_renewed(etcd: EtcdServer) -> None:
    async with etcd_metadata(etcd) as store:
        store._token = "no such token"
        assert await change(store, "a", b"1")
        store._token = "no such token"
        async with asyncio.timeout(PATIENCE_S), aclosing(store.watch("")) as watch:
            assert isinstance(await anext(watch), Listing)


async def test_one_login_does_for_all_calls_that_an_etcd_without_tokens_refuses(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = 0
    call_once = EtcdMetadata._call_once

    async def counted(self: EtcdMetadata, path: str, body: Mapping[str, object]) -> dict[str, object]:
        nonlocal logins
        logins += path == "/v3/auth/authenticate"
        return await call_once(self, path, body)

    async with asyncio.timeout(PATIENCE_S), etcd_metadata(etcd) as store:
        await change(store, "a", b"1")
        monkeypatch.setattr(EtcdMetadata, "_call_once", counted)
        store._token = "no such token"
        values = await asyncio.gather(*(store.get("a") for _ in range(20)))
        assert [value.data for value in values if value is not None] == 20 * [b"1"]
        assert logins == 1
        impatient = asyncio.create_task(store._log_in(store._token))
        await asyncio.sleep(0)
        impatient.cancel()
        await store._log_in(store._token)
        assert logins == 2, "who is gone takes no login from the others"


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The URL of what is taken for etcd, and answers so."""
    application = web.Application()
    application.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def refusal(code: int, message: str) -> web.Response:
    return web.json_response({"error": message, "code": code, "message": message}, status=500)


@pytest.mark.parametrize("code", range(17))
async def test_only_what_etcd_itself_refuses_is_known_not_to_be_done(code: int) -> None:
    """An etcd that is being stopped has answered transactions that were done in the words of its gateway."""

    async def refuse(request: web.Request) -> web.Response:
        return refusal(code, "no")

    async def empty(request: web.Request) -> web.Response:
        return web.json_response({"header": {"revision": "5"}})

    is_certain = code in (3, 5, 6, 7, 8, 9, 11, 12, 16)
    async with answering(refuse) as stopped, answering(empty) as other:
        config = EtcdConfig(endpoints=[stopped, other])
        async with EtcdMetadata(config) as store:
            with pytest.raises(MetadataError) as refused:
                await store.compare_and_set({"a": ABSENT}, {"a": b"1"})
            assert isinstance(refused.value, OutcomeUnknown) is not is_certain
        async with EtcdMetadata(config) as store:
            if is_certain:
                with pytest.raises(MetadataError):
                    await store.get("a")
            else:
                assert await store.get("a") is None, "the next endpoint may answer"


async def test_a_token_of_before_a_change_of_users_is_renewed() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("authenticate"):
            return web.json_response({"token": "new"})
        if request.headers.get("Authorization") != "new":
            return refusal(3, "etcdserver: revision of auth store is old")
        return web.json_response({"header": {"revision": "5"}})

    async with answering(answer) as url, EtcdMetadata(EtcdConfig(endpoints=[url], user="root")) as store:
        store._token = "old"
        assert await store.get("a") is None


@pytest.mark.parametrize(
    "page", ["<html>\n<h1>503 Service Unavailable</h1>\n</html>\n", "[]\n", "{}\n", '{"result":null}\n']
)
async def test_a_watch_outlives_a_page_of_what_is_between(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "RETRY_S", 0)
    watch_count = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal watch_count
        if not request.path.endswith("watch"):
            return web.json_response({"header": {"revision": "5"}})
        watch_count += 1
        if watch_count == 1:
            return web.Response(text=page)
        events = [{"kv": {"key": "bXEvYQ==", "value": "MQ==", "mod_revision": "6"}}]
        return web.Response(text=orjson.dumps({"result": {"created": True, "events": events}}).decode() + "\n")

    async with (
        asyncio.timeout(PATIENCE_S), answering(answer) as url, EtcdMetadata(EtcdConfig(endpoints=[url])) as store,
        aclosing(store.watch("")) as watch,
    ):  # fmt: skip
        assert isinstance(await anext(watch), Listing)
        assert await anext(watch) == Changes(6, {"a": Value(b"1", 6)})


@pytest.mark.parametrize("page", ["<html></html>", "[]"])
async def test_an_answer_that_is_no_message_is_none_of_etcd(page: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=page)

    async with answering(answer) as url, EtcdMetadata(EtcdConfig(endpoints=[url])) as store:
        with pytest.raises(Unavailable):
            await store.get("a")
        with pytest.raises(OutcomeUnknown):
            await store.compare_and_set({"a": ABSENT}, {"a": b"1"})


async def test_a_change_whose_answer_is_lost_is_of_unknown_outcome() -> None:
    asked = 0

    async def drop(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await request.read()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with answering(drop) as url:
        endpoints = [f"http://127.0.0.1:{free_port()}", url]
        async with EtcdMetadata(EtcdConfig(endpoints=endpoints)) as store:
            with pytest.raises(OutcomeUnknown):
                await store.compare_and_set({"a": ABSENT}, {"a": b"1"})
            assert asked == 1, "it is not sent twice"
            with pytest.raises(Unavailable) as refused:
                await store.get("a")
            assert not isinstance(refused.value, OutcomeUnknown)
    async with EtcdMetadata(EtcdConfig(endpoints=endpoints)) as store:
        with pytest.raises(Unavailable) as refused:
            await store.compare_and_set({"a": ABSENT}, {"a": b"1"})
        assert not isinstance(refused.value, OutcomeUnknown), "nobody was reached"
