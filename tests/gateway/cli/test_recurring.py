"""`mq recurring`, against a real server process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from gateway.cli import app, complete
from tests.gateway.cli.command import mq
from tests.gateway.cli.test_cli import Server, done, rows


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("recurring") / "data")
    done(mq("topic", "create", "orders", url=server.url))
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("command", ["put", "list", "get", "pause", "resume", "delete"])
def test_every_command_explains_itself_by_example(command: str) -> None:
    result = CliRunner().invoke(app, ["recurring", command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"mq recurring {command}" in result.stdout


def test_a_recurring_schedule_from_its_making_to_its_end(server: Server) -> None:
    daily = ("recurring", "put", "daily", "orders", '{"kind": 1}', "--cron", "30 2 * * *", "--tz", "Europe/Berlin")
    made = done(mq(*daily, "--key", "k", "--tag", "t", "-H", "a=b", "-p", "0", "--missed", "all", url=server.url))
    assert made.startswith("daily: 30 2 * * * Europe/Berlin, next 20")
    (shown,) = rows(mq("recurring", "get", "daily", url=server.url))
    assert shown["record"] == {
        "key": "k", "value": {"kind": 1}, "headers": [{"key": "a", "value": "Yg=="}], "partition": 0, "tag": "t",
    }  # fmt: skip
    assert shown["missed"] == "all"
    again = mq("recurring", "put", "poll", "orders", "text", "--format", "text", "--every", "90m", "--paused",
               "--anchor", "2026-01-01T00:00:00Z", url=server.url)  # fmt: skip
    assert done(again) == "poll: every 90m, next paused\n"
    listed = done(mq("recurring", "list", url=server.url)).splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["daily", "poll"]
    (row,) = rows(mq("recurring", "list", "--topic", "orders", "--json", url=server.url))[1:]
    assert (row["name"], row["every_ms"], row["paused"]) == ("poll", 5_400_000, True)
    assert "Z" in done(mq("recurring", "resume", "poll", url=server.url))
    assert done(mq("recurring", "pause", "poll", url=server.url)).endswith("paused\n")
    assert done(mq("recurring", "delete", "poll", url=server.url)) == "poll: deleted\n"
    refused = mq("recurring", "get", "poll", url=server.url)
    assert (refused.returncode, "40452" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "either --every or --cron"),
        (("--every", "1h", "--cron", "@daily"), "either --every or --cron"),
        (("--every", "often"), "--every: 'often' is not a duration"),
        (("--every", "1h", "-H", "x"), "NAME=VALUE"),
    ],
)
def test_wrong_usage_is_said_before_the_server_is_asked(options: tuple[str, ...], said: str) -> None:
    result = mq("recurring", "put", "r", "orders", "1", *options, url="http://127.0.0.1:9")
    assert result.returncode == 2
    assert said in result.stderr
    assert mq("recurring", "put", "r", "orders", "{", "--every", "1h", url="http://127.0.0.1:9").returncode == 2


def test_names_are_completed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    done(mq("recurring", "put", "weekly", "orders", "1", "--cron", "@weekly", url=server.url))
    monkeypatch.setenv("MQ_URL", server.url)

    class Line:
        params: dict[str, object] = {}  # noqa: RUF012

        def find_root(self) -> Line:
            return self

    assert complete.recurring_names(Line(), "we") == ["weekly"]  # type: ignore[arg-type]
