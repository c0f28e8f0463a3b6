"""The load test against a real server, in processes of its own: Locust replaces the sockets of whoever imports it."""

from __future__ import annotations

import asyncio
import csv
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import orjson
import pytest

from loadtest.peers.servers import free_port
from loadtest.process import server
from loadtest.report import write_report
from tests.waiting import PATIENCE_S, until

RIGHT = "right"
PLANTS = {
    RIGHT: "plant('a', range(5)); run.ledger.acknowledge('a', 0, 5)",
    "lost": "plant('a', range(5)); run.ledger.acknowledge('a', 0, 6)",
    "duplicated": "plant('a', [0, 1]); plant('a', [1]); run.ledger.acknowledge('a', 0, 2)",
    "out of order": "plant('a', [1, 0]); run.ledger.acknowledge('a', 0, 2)",
    "leased twice": "plant('a', [0, 0]); run.ledger.acknowledge('a', 0, 1)",
}
"""What a run finds in its topic, and what its senders were told."""

PLANTED = """
import json, sys
from locust.env import Environment
from loadtest.load import audit, socket
from loadtest.load.run import Run, new_name

audit.STALL_S = socket.TIMEOUT_S = 0.2


def plant(sender, sequences):
    records = [{"key": sender, "value": {"sender": sender, "sequence": number}} for number in sequences]
    run.request("POST", "/topics/" + run.topic + "?format=json", {"records": records})


url, plants, right = json.loads(sys.argv[1])
for name, planting in plants.items():
    environment = Environment(host=url)
    seen = {}
    environment.events.request.add_listener(lambda **line: seen.update({line["name"]: str(line["exception"])}))
    run = Run(environment, new_name())
    run.prepare()
    run.ways |= {"stream", "queue"} if name == right else {"queue"}
    exec(planting)
    seen.clear()
    audit.audit(run)
    print(json.dumps([name, seen]))
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.mark.long
def test_two_workers_and_a_master_check_one_run_together(url: str, tmp_path: Path) -> None:
    """Senders and consumers are in different processes: what one sent, another consumed, and the master knows both."""
    port = str(free_port())
    locust = [sys.executable, "-m", "locust", "-f", "loadtest/profiles/mixed.py"]
    # fmt: off
    master = [
        *locust, "--master", "--expect-workers", "2", "--master-bind-host", "127.0.0.1", "--master-bind-port", port,
        "--headless", "-u", "14", "-r", "14", "-t", "3s", "--host", url, "--csv", str(tmp_path / "run"),
        "--csv-full-history", "--only-summary",
    ]
    # fmt: on
    workers = [
        subprocess.Popen(
            [*locust, "--worker", "--master-port", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(2)
    ]
    try:
        done = subprocess.run(master, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "run_stats.csv").open() as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    for name in (
        "send 1", "send 100", "send 20 delayed", "long poll", "reader", "stream", "queue",
        "lateness of delayed records", "every acknowledged record is there", "every record is there once",
        "the log keeps the order of every key", "every acknowledged record came to the stream group",
        "every acknowledged record came to the queue group", "a record in a queue is leased to one at a time",
        "every worker told what it did",
    ):  # fmt: skip
        assert int(rows[name]["Request Count"]) > 0, name
        assert int(rows[name]["Failure Count"]) == 0, name
    with (tmp_path / "run_mq_history.csv").open() as file:
        history = list(csv.DictReader(file))
    assert sum(float(row["acknowledged"]) for row in history) > 0
    page = write_report(tmp_path).read_text()
    assert "everything as promised" in page
    assert page.count("<svg") >= 4


@contextmanager
def locust_page(url: str) -> Iterator[str]:
    """Locust with its page and a run that has begun; the page's URL."""
    port = free_port()
    # fmt: off
    command = [
        sys.executable, "-m", "locust", "-f", "loadtest/profiles/delayed.py", "--autostart", "-u", "3", "-r", "3",
        "--host", url, "--web-host", "127.0.0.1", "--web-port", str(port),
    ]
    # fmt: on
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_the_page_has_a_tab_of_ours(url: str) -> None:
    with locust_page(url) as page:
        table: dict[str, dict[str, str]] = {}

        def has_delivered() -> bool:
            try:
                told = orjson.loads(urlopen(f"{page}/stats/requests").read())
            except (URLError, ConnectionError):  # it has not started yet
                return False
            (extended,) = told["extended_stats"]
            table.update((row["name"], row) for row in extended["data"])
            return table["delayed"]["total"] not in ("", "0")

        asyncio.run(until(has_delivered, pause_s=0.1))
        assert table["late max ms"]["total"] != ""
        assert "extended_tabs" in urlopen(page).read().decode()
        assert urlopen(f"{page}/mq/history.csv").read().startswith(b"time_s,users,acknowledged")


@pytest.fixture(scope="module")
def verdicts(url: str) -> dict[str, dict[str, str]]:
    """What the audit says of each of PLANTS, by check. One process for all: to load Locust takes two seconds."""
    asked = orjson.dumps([url, PLANTS, RIGHT]).decode()
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, asked], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(orjson.loads(line) for line in done.stdout.splitlines())


def test_the_audit_passes_what_is_right(verdicts: dict[str, dict[str, str]]) -> None:
    assert set(verdicts[RIGHT].values()) == {"None"}
    assert len(verdicts[RIGHT]) == 6


@pytest.mark.parametrize(
    ("plant", "check", "problem"),
    [
        ("lost", "every acknowledged record is there", "1 of 6 lost, such as a/5"),
        ("lost", "every acknowledged record came to the queue group", "1 of 6 lost, such as a/5"),
        ("duplicated", "every record is there once", "1 came twice"),
        ("out of order", "the log keeps the order of every key", "record 0 came after record 1"),
        ("leased twice", "a record in a queue is leased to one at a time", "acked twice as a first attempt"),
    ],
    ids=["lost", "lost-in-a-group", "duplicated", "out-of-order", "leased-twice"],
)
def test_the_audit_finds_what_is_wrong(
    verdicts: dict[str, dict[str, str]], plant: str, check: str, problem: str
) -> None:
    assert problem in verdicts[plant][check]


UNITS = """
from types import SimpleNamespace
from locust.env import Environment
from loadtest.load import groups, readers, shapes
from loadtest.load.run import LATE_MAX_MS, Run

environment = Environment(host="http://127.0.0.1:1")
seen = []
environment.events.request.add_listener(
    lambda **line: seen.append(line["name"]) if line["exception"] is not None else None
)
run = Run(environment, "unit")


def message(offset, sequence, **fields):
    value = {"sender": "a", "sequence": sequence}
    return {"key": "a", "value": value, "partition": 0, "offset": offset, "store_timestamp": 5_000, **fields}


def failures():
    found, seen[:] = list(seen), []
    return found


watch = readers.Watch(run)
watch.take([message(4, 0), message(5, 1)])
assert failures() == []
watch.take([message(7, 2)])
assert failures() == ["no gap in a partition"]
watch.take([message(8, 2)])
assert failures() == ["order of a key"]
watch.take([message(9, 9, deliver_at=5_000), message(10, 9, deliver_at=5_000 - LATE_MAX_MS)])
assert failures() == []
watch.take([message(11, 9, deliver_at=5_001)])
assert failures() == ["lateness of delayed records"]
watch.take([message(12, 9, deliver_at=4_999 - LATE_MAX_MS)])
assert failures() == ["lateness of delayed records"]


class Talk:
    def __init__(self):
        self.sent = []

    def subscribe(self, **fields):
        return {"ok": True, "cursor": "t:0=0"}

    def send(self, command):
        self.sent.append(command)
        return len(self.sent)


talk = Talk()
member = groups.StreamMember(run, talk)
member.join("m")
member.took({"op": "messages", "messages": [message(0, 0), message(1, 1)]})
assert talk.sent[-1]["up_to"] == [{"topic": run.topic, "partition": 0, "offset": 1}]
member.took({"id": 1, "ok": True, "results": [{"ok": True}]})
member.took({"op": "assigned", "cursor": "t:0=2"})
assert failures() == []
member.took({"op": "assigned", "cursor": "t:0=1"})
assert failures() == ["a commit is kept"]
member.took({"op": "messages", "messages": [message(1, 1)]})
member.took({"id": 2, "ok": True, "results": [{"ok": False, "error_code": groups.NOT_THE_OWNER}]})
assert failures() == []
member.took({"op": "messages", "messages": [message(2, 2)]})
member.took({"id": 3, "ok": True, "results": [{"ok": False, "error_code": 50000}]})
assert failures() == ["commit"]
member.took({"op": "revoked", "partitions": {"t": [0]}, "drain_ms": 9})
assert talk.sent[-1]["op"] == "release"

holder = groups.LeaseHolder(run, talk)
first = message(0, 0, receipt="r", attempt=1)
for attempt, expected in ((1, []), (2, []), (1, ["leased to one at a time"])):
    holder.took({"op": "messages", "messages": [{**first, "attempt": attempt}]})
    holder.took({"id": len(talk.sent), "ok": True, "results": [{"ok": True}]})
    assert failures() == expected, attempt

at = lambda shape, passed: shape().at(passed, 20, 100.0)[0]
assert [at(shapes.Ramp, passed) for passed in (0, 0.19, 0.2, 0.99)] == [4, 4, 8, 20]
assert [at(shapes.Spike, passed) for passed in (0, 0.39, 0.4, 0.59, 0.6, 0.99)] == [5, 5, 20, 20, 5, 5]
assert shapes.Soak().at(0.5, 20, 100.0) == (20, 2.0)
shape = shapes.Ramp()
options = SimpleNamespace(num_users=50, run_time=0.001)
shape.runner = SimpleNamespace(environment=SimpleNamespace(parsed_options=options))
while shape.tick() is not None:
    pass
"""


def test_users_notice_what_is_wrong_and_shapes_have_their_forms() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNITS], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("profile", sorted(Path("loadtest/profiles").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_every_profile_names_users(profile: Path) -> None:
    text = profile.read_text()
    assert "loadtest.locustfile" in text or "senders" in text


LOST_WORKER = """
from locust.env import Environment
from loadtest.load import events
from loadtest.load.ledger import Ledger, RecordId
from loadtest.load.metrics import Metrics
from loadtest.load.run import Run

events.WORKERS_TIMEOUT_S = 0.1
events.audit = lambda run: seen.append(("audited", sorted(run.ledger.lost("log")))) or True
environment = Environment(host="http://127.0.0.1:1")
environment.create_master_runner("127.0.0.1", {port})
seen = []
environment.events.request.add_listener(lambda **line: seen.append((line["name"], str(line["exception"]))))
run = Run(environment, "unit")
run.clean = lambda: seen.append("cleaned")
coordinator = events.Coordinator(environment, run)
told = Ledger()
told.acknowledge("a", 0, 2)
told.consume("log", RecordId("a", 0))
message = {{**told.packed(), "ways": ["queue"], "report": Metrics().take(0)}}
for worker in {begun!r}:
    coordinator.begun(worker)
for worker in {ended!r}:
    coordinator.ended(worker, message)
coordinator.finish()
print(seen, run.ways)
"""


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("ended", "verdict", "cleans_up"), [(["w1", "w2"], "None", True), (["w1"], "1 workers never told", False)]
)
def test_a_worker_that_never_tells_what_it_sent_is_a_failure(ended: list[str], verdict: str, cleans_up: bool) -> None:
    script = LOST_WORKER.format(port=free_port(), begun=["w1", "w2"], ended=ended)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"('every worker told what it did', '{verdict}" in done.stdout.replace('"', "'")
    assert ("cleaned" in done.stdout) == cleans_up
    assert "('audited', [RecordId(sender='a', sequence=1)])" in done.stdout
    assert "{'queue'}" in done.stdout
