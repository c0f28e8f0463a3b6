"""Apicurio Registry from its Maven artifact, in memory: a schema registry that is not ours."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from loadtest.peers.fetch import TOOLS, archive, program
from loadtest.peers.peer import Unavailable
from loadtest.peers.servers import free_port
from tests.fork_server import DIES_WITH_US

VERSION = "3.0.9"
START_TIMEOUT_S = 180.0
JAVA = ("-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextmanager
def apicurio(directory: Path) -> Iterator[str]:
    """The URL of its Confluent-compatible API. Raises Unavailable."""
    java = program("java", "default-jre-headless")
    home = archive(TOOLS, f"apicurio-{VERSION}", f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all")
    jar = next(iter(sorted(home.rglob("*runner.jar")) or sorted(home.rglob("quarkus-run.jar"))), None)
    if jar is None:
        raise Unavailable(f"apicurio {VERSION} has no program")
    port = free_port()
    settings = (
        f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1", "-Dquarkus.management.enabled=false",
        "-Dquarkus.log.level=WARN", f"-Djava.io.tmpdir={directory}",
    )  # fmt: skip
    log = directory / "apicurio.log"
    with log.open("wb") as said:
        command = [*DIES_WITH_US, java, *JAVA, *settings, "-jar", str(jar)]
        process = subprocess.Popen(command, cwd=jar.parent, stdout=said, stderr=said)
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise Unavailable(f"apicurio {VERSION} does not start: {log.read_text()[-500:]}")
            time.sleep(0.25)
        yield url
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/subjects", timeout=2).status_code == 200
    except requests.RequestException:
        return False
