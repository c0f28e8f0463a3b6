"""docs/python.md and clients/python/README.md: every example runs as it is written, but for the server's port."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import mq

REPOSITORY = Path(__file__).resolve().parents[3]
URL = "http://127.0.0.1:8082"
BEGIN = """
import asyncio, time
from dataclasses import dataclass
import mq, mq.sync, mq.testing

async def main():
"""
REST = """
    working.cancel()
    await client.close()
asyncio.run(main())
"""


def examples(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (REPOSITORY / path).read_text(), re.S)


async def run(program: str, tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(program)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(Path(mq.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_the_guide(mq_server: str, tmp_path: Path) -> None:
    first, *others = examples("docs/python.md")
    assert len(others) == 9
    async with mq.connect(mq_server) as client:
        for topic in ("orders", "mails"):
            await client.topics.create(topic, 1)
    first = first.replace("async with mq.connect", "client = await mq.connect").replace(") as client:", ")")
    body = textwrap.dedent("\n".join([first.splitlines()[0], textwrap.dedent("\n".join(first.splitlines()[1:]))]))
    body = "\n".join([body, *others]).replace("import mq.sync\n", "")  # imported above: here it would make mq a local
    program = BEGIN + textwrap.indent(body, "    ") + REST
    printed = await run(program.replace(URL, mq_server), tmp_path)
    assert "order-77-reminder" in printed
    assert "daily-report" in printed
    assert "to ann@example.org" in printed


async def test_the_readme_of_the_client(mq_server: str, tmp_path: Path) -> None:
    first, worker = examples("clients/python/README.md")
    printed = await run(first.replace(URL, mq_server).replace("orders", "orders-2"), tmp_path)
    assert "stored at" in printed
    assert "u1 {'sku': 9}" in printed
    await run(worker + "\nassert send_mail.topic == 'mails'\n", tmp_path)
