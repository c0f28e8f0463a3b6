"""A real etcd of one member on loopback, with TLS and a password, for tests of gateway.cluster.etcd."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.metadata import Metadata, MetadataError
from loadtest.certificates import write_certificate
from tests.waiting import PATIENCE_S

PASSWORD = "a password of tests"


def need_etcd() -> str:
    path = shutil.which("etcd")
    if path is None:
        pytest.skip("there is no etcd here: apt-get install etcd-server")
    return path


class EtcdServer:
    """One process; `start` and `stop` as often as wanted, on the same ports and data."""

    def __init__(self, directory: Path) -> None:
        self._etcd = need_etcd()
        self._directory = directory
        self._ports = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._cert, self._key = directory / "cert.pem", directory / "key.pem"
        write_certificate(self._cert, self._key)
        self.is_with_users = False

    @property
    def config(self) -> EtcdConfig:
        """How to get in, with an endpoint first at which nobody listens."""
        return EtcdConfig(
            endpoints=[f"https://localhost:{free_port()}", f"https://localhost:{self._ports[0]}"],
            user="root" if self.is_with_users else None,
            password=PASSWORD,
            tls=ssl.create_default_context(cafile=str(self._cert)),
        )

    @property
    def ca_file(self) -> Path:
        """What its clients are to trust."""
        return self._cert

    def start(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports)
        client = client.replace("http", "https")
        arguments = {
            "data-dir": str(self._directory / "data"),
            "listen-client-urls": client, "advertise-client-urls": client,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster": f"default={peer}",
            "heartbeat-interval": "20", "election-timeout": "200",
            "cert-file": str(self._cert), "key-file": str(self._key),
            "log-level": "error",
            "bcrypt-cost": "4",  # else each login takes 60 ms of processor time
        }  # fmt: skip
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._etcd, *(f"--{name}={value}" for name, value in arguments.items())], stdout=log, stderr=log
            )

    async def make_users(self) -> None:
        """From now on nobody gets in without the password."""
        async with EtcdMetadata(self.config) as etcd:
            await ready(etcd)
            await etcd._call("/v3/auth/user/add", {"name": "root", "password": PASSWORD})
            await etcd._call("/v3/auth/user/grant", {"user": "root", "role": "root"})
            await etcd._call("/v3/auth/enable", {})
        self.is_with_users = True

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.stop()


async def ready(metadata: Metadata) -> None:
    """Return when the metadata can be read."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await metadata.get("nothing")
            except MetadataError:
                await asyncio.sleep(0.02)
            else:
                return


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def etcd_server(directory: Path) -> Iterator[EtcdServer]:
    """A running etcd."""
    server = EtcdServer(directory)
    server.start()
    try:
        yield server
    finally:
        server.close()


@asynccontextmanager
async def etcd_metadata(server: EtcdServer) -> AsyncIterator[EtcdMetadata]:
    """A client in a part of etcd of its own, with a password."""
    if not server.is_with_users:
        await server.make_users()
    config = server.config
    async with EtcdMetadata(EtcdConfig(
        endpoints=config.endpoints, user=config.user, password=config.password, tls=config.tls,
        prefix=f"test-{free_port()}-{id(config)}/",
    )) as etcd:  # fmt: skip
        await ready(etcd)
        yield etcd
