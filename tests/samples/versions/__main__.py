"""Makes the archives: `python -m tests.samples.versions [COMMIT ...]`, in a checkout with its history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from tests.samples.versions import (
    COMMITS,
    DEVICE,
    DUE_AFTER_MS,
    HERE,
    INBOX,
    LATER_AFTER_MS,
    PARTITIONS,
    WITH_LIGHT_QUEUES,
    settings_of,
)

_JSON = "application/vnd.kafka.json.v2+json"
_CHECKPOINT_S = 7  # longer than a checkpoint takes to come


class _Server:
    """`mq serve` of another tree."""

    def __init__(self, tree: Path, data: Path, settings: Mapping[str, object]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
        environment |= {f"MQ_{name.replace('.', '_').upper()}": str(value) for name, value in settings.items()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--data", str(data), "--port", "0"],
            cwd=tree, env={**environment, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._url = self._process.stdout.readline().strip()
        assert self._url.startswith("http://"), self._url

    def ask(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> object:
        """The answer's JSON; None when this version has no such route."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, content, {"Content-Type": content_type, "Accept": "*/*"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code in (404, 405):
                return None
            raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from error

    def end(self, how: str) -> None:
        self._process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
        self._process.wait()


def _send(server: _Server, records: list[dict[str, object]], partition: int | None = None) -> None:
    path = "/topics/orders" if partition is None else f"/topics/orders/partitions/{partition}"
    assert server.ask("POST", path, {"records": records}, _JSON) is not None


def _use(server: _Server, tree: Path, data: Path, *, has_light: bool) -> dict[str, object]:
    """The requests; the fields of a Sample."""
    made = {"made_ms": time.time_ns() // 1_000_000, "schedule_key": None, "committed": None, "left": None}
    assert server.ask("PUT", "/mq/v1/topics/orders", {"partitions": PARTITIONS}) is not None
    records: dict[int, list[str]] = {}
    for partition in range(PARTITIONS):
        records[partition] = [f"r{partition}-{number}" for number in range(20)]
        for values in (records[partition][:1], records[partition][1:]):
            _send(server, [{"key": f"k{value}", "value": value} for value in values], partition)
    due = [f"due-{number}" for number in range(5)]
    later = [f"later-{number}" for number in range(3)]
    delayed: list[dict[str, object]] = [{"key": value, "value": value, "delay_ms": DUE_AFTER_MS} for value in due]
    if has_light:
        inbox = [f"light-{number}" for number in range(3)]
        _send(server, [{"value": value, "queues": [INBOX, "room/1"]} for value in inbox], 0)
        records[0] += inbox
        made["inbox"] = inbox
        delayed[0] |= {"queues": [INBOX], "partition": 0}
    _send(server, delayed)
    for number, value in enumerate(later):
        record = {"key": value, "value": value, "delay_ms": LATER_AFTER_MS}
        if number == 0:
            try:
                _send(server, [{**record, "schedule_key": "remind-0"}])
            except AssertionError:  # not known yet
                _send(server, [record])
            else:
                made["schedule_key"] = "remind-0"
        else:
            _send(server, [record])
    _send(server, [{"key": "x", "value": "cancelled", "delay_ms": DUE_AFTER_MS}])
    listed = server.ask("GET", "/mq/v1/schedules?topic=orders&key=x")
    if isinstance(listed, dict):
        for schedule in listed["schedules"]:
            server.ask("DELETE", f"/mq/v1/schedules/{schedule['schedule_id']}")
    if server.ask("GET", "/mq/v1/groups") is not None:
        queue = f"/mq/v1/groups/{'work'}/messages"
        taken = server.ask(
            "POST",
            f"{queue}:receive",
            {"topics": ["orders"], "max_messages": 7, "start": "earliest"},
        )
        assert isinstance(taken, dict)
        receipts = [message["receipt"] for message in taken["messages"]]
        done = {message["value"] for message in taken["messages"]}
        server.ask("POST", f"{queue}:ack", {"receipts": receipts})
        made["left"] = sorted({value for values in records.values() for value in values} - done)
        instance = server.ask("POST", "/consumers/stream", {"name": "c", "format": "json"}, "application/json")
        assert instance is not None
        own = "/consumers/stream/instances/c"
        server.ask("POST", f"{own}/assignments", {"partitions": [{"topic": "orders", "partition": 0}]})
        offsets = [{"topic": "orders", "partition": 0, "offset": 11}]  # the last one consumed
        server.ask("POST", f"{own}/offsets", {"offsets": offsets})
        asked = server.ask("GET", "/mq/v1/groups/stream/lag")
        assert isinstance(asked, dict)
        made["committed"] = next(row["committed"] for row in asked["partitions"] if row["partition"] == 0)
    if has_light:
        path = f"/mq/v1/topics/orders/queues/{quote(INBOX, safe='')}"
        first = server.ask("GET", f"{path}/records?partition=0&limit=1")
        assert isinstance(first, dict)
        server.ask("PUT", f"{path}/offsets?group={DEVICE}&cursor={quote(first['next_cursor'])}")
    asked_for = {"topic": "orders", "cron": "0 0 1 1 *", "record": {"value": "yearly"}}
    if server.ask("PUT", "/mq/v1/recurring/yearly", asked_for) is not None:
        made["recurring"] = "yearly"
    token = subprocess.run(
        [sys.executable, "-m", "gateway", "token", "create", "ann", "--data", str(data), "--allow", "admin"],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    token_id = token.stdout.split("_")[1] if token.returncode == 0 else None
    return {**made, "records": records, "due": due, "later": later, "token_id": token_id}


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def make(commit: str) -> None:
    """Write the archive of one commit."""
    with tempfile.TemporaryDirectory() as directory:
        tree, left = Path(directory, "tree"), Path(directory, "left")
        tree.mkdir()
        left.mkdir()
        packed = subprocess.run(["git", "archive", commit], capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", tree], input=packed, check=True)
        server = _Server(tree, left / "data", settings_of(commit))
        try:
            expected = _use(server, tree, left / "data", has_light=commit in WITH_LIGHT_QUEUES)
            threading.Event().wait(_CHECKPOINT_S)
            behind = ["behind-the-checkpoint"]
            _send(server, [{"key": "k", "value": value} for value in behind], 1)
            expected["records"][1] += behind  # type: ignore[index]
            if expected["left"] is not None:
                expected["left"] += behind  # type: ignore[operator]
        finally:
            server.end(COMMITS[commit])
        (left / "expected.json").write_text(json.dumps(expected))
        with tarfile.open(HERE / f"{commit}.tar.xz", "w:xz", preset=9) as archive:
            archive.add(left, ".", filter=_anonymous)


if __name__ == "__main__":
    for commit in sys.argv[1:] or COMMITS:
        make(commit)
        print(commit, (HERE / f"{commit}.tar.xz").stat().st_size)
