"""librdkafka's own load tool, `rdkafka_performance`, built from Debian's source package, and what it prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from loadtest.peers.fetch import FETCH_TIMEOUT_S, program
from loadtest.peers.peer import Unavailable, WorkFailed

_SOURCES = """Types: deb-src
URIs: {archive}
Suites: {suite}
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
_STEPS = (
    "mkdir -p lists/partial",
    "apt-get {options} update",
    "apt-get {options} source --download-only librdkafka",
    "tar xzf librdkafka_*.orig.tar.gz",
    "cd librdkafka-*/ && ./configure --disable-gssapi --disable-curl --disable-lz4-ext --enable-static",
    "cd librdkafka-*/ && make -C src librdkafka.a && make -C examples rdkafka_performance",
)
_PRODUCED = re.compile(r"(\d+) messages produced.*?(\d+) delivered", re.DOTALL)
_RATE = re.compile(r"(\d+) msgs/s")


def _archive() -> tuple[str, str]:
    """(URI, suite) of the archive that this machine's own Debian packages come from. Raises Unavailable."""
    suite = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S,
    ).stdout.splitlines()  # fmt: skip
    for uri, release, component in (line.split() for line in listed):
        if suite and (release, component) == (suite[1], "main"):
            return uri, release
    raise Unavailable("rdkafka_performance is built from Debian's source package, and this is not Debian")


def rdkafka_performance(tools: Path) -> str:
    """The program. Raises Unavailable."""
    binary = tools / "bin" / "rdkafka_performance"
    if binary.exists():
        return str(binary)
    for name, package in (("apt-get", "apt"), ("gcc", "gcc"), ("make", "make")):
        program(name, package)
    archive, suite = _archive()
    building = tools / "librdkafka.new"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    (building / "src.sources").write_text(_SOURCES.format(archive=archive, suite=suite))
    places = (f"sourcelist={building}/src.sources", "sourceparts=-")
    options = " ".join(f"-o Dir::Etc::{place}" for place in places) + f" -o Dir::State::lists={building}/lists"
    for step in _STEPS:
        done = subprocess.run(
            ["bash", "-c", step.format(options=options)], cwd=building, capture_output=True, text=True, check=False,
            timeout=FETCH_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise Unavailable(f"rdkafka_performance cannot be built: {step}: {(done.stdout + done.stderr)[-300:]}")
    [built] = building.glob("librdkafka-*/examples/rdkafka_performance")
    binary.parent.mkdir(parents=True, exist_ok=True)
    built.rename(binary)
    shutil.rmtree(building)
    return str(binary)


def rate_of(output: str, count: int) -> float:
    """Messages a second of a whole run, of what the tool prints in the end. Raises WorkFailed when it did less."""
    produced, rates = _PRODUCED.findall(output), _RATE.findall(output)
    if not rates or (produced and int(produced[-1][1]) < count):
        raise WorkFailed(f"rdkafka_performance: {output[-500:]}")
    return float(rates[-1])
