"""The server that is attacked: a process at default settings, whatever MQ_* variables are set here."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.auth.tokens import change_tokens, mint
from gateway.settings.config import ENVIRONMENT_PREFIX
from loadtest.attack.attack import Victim
from loadtest.certificates import write_certificate
from loadtest.process import started

JWT_ISSUER, JWT_AUDIENCE = "https://login.example.org/", "mq"
RSA_BITS = 2048


class Target(NamedTuple):
    """A running victim, as its attackers and its clients know it."""

    url: str
    pid: int
    directory: Path
    """Its data, its log and its keys are in here."""

    token: str | None
    """Of an administrator. None: authentication is disabled."""

    kafka_port: int = 0

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def certificate(self) -> Path:
        return self.directory / "cert.pem"

    @property
    def jwt_key(self) -> Path:
        """The issuer's public key."""
        return self.directory / "issuer.pem"

    def trusting(self) -> ssl.SSLContext | None:
        """What connects to it; None where it speaks no TLS."""
        return ssl.create_default_context(cafile=str(self.certificate)) if self.certificate.exists() else None

    def credentials(self) -> dict[str, str]:
        """The administrator's headers."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def session(self, *, address: str = "127.0.0.1", connections: int = 0) -> aiohttp.ClientSession:
        """HTTP as the administrator from an address of this machine."""
        connector = aiohttp.TCPConnector(
            limit=connections, ssl=self.trusting() or False, local_addr=(address, 0), keepalive_timeout=300
        )
        return aiohttp.ClientSession(self.url, connector=connector, headers=self.credentials())


@contextmanager
def running_victim(victim: Victim, directory: Path) -> Iterator[Target]:
    """A server on a new directory until the block ends. Raises ProcessFailed when it does not start or stop cleanly."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        target = Target("", 0, directory, None, free.getsockname()[1])
    target.data.mkdir(parents=True)
    environment: Mapping[str, str] = {"MQ_KAFKA_PORT": str(target.kafka_port)}
    if victim.is_secured:
        token = _token(target.data)
        environment = {**environment, **_secured(target)}
        target = target._replace(token=token)
    limited = () if victim.handle_limit is None else ("prlimit", f"--nofile={victim.handle_limit}")
    command = [*limited, *without_settings(), *serving(target.data)]
    with started(command, target.log, environment) as running:
        yield target._replace(url=running.url, pid=running.pid)


def serving(data: Path) -> list[str]:
    """The command of a server on a data directory."""
    return [sys.executable, "-m", "gateway", "serve", "--data", str(data), "--port", "0"]


def without_settings() -> list[str]:
    """A command that runs another one without the settings of this process's environment."""
    set_here = [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]
    return ["env", *(f"--unset={name}" for name in set_here)] if set_here else []


def _token(data: Path) -> str:
    token, record = mint("admin", ["admin"], now_ms=int(time.time() * 1000) - 1)
    path = data / "auth" / "tokens.json"
    path.parent.mkdir(mode=0o700)
    change_tokens(path, lambda tokens: tokens.update({record.id: record}))
    return token


def _secured(target: Target) -> Mapping[str, str]:
    key = target.directory / "key.pem"
    write_certificate(target.certificate, key)
    issuer = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS).public_key()
    target.jwt_key.write_bytes(issuer.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return {
        "MQ_AUTH_ENABLED": "true",
        "MQ_AUTH_JWT_ISSUER": JWT_ISSUER,
        "MQ_AUTH_JWT_AUDIENCE": JWT_AUDIENCE,
        "MQ_AUTH_JWT_KEY_FILE": str(target.jwt_key),
        "MQ_TLS_CERT_FILE": str(target.certificate),
        "MQ_TLS_KEY_FILE": str(key),
        "MQ_ACCESS_LOG": "true",
    }
