"""`mq group` (gateway.cli.group) and `mq tail --group`, against a real server process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.group import _age, _lag_table
from gateway.cli.terminal import CliError
from tests.gateway.cli.test_cli import Server, done, rows


def mq(*arguments: str, url: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command in this process, which is a second faster each."""
    result = CliRunner().invoke(app, arguments, input=stdin, env={"MQ_URL": url})
    if isinstance(result.exception, CliError):
        return subprocess.CompletedProcess(arguments, result.exception.exit_code, result.stdout, str(result.exception))
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("groups") / "data")
    done(mq("topic", "create", "orders", "--partitions", "2", url=server.url))
    for number in range(6):  # by key: to both partitions
        done(mq("send", "orders", str(number), "--key", str(number), url=server.url))
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("command", ["list", "describe", "lag", "reset", "delete", "config", "dlq", "redrive"])
def test_every_command_explains_itself_by_example(command: str) -> None:
    result = CliRunner().invoke(app, ["group", command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"mq group {command}" in result.stdout


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_what_was_printed_is_acked_and_the_rest_is_not(server: Server, mode: str) -> None:
    group = f"tail-{mode}"
    tail = ("tail", "orders", "--group", group, "--mode", mode, "--from", "earliest", "--json")
    first = [row["value"] for row in rows(mq(*tail, "--count", "4", url=server.url))]
    assert len(first) == 4
    lag = rows(mq("group", "lag", group, "--json", url=server.url))
    assert sum(row["lag"] for row in lag) == 2
    assert sum(row["in_flight"] for row in lag) == 0
    rest = [row["value"] for row in rows(mq(*tail, "--count", "2", url=server.url))]
    assert sorted(first + rest) == list(range(6))


def test_a_group_is_read_to_its_end(server: Server) -> None:
    tail = ("tail", "orders", "--group", "once", "--from", "earliest", "--no-follow", "--json")
    assert sorted(row["value"] for row in rows(mq(*tail, url=server.url))) == list(range(6))
    assert rows(mq(*tail, url=server.url)) == []
    refused = mq("tail", "orders", "--group", "once", "--mode", "queue", "--no-follow", url=server.url)
    assert (refused.returncode, "--mode stream" in refused.stderr) == (2, True)
    refused = mq("tail", "orders", "--group", "once", "--from", "-10", url=server.url)
    assert (refused.returncode, "mq group reset" in refused.stderr) == (2, True)


def test_a_group_is_listed_described_reset_and_deleted(server: Server) -> None:
    done(mq("tail", "orders", "--group", "g", "--from", "earliest", "--no-follow", url=server.url))
    listed = {row["group"]: row for row in rows(mq("group", "list", "--json", url=server.url))}
    assert listed["g"]["topics"] == ["orders"]
    assert "g" in done(mq("group", "list", url=server.url))
    assert rows(mq("group", "describe", "g", "--json", url=server.url))[0]["state"] == "empty"
    assert "members: 0" in done(mq("group", "describe", "g", url=server.url))
    table = done(mq("group", "lag", "g", "--topic", "orders", url=server.url))
    assert [line.split()[0] for line in table.splitlines()][:3] == ["topic", "orders", "orders"]
    assert table.splitlines()[-1].split()[:2] == ["total", "0"]

    reset = ("group", "reset", "g", "orders")
    (planned,) = rows(mq(*reset, "--to", "earliest", "--dry-run", "--json", url=server.url))
    assert {row["to"] for row in planned["partitions"]} == {0}
    assert sum(row["lag"] for row in rows(mq("group", "lag", "g", "--json", url=server.url))) == 0
    assert "from" in done(mq(*reset, "--to", "1", "--partition", "1", url=server.url))
    moved = {row["partition"]: row["committed"] for row in rows(mq("group", "lag", "g", "--json", url=server.url))}
    assert moved[1] == 1
    done(mq(*reset, "--to", "1h", url=server.url))
    assert sum(row["lag"] for row in rows(mq("group", "lag", "g", "--json", url=server.url))) == 6
    refused = mq(*reset, "--to", "yesterday", url=server.url)
    assert (refused.returncode, "timestamp" in refused.stderr) == (1, True)

    assert done(mq("group", "delete", "g", url=server.url)) == "deleted\n"
    for command in (("group", "delete", "g"), ("group", "lag", "g", "--once"), ("group", "describe", "g")):
        refused = mq(*command, url=server.url)
        assert (refused.returncode, "40405" in refused.stderr) == (1, True)


def test_settings_are_shown_and_changed(server: Server) -> None:
    changed = rows(mq("group", "config", "c", "max_attempts=5", "backoff=1s 5s", "--json", url=server.url))[0]
    assert (changed["max_attempts"], changed["backoff_ms"]) == (5, [1000, 5000])
    shown = done(mq("group", "config", "c", url=server.url))
    assert "[1000,5000]" in shown
    assert rows(mq("group", "config", "c", "max_attempts=null", "--json", url=server.url))[0]["max_attempts"] == 16
    refused = mq("group", "config", "c", "max_attemps=5", url=server.url)
    assert (refused.returncode, "max_attemps" in refused.stderr) == (1, True)
    assert mq("group", "config", "c", "max_attempts", url=server.url).returncode == 2


def test_a_group_without_dead_letters(server: Server) -> None:
    done(mq("group", "config", "d", "max_attempts=2", url=server.url))
    assert rows(mq("group", "dlq", "d", "--json", url=server.url)) == []
    assert "0 of 0" in mq("group", "dlq", "d", url=server.url).stderr
    assert done(mq("group", "redrive", "d", url=server.url)) == "0 redriven\n"


def test_the_lag_table_knows_rates_from_the_second_look_on() -> None:
    row = {"topic": "t", "partition": 0, "committed": 30, "end": 40, "lag": 10, "in_flight": 1, "delayed": 2}
    answer = {"total_lag": 10, "in_flight": 1, "partitions": [{**row, "oldest_unacked_ms": None, "owner": None}]}
    rates = list(_lag_table(answer, {}, 0.0).columns[8].cells)
    assert rates == ["-", "-"]
    rates = list(_lag_table(answer, {("t", 0): 10}, 2.0).columns[8].cells)
    assert rates == ["10/s", "10/s"]


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [(-5, "0.0 s"), (1500, "1.5 s"), (90_000, "1.5 m"), (5_400_000, "1.5 h"), (129_600_000, "1.5 d")],
)
def test_ages(age_ms: float, text: str) -> None:
    assert _age(age_ms) == text
