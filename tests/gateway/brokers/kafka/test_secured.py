"""`mq serve` with a real Apache Kafka that speaks TLS, asks clients for a certificate, and for a password by each
mechanism.

Covers gateway.brokers.kafka.links and gateway.main.kafka_brokers where they have to do with that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import orjson
import pytest

from loadtest.certificates import write_certificate
from tests.e2e.server import SMALL_FILES, Server
from tests.gateway.brokers.kafka.servers import KafkaServers, kafka_servers

pytestmark = pytest.mark.matrix

WORD = "a word that nobody knows?"
MODULE = "org.apache.kafka.common.security"
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the server and of a client, each its own authority, and of a stranger."""
    directory = tmp_path_factory.mktemp("keys")
    for name in ("server", "client", "stranger"):
        cert, key = directory / f"{name}.pem", directory / f"{name}.key"
        write_certificate(cert, key)
        (directory / f"{name}.both").write_bytes(key.read_bytes() + cert.read_bytes())
    (directory / "password").write_text(WORD + "\n")
    (directory / "wrong").write_text("another\n")
    return directory


@pytest.fixture(scope="module")
def kafka(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    before = "listener.name.clients."
    settings = {
        before + "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        before + "plain.sasl.jaas.config": f'{MODULE}.plain.PlainLoginModule required user_mq="{WORD}";',
        before + "scram-sha-256.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
        before + "scram-sha-512.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
        before + "ssl.keystore.type": "PEM",
        before + "ssl.keystore.location": str(keys / "server.both"),
        before + "ssl.truststore.type": "PEM",
        before + "ssl.truststore.location": str(keys / "client.pem"),
        before + "ssl.client.auth": "required",
    }
    scrams = [f"{scram}=[name=mq,password={WORD}]" for scram in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
    formatted = [argument for scram in scrams for argument in ("--add-scram", scram)]
    directory = tmp_path_factory.mktemp("kafka")
    with kafka_servers(directory, settings=settings, formatted=formatted, listener="SASL_SSL") as servers:
        yield servers


def server(data: Path, kafka: KafkaServers, keys: Path, prefix: str, **changed: str | None) -> Server:
    """Of which the topics begin on that Kafka. `changed`: options of its URL."""
    options: dict[str, str | None] = {
        "ca_file": str(keys / "server.pem"),
        "cert_file": str(keys / "client.pem"),
        "key_file": str(keys / "client.key"),
        "user": "mq",
        "password_file": str(keys / "password"),
        **changed,
    }
    scheme = options.pop("scheme", "kafka+tls")
    query = "&".join(f"{name}={value}" for name, value in options.items() if value is not None)
    settings = {
        "MQ_CLUSTER_KAFKA": f"kafka1={scheme}://{kafka.endpoint}?replication=1&min_insync=1&prefix={prefix}&{query}",
        "MQ_CLUSTER_DEFAULT_BROKER": "kafka1",
        "MQ_KAFKA_ENABLED": "false",
    }
    data.parent.mkdir(exist_ok=True)
    return Server(data, {**SMALL_FILES, **settings})


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", None])
async def test_topics_are_on_a_kafka_that_asks_for_a_certificate_and_a_password(
    kafka: KafkaServers, keys: Path, tmp_path: Path, mechanism: str | None
) -> None:
    own = server(tmp_path / "data", kafka, keys, f"{mechanism}.", mechanism=mechanism)
    await own.start()
    try:
        async with aiohttp.ClientSession(own.url) as http:
            async with http.put("/mq/v1/topics/orders", json={"partitions": 2}) as answer:
                assert answer.status == 201, await answer.text()
            body = orjson.dumps({"records": [{"value": n, "partition": 1} for n in range(5)]})
            async with http.post("/topics/orders", data=body, headers=JSON) as answer:
                assert [one["offset"] for one in (await answer.json(content_type=None))["offsets"]] == [*range(5)]
            path = "/topics/orders/partitions/1/records?offset=0"
            async with http.get(path, headers={"Accept": JSON["Content-Type"]}) as answer:
                assert [one["value"] for one in await answer.json(content_type=None)] == [*range(5)]
            async with http.get("/mq/v1/brokers") as answer:
                rows = {one["broker"]: one for one in (await answer.json())["brokers"]}
                assert (rows["kafka1"]["state"], rows["kafka1"]["reasons"]) == ("up", [])
            async with http.get("/mq/v1/settings") as answer:
                shown = await answer.text()
        assert WORD not in shown
        assert await own.stop() == 0
        assert WORD not in own.log()
    finally:
        with suppress(ProcessLookupError):
            await own.end()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"password_file": "wrong"}, "uthentication failed"),
        ({"password_file": "wrong", "mechanism": "PLAIN"}, "uthentication failed"),
        ({"user": "nobody"}, "uthentication failed"),
        ({"ca_file": "stranger.pem"}, "certificate verify failed"),
        ({"ca_file": None}, "certificate verify failed"),
    ],
)
async def test_who_is_not_let_in_does_not_start_and_says_why(
    kafka: KafkaServers, keys: Path, tmp_path: Path, changed: dict[str, str | None], reason: str
) -> None:
    files = {name: str(keys / value) if name.endswith("_file") and value else value for name, value in changed.items()}
    own = server(tmp_path / "data", kafka, keys, "refused.", **files)
    with pytest.raises(AssertionError, match="did not start"):
        await own.start()
    assert await own.ended() == 2
    assert f"cluster.kafka: kafka1 does not let this server in: {kafka.endpoint}" in own.log()
    assert reason in own.log()
    assert "another" not in own.log()


@pytest.mark.parametrize(
    "changed",
    [{"cert_file": None, "key_file": None}, {"scheme": "kafka", "ca_file": None, "cert_file": None, "key_file": None}],
)
async def test_where_nobody_says_why_the_broker_is_shown_with_what_is_known(
    kafka: KafkaServers, keys: Path, tmp_path: Path, changed: dict[str, str | None]
) -> None:
    """Without a certificate, or without TLS, Kafka ends the connection and says nothing: it may be for the moment."""
    own = server(tmp_path / "data", kafka, keys, "silent.", **changed)
    try:
        await own.start()
        async with aiohttp.ClientSession(own.url) as http:
            async with http.put("/mq/v1/topics/orders", json={"partitions": 2}) as answer:
                assert answer.status == 503, await answer.text()
            async with http.get("/mq/v1/brokers") as answer:
                rows = {one["broker"]: one for one in (await answer.json())["brokers"]}
        assert rows["kafka1"]["state"] == "offline"
        assert f"{kafka.endpoint} closed" in rows["kafka1"]["reasons"][0]
    finally:
        await own.end()
