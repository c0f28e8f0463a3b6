"""The web console (`clients/console`): typed, built, within its size, and used in Chromium as a person would.

What is tested is in `clients/console/e2e`; here it is run, and what is shipped is compared with a fresh build. Without
Node (20 or newer), npm or Chromium all of this is skipped, and without etcd what needs two nodes; it says so.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.test_js import REPOSITORY, install_packages, passed, run, why_missing

CONSOLE = REPOSITORY / "clients" / "console"
SERVED = REPOSITORY / "gateway" / "surfaces" / "console" / "static"
FILES = {"index.html", "console.js", "console.css", "icon.svg"}
ROLES = 8

_REASON = why_missing()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=_REASON or "")


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """The development packages of both lock files: the console is built with the JavaScript client's sources."""
    install_packages()
    install_packages(CONSOLE)


def test_what_the_gateway_serves_is_a_fresh_build_within_its_size(tmp_path: Path) -> None:
    print(run("node", "build.mjs", "--out", str(tmp_path), cwd=CONSOLE))
    assert {file.name for file in tmp_path.iterdir()} == FILES
    assert {file.name for file in SERVED.iterdir()} == FILES
    for name in FILES:
        assert (SERVED / name).read_bytes() == (tmp_path / name).read_bytes(), f"{name}: run make build-js"


@pytest.mark.matrix
def test_it_is_strictly_typed() -> None:
    run("npm", "run", "--silent", "types", cwd=CONSOLE)


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    page = (SERVED / "index.html").read_text()
    assert re.findall(r'(?:src|href)="([^"]+)"', page) == [
        "console/icon.svg",
        "console/console.css",
        "console/console.js",
        "docs",
    ]
    assert "<style" not in page
    assert "style=" not in page
    assert "url(" not in (SERVED / "console.css").read_text()


def test_the_lock_file_names_no_registry() -> None:
    packages = json.loads((CONSOLE / "package-lock.json").read_text())["packages"]
    assert len(packages) > 5
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in packages.items() if name)
    assert "http" not in (CONSOLE / ".npmrc").read_text()


@pytest.mark.parametrize(
    ("file", "pattern", "least"),
    [
        pytest.param("main.test.mjs", "", 2, id="the-main-way"),
        pytest.param("recover.test.mjs", "^each page opens|^some pages", 2, id="each-page-opens-kill-9-under-some"),
        pytest.param("rights.test.mjs", "^a right", 1, id="a-right-that-goes"),
        pytest.param("walk.test.mjs", "", 15, id="each-page-as-a-person-uses-it", marks=pytest.mark.matrix),
        pytest.param("rights.test.mjs", "", ROLES + 2, id="each-role", marks=pytest.mark.matrix),
        pytest.param("recover.test.mjs", "", 3, id="kill-9-under-each-page", marks=pytest.mark.matrix),
        pytest.param("cluster.test.mjs", "", 4, id="two-nodes", marks=pytest.mark.matrix),
        pytest.param("looks.test.mjs", "", 9, id="axe-themes-alarms", marks=pytest.mark.matrix),
        pytest.param("size.test.mjs", "", 2, id="ten-thousand-topics-a-million-delays", marks=pytest.mark.long),
    ],
)
def test_in_chromium_against_a_real_server(file: str, pattern: str, least: int) -> None:
    only = (f"--test-name-pattern={pattern}",) if pattern else ()
    output = run("node", "--test", "--test-force-exit", *only, f"e2e/{file}", cwd=CONSOLE, timeout_s=900.0)
    for line in output.splitlines():
        if "# SKIP there is no " in line:
            pytest.skip(line.partition("# SKIP ")[2])
    assert passed(output) >= least
