"""gateway.auth.operator_files, and what a start and a reload say of files that are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.auth.config import AuthConfig
from gateway.auth.operator_files import KEY_PARTS_MAX, SETTINGS_BYTES_MAX, parse_toml, read_file
from gateway.auth.policy import PolicyError, PolicyFiles
from gateway.main.listener import bound_socket
from gateway.main.tls import ServerTls, TlsError
from gateway.settings.config import INTEGER_MAX, ConfigError, build, load
from gateway.settings.tls import TlsConfig

Spoil = Callable[[Path], object]

SPOILED: dict[str, Spoil] = {
    "a directory": lambda path: path.mkdir(),
    "a pipe that nobody writes to": lambda path: os.mkfifo(path),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "huge": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 40),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "cut": lambda path: path.write_text('[[acl]]\nprincipal = "bil'),
    "nested": lambda path: path.write_text("a = " + "[" * 100_000),
    "one endless key": lambda path: path.write_text(".".join("a" * 100_000) + " = 1"),
    "a number that is too long": lambda path: path.write_text("a = " + "9" * 10_000),
    "one endless word": lambda path: path.write_text("a" * 1_000_000),
    "quotes without end": lambda path: path.write_text('a = """' + '\\"""' * 200_000),
    "brackets of quotes": lambda path: path.write_text('["' * 400_000),
    "a link to itself": lambda path: path.symlink_to(path),
}


NOT_BYTES = ("a directory", "a pipe that nobody writes to", "endless", "huge", "a link to itself")
"""Any other bytes may be a shared secret."""


@pytest.mark.parametrize(
    ("name", "spoiled"),
    [
        *((name, how) for name in ("tokens.json", "acl.toml") for how in SPOILED),
        *(("keys.pem", how) for how in NOT_BYTES),
    ],
)
def test_whatever_lies_in_place_of_a_file_of_rights_is_refused_by_name_and_stops_no_reload(
    tmp_path: Path, name: str, spoiled: str
) -> None:
    (tmp_path / "auth").mkdir()
    path = tmp_path / "auth" / name
    key_file = tmp_path / "auth" / "keys.pem"
    key_file.write_bytes(b"s" * 32)
    (tmp_path / "auth" / "tokens.json").write_text('{"format": 1, "tokens": []}')
    (tmp_path / "auth" / "acl.toml").write_text("")
    config = AuthConfig(
        data=tmp_path, jwt_issuer="i", jwt_audience="a", jwt_key_file=key_file, jwt_algorithm="HS256"
    )  # fmt: skip
    files = PolicyFiles(config)
    files.load()
    path.unlink()
    SPOILED[spoiled](path)
    assert files.reload() is None
    assert files.error is not None
    with pytest.raises(PolicyError, match=name):
        PolicyFiles(config).load()


@pytest.mark.parametrize("spoil", [SPOILED[name] for name in SPOILED if name != "a pipe that nobody writes to"])
def test_whatever_lies_in_place_of_the_settings_is_refused_by_name(tmp_path: Path, spoil: Spoil) -> None:
    """But for a pipe: settings may come from one."""
    path = tmp_path / "mq.toml"
    spoil(path)
    with pytest.raises(ConfigError, match=r"mq\.toml"):
        load(file=path, flags={"data": tmp_path})


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_whatever_lies_in_place_of_a_certificate_is_refused_by_name(tmp_path: Path, spoil: Spoil) -> None:
    path = tmp_path / "cert.pem"
    spoil(path)
    with pytest.raises(TlsError, match=r"cert\.pem"):
        ServerTls(TlsConfig(cert_file=path, key_file=path))


def test_settings_may_come_from_a_pipe(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"port = 9000")
    os.close(write)
    try:
        assert load(file=Path(f"/dev/fd/{read}"), flags={"data": tmp_path}).port == 9000
    finally:
        os.close(read)


def test_a_file_may_be_as_large_as_its_bound_and_no_larger(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"#" * SETTINGS_BYTES_MAX)
    assert len(read_file(path, SETTINGS_BYTES_MAX)) == SETTINGS_BYTES_MAX
    path.write_bytes(b"#" * (SETTINGS_BYTES_MAX + 1))
    with pytest.raises(ValueError, match=f"larger than {SETTINGS_BYTES_MAX}"):
        read_file(path, SETTINGS_BYTES_MAX)


def test_no_handle_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(ValueError, match="not a regular file"):
            read_file(tmp_path, 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_keys_may_have_so_many_parts_and_texts_any_number_of_dots() -> None:
    parse_toml(".".join(["a"] * KEY_PARTS_MAX) + " = 1")
    for quote in ('"', "'", '"""', "'''"):
        dots = ".".join(["a"] * 1000)
        assert parse_toml(f"a = {quote}{dots}{quote} # {dots}\n") == {"a": dots}
    for key in (".".join(["a"] * (KEY_PARTS_MAX + 1)), " . ".join(['"a b"'] * (KEY_PARTS_MAX + 1))):
        for text in (f"{key} = 1", f"[{key}]", f"x = {{ {key} = 1 }}"):
            with pytest.raises(ValueError, match=f"more than {KEY_PARTS_MAX} parts"):
                parse_toml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = -1", "port: -1 is not a legal int"),
        ("port = 80.5", "port"),
        ("port = true", "port"),
        ('port = "many"', "port"),
        (f"keepalive_timeout_ms = {INTEGER_MAX + 1}", "keepalive_timeout_ms"),
        ("[port]", "port is a setting, not a section"),
        ("[stroe]", "stroe"),
        ("[store.acks]\nx = 1", "store.acks"),
        ("store = 1", "store"),
        ('data = ""', "data"),
        ('data = "a\\u0000b"', "data"),
        ("allowed_origins = 1", "allowed_origins"),
        ("allowed_origins = [[1]]", "allowed_origins"),
        ("limits.body_bytes_max = -1", "limits.body_bytes_max"),
        ("store.consume_queue_file_units = 0", "consume_queue_file_units must be positive"),
        ("store.retention_interval_ms = 0", "retention_interval_ms must be positive"),
        ("timer.batch_bytes_max = 0", "batch_bytes_max must be positive"),
        ("ws_ping_ms = 0", "ws_ping_ms must be positive"),
        ('host = "' + "x" * 10_000 + '"\nport = 1.5', "port"),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mq.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load(file=path, flags=None if text.startswith("data") else {"data": tmp_path})
    assert len(str(caught.value)) < 500


def test_the_largest_number_is_taken(tmp_path: Path) -> None:
    config = build({"data": tmp_path, "store.retention_bytes": INTEGER_MAX})
    assert config.store.retention_bytes == INTEGER_MAX


@pytest.mark.parametrize("host", ["x" * 100, "a\0b", "ä..b"])
def test_a_host_that_is_no_name_is_an_error_of_the_system(tmp_path: Path, host: str) -> None:
    config = build({"data": tmp_path, "host": host, "insecure_no_auth": True, "port": 0})
    with pytest.raises(OSError, match=r".+"), bound_socket(config.host, config.port):
        pass
