"""What docs/deploy holds works: the units are valid and tight, the server lives within their filters, alerts fire on
metrics that there are, the backup script links and cleans up, the example of settings starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.server import REPOSITORY, Server

DEPLOY = REPOSITORY / "docs" / "deploy"
UNITS = ("mq.service", "mq-backup.service", "mq-backup.timer")
EXPOSURE_MAX = "2.0"
"""Of 10, as `systemd-analyze security` reckons it."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here (Debian: apt-get install systemd)"
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool here (Debian: apt-get install prometheus)"
)
needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="there is no strace here (Debian: apt-get install strace)"
)


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with commands that are there."""
    for name in UNITS:
        text = re.sub(r"^ExecStart=/opt/\S+", "ExecStart=/bin/true", (DEPLOY / name).read_text(), flags=re.MULTILINE)
        (tmp_path / name).write_text(text)
    drop_in = tmp_path / "mq.service.d" / "credentials.conf"
    drop_in.parent.mkdir()
    shutil.copy(DEPLOY / "credentials.conf", drop_in)
    return tmp_path


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_units(units: Path) -> None:
    assert run("systemd-analyze", "verify", *(units / name for name in UNITS)) == ""


@needs_systemd
@pytest.mark.parametrize("unit", ["mq.service", "mq-backup.service"])
def test_the_units_leave_little_open(units: Path, unit: str) -> None:
    tenths = str(int(float(EXPOSURE_MAX) * 10))
    run("systemd-analyze", "security", "--no-pager", "--offline=true", f"--threshold={tenths}", units / unit)


@needs_systemd
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give directories away")
def test_users_and_directories_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    run("systemd-sysusers", f"--root={tmp_path}", DEPLOY / "mq.sysusers")
    assert re.search(r"^mq:.*:/var/lib/mq:", (tmp_path / "etc" / "passwd").read_text(), re.MULTILINE)
    (tmp_path / "var").mkdir(exist_ok=True)
    run("systemd-tmpfiles", f"--root={tmp_path}", "--create", DEPLOY / "mq.tmpfiles")
    assert (tmp_path / "var" / "lib" / "mq").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "etc" / "mq").stat().st_mode & 0o777 == 0o750


def _system_calls(*sets: str) -> set[str]:
    """The names in sets of system calls, as systemd knows them."""
    found: set[str] = set()
    for name in sets:
        for line in run("systemd-analyze", "syscall-filter", "--no-pager", name).splitlines()[1:]:
            line = line.strip()
            if line.startswith("@"):
                found |= _system_calls(line)
            elif line and not line.startswith("#"):
                found.add(line)
    return found


@needs_systemd
@needs_strace
async def test_the_server_lives_within_the_filters_of_its_unit(tmp_path: Path) -> None:
    """No system call that the unit denies, no memory that is writable and executable, no socket of another family."""
    trace = tmp_path / "trace"
    server = Server(tmp_path / "data", under=("strace", "-D", "-f", "-qq", "-o", str(trace)))
    try:
        await server.start()
        async with aiohttp.ClientSession(server.url) as session:
            records = {"records": [{"value": "aGk="}, {"value": "aGk=", "delay_ms": 1}]}
            for method, path, body in (
                ("PUT", "/mq/v1/topics/t", {"partitions": 2}),
                ("POST", "/topics/t", records),
                ("POST", "/mq/v1/groups/g/messages:receive", {"topics": ["t"], "start": "earliest"}),
                ("DELETE", "/mq/v1/topics/t", None),
            ):
                async with session.request(method, path, json=body) as answer:
                    assert answer.status < 300, await answer.text()
            async with session.get("/metrics") as answer:
                assert answer.status == 200
        assert await server.stop() == 0
    finally:
        await server.end()
    text = trace.read_text(errors="replace")
    made = set(re.findall(r"^\d+ +(?:<\.\.\. )?([a-z][a-z0-9_]*)[( ]", text, re.MULTILINE)) - {"resumed"}
    assert {"io_uring_setup", "fdatasync"} & made
    assert "execve" in made
    unit = (DEPLOY / "mq.service").read_text()
    allowed, denied = re.findall(r"^SystemCallFilter=(~?@\S+)$", unit, re.MULTILINE)
    assert made - (_system_calls(allowed) - _system_calls(denied.removeprefix("~"))) == set()
    assert re.findall(r"^.*(?:mmap|mprotect)\(.*PROT_WRITE\|PROT_EXEC.*$", text, re.MULTILINE) == []
    (families,) = re.findall(r"^RestrictAddressFamilies=(.*)$", unit, re.MULTILINE)
    assert set(re.findall(r"\bsocket\((AF_\w+)", text)) <= set(families.split())


def test_the_example_of_settings_is_one_a_server_starts_with(tmp_path: Path) -> None:
    text = (DEPLOY / "mq.toml").read_text().replace("/var/lib/mq", str(tmp_path / "data"))
    (tmp_path / "mq.toml").write_text(text)
    run(sys.executable, "-m", "gateway", "config", "check", "--config", tmp_path / "mq.toml")


def test_credentials_are_settings_that_there_are() -> None:
    names = re.findall(r"^Environment=(\w+)=%d/(\S+)$", (DEPLOY / "credentials.conf").read_text(), re.MULTILINE)
    loaded = re.findall(r"^LoadCredential=([^:]+):", (DEPLOY / "credentials.conf").read_text(), re.MULTILINE)
    assert [file for _, file in names] == loaded
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert [name for name, _ in names if f"`{name}`" not in page] == []


@needs_promtool
def test_alert_rules_are_valid_fire_when_they_should_and_not_when_they_should_not() -> None:
    run("promtool", "check", "rules", DEPLOY / "alerts.yml")
    run("promtool", "test", "rules", DEPLOY / "alerts_test.yml")


def test_every_metric_of_an_alert_is_on_the_dashboard_and_every_alert_is_tested() -> None:
    text = (DEPLOY / "alerts.yml").read_text()
    names = set(re.findall(r"\bmq_\w+", re.sub(r"^ *what_to_do:.*$|^ *summary:.*$", "", text, flags=re.MULTILINE)))
    shown = (DEPLOY / "grafana.json").read_text()  # tests/gateway/main/test_dashboard.py holds it against a server
    assert len(names) >= 10
    assert [name for name in names if not re.search(rf"\b{name}\{{", shown)] == []
    alerts = set(re.findall(r"- alert: (\w+)", text))
    tested = (DEPLOY / "alerts_test.yml").read_text()
    assert {name for name in alerts if f'alertname="{name}"' not in tested} == set()


@pytest.mark.embedded("copies files of the node's own log")
async def test_the_backup_script_links_what_the_last_one_has_and_removes_old_ones(tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    backups.mkdir()
    settings = {"MQ_STORE_COMMIT_LOG_FILE_BYTES": str(1 << 20), "MQ_STORE_EXTENT_BYTES": str(1 << 18)}
    server = Server(data, {**settings, "MQ_STORE_DISK_FLOOR_BYTES": "0"})
    try:
        await server.start()
        async with aiohttp.ClientSession(server.url) as session:
            async with session.put("/mq/v1/topics/t", json={"partitions": 1}) as answer:
                assert answer.status == 201, await answer.text()
            for _ in range(30):
                body = {"records": [{"value": "A" * 100_000}]}
                async with session.post("/topics/t", json=body) as answer:
                    assert answer.status == 200, await answer.text()
    finally:
        await server.stop()
    mq = tmp_path / "mq"
    mq.write_text(f'#!/bin/sh\ncd {REPOSITORY} && exec {sys.executable} -m gateway "$@"\n')
    mq.chmod(0o755)

    def back_up() -> None:
        run(DEPLOY / "mq-backup.sh", data, backups, "14", MQ=str(mq))

    def made() -> list[Path]:
        return sorted(path for path in backups.iterdir() if (path / "backup.json").exists())

    back_up()
    (first,) = made()
    old = first.rename(backups / "2020-01-01T000000Z")
    assert json.loads((old / "backup.json").read_text())["linked_bytes"] == 0
    os.utime(old / "backup.json", (1, 1))
    (backups / "not-ours").mkdir()
    back_up()
    (second,) = made()
    assert json.loads((second / "backup.json").read_text())["linked_bytes"] >= 1 << 20
    assert not old.exists()
    assert (backups / "not-ours").exists()
    run(mq, "verify", second)


def _stages(text: str) -> Sequence[str]:
    return re.findall(r"^FROM (\S+)", text, re.MULTILINE)


def test_the_container_file_copies_what_there_is_and_builds_on_one_base() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert set(_stages(text)) == {"${BASE}"}
    copied = [name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for name in line.split()]
    assert [name for name in copied if not (REPOSITORY / name).exists()] == []
    assert {"store", "timer", "gateway", "spark_connector", "pyproject.toml"} <= set(copied)
