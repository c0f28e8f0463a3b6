"""gateway.cli.audit, and what `mq token` leaves in the trail: against a real server process."""

from __future__ import annotations

import getpass
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from gateway.api.trail_files import DIRECTORY
from gateway.auth.tokens import read_tokens
from tests.gateway.cli.command import mq
from tests.gateway.cli.test_cli import Server, done, rows


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("audit") / "data")
    done(mq("topic", "create", "orders", url=server.url))
    yield server
    assert server.stop() == 0


def test_what_was_done_is_listed_the_newest_first(server: Server) -> None:
    done(mq("topic", "create", "other", url=server.url))
    urllib.request.urlopen(urllib.request.Request(f"{server.url}/mq/v1/topics/other", method="DELETE")).close()
    listed = rows(mq("audit", "--json", "--action", "topic", "--outcome", "done", url=server.url))
    assert [(row["action"], row["object"]) for row in listed] == [
        ("topic.delete", {"topic": "other"}),
        ("topic.create", {"topic": "other"}),
        ("topic.create", {"topic": "orders"}),
    ]
    heading, line, *rest = done(mq("audit", "--limit", "1", url=server.url)).splitlines()
    assert heading.split()[:3] == ["time", "principal", "action"]
    assert line.split()[1:5] == ["anonymous", "topic.delete", "topic=other", "done"]
    assert rest == []


def test_a_mistake_is_named(server: Server) -> None:
    refused = mq("audit", "--outcome", "perhaps", url=server.url)
    assert (refused.returncode, "outcome" in refused.stderr) == (1, True)


def test_tokens_made_and_revoked_are_in_the_trail_without_the_token(tmp_path: Path) -> None:
    data = str(tmp_path)
    token = mq("token", "create", "ann", "--data", data, "--allow", "admin", "--expires", "1d").stdout.strip()
    (record,) = read_tokens(tmp_path / "auth" / "tokens.json").values()
    assert mq("token", "revoke", record.id, "--data", data).returncode == 0
    (file,) = (tmp_path / DIRECTORY).iterdir()
    content = file.read_text()
    assert token.split("_", 2)[2] not in content
    assert record.sha256 not in content
    made, revoked = map(orjson.loads, content.splitlines())
    for line, action in ((made, "token.create"), (revoked, "token.revoke")):
        assert (line["action"], line["principal"], line["outcome"]) == (action, f"os:{getpass.getuser()}", "done")
        assert line["object"] == {"token": record.id, "principal": "ann"}
        assert line["details"] == {"scopes": ["admin"], "expires_ms": record.expires_ms}


def test_a_server_shows_what_was_done_to_tokens_beside_it(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        assert mq("token", "create", "ann", "--data", str(tmp_path / "data")).returncode == 0
        assert [row["action"] for row in rows(mq("audit", "--json", url=server.url))] == ["token.create"]
    finally:
        assert server.stop() == 0


def test_a_trail_that_cannot_be_written_keeps_no_token_from_being_revoked(tmp_path: Path) -> None:
    data = str(tmp_path)
    mq("token", "create", "ann", "--data", data)
    (record,) = read_tokens(tmp_path / "auth" / "tokens.json").values()
    for path in (tmp_path / DIRECTORY).iterdir():
        path.unlink()
    os.rmdir(tmp_path / DIRECTORY)
    (tmp_path / DIRECTORY).write_text("in the way")
    revoked = mq("token", "revoke", record.id, "--data", data)
    assert (revoked.returncode, "The trail does not say so" in revoked.stderr) == (0, True)
    assert read_tokens(tmp_path / "auth" / "tokens.json") == {}
