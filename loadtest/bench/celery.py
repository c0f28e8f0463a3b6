"""`python -m loadtest.bench.celery`: tasks a second of one Celery worker over `mq.kombu`, a server beside it.

Tasks that do nothing, late acks, all sent before the worker starts; from the first task's end to the last one's. The
result of each is not kept, so that what is measured is the way of a task: server, transport, pool, ack.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mq.celery  # noqa: F401 - makes mq:// known
from celery import Celery
from rich.console import Console
from rich.table import Table

from loadtest.process import server

APP = """
import os, time
import mq.celery
from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=int(os.environ["PREFETCH"]))

@app.task
def nothing():
    os.write(FILE, b"%.6f\\n" % time.time())

FILE = os.open("done.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
"""
CASES = [("prefork", 2, 1), ("prefork", 2, 4), ("prefork", 4, 100), ("threads", 4, 100), ("solo", 1, 100)]
"""Pool, concurrency, prefetch multiplier."""
WAIT_S = 300.0


def measure(url: str, folder: Path, pool: str, concurrency: int, prefetch: int, count: int) -> tuple[float, float]:
    """Tasks sent a second, and done a second."""
    broker = url.replace("http://", "mq://")
    done = folder / "done.txt"
    done.unlink(missing_ok=True)
    (folder / "tasks.py").write_text(APP)
    app = Celery("tasks", broker=broker)
    app.conf.task_ignore_result = True
    began = time.monotonic()
    for _ in range(count):
        app.send_task("tasks.nothing")
    sent_per_s = count / (time.monotonic() - began)
    environment = {**os.environ, "BROKER": broker, "PREFETCH": str(prefetch)}
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-l", "WARNING", "-P", pool, "-c", str(concurrency)],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until_s = time.monotonic() + WAIT_S
        times: list[float] = []
        while len(times) < count:
            if time.monotonic() > until_s:
                raise RuntimeError(f"{len(times)} of {count} tasks after {WAIT_S:g} s")
            time.sleep(0.1)
            times = [float(line) for line in done.read_text().splitlines()] if done.exists() else []
    finally:
        worker.terminate()
        worker.wait(60)
    return sent_per_s, (count - 1) / (max(times) - min(times))


def run(count: int) -> None:
    """All cases, one after the other, and a table of them."""
    table = Table("pool", "concurrency", "prefetch multiplier", "sent /s", "done /s")
    with tempfile.TemporaryDirectory() as folder, server(Path(folder) / "data") as url:
        for pool, concurrency, prefetch in CASES:
            sent, done = measure(url, Path(folder), pool, concurrency, prefetch, count)
            table.add_row(pool, str(concurrency), str(prefetch), f"{sent:,.0f}", f"{done:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2_000)
    run(parser.parse_args().tasks)
