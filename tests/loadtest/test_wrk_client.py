"""wrk as a load client: how it is called and what is read of its output, with a stand-in for wrk."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.request import Load, Request, RunFailed
from loadtest.bench.wrk_client import WrkClient, parse

STAND_IN = """#!/bin/sh
echo "Running 1s test"
printf '%s\\n' "$@" > {log}
cat "$9" > {log}.body
echo "RESULT 1200 3 2000000 1500 9000"
"""


def test_the_result_line_is_found_among_others() -> None:
    output = "Running 1s test @ http://127.0.0.1\n  2 threads\nRESULT 100 0 1000000 250 4000\n"
    assert parse(output) == Load(100, 0, 1.0, 0.25, 4.0)


def test_output_without_a_result_is_a_failed_run() -> None:
    with pytest.raises(RunFailed, match="unable to connect"):
        parse("unable to connect to 127.0.0.1:1 Connection refused\n")


async def test_wrk_gets_the_request_and_whole_seconds(tmp_path: Path) -> None:
    log = tmp_path / "called"
    executable = tmp_path / "wrk"
    executable.write_text(STAND_IN.format(log=log))
    executable.chmod(0o755)
    request = Request("POST", "/topics/t?x=1", {"Content-Type": "text/plain"}, b"the body")
    load = await WrkClient(str(executable)).drive("http://127.0.0.1:9", request, connections=32, duration_s=0.8)
    assert load == Load(1200, 3, 2.0, 1.5, 9.0)
    arguments = log.read_text().splitlines()
    assert arguments[:3] == ["-t1", "-c32", "-d1s"]
    assert arguments[5:8] == ["http://127.0.0.1:9/topics/t?x=1", "--", "POST"]
    assert arguments[9:] == ["Content-Type", "text/plain"]
    assert (tmp_path / "called.body").read_bytes() == b"the body"
    assert not Path(arguments[8]).exists()


async def test_wrk_gets_requests_that_are_sent_in_turn_each_behind_its_length(tmp_path: Path) -> None:
    executable = tmp_path / "wrk"
    executable.write_text(STAND_IN.format(log=tmp_path / "called"))
    executable.chmod(0o755)
    request, each = Request("POST", "/", {"Content-Type": "text/plain"}), [b"POST /1\n\n", b"POST /two"]
    await WrkClient(str(executable)).drive("http://127.0.0.1:9", request, connections=1, duration_s=1, each=each)
    assert (tmp_path / "called").read_text().splitlines()[9:] == ["EACH"]
    assert (tmp_path / "called.body").read_bytes() == b"9\nPOST /1\n\n9\nPOST /two"
