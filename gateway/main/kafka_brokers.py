"""Kafka clusters that are brokers, of what the operator has written: `NAME=kafka://HOST:PORT[,HOST:PORT][?OPTION=...]`.

`kafka+tls://` speaks TLS. Options: replication, min_insync (of topics that are made), prefix (of their names), ca_file,
cert_file, key_file, user, password_file, mechanism."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from gateway.auth.operator_files import read_file
from gateway.brokers.kafka.links import KafkaAddress
from gateway.cluster.members import check_node_name
from gateway.settings.config import ConfigError
from store.limits import KiB

SECRET_BYTES_MAX = 64 * KiB
_NAMES = re.compile(r"(?:^|,)([^,=]+)=(?=kafka)")
_TLS_OPTIONS = ("ca_file", "cert_file", "key_file")
_OPTIONS = {"replication", "min_insync", "prefix", *_TLS_OPTIONS, "user", "password_file", "mechanism"}
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,64}", re.ASCII)


def kafka_addresses(texts: Iterable[str], *, node: str) -> dict[str, KafkaAddress]:
    """The clusters by name. Texts may have been cut apart at the commas between their hosts. Raises ConfigError."""
    parts = _NAMES.split(",".join(texts))
    if parts[0]:
        raise ConfigError(f"cluster.kafka: {parts[0]!r} is no NAME=kafka://HOST:PORT")
    found: dict[str, KafkaAddress] = {}
    for name, url in zip(parts[1::2], parts[2::2], strict=True):
        try:
            check_node_name(name)
            if name == node or name in found:
                raise ValueError("there are two brokers of this name")
            found[name] = _address(url)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cluster.kafka: {name}: {error}") from error
    return found


def _address(url: str) -> KafkaAddress:
    split = urlsplit(url)
    if split.scheme not in ("kafka", "kafka+tls"):
        raise ValueError(f"{split.scheme}:// is no kafka:// or kafka+tls://")
    if "@" in split.netloc or split.path.strip("/"):
        raise ValueError("only hosts and options belong into the URL; a user is an option, with a password_file")
    servers = tuple(split.netloc.split(","))
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) <= 65535:
            raise ValueError(f"{server!r} is no HOST:PORT")
    options = dict(parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query)))
    if unknown := options.keys() - _OPTIONS:
        raise ValueError(f"{min(unknown)} is no option; there are {', '.join(sorted(_OPTIONS))}")
    replication, min_insync = int(options.get("replication", 3)), int(options.get("min_insync", 2))
    if not 1 <= min_insync <= replication <= 32:
        raise ValueError(f"min_insync {min_insync} and replication {replication}: 1 <= min_insync <= replication <= 32")
    user, password_file = options.get("user"), options.get("password_file")
    if (user is None) != (password_file is None):
        raise ValueError("user and password_file go together")
    mechanism = options.get("mechanism", "SCRAM-SHA-512")
    if mechanism not in _MECHANISMS:
        raise ValueError(f"mechanism {mechanism}; there are {', '.join(_MECHANISMS)}")
    if not _PREFIX.fullmatch(prefix := options.get("prefix", "")):
        raise ValueError("a prefix has up to 64 of the characters A-Z a-z 0-9 . _ -")
    is_tls = split.scheme == "kafka+tls"
    if not is_tls and (named := next((name for name in _TLS_OPTIONS if name in options), None)):
        raise ValueError(f"{named} needs kafka+tls://")
    password = ""
    if password_file is not None:
        password = read_file(Path(password_file), SECRET_BYTES_MAX, may_be_pipe=True).strip().decode()
    return KafkaAddress(
        servers=servers,
        tls=_tls(options) if is_tls else None,
        user=user,
        password=password,
        mechanism=mechanism,
        prefix=prefix,
        replication=replication,
        min_insync=min_insync,
    )


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    """Whom to trust, and what to show. Raises ValueError, OSError."""
    context = ssl.create_default_context(cafile=options.get("ca_file"))
    if (cert_file := options.get("cert_file")) is not None:
        context.load_cert_chain(cert_file, options.get("key_file"), password=_no_password)
    elif "key_file" in options:
        raise ValueError("key_file needs cert_file")
    return context


def _no_password() -> str:
    raise ValueError("the key of cert_file needs a password: give it without one")
