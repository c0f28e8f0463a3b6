"""What Apache Kafka answers to what is wrong (`wrong.py`), asked of a real one and kept in kafka_answers.json.

    python -m tests.gateway.surfaces.kafka.answers      # writes the file anew; the matrix run compares the two

The file has one line a case: what was answered, by the first version of the request from which on it was so.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.groups.machines.strategies.base import Partition
from gateway.surfaces.kafka import apis
from gateway.surfaces.kafka.apis import APIS
from gateway.surfaces.kafka.groups import assignment_of
from gateway.surfaces.kafka.schema import Message
from loadtest.peers.kafka import VERSION
from tests.gateway.brokers.kafka.servers import kafka_servers
from tests.gateway.surfaces.kafka import wrong
from tests.gateway.surfaces.kafka.asking import Answer, Asker, asking, comparable
from tests.gateway.surfaces.kafka.wrong import CASES, Asked, Case, Place
from tests.waiting import PATIENCE_S

PATH = Path(__file__).with_name("kafka_answers.json")
ROOT, NOBODY = "root", "nobody"
PASSWORDS = {ROOT: b"\0root\0of-tests", NOBODY: b"\0nobody\0of-tests"}
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root;User:ANONYMOUS",
    "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": f'{_PLAIN} user_root="of-tests" user_nobody="of-tests";',
}
Answers = dict[str, Any]


@dataclass
class World:
    """A server that has what the cases need."""

    address: str
    is_kafka: bool
    users: Mapping[str, bytes] = field(default_factory=dict)
    member: str = ""
    generation: int = 0

    @asynccontextmanager
    async def asked_by(self, user: str | None) -> AsyncIterator[Asker]:
        """A connection of somebody, where users are known."""
        async with asking(self.address) as asker:
            if user is not None and self.users:
                await asker.ask(apis.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                told = await asker.ask(apis.SASL_AUTHENTICATE, 1, {"auth_bytes": self.users[user]})
                assert isinstance(told, dict), told
                assert told["error_code"] == 0, told
            yield asker

    async def prepare(self) -> None:
        """Make topics, records and groups."""
        async with self.asked_by(ROOT) as root:
            topics = [
                {"name": wrong.ORDERS, "num_partitions": wrong.PARTITIONS, "replication_factor": 1},
                {"name": wrong.LIMITED, "num_partitions": 2, "replication_factor": 1,
                 "configs": [{"name": "max.message.bytes", "value": str(wrong.LIMIT)}]},
                {"name": wrong.PACKED, "num_partitions": 2, "replication_factor": 1},
            ]  # fmt: skip
            await _done(root, apis.CREATE_TOPICS, 5, {"topics": topics, "timeout_ms": 10_000})
            for number in range(wrong.END):
                batch = wrong.batch(b"%d" % number)
                await _done(root, apis.PRODUCE, 9, wrong.produced(batch, partition=0))
                await asyncio.sleep(0.002)  # each has a time of its own
            await _done(root, apis.PRODUCE, 9, wrong.produced(wrong.packed(), wrong.PACKED, 0))
            await _done(root, apis.DELETE_RECORDS, 2, wrong.deleted_before(wrong.FIRST))
            for topic in (wrong.ORDERS, wrong.LIMITED, wrong.PACKED):
                for partition in range(2):
                    await _done(root, apis.LIST_OFFSETS, 7, wrong.listed(wrong.LATEST, topic, partition))
            for group in (wrong.LEFT, wrong.LIVE):
                await _done(root, apis.FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
            await _done(root, apis.INIT_PRODUCER_ID, 2, wrong.started())
            if self.is_kafka and not self.users:
                await _done(root, apis.FIND_COORDINATOR, 2, {"key": "transaction", "key_type": 1})
            alone = wrong.alone(wrong.committed(), wrong.LEFT)
            await _done(root, apis.OFFSET_COMMIT, 8, alone(Place(8, "", self.is_kafka)))
            join = wrong.joined(wrong.LIVE, session_timeout_ms=wrong.SESSION_MS)
            first = await root.ask(apis.JOIN_GROUP, 5, join)
            assert isinstance(first, dict), first
            second = await _done(root, apis.JOIN_GROUP, 5, {**join, "member_id": first["member_id"]})
            self.member, self.generation = second["member_id"], second["generation_id"]
            owned = [Partition(wrong.ORDERS, 0, number) for number in range(wrong.PARTITIONS)]
            assigned = {"member_id": self.member, "assignment": assignment_of(owned)}
            await _done(root, apis.SYNC_GROUP, 3, {
                "group_id": wrong.LIVE, "member_id": self.member, "generation_id": self.generation,
                "assignments": [assigned],
            })  # fmt: skip

    async def answers(self, case: Case, version: int) -> list[Any]:
        """What is answered to a case in a version, as far as it can be compared."""
        name = f"{case.name}-{version}"
        own = "own-" + "".join(letter if letter.isalnum() else "-" for letter in name)
        place = Place(version, own, self.is_kafka, self.member, self.generation, dict(self.users))
        found: list[Answer] = []
        async with self.asked_by(case.user) as asker:
            for one in case.asked(place):
                asked = one if isinstance(one, Asked) else Asked(one)
                key = case.key if asked.key is None else asked.key
                in_version = version if asked.key is None else asked.version
                if asked.is_silent:
                    asker.send(key, in_version, asked.message)
                    continue
                found.append(await asker.ask(key, in_version, asked.message, answered_in=asked.answered_in))
                if not asker.is_open:
                    break
        return [comparable(answer, own) for answer in found]


async def _done(asker: Asker, key: int, version: int, message: Message) -> Message:
    """Ask until nothing is wrong: Kafka needs a moment for what is new."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await asker.ask(key, version, message)
            assert isinstance(answer, dict), answer
            if not any(codes_of(answer)):
                return answer
            await asyncio.sleep(0.1)


def codes_of(value: Any) -> Iterator[int]:
    """All error codes of an answer."""
    if isinstance(value, dict):
        if "error_code" in value:
            yield value["error_code"]
        for one in value.values():
            yield from codes_of(one)
    elif isinstance(value, list):
        for one in value:
            yield from codes_of(one)


def asked_in(versions: Mapping[str, Any], case: Case) -> range:
    """The versions in which a case is asked, by what Kafka says of itself."""
    api = APIS[case.key]
    low, high = versions[api.name]
    return range(max(low, api.min_version, case.since), min(high, api.max_version) + 1)


async def recorded(directory: Path) -> Answers:
    """What a real Kafka answers now."""
    versions: dict[str, list[int]] = {}
    answers: dict[str, list[list[Any]]] = {}
    for is_secured in (False, True):
        settings = SECURED if is_secured else {}
        listener = "SASL_PLAINTEXT" if is_secured else "PLAINTEXT"
        with kafka_servers(directory / listener, settings=settings, listener=listener) as servers:
            world = World(servers.endpoint, is_kafka=True, users=PASSWORDS if is_secured else {})
            await world.prepare()
            async with asking(world.address) as asker:
                told = await asker.ask(apis.API_VERSIONS, 0, {})
            assert isinstance(told, dict), told
            for one in told["api_keys"]:
                if one["api_key"] in APIS:
                    versions[APIS[one["api_key"]].name] = [one["min_version"], one["max_version"]]
            for case in CASES:
                if case.is_secured is is_secured:
                    answers[case.name] = _by_version(
                        {version: await world.answers(case, version) for version in asked_in(versions, case)}
                    )
    return {"kafka": VERSION, "versions": versions, "answers": answers}


def _by_version(answers: Mapping[int, Any]) -> list[list[Any]]:
    """The first version of each stretch in which the answers are the same, and these."""
    found: list[list[Any]] = []
    for version, answer in answers.items():
        if not found or found[-1][1] != answer:
            found.append([version, answer])
    return found


def text_of(answers: Answers) -> str:
    """The file's text."""
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in answers["answers"].items()]
    head = f'"kafka": {json.dumps(answers["kafka"])},\n"versions": {json.dumps(answers["versions"])},\n"answers": '
    return "{\n" + head + "{\n" + ",\n".join(lines) + "\n}\n}\n"


def kept() -> Answers:
    """What the file says."""
    found: Answers = json.loads(PATH.read_text())
    return found


def kept_answer(answers: Answers, case: Case, version: int) -> Any:
    """What Kafka answers to a case in a version."""
    return [answer for first, answer in answers["answers"][case.name] if first <= version][-1]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PATH.write_text(text_of(asyncio.run(recorded(Path(made)))))
