"""gateway.cli.token, gateway.cli.config, and `mq --ca`"""

from __future__ import annotations

from pathlib import Path

import orjson

from gateway.auth.tokens import change_tokens, find, mint, read_tokens
from tests.gateway.cli.command import mq


def test_a_token_is_made_listed_and_revoked(tmp_path: Path) -> None:
    data = str(tmp_path)
    made = mq("token", "create", "billing", "--data", data, "-a", "reader:topic:orders", "-a", "reader:group:b*")
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    record = find(read_tokens(tmp_path / "auth" / "tokens.json"), token)
    assert record is not None
    assert (record.principal, record.scopes) == ("billing", ("reader:topic:orders", "reader:group:b*"))
    listed = mq("token", "list", "--json", MQ_DATA=data)
    assert token.split("_", 2)[2] not in listed.stdout
    assert orjson.loads(listed.stdout)["id"] == record.id
    assert record.id in mq("token", "list", "--data", data).stdout
    assert mq("token", "revoke", record.id, "--data", data).returncode == 0
    assert "no tokens" in mq("token", "list", "--data", data).stdout
    again = mq("token", "revoke", record.id, "--data", data)
    assert (again.returncode, "no token" in again.stderr) == (1, True)


def test_mistakes_are_named(tmp_path: Path) -> None:
    data = str(tmp_path)
    for arguments, message in (
        (("create", "a b", "--data", data), "principal"),
        (("create", "a", "-a", "owner:topic:x", "--data", data), "owner"),
        (("create", "a", "--expires", "soon", "--data", data), "duration"),
        (("revoke", "mq_abc_def", "--data", data), "not the token"),
        (("list",), "data directory is not set"),
    ):
        result = mq("token", *arguments)
        assert (result.returncode, message in result.stderr) == (2, True), result.stderr
    (tmp_path / "auth").mkdir()
    (tmp_path / "auth" / "tokens.json").write_text("{}")
    result = mq("token", "list", "--data", data)
    assert (result.returncode, "tokens.json: not a token file" in result.stderr) == (1, True)


def test_a_token_for_longer_than_the_calendar_goes_is_listed(tmp_path: Path) -> None:
    _, record = mint("ann", ["admin"], now_ms=0, expires_ms=2**60)
    (tmp_path / "auth").mkdir()
    change_tokens(tmp_path / "auth" / "tokens.json", lambda tokens: tokens.update({record.id: record}))
    assert "after 9999" in mq("token", "list", "--data", str(tmp_path)).stdout


def test_settings_are_shown_with_where_they_came_from(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a-shared-secret-of-thirty-two-bytes!")
    file = tmp_path / "mq.toml"
    file.write_text(
        f'port = 9000\n[auth]\nenabled = true\njwt_issuer = "i"\njwt_audience = "a"\njwt_algorithm = "HS256"\n'
        f'jwt_key_file = "{key}"\n'
    )
    environment = {"MQ_DATA": str(tmp_path), "MQ_STORE_ACKS": "written", "MQ_TOKEN": "mq_secret_secret"}
    shown = mq("config", "show", "--config", str(file), "--json", **environment)
    assert shown.returncode == 0, shown.stderr
    rows = {row["setting"]: row for row in map(orjson.loads, shown.stdout.splitlines())}
    assert rows["port"] == {"setting": "port", "value": 9000, "source": str(file)}
    assert rows["store.acks"] == {"setting": "store.acks", "value": "written", "source": "MQ_STORE_ACKS"}
    assert rows["host"]["source"] == "default"
    assert rows["auth.jwt_key_file"]["value"] == str(key)
    text = mq("config", "show", "--config", str(file), **environment).stdout
    for secret in ("a-shared-secret", "mq_secret_secret"):
        assert secret not in shown.stdout + text
    assert mq("config", "check", "--config", str(file), **environment).stdout == "fine\n"


def test_a_configuration_that_would_not_start_is_found_before(tmp_path: Path) -> None:
    data = str(tmp_path)
    for environment, message in (
        ({"MQ_PROT": "1"}, "MQ_PROT"),
        ({"MQ_HOST": "0.0.0.0"}, "auth.enabled"),
        ({"MQ_AUTH_ENABLED": "1", "MQ_INSECURE_NO_AUTH": "1"}, "contradict"),
        ({"MQ_TLS_CERT_FILE": "x"}, "go together"),
        ({"MQ_TLS_CERT_FILE": "x", "MQ_TLS_KEY_FILE": "y"}, "tls.cert_file x: No such file"),
        ({"MQ_AUTH_ACL_FILE": "missing"}, "auth.acl_file missing"),
        ({"MQ_ALLOWED_ORIGINS": "https://a/"}, "allowed_origins"),
        ({"MQ_LIMITS_CONNECTIONS_MAX": "0"}, "connections_max"),
        ({"MQ_LOG_LEVEL": "verbose"}, "log_level verbose: use debug"),
        ({"MQ_CLUSTER_KAFKA": "foo"}, "cluster.kafka"),
        ({"MQ_REGISTRY_URL": "https://r:1", "MQ_REGISTRY_CA_FILE": "missing"}, "registry.ca_file: "),
        (
            {"MQ_CLUSTER_NODE": "n1", "MQ_CLUSTER_ETCD": "http://127.0.0.1:1", "MQ_CLUSTER_SECRET_FILE": "missing"},
            "cluster: [Errno 2]",
        ),
    ):
        result = mq("config", "check", "--data", data, **environment)
        assert (result.returncode, message in result.stderr) == (2, True), result.stderr


def test_a_ca_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("none")
    for file, message in (("missing", "No such file"), ("ca", "--ca")):
        result = mq("--ca", str(tmp_path / file), "topic", "list", "--url", "https://127.0.0.1:1")
        assert (result.returncode, message in result.stderr) == (2, True), result.stderr
