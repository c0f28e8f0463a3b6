"""mq.worker_cli: `mq-worker`, as processes, against a real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import mq
import pytest
from mq import worker_cli
from mq.errors import MqError
from mq.worker_cli import load

from tests.waiting import PATIENCE_S

Command = Callable[..., Awaitable[asyncio.subprocess.Process]]

APP = """
import asyncio
import os
import mq

@mq.worker("MAILS", group="MAILS", concurrency=2, backoff="100ms", lease="2s")
async def send_mail(message: mq.Message[int]) -> None:
    if message.value < 0 and message.attempt == 1:
        os._exit(3)
    if message.value == 500 and message.attempt == 1:
        with open("begun.txt", "w"):
            await asyncio.sleep(60)
    await asyncio.sleep(0.02)
    with open("done.txt", "a") as done:
        done.write(f"{message.value} {os.getpid()}\\n")

nothing = 1
"""


@pytest.fixture
def mails() -> str:
    """A topic and a group of the test's own, on the server that the tests of this run share."""
    return f"mails-{uuid4()}"


@pytest.fixture
async def command() -> AsyncIterator[Command]:
    """Starts the command. None is left behind: its children end with it."""
    started: list[asyncio.subprocess.Process] = []

    async def start(*arguments: Any) -> asyncio.subprocess.Process:
        started.append(await _started(*arguments))
        return started[-1]

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _started(tmp_path: Path, url: str, mails: str, *arguments: str) -> asyncio.subprocess.Process:
    (tmp_path / "app.py").write_text(APP.replace("MAILS", mails))
    source = Path(mq.__file__).parents[1]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mq.worker_cli", "app:send_mail", *arguments, cwd=tmp_path, stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "MQ_URL": url, "PYTHONPATH": str(source)},
    )  # fmt: skip


async def until(is_so: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(0.02)


def done(tmp_path: Path) -> list[list[int]]:
    path = tmp_path / "done.txt"
    return [[int(word) for word in line.split()] for line in path.read_text().splitlines()] if path.exists() else []


async def test_processes_share_the_work_one_that_dies_is_started_again_and_sigterm_ends_all(
    command: Command, tmp_path: Path, mq_server: str, mails: str
) -> None:
    async with mq.connect(mq_server) as client:
        await client.topics.create(mails, 1)
        process = await command(tmp_path, mq_server, mails, "--processes", "2")
        sent = 0

        async def send_until_so_many_worked(processes: int) -> None:
            nonlocal sent
            async with asyncio.timeout(PATIENCE_S):
                while len({pid for _, pid in done(tmp_path)}) < processes:
                    await client.send_many(mails, list(range(sent, sent + 10)))  # more than one alone can hold
                    sent += 10
                    await asyncio.sleep(0.1)

        await send_until_so_many_worked(2)  # else the one that dies could be one that never did anything
        await client.send(mails, -1)  # kills a process; its messages come again when their leases end
        await send_until_so_many_worked(3)  # the one that was started in its place too
        await until(lambda: {value for value, _ in done(tmp_path)} >= {-1, *range(sent)})
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        assert b"a worker process ended with 3" in errors
        assert await client.group(mails).lag() == 0


SIGNALLED_WHILE_IT_STARTS = """
import os
import signal
import subprocess
import sys
from mq import worker_cli

class Popen(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], **options)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
sys.exit(worker_cli.main(["app:send_mail", "--processes", "2"]))
"""


def test_a_signal_that_comes_while_a_process_is_started_ends_that_one_too() -> None:
    source = str(Path(mq.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALLED_WHILE_IT_STARTS], env={**os.environ, "PYTHONPATH": source}, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0


def test_a_file_that_changes_while_processes_end_is_no_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a second one a process gives back what it works on."""
    parent = worker_cli._Parent(worker_cli._parser().parse_args(["app:send_mail", "--processes", "1"]))
    got: list[int] = []

    class Child:
        """Ends two looks after its first signal."""

        looks_left = 3
        process = property(lambda self: self)

        @property
        def is_running(self) -> bool:
            if got:
                parent._has_changed = True
                self.looks_left -= 1
            return self.looks_left > 0

        def send_signal(self, number: int) -> None:
            got.append(number)

    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(worker_cli, "LOOK_S", 0)
    parent._children = [Child()]  # type: ignore[list-item]
    parent._signalled(signal.SIGTERM, None)
    assert parent.run() == 0
    assert got == [signal.SIGTERM]


async def test_watch_restarts_the_workers_when_a_file_changes(
    command: Command, tmp_path: Path, mq_server: str, mails: str
) -> None:
    async with mq.connect(mq_server) as client:
        await client.topics.create(mails, 1)
        process = await command(tmp_path, mq_server, mails, "--watch")
        await client.send(mails, 1)
        await until(lambda: len(done(tmp_path)) == 1)
        (tmp_path / "app.py").write_text(
            APP.replace("MAILS", mails).replace("{message.value}", "{message.value + 100}")
        )
        async with asyncio.timeout(PATIENCE_S):
            while done(tmp_path)[-1][0] < 100:
                await client.send(mails, 2)
                await asyncio.sleep(0.1)
        assert len({pid for _, pid in done(tmp_path)}) == 2
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await process.communicate()
        assert process.returncode == 0


async def test_a_second_signal_gives_back_what_is_being_worked_on(
    command: Command, tmp_path: Path, mq_server: str, mails: str
) -> None:
    async with mq.connect(mq_server) as client:
        await client.topics.create(mails, 1)
        process = await command(tmp_path, mq_server, mails)
        await client.send(mails, 500)
        await until((tmp_path / "begun.txt").exists)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            while b"stopping" not in (told := await process.stderr.readline()):
                assert told
            assert process.returncode is None, "it finishes what it works on"
            process.send_signal(signal.SIGTERM)
            _, errors = await process.communicate()
        assert process.returncode == 0
        assert b"was given back" in errors
        async with client.group(mails).queue(mails) as messages:
            again = await asyncio.wait_for(anext(aiter(messages)), PATIENCE_S)
            assert (again.value, again.attempt) == (500, 2)
            await again.ack()


async def test_while_it_waits_for_a_server_one_signal_ends_it(command: Command, tmp_path: Path, mails: str) -> None:
    process = await command(tmp_path, "http://127.0.0.1:1", mails)
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        assert b"trying again" in await process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0


async def test_a_child_whose_parent_was_killed_stops_by_itself(
    command: Command, tmp_path: Path, mq_server: str, mails: str
) -> None:
    async with mq.connect(mq_server) as client:
        await client.topics.create(mails, 1)
        process = await command(tmp_path, mq_server, mails, "--child")
        await client.send(mails, 1)
        await until(lambda: len(done(tmp_path)) == 1)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0


async def test_what_is_wrong_with_a_target_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    assert load("shop_app:send_mail").topic == "MAILS"
    for target, text in [
        ("shop_app", "write module:worker"), ("nosuch_app:x", "No module named"),
        ("shop_app:nothing", "no worker: put @mq.worker"), ("shop_app:nosuch", "no worker"),
    ]:  # fmt: skip
        with pytest.raises(MqError, match=text):
            load(target)
    monkeypatch.delitem(sys.modules, "shop_app")
