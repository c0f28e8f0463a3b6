"""GET /mq/v1/topics/{topic}/sse?group=…: an event stream as a consumer of a group, in queue mode.

    ack=manual   every record comes with a receipt, and is settled with POST …/messages:ack (nack, reject, extend): at
                 least once, from a browser or from a shell. At most `credit` records are out at a time
    ack=auto     a record is done once it is written to the connection: one that was lost on its way is lost

The group keeps the position, so there are no ids, and a stream that is opened again goes on. Records that did not reach
the connection are given back; those that did, and are not settled, come again when their lease is over.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
from aiohttp import web

from gateway.api.errors import error_of
from gateway.api.lease import Leases
from gateway.api.render import delivered_as_json
from gateway.api.tasks import when_set
from gateway.auth.access import Access, Permission
from gateway.brokers.base import BrokerUnreachable
from gateway.errors import RequestError
from gateway.groups.machines.errors import GroupFull
from gateway.groups.protocol import Delivered, Receive, Run, receipts_of
from gateway.routing.base import topic_id_of
from gateway.routing.patience import AGAIN_S
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.rights import ended, while_allowed
from gateway.surfaces.http.streaming import StreamedAnswer
from store.limits import MiB
from store.waits import is_set_within

PIECE_RECORDS = 100
"""Records of one receive: what would have to be given back when the client is gone."""

PIECE_BYTES = 1 * MiB
FULL_WAIT_MS = 1_000
"""How long a stream waits when the group has as many records out as it may."""


class GroupStream:
    """One open stream. Used once, by `run`."""

    def __init__(
        self,
        gateway: Gateway,
        request: web.Request,
        access: Access,
        answer: StreamedAnswer,
        *,
        group: str,
        asked: Receive,
        credit: int,
        acks_itself: bool,
        as_lines: bool,
        heartbeat_ms: int,
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._access = access
        self._answer = answer
        self._group = group
        self._asked = asked
        self._acks_itself = acks_itself
        self._as_lines = as_lines
        self._heartbeat_ms = heartbeat_ms
        self._heartbeat_at_s = 0.0
        self._room = asyncio.Event()
        self._credit = credit
        self._leases = Leases(lambda *_: self._room.set(), f"{access.principal}@{request.remote}")

    async def run(self) -> web.StreamResponse:
        """Stream until the client is gone, its rights end, or the server drains."""
        gateway = self._gateway
        gateway.leases.add(self._group, self._leases)
        try:
            with when_set(gateway.draining, self._room.set):
                await self._write(b"" if self._as_lines else b": connected\n\n")
                while not gateway.draining.is_set():
                    await self._turn()
            await self._answer.write(self._event("goaway", {"reason": "shutdown"}))
        except ConnectionError:
            return self._answer.gone()
        except Exception as error:
            refusal = error_of(error)
            fields = {"error_code": refusal.error_code, "message": refusal.message, "details": refusal.details}
            await self._answer.write(self._event("error", fields))
        finally:
            gateway.leases.remove(self._group, self._leases)
        return await self._answer.end()

    async def _turn(self) -> None:
        """Hand out what there is, or wait for it; after a while without anything, say that all is well."""
        self._room.clear()
        self._check_rights()
        self._leases.sweep(self._gateway.clock.now_ms())
        room = self._credit - len(self._leases)
        if room:
            runs = await self._received(min(room, PIECE_RECORDS))
            if runs:
                await self._deliver(runs)
                return
        else:
            await self._wait_for_room()
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._heartbeat_at_s and not self._gateway.draining.is_set():
            await self._write(b'{"event":"heartbeat"}\n' if self._as_lines else b": hb\n\n")

    def _check_rights(self) -> None:
        """Raises RequestError when they have ended, or rules have changed since the stream began."""
        if self._access.is_over:
            raise ended()
        for topic in self._asked.topics:
            self._access.check(Permission.RECEIVE, topic=topic, group=self._group)

    async def _write(self, data: bytes) -> None:
        await self._answer.write(data)
        self._heartbeat_at_s = asyncio.get_running_loop().time() + self._heartbeat_ms / 1000

    async def _received(self, count: int) -> tuple[Run, ...]:
        room_bytes = self._answer.allowance.share(PIECE_BYTES * RENDERED_FACTOR)
        asked = replace(
            self._asked, max_messages=count, max_bytes=room_bytes // RENDERED_FACTOR, wait_ms=self._heartbeat_ms
        )
        try:
            async with while_allowed(self._gateway, self._request):
                return (await self._gateway.groups.receive(self._group, asked)).runs
        except GroupFull:
            await self._wait(FULL_WAIT_MS)
            return ()
        except BrokerUnreachable:  # its node restarts
            await self._wait(round(AGAIN_S * 1000))
            return ()

    async def _wait_for_room(self) -> None:
        left_ms = self._leases.next_end_ms - self._gateway.clock.now_ms()
        await self._wait(max(1, min(left_ms, self._heartbeat_ms)))

    async def _wait(self, wait_ms: int) -> None:
        async with while_allowed(self._gateway, self._request):
            await is_set_within(self._room, wait_ms / 1000)

    async def _deliver(self, runs: tuple[Run, ...]) -> None:
        gateway, group = self._gateway, self._group
        receipts = receipts_of(runs)
        try:
            self._check_rights()  # again: they came after a while
            if not self._acks_itself:
                self._leases.took(runs)  # before: a quick client settles them before the write is over
            events = b"".join([self._shown(one) for run in runs for one in run.messages()])
            await self._write(events)
        except (ConnectionError, RequestError):
            await gateway.groups.give_back(group, receipts)
            raise
        gateway.stats.fetched_record_count += len(receipts)
        gateway.stats.fetched_byte_count += len(events)
        if self._acks_itself:
            await gateway.groups.ack(group, receipts)

    def _shown(self, message: Delivered) -> bytes:
        item = delivered_as_json(message, topic_id_of(self._gateway.routes_table, message.topic))
        if self._acks_itself:
            del item["receipt"], item["visible_until"]
        data = orjson.dumps(item)
        return data + b"\n" if self._as_lines else b"event: message\ndata: %s\n\n" % data

    def _event(self, name: str, fields: dict[str, object]) -> bytes:
        if self._as_lines:
            return orjson.dumps({"event": name, **fields}) + b"\n"
        return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(fields))
