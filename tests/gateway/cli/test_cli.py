"""The command line against a real server process.

Covers gateway.cli.serve, gateway.cli.topic, gateway.cli.send, gateway.cli.tail and gateway.cli.dump.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.client import checked_url
from gateway.cli.terminal import CliError, parse_duration_ms, printable
from gateway.main.version import installed_version
from tests.gateway.cli.command import mq
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = (["serve"], ["topic", "create"], ["topic", "list"], ["topic", "describe"], ["send"], ["tail"], ["dump"])


class Server:
    """A server process over a data directory."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--data", str(data), "--port", "0", *flags],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(),
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


def _environment(url: str | None = None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    return environment if url is None else {**environment, "MQ_URL": url}


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def rows(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in done(result).splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("cli") / "data")
    yield server
    assert server.stop() == 0, "SIGTERM is a clean stop"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_by_example(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert "mq " + " ".join(command) in result.stdout


def test_it_says_which_version_it_is() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"mq {installed_version()}\n"
    assert result.stdout[3].isdigit()


def test_a_source_tree_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.main.version.DISTRIBUTION", "mq-nowhere-installed")
    assert installed_version() == "unknown"


def test_usage_errors_are_answered_with_code_2() -> None:
    assert CliRunner().invoke(app, ["frobnicate"]).exit_code == 2
    assert CliRunner().invoke(app, ["topic", "create", "t", "-p", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["dump", "/nowhere/at/all"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["send", "t"], 2, "give either a VALUE"),
        (["send", "t", "1", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"], 2, "exclude each other"),
        (["send", "t", "1", "--delay", "soon"], 2, "90s"),
        (["send", "t", "hello"], 2, "--format text"),
        (["send", "t", "1", "--key-field", "k"], 2, "not a JSON object"),
        (["topic", "list", "--url", "nonsense"], 2, "http://127.0.0.1:8082"),
        (["topic", "list", "--url", "http://127.0.0.1:1"], 3, "mq serve --data"),
        (["tail", "t", "--url", "http://127.0.0.1:1"], 3, "mq serve --data"),
        (["serve"], 2, "--data"),
        (["serve", "--data", "x", "--log-level", "loud"], 2, "debug, info"),
        (["serve", "--data", "x", "--acks", "maybe"], 2, "acks"),
        (["serve", "--data", "x", "--host", "0.0.0.0"], 2, "insecure"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(arguments: list[str], code: int, words: str) -> None:
    result = mq(*arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert words in result.stderr


def test_a_topic_is_created_listed_and_described(server: Server) -> None:
    url = server.url
    assert rows(mq("topic", "create", "shapes", "-p", "3", "--json", url=url))[0]["partitions"] == 3
    done(mq("topic", "create", "shapes", "-p", "3", url=url))
    again = mq("topic", "create", "shapes", "-p", "4", url=url)
    assert again.returncode == 1
    assert "40955" in again.stderr
    assert "shapes" in [row["topic"] for row in rows(mq("topic", "list", "--json", url=url))]
    assert "shapes" in done(mq("topic", "list", url=url))
    described = rows(mq("topic", "describe", "shapes", "--json", url=url))[0]
    assert [row["end_offset"] for row in described["offsets"]] == [0, 0, 0]
    assert "3 partitions, 0 records" in done(mq("topic", "describe", "shapes", url=url))
    missing = mq("topic", "describe", "nowhere", url=url)
    assert missing.returncode == 1
    assert "mq topic create" in missing.stderr


def test_what_is_sent_is_tailed_with_key_and_tag(server: Server) -> None:
    url = server.url
    done(mq("topic", "create", "orders", "-p", "2", url=url))
    (receipt,) = rows(mq("send", "orders", '{"sku": 9}', "--key", "u1", "--tag", "paid", "--json", url=url))
    assert (receipt["sent"], receipt["offset"]) == (1, 0)
    done(mq("send", "orders", "hello", "--format", "text", "--acks", "written", url=url))
    messages = rows(mq("tail", "orders", "--no-follow", "--json", url=url))
    (json_message,) = [message for message in messages if message["key"] == "u1"]
    assert (json_message["value"], json_message["tag"]) == ({"sku": 9}, "paid")
    assert [message["value_text"] for message in messages if "value_text" in message] == ["hello"]
    lines = done(mq("tail", "orders", "--from", "earliest", "--no-follow", url=url)).splitlines()
    assert any(line.endswith('key=u1 tag=paid {"sku":9}') for line in lines), lines
    assert any(line.endswith(" hello") for line in lines), lines


def test_a_file_is_sent_in_order_with_keys_from_a_field(server: Server, tmp_path: Path) -> None:
    url = server.url
    done(mq("topic", "create", "flights", "-p", "4", url=url))
    file = tmp_path / "flights.jsonl"
    file.write_text("".join(f'{{"tailnum":"N{n % 5}","n":{n}}}\n' for n in range(2500)) + "\n")
    assert rows(mq("send", "flights", "-f", str(file), "--key-field", "tailnum", "--json", url=url))[0]["sent"] == 2500
    messages = rows(mq("tail", "flights", "--no-follow", "--json", url=url))
    for tail in range(5):
        assert [m["value"]["n"] for m in messages if m["key"] == f"N{tail}"] == list(range(tail, 2500, 5))
    last = rows(mq("tail", "flights", "--from", "-1", "--no-follow", "--json", url=url))
    assert max(message["value"]["n"] for message in last) == 2499
    assert len(rows(mq("tail", "flights", "--from", "earliest", "-n", "1001", "--json", url=url))) == 1001
    assert len(rows(mq("tail", "flights", "--from", "10m", "--no-follow", "--json", url=url))) == 2500
    assert rows(mq("tail", "flights", "--from", "2100-01-01T00:00:00Z", "--no-follow", "--json", url=url)) == []


def test_stdin_is_sent_by_line_and_a_bad_line_is_named(server: Server) -> None:
    url = server.url
    done(mq("topic", "create", "numbers", url=url))
    assert "3 records" in done(mq("send", "numbers", "-", url=url, stdin="1\n2\n\n3"))
    bad = mq("send", "numbers", "-", url=url, stdin="1\n{\n")
    assert bad.returncode == 2
    assert "line 2" in bad.stderr
    assert len(rows(mq("tail", "numbers", "--no-follow", "--json", url=url))) == 3, "the bad request stored nothing"
    lines = "".join(f'{{"k":"{key}"}}\n' for key in ("a", "b" * 1100, "c"))
    refused = mq("send", "numbers", "-", "--key-field", "k", url=url, stdin=lines)
    assert refused.returncode == 1
    assert "1 of 3 records" in refused.stderr
    assert "42251" in refused.stderr
    assert "2 records were sent" in refused.stderr
    messages = rows(mq("tail", "numbers", "--no-follow", "--json", url=url))
    assert [message["key"] for message in messages[3:]] == ["a", "c"]


def test_a_delay_gives_a_schedule_and_delivers(server: Server) -> None:
    url = server.url
    done(mq("topic", "create", "later", "-p", "1", url=url))
    follower = subprocess.Popen(
        [sys.executable, "-m", "gateway", "tail", "later", "-n", "1", "--json", "--from", "earliest"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env=_environment(url),
    )  # fmt: skip
    (receipt,) = rows(mq("send", "later", "1", "--delay", "300ms", "--json", url=url))
    assert receipt["scheduled"] == 1
    message = orjson.loads(follower.communicate(timeout=PATIENCE_S)[0])
    assert message["schedule_id"] == receipt["schedule_id"]
    assert message["store_timestamp"] >= message["deliver_at"] == receipt["deliver_at"]
    refused = mq("send", "later", "1", "--at", "yesterday", url=url)
    assert refused.returncode == 1
    assert "42250" in refused.stderr


def test_tail_goes_on_where_it_was_when_the_server_comes_back(tmp_path: Path) -> None:
    first = Server(tmp_path / "data")
    port = first.url.rsplit(":", 1)[1]
    done(mq("topic", "create", "orders", "-p", "2", url=first.url))
    follower = subprocess.Popen(
        [sys.executable, "-m", "gateway", "tail", "orders", "-n", "6", "--json", "--from", "earliest"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(first.url),
    )  # fmt: skip
    assert follower.stdout is not None
    done(mq("send", "orders", "-", url=first.url, stdin="1\n2\n3\n"))
    seen = [orjson.loads(follower.stdout.readline())["value"] for _ in range(3)]
    assert first.stop() == 0
    second = Server(tmp_path / "data", "--port", port)
    assert second.url == first.url
    done(mq("send", "orders", "-", url=second.url, stdin="4\n5\n6\n"))
    rest, notes = follower.communicate(timeout=PATIENCE_S)
    seen += [orjson.loads(line)["value"] for line in rest.splitlines()]
    assert seen == [1, 2, 3, 4, 5, 6], "nothing twice, nothing left out"
    assert "trying again" in notes
    assert second.stop() == 0


def test_a_reader_that_has_seen_enough_ends_tail_quietly(server: Server) -> None:
    done(mq("topic", "create", "many", url=server.url))
    done(mq("send", "many", "-", url=server.url, stdin="\n".join(str(10**60 + n) for n in range(20_000))))
    for arguments in (["tail", "many", "--from", "earliest"], ["tail", "many", "--from", "earliest", "--json"]):
        command = subprocess.Popen(
            [sys.executable, "-m", "gateway", *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(server.url),
        )  # fmt: skip
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline()
        command.stdout.close()
        assert command.wait(timeout=PATIENCE_S) == 0
        assert command.stderr.read() == ""


def test_ctrl_c_ends_tail_with_130(server: Server) -> None:
    done(mq("topic", "create", "quiet", "-p", "1", url=server.url))
    done(mq("send", "quiet", "1", url=server.url))
    command = subprocess.Popen(
        [sys.executable, "-m", "gateway", "tail", "quiet", "--from", "earliest"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(server.url),
    )  # fmt: skip
    assert command.stdout is not None
    assert command.stdout.readline().endswith(" 1\n")
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=PATIENCE_S) == 130
    command.communicate()


def test_the_files_of_a_server_are_dumped_as_json_lines(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = Server(data)
    done(mq("topic", "create", "orders", "-p", "1", url=server.url))
    done(mq("send", "orders", '{"sku":9}', "--key", "u1", url=server.url))
    busy = mq("serve", "--data", str(data), "--port", "0")
    assert busy.returncode == 1
    assert len(busy.stderr.splitlines()) == 1, busy.stderr
    assert server.stop() == 0
    entries = rows(mq("dump", str(data / "commitlog" / "0".zfill(20)), "--values"))
    (entry,) = [entry for entry in entries if entry.get("topic") == "orders"]
    assert "u1" in orjson.dumps(entry).decode()
    assert len(rows(mq("dump", str(data / "commitlog" / "0".zfill(20)), "-n", "1"))) == 1
    for path in (path for path in data.rglob("*") if path.is_file() and path.name != "lock"):
        printed = CliRunner().invoke(app, ["dump", str(path), "-n", "3"])
        if path.name.startswith("receipt-key"):
            assert "is a secret" in str(printed.exception)
            assert not printed.output
        else:
            assert printed.exit_code == 0, (path, printed.output)
            assert all(orjson.loads(line) for line in printed.output.splitlines()), path
    foreign = tmp_path / "notes.txt"
    foreign.write_text("hello")
    refused = mq("dump", str(foreign))
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr


def test_durations_are_read() -> None:
    assert [parse_duration_ms(text) for text in ("90s", "1h30m", "500ms", "2d", "1.5s")] == [
        90_000, 5_400_000, 500, 172_800_000, 1500,
    ]  # fmt: skip
    for text in ("", "90", "s", "1h 30m", "-5s", "1y"):
        with pytest.raises(ValueError, match="duration"):
            parse_duration_ms(text)


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert printable("flüge") == "flüge"


def test_a_url_needs_a_scheme_and_a_host() -> None:
    assert checked_url("https://mq.example:8443/") == "https://mq.example:8443"
    for url in ("127.0.0.1:8082", "ftp://x", "http://", "http://x:port", ""):
        with pytest.raises(CliError):
            checked_url(url)
