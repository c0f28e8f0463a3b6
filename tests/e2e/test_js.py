"""The JavaScript client (`clients/js`): built, checked, and run in Node and in Chromium against real servers.

What is tested of the client itself is in `clients/js/test` and `clients/js/e2e`; here it is run, and what is shipped is
looked at. Without Node (20 or newer) or npm all of this is skipped, and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CLIENT = REPOSITORY / "clients" / "js"
SERVED = REPOSITORY / "gateway" / "examples" / "mq.js"
NODE_MAJOR_MIN = 20
BUNDLE_BYTES_MAX = 12_800

TYPED = (
    "client", "connection", "errors", "frames", "http", "index", "message", "options", "places", "producer",
    "record_batch", "socket", "subscription",
)  # fmt: skip
SHIPPED = {"package.json", "README.md", "LICENSE", "dist/mq.js", "dist/node.js"} | {
    f"dist/{name}.d.ts" for name in TYPED
}
"""Everything that `npm pack` packs."""


def why_missing() -> str | None:
    """Why the client cannot be tested here."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "there is no Node and npm here (Debian: apt-get install nodejs npm)"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < NODE_MAJOR_MIN:
        return f"Node {version} is too old; {NODE_MAJOR_MIN} is needed"
    return None


_REASON = why_missing()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=_REASON or "")


def run(*command: str, cwd: Path = CLIENT, timeout_s: float = 300.0) -> str:
    """What it printed; fails with that when it fails."""
    environment = {**os.environ, "MQ_PYTHON": sys.executable, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """The development packages of the lock file."""
    install_packages()


def install_packages(folder: Path = CLIENT) -> None:
    """Install them where they are missing or older than the lock file."""
    lock, installed = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        run("npm", "ci", "--no-audit", "--no-fund", cwd=folder)


@pytest.fixture(scope="module")
def built(packages: None) -> str:
    """What the build printed."""
    return run("node", "build.mjs", "--dist-only")


@pytest.fixture(scope="module")
def archive(built: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it would be published."""
    directory = tmp_path_factory.mktemp("packed")
    run("npm", "pack", "--ignore-scripts", "--pack-destination", str(directory))
    (packed,) = directory.glob("*.tgz")
    return packed


def passed(output: str) -> int:
    """How many tests Node ran, none of them failed."""
    counts = dict(
        line.removeprefix("# ").removeprefix("ℹ ").split()
        for line in output.splitlines()
        if line[2:6] in ("pass", "fail")
    )
    assert counts["fail"] == "0", output[-20_000:]
    return int(counts["pass"])


def test_it_builds_within_its_size_and_strictly_typed(built: str) -> None:
    print(built)
    assert f"(at most {BUNDLE_BYTES_MAX})" in built


def test_what_the_gateway_serves_is_a_fresh_build(built: str) -> None:
    assert SERVED.read_bytes() == (CLIENT / "dist" / "mq.js").read_bytes(), "run: make build-js"


def test_units(built: str) -> None:
    assert passed(run("npm", "test")) > 100


@pytest.mark.parametrize(("file", "least"), [("server", 15), ("restart", 3)])
def test_in_node_against_a_real_server(built: str, file: str, least: int) -> None:
    assert passed(run("node", "--test", "--test-force-exit", f"e2e/{file}.test.mjs")) >= least


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        pytest.param("what is sent comes out as it was", 1, id="smoke"),
        pytest.param(".", 7, id="all", marks=pytest.mark.matrix),
    ],
)
def test_in_chromium_against_a_real_server(built: str, pattern: str, least: int) -> None:
    output = run("node", "--test", "--test-force-exit", f"--test-name-pattern={pattern}", "e2e/browser.test.mjs")
    for line in output.splitlines():
        if "# SKIP there is no Chromium" in line:
            pytest.skip(line.partition("# SKIP ")[2])
    assert passed(output) >= least


def test_the_package_has_what_a_user_needs_and_nothing_else(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        names = {name.removeprefix("package/") for name in packed.getnames()}
        package = json.load(packed.extractfile("package/package.json"))  # type: ignore[arg-type]
    assert names == SHIPPED
    assert "dependencies" not in package
    assert archive.stat().st_size < 64 * 1024
    assert (CLIENT / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("module", "resolution"),
    [("nodenext", "nodenext"), ("esnext", "bundler")],
)
@pytest.mark.matrix
def test_a_strict_program_compiles_against_the_package(
    archive: Path, tmp_path: Path, module: str, resolution: str
) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "node_modules", filter="data")
    (tmp_path / "node_modules" / "package").rename(tmp_path / "node_modules" / "mq-client")
    shutil.copy(CLIENT / "consumer" / "consumer.ts", tmp_path)
    options = {
        "strict": True, "noUncheckedIndexedAccess": True, "exactOptionalPropertyTypes": True, "skipLibCheck": False,
        "module": module, "moduleResolution": resolution, "target": "es2022", "noEmit": True, "types": [],
        "lib": ["es2023", "dom", "dom.asynciterable"],
    }  # fmt: skip
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["consumer.ts"]}))
    run("node", str(CLIENT / "node_modules" / "typescript" / "bin" / "tsc"), "-p", str(tmp_path), cwd=tmp_path)


@pytest.mark.matrix
def test_a_clone_that_is_installed_or_packed_is_built_first(tmp_path: Path) -> None:
    """`npm install ./clients/js` runs "prepare", `npm pack` and `npm publish` "prepack"; the first only when needed."""
    scripts = json.loads((CLIENT / "package.json").read_text())["scripts"]
    shutil.copytree(CLIENT, tmp_path / "js", ignore=shutil.ignore_patterns("node_modules", "dist", "build"))
    (tmp_path / "js" / "node_modules").symlink_to(CLIENT / "node_modules")
    for name in ("prepare", "prepack"):
        assert "--dist-only" in scripts[name]
        assert "gzip" in run("npm", "run", "--silent", name, cwd=tmp_path / "js")
        assert (tmp_path / "js" / "dist" / "node.js").stat().st_size > 10_000
    assert run("npm", "run", "--silent", "prepare", cwd=tmp_path / "js") == ""
    os.utime(tmp_path / "js" / "src" / "client.ts")
    assert "gzip" in run("npm", "run", "--silent", "prepare", cwd=tmp_path / "js")


@pytest.mark.matrix
def test_the_reference_is_generated_from_the_sources(built: str, tmp_path: Path) -> None:
    run("node_modules/.bin/typedoc", "--out", str(tmp_path))
    assert (tmp_path / "API.md").read_text() == (CLIENT / "docs" / "API.md").read_text(), "run: make build-js"


def test_the_lock_file_names_no_registry() -> None:
    packages = json.loads((CLIENT / "package-lock.json").read_text())["packages"]
    assert len(packages) > 20
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in packages.items() if name)
    assert "http" not in (CLIENT / ".npmrc").read_text()
