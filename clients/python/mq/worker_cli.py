"""`mq-worker app:send_mail`: runs workers in processes of their own.

With `--processes` or `--watch` this process starts children and looks after them: one that dies is started again, after
a wait that grows; SIGTERM and SIGINT go to all of them. A child whose parent is gone stops by itself: its standard
input, which the parent holds open, ends.

SIGTERM or SIGINT: take no more messages, finish and settle those that are being worked on, close. A second one: cancel
them and give them back.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from mq.client import connect
from mq.errors import MqError
from mq.worker import Worker

log = logging.getLogger("mq.worker")

URL = "http://127.0.0.1:8082"
RESTART_S = 1.0
RESTART_S_MAX = 30.0
STABLE_S = 10.0
LOOK_S = 0.1
"""How often children and signals are looked at."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    options = _parser().parse_args(argv)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
    )
    if options.processes > 1 or options.watch is not None:
        return _Parent(options).run()
    try:
        asyncio.run(_work(options))
    except MqError as error:
        print(f"mq-worker: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mq-worker", description="Run workers made with @mq.worker.")
    parser.add_argument("targets", nargs="+", metavar="module:worker", help="for example app:send_mail")
    parser.add_argument("--url", default=os.environ.get("MQ_URL", URL), help=f"of the server; MQ_URL, or {URL}")
    parser.add_argument("--token", default=os.environ.get("MQ_TOKEN"), help="better in MQ_TOKEN: others see arguments")
    parser.add_argument("--processes", type=int, default=1, help="how many processes work side by side")
    parser.add_argument(
        "--watch", nargs="?", const=".", metavar="DIR", help="restart when a file there changes; needs mq-py[watch]"
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


# ------------------------------------------------------------------------------------------------------- one process


def load(target: str) -> Worker[object]:
    """The worker that `module:name` names. Raises MqError saying what is wrong."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise MqError(f"{target!r} names no worker: write module:worker, for example app:send_mail")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise MqError(f"{target!r}: {error}; run mq-worker where the module can be imported") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        raise MqError(f"{target!r} is {found!r}, no worker: put @mq.worker(topic, group=...) on the function")
    return found


async def _work(options: argparse.Namespace) -> None:
    workers = [load(target) for target in options.targets]
    task = asyncio.current_task()
    assert task is not None
    signals = 0
    is_working = False

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals > 1 or not is_working:  # nothing to wait for while there is no server
            task.cancel()
        else:
            log.info("stopping: no more messages; %s", "a second signal gives back what is being worked on")
            for worker in workers:
                worker.stop()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    if options.child:
        loop.add_reader(sys.stdin.fileno(), _parent_is_gone, loop, stop)
    try:
        async with connect(options.url, token=options.token, name=f"mq-worker/{os.getpid()}") as client:
            is_working = True
            if signals == 0:
                log.info("working on %s", ", ".join(f"{one.topic} as {one.group}: {one.name}" for one in workers))
                await asyncio.gather(*(worker.run(client) for worker in workers))
    except asyncio.CancelledError:
        log.info("stopped; what was being worked on was given back")


def _parent_is_gone(loop: asyncio.AbstractEventLoop, stop: object) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        loop.remove_reader(sys.stdin.fileno())
        assert callable(stop)
        stop()


# ------------------------------------------------------------------------------------------------- several processes


class _Child:
    """One worker process, started again whenever it dies."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._wait_s = RESTART_S
        self._start_at_s = 0.0
        self._started_at_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def look(self, now_s: float) -> None:
        """Start it if it is time."""
        if self.process is not None and (code := self.process.poll()) is not None:
            self.process = None
            is_stable = now_s - self._started_at_s > STABLE_S
            self._wait_s = RESTART_S if is_stable else min(self._wait_s * 2, RESTART_S_MAX)
            self._start_at_s = now_s + (0 if code == 0 else self._wait_s)
            log.log(logging.INFO if code == 0 else logging.ERROR, "a worker process ended with %d", code)
        if self.process is None and now_s >= self._start_at_s:
            self._started_at_s = now_s
            # A session of its own: Ctrl-C in a terminal reaches the parent only, which passes it on.
            self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None


class _Parent:
    """Starts the children, and looks after them."""

    def __init__(self, options: argparse.Namespace) -> None:
        if options.processes < 1:
            raise SystemExit(f"mq-worker: --processes must be at least 1, and is {options.processes}")
        command = [sys.executable, "-m", "mq.worker_cli", *options.targets, "--url", options.url, "--child",
                   "--log-level", options.log_level]  # fmt: skip
        if options.token is not None:
            os.environ["MQ_TOKEN"] = options.token  # not in the children's arguments, which others see
        self._children = [_Child(command) for _ in range(options.processes)]
        self._watch: str | None = options.watch
        self._signals = 0
        self._has_changed = False

    def run(self) -> int:
        """Until a signal; then until the children have ended. Signals are passed on here, not where they arrive: that
        may be within the start of a child that is not known yet, or where this thread holds a lock."""
        for number in _SIGNALS:
            signal.signal(number, self._signalled)
        if self._watch is not None:
            threading.Thread(target=self._watch_files, args=(self._watch,), daemon=True).start()
        passed_on = 0
        while passed_on == 0 or any(child.is_running for child in self._children):
            if passed_on < self._signals:
                passed_on += 1
                self._stop_all()
            elif passed_on == 0:  # a change while they end is no second signal
                now_s = time.monotonic()
                for child in self._children:
                    child.look(now_s)
                if self._has_changed:
                    self._has_changed = False
                    self._stop_all()
            time.sleep(LOOK_S)
        return 0

    def _signalled(self, number: int, frame: object) -> None:
        self._signals += 1

    def _stop_all(self) -> None:
        for child in self._children:
            if child.process is not None and child.is_running:
                child.process.send_signal(signal.SIGTERM)

    def _watch_files(self, directory: str) -> None:
        try:
            from watchfiles import PythonFilter, watch
        except ImportError:
            print("mq-worker: --watch needs watchfiles: pip install mq-py[watch]", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        for changes in watch(Path(directory), watch_filter=PythonFilter()):
            log.info("%s changed: restarting", ", ".join(sorted(path for _, path in changes)))
            self._has_changed = True


if __name__ == "__main__":
    sys.exit(main())
