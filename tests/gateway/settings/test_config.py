"""gateway/settings/config.py"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.settings.config import ConfigError, GatewayConfig, build, known_settings, load
from gateway.settings.limits import DELAY_MS_LIMIT
from store.types import Acks


def test_defaults(tmp_path: Path) -> None:
    config = load(flags={"data": str(tmp_path)})
    assert (config.host, config.port, config.partitions_default) == ("127.0.0.1", 8082, 4)
    assert config.store.root == config.data == tmp_path
    assert config.timer.root == tmp_path / "timer"
    assert config.store.acks is Acks.FLUSHED
    assert config.limits.delay_ms_max == config.timer.delay_max_ms


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "mq.toml"
    file.write_text(
        'data = "a"\nport = 1\nhost = "127.0.0.2"\n[store]\nacks = "written"\n[limits]\nbody_bytes_max = 5\n'
    )
    environment = {
        "MQ_PORT": "2",
        "MQ_DATA": "b",
        "HOME": "/",
        "MQ_URL": "http://client",
        "MQ_LIMITS_BODY_BYTES_MAX": "6",
    }
    config = load(file=file, environment=environment, flags={"port": 3, "host": None})
    assert (config.port, config.data, config.host) == (3, Path("b"), "127.0.0.2")
    assert config.store.acks is Acks.WRITTEN
    assert config.limits.body_bytes_max == 6


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("port", "0", 0),
        ("insecure_no_auth", "true", True),
        ("insecure_no_auth", "0", False),
        ("allowed_origins", "https://a, https://b", ("https://a", "https://b")),
        ("allowed_origins", ["https://a"], ("https://a",)),
        ("data", "x", Path("x")),
    ],
)
def test_values_are_read_in_their_type(name: str, value: object, read: object) -> None:
    assert getattr(build({"data": Path("d"), name: value}), name) == read


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"data": "d", "prot": 1},
        {"data": "d", "store.root": "x"},
        {"data": "d", "store.akcs": "written"},
        {"data": "d", "limits.delay_ms_max": 1},
        {"data": "d", "port": "http"},
        {"data": "d", "port": 70_000},
        {"data": "d", "cluster.moves_max": 0},
        {"data": "d", "cluster.moves_max": 101},
        {"data": "d", "port": True},
        {"data": "d", "port": 1.5},
        {"data": "d", "store.acks": "maybe"},
        {"data": "d", "insecure_no_auth": "yes"},
        {"data": "d", "partitions_default": 0},
        {"data": "d", "body_timeout_ms": 0},
        {"data": "d", "host": "0.0.0.0"},
        {"data": "d", "host": "example.org"},
        {"data": "d", "host": "::"},
        {"data": "d", "allowed_origins": 5},
        {"data": "d", "timer.roll_window_ms": 1},
        {"data": "d", "store.flush_interval_ms": 0},
        {"data": 5},
    ],
)
def test_unknown_missing_and_illegal_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        build(settings)


def test_a_delayed_record_must_be_copied_before_retention_reaches_it() -> None:
    assert build({"data": "d", "timer.roll_window_ms": 60_000, "store.retention_ms": 60_001}).timer is not None
    with pytest.raises(ConfigError, match=r"roll_window_ms \(60000\) must be shorter than store.retention_ms"):
        build({"data": "d", "timer.roll_window_ms": 60_000, "store.retention_ms": 60_000})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_no_permission(host: str) -> None:
    assert build({"data": "d", "host": host}).host == host


def test_an_unknown_name_is_refused_wherever_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "mq.toml"
    for text in ("prot = 1\n", "[store]\nakcs = 1\n", "[shop]\na = 1\n", "port ="):
        file.write_text('data = "d"\n' + text)
        with pytest.raises(ConfigError, match=r"mq\.toml"):
            load(file=file)
    with pytest.raises(ConfigError, match="MQ_PROT"):
        load(environment={"MQ_DATA": "d", "MQ_PROT": "1"})
    with pytest.raises(ConfigError, match="flag"):
        load(flags={"data": "d", "prot": 1})
    with pytest.raises(ConfigError, match="missing"):
        load(file=tmp_path / "missing")


def test_every_setting_has_a_variable_of_its_own() -> None:
    variables = [name.replace(".", "_").upper() for name in known_settings()]
    assert len(set(variables)) == len(variables)
    assert {"port", "store.acks", "timer.roll_window_ms", "limits.body_bytes_max"} <= set(known_settings())


def test_a_configuration_cannot_change() -> None:
    config = build({"data": "d"})
    assert isinstance(config, GatewayConfig)
    with pytest.raises(AttributeError):
        config.port = 1  # type: ignore[misc]


def test_the_longest_delay_can_be_set_up_to_its_limit() -> None:
    from_timer = {"data": "d", "timer.delay_max_ms": DELAY_MS_LIMIT}
    assert build(from_timer).limits.delay_ms_max == DELAY_MS_LIMIT
    with pytest.raises(ConfigError, match="delay_ms_max"):
        build({**from_timer, "timer.delay_max_ms": DELAY_MS_LIMIT + 1})


@pytest.mark.parametrize(
    ("sources", "meant"),
    [
        ({"flags": {"prot": 1}}, "port"),
        ({"environment": {"MQ_LIMIT_TOPICS_MAX": "5"}}, "MQ_LIMITS_TOPICS_MAX"),
        ({"flags": {"limits.connection_max": 1}}, "limits.connections_max"),
    ],
)
def test_a_name_that_is_nearly_one_is_told_which(sources: dict[str, dict[str, object]], meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"did you mean {re.escape(meant)}\?"):
        load(**sources)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as refusal:
        load(flags={"zzzz": 1})
    assert "mean" not in str(refusal.value)


ON_KAFKA = {"cluster.kafka": ("kafka1=kafka://127.0.0.1:9092",)}
IN_KAFKA = {**ON_KAFKA, "cluster.etcd": (), "cluster.metadata_broker": "kafka1"}
NODE = {"cluster.node": "n1", "cluster.etcd": ("http://127.0.0.1:2379",), "cluster.secret_file": Path("secret")}


def test_a_node_needs_to_know_where_the_others_are_and_by_what_it_knows_them() -> None:
    assert build({"data": Path("d")}).cluster.node is None
    config = build({"data": Path("d"), **NODE, "cluster.internal_port": "0"}).cluster
    assert (config.node, config.etcd, config.internal_port) == ("n1", ("http://127.0.0.1:2379",), 0)
    for changed, said in (
        ({"cluster.etcd": ()}, "needs cluster.etcd"),
        ({"cluster.secret_file": None}, "needs cluster.secret_file"),
        ({"cluster.node": None}, "needs cluster.node"),
        ({"cluster.groups_broker": "kafka1"}, "groups_broker needs cluster.kafka"),
        ({"cluster.default_broker": "kafka1"}, "needs cluster.kafka"),
        ({"cluster.timers_broker": "kafka1"}, "timers_broker needs cluster.kafka"),
        ({"cluster.etcd": (), "cluster.metadata_broker": "kafka1"}, "metadata_broker needs cluster.kafka"),
        ({"cluster.metadata_broker": "kafka1", **ON_KAFKA}, "contradict each other"),
        ({"cluster.node": None, **IN_KAFKA}, "cluster.metadata_broker needs cluster.node"),
        ({"cluster.etcd": ("127.0.0.1:2379",)}, "is no URL"),
        ({"cluster.etcd_user": "root"}, "go together"),
        ({"cluster.internal_port": 65536}, "internal_port"),
    ):
        given = {name: value for name, value in {"data": Path("d"), **NODE, **changed}.items() if value is not None}
        with pytest.raises(ConfigError, match=said):
            build(given)


def test_a_node_without_a_store_says_what_it_lacks() -> None:
    brokers = {f"cluster.{which}_broker": "kafka1" for which in ("default", "groups", "timers")}
    storeless = {**NODE, **brokers, **ON_KAFKA, "cluster.no_store": True}
    config = build(storeless)
    assert (config.cluster.has_data, config.data.exists(), config.audit_directory) == (False, False, None)
    assert build({**storeless, "auth.enabled": True, "auth.token_file": "tokens"}).auth.enabled
    assert build({**storeless, **IN_KAFKA}).cluster.is_shared
    every = ", ".join(
        f"cluster.{name}"
        for name in ("etcd or cluster.metadata_broker", "kafka", "default_broker", "groups_broker", "timers_broker")
    )
    with pytest.raises(ConfigError, match=f"no_store needs {every}:"):
        build({"cluster.no_store": True, "cluster.node": "n1"})
    for changed, said in (
        *(({name: None}, f"no_store needs {name}:") for name in ("cluster.kafka", *brokers)),
        ({"cluster.etcd": None}, "no_store needs cluster.etcd or cluster.metadata_broker:"),
        ({"cluster.node": None}, "needs cluster.node"),
        ({"cluster.secret_file": None}, "needs cluster.secret_file"),
        ({"cluster.join": True}, "choose one"),
        ({"data": Path("d")}, "data: a server without a store"),
        ({"workers": 1}, "not yet on a node with a Kafka cluster"),
        ({"auth.enabled": True}, "auth.token_file"),
    ):
        given = {name: value for name, value in {**storeless, **changed}.items() if value is not None}
        with pytest.raises(ConfigError, match=said):
            build(given)


def test_one_server_keeps_delayed_records_on_kafka_but_no_groups() -> None:
    alone = {"data": Path("d"), **ON_KAFKA}
    assert build({**alone, "cluster.timers_broker": "kafka1"}).cluster.is_only_node
    with pytest.raises(ConfigError, match=r"groups_broker needs cluster.kafka and cluster.etcd"):
        build({**alone, "cluster.groups_broker": "kafka1"})


def test_a_gateway_without_a_store_has_nothing_that_needs_one() -> None:
    joined = {**NODE, "cluster.join": True}
    del joined["cluster.node"]
    config = build(joined)
    assert (config.cluster.join, config.kafka_listeners, config.data.exists()) == (True, [], False)
    assert build({**joined, "auth.enabled": True, "auth.token_file": "tokens"}).auth.enabled
    assert build({**joined, **IN_KAFKA}).cluster.join
    for changed, said in (
        (ON_KAFKA, "a gateway has no broker of its own"),
        ({"data": Path("d")}, "has no data directory"),
        ({"cluster.node": "n1"}, "choose one"),
        ({"cluster.etcd": ()}, "join needs cluster.etcd"),
        ({"cluster.secret_file": None}, "join needs cluster.secret_file"),
        ({"workers": 1}, "start several gateways"),
        ({"kafka.port": 0}, "connect to nodes"),
        ({"auth.enabled": True}, "auth.token_file"),
    ):
        given = {name: value for name, value in {**joined, **changed}.items() if value is not None}
        with pytest.raises(ConfigError, match=said):
            build(given)
    assert build({"data": Path("d"), **NODE, "workers": 2}).workers == 2, "of a node"
    with pytest.raises(ConfigError, match="Kafka cluster"):
        build({"data": Path("d"), **NODE, "workers": 2, "cluster.kafka": ("kafka1=kafka://127.0.0.1:9092",)})
