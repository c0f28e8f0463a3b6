"""Print every name that users of a server see, one a line and in order: `make published`.

Settings, limits, metrics, error codes, command-line help, routes, headers and the two API documents. Two trees that
print the same text differ in nothing that a client, an operator or a dashboard may depend on, so a refactoring is
checked by comparing the output before and after it. What differs from run to run (ports, ids, times) is left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from tests.e2e.server import REPOSITORY, Server

_VALUE = re.compile(r" [-+0-9.eEinfNa]+$")
_REQUEST_ID = re.compile(r'"request_id":"[^"]*",')
_HELP_ENVIRONMENT = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120"}


def _command(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=REPOSITORY, env={**environment, **_HELP_ENVIRONMENT}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def _commands_in(text: str) -> list[str]:
    """The subcommands that a help text lists."""
    _, _, listed = text.partition("─ Commands ─")
    return re.findall(r"^│ ([a-z][a-z-]*) ", listed, re.MULTILINE)


def _help(*path: str) -> Iterator[str]:
    text = _command(*path, "--help")
    yield f"## mq {' '.join(path)}"
    yield text
    for name in _commands_in(text):
        yield from _help(*path, name)


async def _ask(session: aiohttp.ClientSession, method: str, path: str, body: object = None) -> str:
    """One request's answer: status, header names and body."""
    async with session.request(method, path, json=body) as response:
        names = ", ".join(sorted({name.title() for name in response.headers}))
        return f"{response.status} [{names}]\n{await response.text()}"


async def _served(directory: Path) -> Iterator[str]:
    lines: list[str] = []
    server = Server(directory / "data")
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url) as session:
            lines += ["## a few requests"]
            for method, path, body in (
                ("PUT", "/mq/v1/topics/t", {"partitions": 1}),
                ("POST", "/topics/t", {"records": [{"value": "aGk="}]}),
                ("GET", "/topics/none", None),
                ("GET", "/none", None),
                ("GET", "/mq/v1/limits", None),
            ):
                answer = _REQUEST_ID.sub("", await _ask(session, method, path, body))
                lines += [f"{method} {path}", answer]
            for path in ("/openapi.json", "/asyncapi.json"):
                async with session.get(path) as response:
                    document = json.loads(await response.text())
                document["servers"] = None
                lines += [f"## {path}", json.dumps(document, indent=1, ensure_ascii=False)]
            lines += ["## metrics"]
            async with session.get("/metrics") as response:
                lines += [_VALUE.sub("", line) for line in (await response.text()).splitlines()]
    finally:
        await server.stop()
        await server.end()
    return iter(lines)


def main() -> None:
    """Write the text to standard output."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        print("## settings")
        print(_command("config", "show", "--json", "--data", str(directory)).replace(temporary, "DATA"))
        print("\n".join(asyncio.run(_served(directory))))
        print("\n".join(_help()))


if __name__ == "__main__":
    main()
