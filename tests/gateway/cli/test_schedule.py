"""`mq schedule`, against a real server process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.gateway.cli.command import mq
from tests.gateway.cli.test_cli import Server, done, rows


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("schedules") / "data")
    done(mq("topic", "create", "orders", url=server.url))
    yield server
    assert server.stop() == 0


@pytest.fixture
def ids(server: Server) -> Iterator[list[str]]:
    """Two schedules of one key."""
    for value in ("1", "2"):
        done(mq("send", "orders", value, "--key", "o-77", "--delay", "1h", url=server.url))
    yield [row["schedule_id"] for row in rows(mq("schedule", "list", "--topic", "orders", "--json", url=server.url))]
    done(mq("schedule", "cancel", "--topic", "orders", url=server.url))


@pytest.mark.parametrize("command", ["list", "get", "cancel", "move", "fire"])
def test_every_command_explains_itself_by_example(command: str) -> None:
    result = CliRunner().invoke(app, ["schedule", command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"mq schedule {command}" in result.stdout


def test_schedules_are_listed_and_shown(server: Server, ids: list[str]) -> None:
    assert len(ids) == 2
    listed = mq("schedule", "list", "--topic", "orders", "--limit", "1", url=server.url)
    assert ids[0] in done(listed)
    assert ids[1] not in listed.stdout
    assert "1 of 2 pending" in listed.stderr
    (shown,) = rows(mq("schedule", "get", ids[1], url=server.url))
    assert (shown["schedule_id"], shown["value"], shown["topic"]) == (ids[1], 2, "orders")
    assert rows(mq("schedule", "list", "--topic", "orders", "--key", "other", "--json", url=server.url)) == []


def test_a_schedule_without_a_key_is_listed_with_a_dash(server: Server) -> None:
    done(mq("send", "orders", "3", "--delay", "1h", url=server.url))
    _, listed = done(mq("schedule", "list", "--topic", "orders", url=server.url)).rstrip().splitlines()
    assert listed.split()[-1] == "-"
    done(mq("schedule", "cancel", "--topic", "orders", url=server.url))


def test_a_schedule_is_moved_fired_and_cancelled(server: Server, ids: list[str]) -> None:
    moved = done(mq("schedule", "move", ids[0], "--delay", "2h", url=server.url)).strip()
    assert moved != ids[0]
    assert done(mq("schedule", "fire", moved, url=server.url)).startswith("orders partition ")
    refused = mq("schedule", "cancel", moved, url=server.url)
    assert (refused.returncode, "40950" in refused.stderr) == (1, True)
    assert done(mq("schedule", "cancel", ids[1], url=server.url)) == "cancelled\n"
    refused = mq("schedule", "cancel", ids[1], url=server.url)
    assert (refused.returncode, "40450" in refused.stderr) == (1, True)


def test_a_schedule_is_found_by_a_key_of_its_own(server: Server) -> None:
    own, of_topic = "remind/o 77:a", ("--topic", "orders")
    send = ("send", "orders", "1", "--delay", "1h", "--schedule-key", own)
    done(mq(*send, url=server.url))
    taken = mq(*send, url=server.url)
    assert (taken.returncode, "40954" in taken.stderr) == (1, True)
    (shown,) = rows(mq("schedule", "get", own, *of_topic, url=server.url))
    assert shown["schedule_key"] == own
    moved = done(mq("schedule", "move", own, "--delay", "2h", *of_topic, url=server.url)).strip()
    assert moved != shown["schedule_id"]
    assert done(mq("schedule", "cancel", own, *of_topic, url=server.url)) == "cancelled\n"
    done(mq(*send, url=server.url))
    assert done(mq("schedule", "fire", own, *of_topic, url=server.url)).startswith("orders partition ")
    gone = mq("schedule", "get", own, *of_topic, url=server.url)
    assert (gone.returncode, "40450" in gone.stderr) == (1, True)


def test_bulk_cancel_says_how_many(server: Server, ids: list[str]) -> None:
    command = ("schedule", "cancel", "--topic", "orders", "--key", "o-77")
    assert done(mq(*command, url=server.url)) == "2 cancelled\n"
    assert done(mq(*command, url=server.url)) == "0 cancelled\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["cancel"],
        ["cancel", "x", "--topic", "orders", "--key", "k"],
        ["cancel", "x", "--key", "k"],
        ["move", "x"],
        ["move", "x", "--delay", "1h", "--at", "2030-01-01T00:00:00Z"],
        ["move", "x", "--delay", "soon"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_code_2(server: Server, arguments: list[str]) -> None:
    assert mq("schedule", *arguments, url=server.url).returncode == 2
