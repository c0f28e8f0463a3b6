"""The command line against a real server process.

Covers gateway.cli.serve, gateway.cli.topic, gateway.cli.send, gateway.cli.tail, gateway.cli.status, gateway.cli.bench,
gateway.cli.complete and gateway.cli.dump.
"""

from __future__ import annotations

import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import orjson
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.client import checked_url
from gateway.cli.terminal import DURATION_MS_MAX, CliError, parse_duration_ms, printable
from gateway.main.version import installed_version
from tests.gateway.cli.command import mq
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
MODULE = (sys.executable, "-m", "gateway")
SCRIPT = (str(Path(sys.executable).with_name("mq")),)
TOPIC_COMMANDS = ("create", "list", "describe", "offsets", "queues", "alter", "delete")
COMMANDS = (
    *(["topic", command] for command in TOPIC_COMMANDS),
    *([command] for command in ("serve", "send", "tail", "status", "bench", "dump")),
)


class Server:
    """A server process over a data directory."""

    def __init__(self, data: Path, *flags: str, program: Sequence[str] = MODULE) -> None:
        self.process = subprocess.Popen(
            [*program, "serve", "--data", str(data), "--port", "0", *flags],
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
    environment["XDG_CONFIG_HOME"] = "/nonexistent"  # no contexts of whoever runs the tests
    return environment if url is None else {**environment, "MQ_URL": url}


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def rows(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in done(result).splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("cli") / "data", program=SCRIPT)
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
        (["send", "t", "-", "--msg-id", "a"], 2, "one record"),
        (["send", "t", "1", "--header", "trace"], 2, "NAME=VALUE"),
        (["send", "t", "1", "--delay", "9" * 20 + "d"], 2, "thousand years"),
        (["send", "t", "1", "--partition", str(2**64)], 2, "an argument cannot be sent: Integer"),
        (["send", "t", "1", "--key", "\udcff"], 2, "an argument cannot be sent: str is not valid UTF-8"),
        (["topic", "describe", "\udcff"], 2, "an argument cannot be sent: 'utf-8' codec"),
        (["tail", "t", "--group", "g", "--partition", "0"], 2, "shares out"),
        (["tail", "t", "--from", "soon", "--url", "http://127.0.0.1:1"], 2, "15m"),
        (["topic", "alter", "t"], 2, "--partitions"),
        (["topic", "alter", "t", "--retention", "soon"], 2, "90s"),
        (["topic", "offsets", "t", "--at", "2026-01-01T00:00:00"], 2, "offset from UTC"),
        (["status", "--url", "http://127.0.0.1:1"], 3, "mq serve --data"),
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


def test_a_server_that_does_not_start_leaves_the_log_of_this_process_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    assert "cannot serve" in mq("serve", "--data", str(tmp_path / "file" / "below"), "--port", "0").stderr
    assert (root.handlers, root.level) == before


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


def test_light_queues_are_listed_a_page_at_a_time(tmp_path: Path) -> None:
    settings = tmp_path / "mq.toml"
    settings.write_text('[store]\nindex = "rocksdb"\n')
    server = Server(tmp_path / "data", "--config", str(settings))
    try:
        url = server.url
        done(mq("topic", "create", "chat", "-p", "2", url=url))
        done(mq("send", "chat", "1", "--queue", "room/1", "--queue", "user/42", url=url))
        done(mq("send", "chat", "2", "--queue", "room/2", url=url))
        assert done(mq("topic", "queues", "chat", url=url)).splitlines() == ["room/1", "room/2", "user/42"]
        assert rows(mq("topic", "queues", "chat", "--prefix", "user/", "--json", url=url)) == [{"queue": "user/42"}]
        first = mq("topic", "queues", "chat", "--limit", "2", url=url)
        assert done(first).splitlines() == ["room/1", "room/2"]
        cursor = first.stderr.split()[-1]
        assert done(mq("topic", "queues", "chat", "--cursor", cursor, url=url)).splitlines() == ["user/42"]
        for group in ("phone-1", "phone-2", "web"):
            path = f"{url}/mq/v1/topics/chat/queues/user%2F42/offsets?group={group}&cursor=chat:0=0"
            with urlopen(Request(path, method="PUT")) as answer:
                assert answer.status == 204
        assert done(mq("group", "list", "--light", "--prefix", "phone-", url=url)).splitlines() == [
            "phone-1\t1", "phone-2\t1",
        ]  # fmt: skip
        assert rows(mq("group", "list", "--light", "--json", url=url))[2] == {"group": "web", "light_offset_count": 1}
        assert "offsets in light queues: 1" in done(mq("group", "describe", "web", url=url))
        done(mq("group", "delete", "web", url=url))
        assert "web" not in done(mq("group", "list", "--light", url=url))
        assert "--prefix goes with --light" in mq("group", "list", "--prefix", "x", url=url).stderr
    finally:
        assert server.stop() == 0


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


def test_headers_partitions_and_ids_are_sent_and_tails_choose_by_partition_and_tag(server: Server) -> None:
    done(mq("topic", "create", "chosen", "--partitions", "3", url=server.url))
    ids = ("--msg-id", "order-77", "--partition", "2", "--header", "trace=a=b", "--header", "n=1", "--tag", "paid")
    first = rows(mq("send", "chosen", "1", *ids, "--json", url=server.url))
    again = rows(mq("send", "chosen", "1", *ids, "--json", url=server.url))
    assert [row["partition"] for row in (*first, *again)] == [2, 2]
    assert first[0]["offset"] == again[0]["offset"]
    done(mq("send", "chosen", "2", "--partition", "2", "--tag", "open", url=server.url))
    done(mq("send", "chosen", "3", "--partition", "0", "--tag", "paid", url=server.url))
    tail = ("tail", "chosen", "--no-follow", "--json")
    (message,) = rows(mq(*tail, "--partition", "2", "--tag", "paid", url=server.url))
    assert (message["value"], message["tag"]) == (1, "paid")
    assert [header["key"] for header in message["headers"]] == ["trace", "n"]
    assert [row["value"] for row in rows(mq(*tail, "--partition", "2", url=server.url))] == [1, 2]
    both = rows(mq(*tail, "--tag", "open", "--tag", "paid", url=server.url))
    assert sorted(row["value"] for row in both) == [1, 2, 3]
    assert [row["value"] for row in rows(mq(*tail, "--partition", "0", "-n", "1", url=server.url))] == [3]


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_a_small_file_without_keys_reaches_all_partitions(server: Server, tmp_path: Path, way: str) -> None:
    topic = f"spread-{way}"
    done(mq("topic", "create", topic, "--partitions", "4", url=server.url))
    lines = "".join(f"{number}\n" for number in range(100))
    (tmp_path / "lines").write_text(lines)
    if way == "file":
        done(mq("send", topic, "--file", str(tmp_path / "lines"), url=server.url))
    else:
        done(mq("send", topic, "-", stdin=lines, url=server.url))
    counts = [row["end_offset"] for row in rows(mq("topic", "offsets", topic, "--json", url=server.url))]
    assert sorted(counts) == [10, 20, 30, 40]


def test_a_topic_is_altered_and_deleted(server: Server) -> None:
    done(mq("topic", "create", "changing", "--partitions", "2", "--retention", "1h", url=server.url))
    altered = rows(
        mq("topic", "alter", "changing", "-p", "3", "--max-message-bytes", "1000", "--selector", "random", "--json",
           url=server.url)
    )  # fmt: skip
    shown = {name: altered[0].get(name) for name in ("partitions", "retention_ms", "max_message_bytes", "selector")}
    assert shown == {"partitions": 3, "retention_ms": 3_600_000, "max_message_bytes": 1000, "selector": "random"}
    back = ("--retention", "default", "--max-message-bytes", "default", "--selector", "default", "--json")
    (altered_back,) = rows(mq("topic", "alter", "changing", *back, url=server.url))
    assert not {"retention_ms", "max_message_bytes", "selector"} & set(altered_back)
    refused = mq("topic", "alter", "changing", "-p", "1", url=server.url)
    assert (refused.returncode, refused.stdout) == (1, "")
    done(mq("send", "changing", "1", url=server.url))
    kept = mq("topic", "delete", "changing", url=server.url)
    assert (kept.returncode, "1 records" in kept.stderr, "--yes" in kept.stderr) == (2, True, True)
    assert done(mq("topic", "delete", "changing", "--yes", url=server.url)) == "changing deleted\n"
    assert mq("topic", "describe", "changing", url=server.url).returncode == 1


def test_offsets_are_shown_also_those_of_a_time(server: Server) -> None:
    done(mq("topic", "create", "timed", "--partitions", "1", url=server.url))
    done(mq("send", "timed", "1", url=server.url))
    (now,) = rows(mq("topic", "offsets", "timed", "--at", "0s", "--json", url=server.url))
    (before,) = rows(mq("topic", "offsets", "timed", "--at", "1h", "--json", url=server.url))
    assert (now["beginning_offset"], now["end_offset"], now["offset_for_time"]) == (0, 1, 1)
    assert before["offset_for_time"] == 0
    assert done(mq("topic", "offsets", "timed", "--at", "1h", url=server.url)).split() == [
        "partition", "first", "next", "offset", "0", "0", "1", "0"
    ]  # fmt: skip


def test_the_status_of_a_server(server: Server) -> None:
    (shown,) = rows(mq("status", "--json", url=server.url))
    assert (shown["ready"], shown["reasons"], shown["url"]) == (True, [], server.url)
    assert {"version", "cluster_id", "topics", "partitions", "groups", "members", "delayed"} <= set(shown)
    text = done(mq("status", url=server.url))
    assert re.search(r"ready +yes", text)
    assert re.search(r"Kafka clients +(no port for them|KAFKA://127\.0\.0\.1:9092)", text)
    assert server.url in text


def test_a_bench_sends_and_reads_and_leaves_no_topic(server: Server) -> None:
    before = done(mq("topic", "list", "--json", url=server.url))
    few = ("bench", "--records", "25", "--batch", "10", "--connections", "2", "--size", "5")
    (shown,) = rows(mq(*few, "--json", url=server.url))
    assert (shown["send"]["records"], shown["receive"]["records"]) == (25, 25)
    assert shown["send"]["records_per_s"] > 0
    assert done(mq("topic", "list", "--json", url=server.url)) == before
    done(mq("topic", "create", "benched", "--partitions", "2", url=server.url))
    for _ in range(2):
        assert "records per s" in done(mq(*few, "--topic", "benched", url=server.url))
    ends = [row["end_offset"] for row in rows(mq("topic", "offsets", "benched", "--json", url=server.url))]
    assert sum(ends) == 50
    refused = mq(*few, "--topic", "nowhere", url=server.url)
    assert (refused.returncode, "mq topic create" in refused.stderr) == (1, True)


def test_names_are_completed_from_the_server(server: Server) -> None:
    for name in ("comp-a", "comp-b"):
        done(mq("topic", "create", name, url=server.url))
    done(mq("group", "config", "comp-group", "max_attempts=3", url=server.url))

    def completed(line: str, url: str = server.url) -> list[str]:
        environment = {**_environment(url), "_MQ_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3"}
        out = subprocess.run(SCRIPT, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert out.stderr == ""
        return out.stdout.split()

    assert completed("mq topic describe comp-") == ["comp-a", "comp-b"]
    assert completed("mq group describe comp-") == ["comp-group"]
    assert completed("mq topic describe comp-", "http://127.0.0.1:1") == []


def test_on_a_terminal_json_is_indented_and_coloured_unless_colours_are_not_wanted(server: Server) -> None:
    done(mq("topic", "create", "shown", "--partitions", "1", url=server.url))

    def seen(*arguments: str, **more: str) -> str:
        primary, secondary = pty.openpty()
        environment = {**_environment(server.url), "TERM": "xterm-256color", **more}
        for name in {"NO_COLOR", "FORCE_COLOR"} - more.keys():
            environment.pop(name, None)
        command = [sys.executable, "-m", "gateway", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=secondary, stderr=secondary)
        os.close(secondary)
        out = b""
        with suppress(OSError):  # how the end of a terminal shows
            while piece := os.read(primary, 65_536):
                out += piece
        os.close(primary)
        assert process.wait() == 0
        return out.decode()

    coloured, plain = (
        seen("topic", "describe", "shown", "--json"),
        seen("topic", "describe", "shown", "--json", NO_COLOR="1"),
    )
    assert "\n  " in coloured
    assert "\x1b[" in coloured
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)
    unstyled = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert orjson.loads(unstyled)["topic"] == "shown"
    done(mq("send", "shown", '{"a": "\\u001b[31m"}', "--key", "k", url=server.url))
    line = seen("tail", "shown", "--from", "earliest", "--no-follow")
    assert "\x1b[" in line
    assert "\x1b[31m" not in line
    assert re.sub(r"\x1b\[[0-9;]*m", "", line).split()[1:] == ["shown/0@0", "key=k", '{"a":"\\u001b[31m"}']


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


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_full_disk_ends_tail_with_its_reason(server: Server, how: Sequence[str]) -> None:
    done(mq("topic", "create", "full", "-p", "1", url=server.url))
    done(mq("send", "full", "1", url=server.url))
    with Path("/dev/full").open("wb") as full:
        command = subprocess.run(
            [*MODULE, "tail", "full", "--from", "earliest", *how], cwd=ROOT, stdout=full, stderr=subprocess.PIPE,
            text=True, env=_environment(server.url), check=False, timeout=PATIENCE_S,
        )  # fmt: skip
    assert (command.returncode, command.stderr) == (1, "error: the output: No space left on device\n")


def test_a_value_that_is_nested_deeply_is_tailed(server: Server) -> None:
    done(mq("topic", "create", "deep", "-p", "1", url=server.url))
    values = ["[" * levels + "]" * levels for levels in (200, 255, 1023)]
    for value in values:
        json = {"Content-Type": "application/json"}
        with urlopen(Request(f"{server.url}/mq/v1/topics/deep/messages", value.encode(), json)) as response:
            assert response.status == 201
    for how, before in (((), " "), (("--json",), '"value":')):
        tail = [*MODULE, "tail", "deep", "--no-follow", *how]  # a process of its own: this one checks frames by orjson
        lines = subprocess.check_output(tail, cwd=ROOT, text=True, env=_environment(server.url)).splitlines()
        assert all(before + value in line for value, line in zip(values, lines, strict=True))


def test_a_token_of_two_lines_is_no_token() -> None:
    refused = mq("topic", "list", url="http://127.0.0.1:1", MQ_TOKEN="a\nb")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert "the token" in refused.stderr


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
    assert parse_duration_ms("365000d") == DURATION_MS_MAX
    for text in ("365000d1ms", "9" * 400 + "d"):
        with pytest.raises(ValueError, match="thousand years"):
            parse_duration_ms(text)


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert printable("flüge") == "flüge"


def test_a_url_needs_a_scheme_and_a_host() -> None:
    assert checked_url("https://mq.example:8443/") == "https://mq.example:8443"
    for url in ("127.0.0.1:8082", "ftp://x", "http://", "http://x:port", ""):
        with pytest.raises(CliError):
            checked_url(url)
