"""`make load` and `make load-ui`: Locust with a profile, on a server of its own unless one is named, and the report.

    python -m loadtest.load [--profile mixed] [--users 20] [--duration 30s] [--url http://...] [--workers 2] [--ui]

Without --url a server is started on an empty directory, and stopped afterwards. The files and report.html go to --out.
The exit code is Locust's: 0 when nothing failed, 1 when a request or a check did.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import orjson

from loadtest.bench.machine import facts, versions
from loadtest.process import Running, running_server
from loadtest.report import PREFIX, write_report

REPOSITORY = Path(__file__).resolve().parents[2]
PROFILES = REPOSITORY / "loadtest" / "profiles"
SPAWN_S = 5
"""Without a shape of its own, a profile's users come within this."""


def main() -> None:
    """See the module."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    about = {
        "profile": options.profile,
        "users": options.users,
        "duration": options.duration,
        "workers": options.workers,
        "own_server": options.url is None,
        "started_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": facts(options.dir),
        "versions": {**versions(), "locust": version("locust")},
    }
    (options.out / f"{PREFIX}.json").write_bytes(orjson.dumps(about, option=orjson.OPT_INDENT_2))
    with _server(options.url, options.dir) as running:
        command = locust(options, running.url, running.pid)
        if options.ui:
            print(
                f"the page: http://127.0.0.1:{options.ui_port}; the server: {running.url}; Ctrl-C ends both", flush=True
            )
        code = _run(command)
    if (options.out / f"{PREFIX}_mq_history.csv").exists():
        print(f"the report: {write_report(options.out)}")
    else:
        print("no report: the run ended before its first second; give it more with --duration", file=sys.stderr)
    sys.exit(code)


def locust(options: argparse.Namespace, url: str, server_pid: int) -> Sequence[str]:
    """Locust's command line."""
    # fmt: off
    command = [
        sys.executable, "-m", "locust", "-f", str(PROFILES / f"{options.profile}.py"), "--host", url,
        "--users", str(options.users), "--spawn-rate", str(max(options.users / SPAWN_S, 1)),
        "--run-time", options.duration, "--csv", str(options.out / PREFIX), "--csv-full-history",
    ]
    # fmt: on
    if server_pid:
        command += ["--mq-server-pid", str(server_pid)]
    if options.workers:
        command += ["--processes", str(options.workers)]
    if options.ui:
        return [*command, "--web-host", "127.0.0.1", "--web-port", str(options.ui_port)]
    return [*command, "--headless", "--only-summary"]


def _run(command: Sequence[str]) -> int:
    """Run it to its end; its exit code. Who stops us stops it: it ends in its own time, and so do we."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    # A group of its own: Ctrl-C reaches us alone, and is passed on once.
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: process.terminate())
    return process.wait()


@contextmanager
def _server(url: str | None, directory: Path) -> Iterator[Running]:
    """The one that is named (process unknown: 0), or one of our own."""
    if url is not None:
        yield Running(url.rstrip("/"), 0)
        return
    with (
        tempfile.TemporaryDirectory(prefix="mq-load-", dir=directory) as data,
        running_server(Path(data) / "data") as running,
    ):
        yield running


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(file.stem for file in PROFILES.glob("*.py") if file.stem != "__init__")
    parser.add_argument("--profile", default="mixed", choices=names)
    parser.add_argument("--users", type=int, default=20, help="of all kinds together, at the highest")
    parser.add_argument("--duration", default="30s", help="as 90s, 10m, 8h")
    parser.add_argument("--url", help="of a server that is there; without one, one is started")
    parser.add_argument("--workers", type=int, default=0, help="processes that carry the users; 0: one does all")
    parser.add_argument("--ui", action="store_true", help="Locust's page, which starts and stops runs")
    parser.add_argument("--ui-port", type=int, default=8089)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "artifacts" / "load", help="where the files go")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where our own server keeps its data")
    return parser.parse_args()


if __name__ == "__main__":
    main()
