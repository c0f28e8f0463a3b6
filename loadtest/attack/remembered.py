"""Attacks by what the server has promised to remember: ids of sends, keys of requests, keys of schedules."""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson

from loadtest.attack.attack import Attack, Kept
from loadtest.attack.attacker import NOT_TRIED, Attacker
from loadtest.bench.payloads import JSON_TYPE

TOPIC = "remembered"
FAR_MS = 3_600_000
PATH = f"/topics/{TOPIC}"
AT_A_TIME = 4


async def make_topic(attacker: Attacker, **_: int) -> None:
    """One partition."""
    await attacker.make_topic(TOPIC)


async def message_ids(attacker: Attacker, *, ids: int, a_request: int, seconds: int) -> None:
    """Records with an id each."""
    await _send(attacker, ids, a_request, seconds, lambda number: {"value": 1, "msg_id": f"m{number}"})


async def schedule_keys(attacker: Attacker, *, keys: int, a_request: int, seconds: int) -> None:
    """Delayed records with a key each; then all are cancelled at once."""
    await _send(
        attacker, keys, a_request, seconds,
        lambda number: {"value": 1, "delay_ms": FAR_MS + number % FAR_MS, "schedule_key": f"k{number}"},
    )  # fmt: skip
    await attacker.ask("DELETE", f"/mq/v1/schedules?topic={TOPIC}")


async def idempotency_keys(attacker: Attacker, *, keys: int) -> None:
    """A request with a key each."""

    async def one(number: int) -> None:
        headers = {"Content-Type": JSON_TYPE, "Idempotency-Key": f'"k{number}"'}
        await attacker.ask("POST", PATH, body=b'{"records":[{"value":1}]}', headers=headers)

    await attacker.each(keys, one, at_a_time=8 * AT_A_TIME)


async def _send(
    attacker: Attacker, count: int, a_request: int, seconds: int, record: Callable[[int], dict[str, object]]
) -> None:
    until_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        if time.monotonic() > until_s:
            attacker.saw(NOT_TRIED)
            return
        first = number * a_request
        records = [record(each) for each in range(first, min(first + a_request, count))]
        await attacker.ask("POST", PATH, body=orjson.dumps({"records": records}), headers={"Content-Type": JSON_TYPE})

    await attacker.each(-(-count // a_request), one, at_a_time=AT_A_TIME)


ATTACKS = (
    Attack(
        name="idempotency-keys",
        tried="{keys} requests with an `Idempotency-Key` each",
        run=idempotency_keys, prepare=make_topic,
        full={"keys": 30_000}, short={"keys": 300},
        keeps=Kept("keys", "keys are remembered for ten minutes", 110),
    ),
    Attack(
        name="message-ids",
        tried="{ids} records with a `msg_id` each, in requests of {a_request}, within {seconds} s",
        run=message_ids, prepare=make_topic,
        full={"ids": 1_100_000, "a_request": 10_000, "seconds": 40},
        short={"ids": 5_000, "a_request": 1_000, "seconds": 2},
        keeps=Kept("ids", "ids are remembered for ten minutes", 110),
    ),
    Attack(
        name="schedule-keys",
        tried="{keys} delayed records with a `schedule_key` each, in requests of {a_request}, within {seconds} s, then "
        "all cancelled",
        run=schedule_keys, prepare=make_topic,
        full={"keys": 1_000_000, "a_request": 5_000, "seconds": 40},
        short={"keys": 5_000, "a_request": 1_000, "seconds": 2},
    ),
)  # fmt: skip
