"""`mq context` (gateway.cli.context), and which server a command asks (gateway.cli.client.server_of)."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.client import Server, server_of
from gateway.cli.context import URL_DEFAULT, Context, Contexts, contexts_file, read, write
from gateway.cli.terminal import USAGE, CliError
from tests.gateway.cli.command import mq
from tests.gateway.cli.test_cli import done, rows

PROD, HERE = "https://mq.example.org", "http://127.0.0.1:1"
SECRET = "mq_secret_secret"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody with a directory for settings."""
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.fixture
def two(home: dict[str, str]) -> dict[str, str]:
    """Of somebody with two contexts; `prod` is current."""
    ca = Path(home["XDG_CONFIG_HOME"], "ca.pem")
    ca.touch()
    done(
        mq("context", "add", "prod", "--url", f"{PROD}/", "--token", "-", "--ca", str(ca), stdin=f"{SECRET}\n", **home)
    )
    done(mq("context", "add", "here", "--url", HERE, **home))
    return home


@pytest.mark.parametrize("command", ["add", "list", "use", "remove"])
def test_every_command_explains_itself_by_example(command: str) -> None:
    result = CliRunner().invoke(app, ["context", command, "--help"])
    assert result.exit_code == 0
    assert f"mq context {command}" in result.stdout


def test_contexts_are_added_used_and_removed_and_no_token_is_printed(two: dict[str, str]) -> None:
    said: list[subprocess.CompletedProcess[str]] = [
        mq("context", "list", **two),
        mq("context", "list", "--json", **two),
        mq("context", "use", "here", **two),
        mq("context", "add", "prod", "--url", PROD, "--token", SECRET, **two),
        mq("context", "remove", "here", **two),
        mq("context", "list", **two),
        mq("topic", "list", **two),
    ]
    assert [one.returncode for one in said[:-1]] == [0] * 6
    assert SECRET not in "".join(one.stdout + one.stderr for one in said)
    assert "history" in said[3].stderr
    listed = rows(said[1])
    assert [(row["context"], row["current"], row["url"], row["has_token"]) for row in listed] == [
        ("here", False, HERE, False),
        ("prod", True, PROD, True),
    ]
    assert read(contexts_file(two)) == Contexts(None, {"prod": Context(PROD, SECRET)})


def test_the_file_is_for_its_owner_alone_and_a_change_replaces_it_whole(two: dict[str, str]) -> None:
    file = contexts_file(two)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    before = file.stat().st_ino
    done(mq("context", "use", "here", **two))
    assert file.stat().st_ino != before
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    file.chmod(0o640)
    refused = mq("context", "list", **two)
    assert (refused.returncode, "chmod 600" in refused.stderr) == (USAGE, True)


def test_a_write_that_fails_leaves_the_file_as_it_was(two: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = contexts_file(two)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CliError, match="No space left"):
        write(file, Contexts())
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_flag_goes_before_a_variable_and_that_before_the_context(two: dict[str, str]) -> None:
    ca = str(Path(two["XDG_CONFIG_HOME"], "ca.pem"))
    assert server_of("", {"XDG_CONFIG_HOME": "/nonexistent"}) == Server(URL_DEFAULT)
    assert server_of("", two) == Server(PROD, SECRET, ca)
    assert server_of("", {**two, "MQ_CONTEXT": "here"}) == Server(HERE)
    assert server_of("", {**two, "MQ_TOKEN": "t", "MQ_CA": "c"}) == Server(PROD, "t", "c")
    assert server_of("", {**two, "MQ_URL": "http://a"}) == Server("http://a")
    assert server_of("http://b", {**two, "MQ_URL": "http://a", "MQ_TOKEN": "t"}) == Server("http://b", "t")


def test_a_token_of_a_context_goes_to_its_own_server_and_no_other(two: dict[str, str]) -> None:
    assert server_of(PROD, two).token == SECRET
    assert server_of(f"{PROD}:444", two).token is None
    assert server_of("https://mq.example.org.evil.example", two).token is None


def test_the_flag_chooses_for_one_command_whatever_variables_say(two: dict[str, str]) -> None:
    asked = mq("--context", "here", "topic", "list", **two, MQ_URL="http://nowhere.invalid", MQ_TOKEN="t")
    assert (asked.returncode, HERE in asked.stderr) == (3, True)
    unknown = mq("--context", "nope", "topic", "list", **two)
    assert (unknown.returncode, "here, prod" in unknown.stderr) == (USAGE, True)


@pytest.mark.parametrize("content", [b"{", b'{"contexts": {"a": {}}}', b'{"contexts": []}'])
def test_a_damaged_file_is_named(home: dict[str, str], content: bytes) -> None:
    write(contexts_file(home), Contexts())
    contexts_file(home).write_bytes(content)
    refused = mq("topic", "list", **home)
    assert (refused.returncode, "contexts.json" in refused.stderr) == (USAGE, True)


def test_bad_names_and_urls_are_refused(home: dict[str, str]) -> None:
    assert mq("context", "add", " ", "--url", HERE, **home).returncode == USAGE
    assert mq("context", "add", "a", "--url", "nonsense", **home).returncode == USAGE
    assert mq("context", "use", "a", **home).returncode == USAGE
    assert "no contexts yet" in mq("context", "list", **home).stdout
