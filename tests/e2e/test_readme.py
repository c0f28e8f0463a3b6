"""Every line of code in README.md, taken from it and run as it stands; only the port is the test's.

The shell's lines are run by `make test`; JavaScript in Node and in a tab of Chromium, and Python with Spark, by
`make test-matrix`. A block of a language, or a command, that nothing here runs fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.e2e import test_js
from tests.e2e.server import REPOSITORY, Server

README = REPOSITORY / "README.md"
BIN = Path(sys.executable).parent
LANGUAGES = {"console", "js", "python"}
PORT = "8082"
PATIENCE_S = 120.0

RUN_PYTHON = """\
import ast, asyncio, inspect, sys
source = open(sys.argv[1]).read()
made = eval(compile(source, sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "__main__"})
if inspect.iscoroutine(made):
    asyncio.run(made)
"""
"""Runs a file whose code may `await`, as `python -m asyncio` does with what is typed."""

needs_node = pytest.mark.skipif(test_js._REASON is not None, reason=test_js._REASON or "")


def blocks(language: str) -> list[str]:
    """The blocks of code in a language, in order."""
    return [
        code for name, code in re.findall(r"^```(\w*)\n(.*?)^```", README.read_text(), re.M | re.S) if name == language
    ]


def commands() -> list[str]:
    """What is typed at a shell, continued lines as one, without the remarks behind it."""
    text = "".join(blocks("console")).replace("\\\n", " ")
    return [re.split(r"\s{2,}# ", line.removeprefix("$ "))[0].strip() for line in text.splitlines()]


def here(code: str, server: Server) -> str:
    """The code for this server."""
    return code.replace(f":{PORT}", f":{server.url.rpartition(':')[2]}")


async def printed(command: Sequence[str], wanted: str, **options: object) -> str:
    """What a command prints until it has printed the wanted words (none: all), or has ended; then it is ended."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, **options  # type: ignore[arg-type]
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    out = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (wanted and wanted.encode() in out) and (piece := await process.stdout.read(65_536)):
                out += piece
            if not wanted:
                await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
        code = await process.wait()
    text = out.decode()
    told = f"{text}\n{(await errors).decode()[-5000:]}"
    assert wanted in text, told
    assert wanted or code == 0, told
    return text


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "data")
    await server.start()
    yield server
    await server.end()


async def sent_by_curl(server: Server) -> list[str]:
    """Everything that is done with curl; the answers."""
    return [
        await printed(["bash", "-c", here(command, server)], "") for command in commands() if command.startswith("curl")
    ]


def test_every_block_is_of_a_language_that_is_run_here_and_every_command_known() -> None:
    languages = re.findall(r"^```(\w+)$", README.read_text(), re.MULTILINE)
    assert set(languages) == LANGUAGES
    assert len(languages) == README.read_text().count("\n```") / 2
    assert {command.split()[0] for command in commands()} == {"make", "curl", ".venv/bin/mq", "npm"}
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", README.read_text(), re.MULTILINE)) <= targets


def test_every_page_it_links_is_there_and_what_users_look_for_is_linked() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README.read_text())
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
    wanted = {"security", "operations", "upgrade", "configuration", "cli", "http", "websocket", "groups", "spark"}
    assert {f"docs/{name}.md" for name in wanted} | {"clients/js/README.md"} <= set(links)


async def test_what_it_types_at_a_shell_does_what_it_says(server: Server) -> None:
    dry = await printed(["make", "--dry-run", "run"], "", cwd=REPOSITORY)
    assert f'mq serve --data "./mq-data" --port "{PORT}"' in dry
    answers = [json.loads(answer) for answer in await sent_by_curl(server)]
    assert len(answers) == 3
    assert [answer for answer in answers if "error_code" in answer] == []
    assert [row["error_code"] for answer in answers for row in answer.get("offsets", ())] == [None, None]
    (tail,) = [command for command in commands() if command.startswith(".venv/bin/mq tail")]
    environment = {**os.environ, "MQ_URL": server.url, "XDG_CONFIG_HOME": "/nonexistent"}
    out = await printed([str(BIN / "mq"), *tail.split()[1:]], "remind me", env=environment)
    first, second = out.splitlines()
    assert '{"sku":9}' in first.replace(" ", "")
    assert "key=u1" in second
    (status,) = re.findall(r"`\.venv/bin/(mq status)`", README.read_text())
    assert "yes" in await printed([str(BIN / "mq"), *status.split()[1:]], "delayed", env=environment)


def marks_of(code: str) -> list[pytest.MarkDecorator]:
    """Of the test of a block of Python."""
    return [pytest.mark.matrix] if "spark" in code else []


@pytest.mark.parametrize(
    "code",
    [pytest.param(code, id=code.splitlines()[0], marks=marks_of(code)) for code in blocks("python")],
)
async def test_its_python_runs_with_the_plain_interpreter(code: str, server: Server, tmp_path: Path) -> None:
    """In a shell where nothing is activated: the first `python3` on the path is another one."""
    await sent_by_curl(server)
    (tmp_path / "run.py").write_text(RUN_PYTHON)
    (tmp_path / "readme.py").write_text(here(code, server))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "VIRTUAL_ENV"))
    }
    environment["PATH"] = os.pathsep.join(
        path for path in os.environ["PATH"].split(os.pathsep) if Path(path).resolve() != BIN.resolve()
    )
    run = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "readme.py")]
    await printed(run, "orders" if "spark" in code else "", env=environment)


@needs_node
@pytest.mark.matrix
async def test_its_javascript_runs_in_node_from_a_fresh_clone(server: Server, tmp_path: Path) -> None:
    await sent_by_curl(server)
    listed = await printed(["git", "ls-files", "-z", "clients/js"], "", cwd=REPOSITORY)
    for name in listed.rstrip("\0").split("\0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (install,) = [command for command in commands() if command.startswith("npm")]
    await printed(install.split(), "", cwd=tmp_path)
    _, client = blocks("js")
    (tmp_path / "readme.mjs").write_text(here(client, server))
    out = await printed(["node", "readme.mjs"], "remind me", cwd=tmp_path)
    assert "{ sku: 9 }" in out


@needs_node
@pytest.mark.matrix
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("number", [0, 1], ids=["socket", "client"])
async def test_its_javascript_runs_in_a_tab_on_the_printed_address(
    server: Server, tmp_path: Path, host: str, number: int
) -> None:
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("there is no Chromium here (Debian: apt-get install chromium)")
    test_js.install_packages()
    await sent_by_curl(server)
    code = here(blocks("js")[number], server)
    (said,) = re.findall(r"`(await import\([^`]+\))`", README.read_text())
    code = re.sub(r"import (\{.*?\}) from \"mq-client\"", rf"const \1 = {said}", code)
    (tmp_path / "code.js").write_text(code)
    page = server.url.replace("127.0.0.1", host) + "/examples/"
    command = ["node", str(Path(__file__).with_name("readme_tab.mjs")), str(test_js.CLIENT), page]
    await printed([*command, str(tmp_path / "code.js")], "remind me")
