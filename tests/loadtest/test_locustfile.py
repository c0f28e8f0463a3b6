"""The load test against a real server, in processes of its own: Locust replaces the sockets of whoever imports it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.process import server

LOCUST = "loadtest/locustfile.py"
PLANTED = """
from locust.env import Environment
from loadtest import locustfile

locustfile.AUDIT_STALL_S = 0.1
locustfile.SOCKET_TIMEOUT_S = 0.1
environment = Environment(host={url!r})
seen = []
environment.events.request.add_listener(lambda **line: seen.append((line["name"], str(line["exception"]))))
run = locustfile.Run(environment)
run.prepare()


def plant(sender, sequences):
    records = [{{"key": run.key(sender), "value": run.value(locustfile.RecordId(sender, n))}} for n in sequences]
    import http.client, orjson
    from urllib.parse import urlsplit
    connection = http.client.HTTPConnection(urlsplit(run.host).netloc)
    connection.request("POST", "/topics/locust", orjson.dumps({{"records": records}}), locustfile.JSON_RECORDS)
    assert connection.getresponse().status == 200
    connection.close()


{plant}
run.audit()
for line in seen:
    print(*line, sep=": ")
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("data")) as running:
        yield running


def test_a_short_run_passes_and_every_kind_of_user_takes_part(url: str, tmp_path: Path) -> None:
    flags = ["--headless", "-u", "10", "-r", "10", "-t", "3s", "--host", url, "--csv", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", LOCUST, *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    statistics = (tmp_path / "run_stats.csv").read_text()
    for name in (
        "send 1", "send 100", "send 20 delayed", "long poll", "messages", "lateness of delayed records",
        "every acknowledged record is there", "every record is there once", "the log keeps the order of every key",
    ):  # fmt: skip
        line = re.search(rf"^\w+,{name},(\d+),(\d+),", statistics, re.MULTILINE)
        assert line is not None, name
        assert int(line[1]) > 0, name
        assert line[2] == "0", name


def audited(url: str, plant: str) -> dict[str, str]:
    """What the audit says of planted records, by check."""
    script = PLANTED.format(url=url, plant=plant)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_the_audit_passes_what_is_right(url: str) -> None:
    verdicts = audited(url, "plant(0, range(5)); run.deliveries.sent(locustfile.RecordId(0, n) for n in range(5))")
    assert set(verdicts.values()) == {"None"}
    assert len(verdicts) == 3


@pytest.mark.parametrize(
    ("plant", "check", "problem"),
    [
        (
            "plant(0, range(5)); run.deliveries.sent(locustfile.RecordId(0, n) for n in range(6))",
            "every acknowledged record is there",
            "1 of 6 lost",
        ),
        (
            "plant(0, [0, 1]); plant(0, [1]); run.deliveries.sent(locustfile.RecordId(0, n) for n in (0, 1))",
            "every record is there once",
            "1 of 2 came twice",
        ),
        (
            "plant(0, [1, 0]); run.deliveries.sent(locustfile.RecordId(0, n) for n in (0, 1))",
            "the log keeps the order of every key",
            "record 0 came after record 1",
        ),
    ],
    ids=["lost", "duplicated", "out-of-order"],
)
def test_the_audit_finds_what_is_wrong(url: str, plant: str, check: str, problem: str) -> None:
    assert problem in audited(url, plant)[check]
