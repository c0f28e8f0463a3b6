"""What is wrong is answered as Apache Kafka answers it: the codes, where they stand, and what the other fields have.

Kafka's answers are in kafka_answers.json, which the matrix run holds against a real one. What differs on purpose is in
DIFFERENCES, and in docs/kafka.md.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import kafka.errors as theirs
import pytest
import pytest_asyncio

from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.apis import FETCH, PRODUCE
from loadtest.peers.kafka import VERSION
from tests.gateway.security.test_server import config_of, running, token_for
from tests.gateway.surfaces.kafka.answers import (
    NOBODY,
    ROOT,
    World,
    asked_in,
    kept,
    kept_answer,
    recorded,
    text_of,
)
from tests.gateway.surfaces.kafka.wrong import CASES, Case

pytestmark = pytest.mark.asyncio(loop_scope="module")

KAFKA = kept()
DOCS = Path(__file__).parents[4] / "docs" / "kafka.md"


class Difference(NamedTuple):
    """Fields that have other values than Kafka's, in answers to these cases. `why` is in the docs."""

    cases: Sequence[str]
    fields: Mapping[str, Any]
    why: str


NO_TRANSACTIONS = "There are no transactions."
NAMED = "A group has a name."
ALONE = "A server that is alone has one leader epoch for ever, and does not look at that of a request."
TWICE = "What a request names twice is answered twice, or counts as it is named last."
DIFFERENCES = (
    Difference(
        ["produce: message format 3", "produce: unknown compression", "produce: gzip that is none"], {"error_code": 87},
        "Records that cannot be read are INVALID_RECORD, which clients do not send again.",
    ),
    Difference(["produce: transactional batch"], {"error_code": 87}, NO_TRANSACTIONS),
    Difference(["produce: transaction"], {"error_code": 35, "base_offset": -1}, NO_TRANSACTIONS),
    Difference(["coordinator: of a transaction"], {"error_code": 35, "node_id": -1, "port": -1}, NO_TRANSACTIONS),
    Difference(["denied: coordinator of a transaction"], {"error_code": 35}, NO_TRANSACTIONS),
    Difference(
        ["producer id: transactional"], {"error_code": 35, "producer_id": -1, "producer_epoch": -1}, NO_TRANSACTIONS
    ),
    Difference(
        ["produce: far in the future"], {"error_code": 0, "base_offset": "a number", "record_errors": 0},
        "A record may have any time.",
    ),
    Difference(
        ["produce: a repeat"], {"log_append_time_ms": -1}, "A repeat is answered as the first one was, without a time."
    ),
    Difference(
        ["produce: repeat of a batch of six before"], {"error_code": 46},
        "A repeat whose offset is forgotten is DUPLICATE_SEQUENCE, which clients take for a success.",
    ),
    Difference(
        ["fetch: a new session", "fetch: instead of an unknown session"], {"session_id": 0},
        "There are no fetch sessions.",
    ),
    Difference(
        ["fetch: later leader epoch"],
        {"error_code": 0, "high_watermark": 5, "last_stable_offset": 5, "log_start_offset": 2, "records": "bytes"},
        ALONE,
    ),
    Difference(["list offsets: later leader epoch"], {"error_code": 0, "offset": 5, "leader_epoch": 0}, ALONE),
    Difference(["end of an epoch: later leader epoch"], {"error_code": 0, "leader_epoch": 0, "end_offset": 5}, ALONE),
    Difference(["end of an epoch: later than all"], {"leader_epoch": 0, "end_offset": 5}, ALONE),
    Difference(["list offsets: a partition twice"], {"partitions": 2}, TWICE),
    Difference(["replace settings: a setting twice", "change settings: a setting twice"], {"error_code": 0}, TWICE),
    Difference(["change settings: a topic twice"], {"responses": 1}, TWICE),
    Difference(
        ["versions: illegal name of a client"], {"error_code": 0}, "Names and versions of clients may be anything."
    ),
    Difference(["commit: no group", "delete groups: no group"], {"error_code": 24}, NAMED),
    Difference(["committed: no group"], {"error_code": 24, "committed_offset": -1, "topics": 0}, NAMED),
    Difference(["describe groups: no group"], {"error_code": 24, "group_state": ""}, NAMED),
    Difference(["commit: negative offset"], {"error_code": 42}, "A committed offset is not negative."),
    Difference(
        ["commit: nobody's, where no member is, in a group that lives"], {"error_code": 0},
        "Anybody may commit in a partition that no member has.",
    ),
    Difference(
        ["describe groups: without members"], {"protocol_type": "consumer"},
        "A group without members is one of consumers.",
    ),
    Difference(
        ["change settings: unknown operation", "change settings: append to a list"], {"error_code": 40},
        "Settings are set and deleted; there is no list to append to.",
    ),
    Difference(["sasl: not asked for"], {"error_code": (33, 0)}, "Without authentication any credential is taken."),
    Difference(
        ["sasl: a password before the mechanism"], {"[0]": {"error_code": 34}},
        "A password before the mechanism is told so before its connection ends.",
    ),
)  # fmt: skip

ALWAYS = {
    (PRODUCE, "log_start_offset"): (-1, "Produce does not tell the first offset (-1)."),
    (FETCH, "aborted_transactions"): ([], "Fetch lists no aborted transactions, where Kafka may have null."),
}
"""Fields that have another value in all answers to a request."""


def _different(ours: Any, kafkas: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two answers differ: the way there, what is ours, and what is Kafka's."""
    if isinstance(ours, dict) and isinstance(kafkas, dict):
        for name in {**ours, **kafkas}:
            yield from _different(ours.get(name, "nothing"), kafkas.get(name, "nothing"), f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(kafkas, list) and len(ours) == len(kafkas):
        for number, (one, other) in enumerate(zip(ours, kafkas, strict=True)):
            yield from _different(one, other, f"{path}[{number}]")
    elif ours != kafkas:
        yield path, ours, kafkas


class Worlds(NamedTuple):
    """Two servers: of which one asks who somebody is."""

    plain: World
    secured: World


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worlds(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worlds]:
    """mq, at default settings but for topics that make themselves."""
    async with AsyncExitStack() as stack:
        made = []
        for is_secured in (False, True):
            port = _free_port()
            settings = {"kafka.port": port, "kafka.auto_create_topics": False, "auth.enabled": is_secured}
            config = config_of(tmp_path_factory.mktemp("mq"), **settings)
            users = {}
            if is_secured:
                for user, scope in ((ROOT, "admin"), (NOBODY, "receive:topic:others")):
                    token, _ = token_for(config, user, scope)
                    users[user] = f"\0{user}\0{token}".encode()
            await stack.enter_async_context(running(config))
            world = World(f"127.0.0.1:{port}", is_kafka=False, users=users)
            await world.prepare()
            made.append(world)
        yield Worlds(*made)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
async def test_what_is_wrong_is_answered_as_kafka_does(worlds: Worlds, case: Case) -> None:
    world = worlds.secured if case.is_secured else worlds.plain
    allowed = {field: value for one in DIFFERENCES if case.name in one.cases for field, value in one.fields.items()}
    unseen = set(allowed)
    wrong: dict[str, list[int]] = {}
    for version in asked_in(KAFKA["versions"], case):
        found, expected = await world.answers(case, version), kept_answer(KAFKA, case, version)
        for path, ours, kafkas in _different(found, expected):
            field = path.rpartition(".")[2]
            if field in allowed and _is(allowed[field], ours):
                unseen.discard(field)
            elif (case.key, field) not in ALWAYS or ALWAYS[case.key, field][0] != ours:
                wrong.setdefault(f"{path}: {ours!r}, Kafka's is {kafkas!r}", []).append(version)
    assert not wrong, "".join(f"\n{case.name}: {what}, in versions {seen}" for what, seen in wrong.items())
    assert not unseen, "that differs no more"


def _is(allowed: Any, ours: Any) -> bool:
    """Whether a value is the one that differs: of an array its length is named, and one of several, or parts of it."""
    if isinstance(ours, list):
        return bool(len(ours) == allowed)
    if isinstance(allowed, tuple):
        return ours in allowed
    if isinstance(allowed, dict):
        return isinstance(ours, dict) and allowed.items() <= ours.items()
    return bool(ours == allowed)


async def test_every_case_has_an_answer_of_kafka_and_every_difference_a_case() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert list(KAFKA["answers"].keys()) == sorted(names, key=[*KAFKA["answers"]].index)
    assert {name for one in DIFFERENCES for name in one.cases} <= set(names)


async def test_the_reason_of_every_difference_is_in_the_docs() -> None:
    docs = " ".join(DOCS.read_text().split())
    reasons = {one.why for one in DIFFERENCES} | {why for _, why in ALWAYS.values()}
    assert [why for why in reasons if why.removesuffix(".") not in docs] == []


async def test_the_codes_are_those_of_kafka() -> None:
    """By the list of kafka-python, which has some under older names."""
    names = {
        error.errno: error.message
        for error in vars(theirs).values()
        if isinstance(error, type) and issubclass(error, theirs.BrokerResponseError) and error.errno is not None
    }
    older = {
        "NOT_LEADER": "NOT_LEADER_FOR_PARTITION",
        "MESSAGE_TOO_LARGE": "MESSAGE_SIZE_TOO_LARGE",
        "INCONSISTENT_PROTOCOL": "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_REPLICA_ASSIGNMENT": "INVALID_REPLICATION_ASSIGNMENT",
        "OUT_OF_ORDER_SEQUENCE": "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "DUPLICATE_SEQUENCE": "DUPLICATE_SEQUENCE_NUMBER",
        "UNSUPPORTED_COMPRESSION": "UNSUPPORTED_COMPRESSION_TYPE",
        "STORAGE_ERROR": "KAFKA_STORAGE_ERROR",
    }
    ours = {name: code for name, code in vars(errors).items() if name.isupper() and isinstance(code, int) and code > 0}
    assert {name: names[code] for name, code in ours.items()} == {name: older.get(name, name) for name in ours}


@pytest.mark.matrix
async def test_kafka_answers_as_is_written_down(tmp_path: Path) -> None:
    assert KAFKA["kafka"] == VERSION
    assert text_of(await recorded(tmp_path)) == text_of(KAFKA), "python -m tests.gateway.surfaces.kafka.answers"
