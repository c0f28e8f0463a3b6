"""`mq verify`, `mq repair`, `mq backup` and `mq restore` from the command line: exit codes and
output."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli import offline
from gateway.cli.terminal import CliError
from store.config import StoreConfig
from store.offline.dump import dump
from store.record_batch import Record, encode
from store.store import Store
from store.types import Append, QueueKey

app = typer.Typer()
app.command("verify")(offline.verify)
app.command("repair")(offline.repair)
app.command("backup")(offline.backup)
app.command("restore")(offline.restore)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A closed store with ten records in two partitions."""
    root = tmp_path / "data"

    async def fill() -> None:
        store = await Store.open(StoreConfig(root=root, extent_bytes=1 << 16, disk_floor_bytes=0))
        topic, _ = await store.create_topic("orders", 2)
        for number in range(10):
            batch = encode([Record(None, b"%d" % number, 0)])
            await store.append([Append(queue=QueueKey(topic.topic_id, number % 2), batch=batch, record_count=1)])
        await store.close()

    asyncio.run(fill())
    return root


@pytest.fixture
def damaged(data: Path) -> Path:
    """The same with the record at offset 2 of partition 1 gone: the sixth one, behind the topic's creation."""
    path = data / "commitlog" / f"{0:020}"
    rows = [row for row in dump(path) if row.get("topic") == "orders"]
    with path.open("r+b") as file:
        file.seek(int(str(rows[5]["position"])) + 70)
        file.write(b"\xff\xff\xff")
    return data


def test_a_whole_directory_is_clean(data: Path) -> None:
    result = run("verify", data)
    assert result.exit_code == 0
    assert "clean (11 records in 3 partitions" in result.output


def test_damage_is_named_and_the_exit_code_says_so(damaged: Path) -> None:
    result = run("verify", damaged)
    assert result.exit_code == 1
    assert "CRC does not match" in result.output
    assert "topic orders, partition 1, offset 2" in result.output
    *findings, summary = [orjson.loads(line) for line in run("verify", damaged, "--json").output.splitlines()]
    assert [finding["offsets"] for finding in findings] == [None, [2, 3]]
    assert not summary["clean"]


def test_what_cannot_be_checked_is_exit_code_2(tmp_path: Path) -> None:
    result = run("verify", tmp_path / "nothing")
    assert isinstance(result.exception, CliError)
    assert result.exception.exit_code == 2


def test_repair_to_a_new_directory_names_what_is_lost(damaged: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file()}
    result = run("repair", damaged, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "lost: topic orders, partition 1, offset 2; tombstones stand in for them" in result.output
    assert "10 records kept, 1 lost" in result.output
    assert run("verify", tmp_path / "out").exit_code == 0
    assert {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file()} == before


def test_repair_in_place_keeps_what_was_there(damaged: Path) -> None:
    result = run("repair", damaged, "--in-place", "--json")
    *lost, summary = [orjson.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    assert lost == [{"topic": "orders", "partition": 1, "first": 2, "end": 3}]
    assert summary["lost"] == 1
    assert run("verify", damaged).exit_code == 0
    assert run("verify", damaged.with_name("data.damaged")).exit_code == 1
    again = run("repair", damaged, "--in-place")
    assert isinstance(again.exception, CliError)
    assert "in the way" in str(again.exception)


def test_repair_in_place_works_through_a_link_and_keeps_tokens_and_trail(damaged: Path) -> None:
    for name in ("auth/tokens.json", "audit/tokens-00000001.jsonl"):
        (damaged / name).parent.mkdir()
        (damaged / name).write_text(name)
    link = damaged.parent / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(damaged)
    assert run("repair", link, "--in-place").exit_code == 0
    assert link.is_symlink()
    assert run("verify", link).exit_code == 0
    for name in ("auth/tokens.json", "audit/tokens-00000001.jsonl"):
        assert (link / name).read_text() == name


def test_repair_wants_to_know_where_to(data: Path, tmp_path: Path) -> None:
    for arguments in ([data], [data, "--in-place", "--out", tmp_path / "out"]):
        result = run("repair", *arguments)
        assert isinstance(result.exception, CliError)
        assert result.exception.exit_code == 2


def test_a_backup_takes_tokens_along_is_private_and_is_restored(data: Path, tmp_path: Path) -> None:
    (data / "auth").mkdir()
    (tmp_path / "mounted.json").write_text("{}")
    (data / "auth" / "tokens.json").symlink_to(tmp_path / "mounted.json")
    out, restored = tmp_path / "copy", tmp_path / "restored"
    result = run("backup", data, out, "--json")
    assert result.exit_code == 0, result.output
    said = orjson.loads(result.stdout)
    assert said["out"] == str(out)
    assert said["verified"] is True
    assert said["copied_bytes"] == said["log_end"] - said["log_begin"] > 0
    assert (out / "auth" / "tokens.json").read_text() == "{}"
    assert not (out / "auth" / "tokens.json").is_symlink()
    assert out.stat().st_mode & 0o077 == 0
    assert not (tmp_path / "copy.partial").exists()
    result = run("restore", out, restored)
    assert result.exit_code == 0, result.output
    assert "verified" in result.stdout
    assert run("verify", restored).exit_code == 0
    assert (restored / "auth" / "tokens.json").read_text() == "{}"
    lines = [trail_of(directory) for directory in (data, out, restored)]
    assert [[line["action"] for line in some] for some in lines] == [["backup.make"], [], ["backup.restore"]]
    for line in (lines[0][0], lines[2][0]):
        assert (line["object"], line["outcome"]) == ({"backup": str(out)}, "done")
        assert line["principal"].startswith("os:")


def trail_of(directory: Path) -> list[dict[str, Any]]:
    """What the commands have said in the trail of a data directory."""
    return [
        orjson.loads(line)
        for path in sorted((directory / "audit").glob("tokens-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def test_a_backup_writes_over_nothing_and_not_into_the_directory_itself(data: Path, tmp_path: Path) -> None:
    for out, wanted in ((tmp_path, "in the way"), (data / "copy", "lies in")):
        result = run("backup", data, out)
        assert isinstance(result.exception, CliError)
        assert wanted in str(result.exception)
        assert result.exception.exit_code == 2
    (tmp_path / "copy.partial").mkdir()
    result = run("backup", data, tmp_path / "copy")
    assert "copy.partial is in the way" in str(result.exception)


def test_a_backup_of_damage_fails_and_keeps_nothing_under_its_name(damaged: Path, tmp_path: Path) -> None:
    result = run("backup", damaged, tmp_path / "copy")
    assert isinstance(result.exception, CliError)
    assert "see mq verify" in str(result.exception)
    assert not (tmp_path / "copy").exists()


def test_only_a_finished_backup_is_restored(data: Path, tmp_path: Path) -> None:
    result = run("restore", data, tmp_path / "restored")
    assert "backup.json" in str(result.exception)
    assert not (tmp_path / "restored").exists()


def test_a_backup_that_finds_the_disk_full_leaves_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    result = run("backup", data, tmp_path / "copy")
    assert isinstance(result.exception, CliError)
    assert "No space left" in str(result.exception)
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
