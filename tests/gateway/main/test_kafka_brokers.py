"""gateway.main.kafka_brokers: what an operator may write of a Kafka cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.main.kafka_brokers import kafka_addresses
from gateway.settings.config import ConfigError
from loadtest.certificates import write_certificate


def test_clusters_have_names_hosts_and_options_however_their_list_was_cut(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    texts = [
        "kafka1=kafka://a:9092", "b:9093?replication=1&min_insync=1&prefix=mq.",
        f"k2=kafka+tls://[::1]:1?user=me&password_file={tmp_path / 'password'}&mechanism=PLAIN",
    ]  # fmt: skip
    for given in (texts, [",".join(texts)]):
        found = kafka_addresses(given, node="n1")
        first, second = found["kafka1"], found["k2"]
        assert (first.servers, first.replication, first.min_insync, first.prefix) == (("a:9092", "b:9093"), 1, 1, "mq.")
        assert (first.tls, first.user) == (None, None)
        assert second.tls is not None
        assert (second.servers, second.user, second.password, second.mechanism) == (
            ("[::1]:1",),
            "me",
            "secret",
            "PLAIN",
        )
        assert (second.replication, second.min_insync) == (3, 2)
    assert kafka_addresses((), node="n1") == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:9092", "is no NAME=kafka://"),
        ("k=http://a:9092", "is no NAME=kafka://"),
        ("k=kafka://a", "is no HOST:PORT"),
        ("k=kafka://a:0", "is no HOST:PORT"),
        ("k=kafka://a:65536", "is no HOST:PORT"),
        ("K=kafka://a:1", "a node's name"),
        ("n1=kafka://a:1", "two brokers"),
        ("k=kafka://a:1,k=kafka://b:1", "two brokers"),
        ("k=kafka://me:secret@a:1", "password_file"),
        ("k=kafka://a:1?user=me", "go together"),
        ("k=kafka://a:1?acks=1", "acks is no option"),
        ("k=kafka://a:1?replication=2&min_insync=3", "min_insync"),
        ("k=kafka://a:1?replication=x", "invalid literal"),
        ("k=kafka://a:1?mechanism=GSSAPI", "mechanism GSSAPI"),
        ("k=kafka://a:1?prefix=a b", "a prefix has"),
        ("k=kafka://a:1?ca_file=/nowhere", "needs kafka"),
        ("k=kafka+tls://a:1?ca_file=/nowhere", "No such file"),
        ("k=kafka://a:1?cert_file=/nowhere", "cert_file needs kafka"),
        ("k=kafka+tls://a:1?cert_file=/nowhere", "No such file"),
        ("k=kafka+tls://a:1?key_file=/nowhere", "key_file needs cert_file"),
        ("k=kafka2://me:secret@a:1", "kafka2:// is no"),
    ],
)
def test_what_is_none_is_refused_with_its_reason(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match="cluster"):
        kafka_addresses([text], node="n1")
    with pytest.raises(ConfigError) as refused:
        kafka_addresses([text], node="n1")
    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_key_of_a_client_needs_no_password(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key)
    text = f"k=kafka+tls://a:1?ca_file={cert}&cert_file={cert}&key_file={key}"
    assert kafka_addresses([text], node="n1")["k"].tls is not None
    write_certificate(cert, key, password=b"a word")
    with pytest.raises(ConfigError, match="without one"):
        kafka_addresses([text], node="n1")
