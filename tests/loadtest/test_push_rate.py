"""What a record costs from its POST to its push: every way out gets every record."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.push_rate import WAYS, compare
from loadtest.process import running_server


@pytest.mark.matrix
async def test_every_way_is_compared_at_a_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(tmp_path / "this") as this, running_server(tmp_path / "other") as other:
        await compare([this, other], list(WAYS), [500], rounds=5, run_s=0.2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == [f"| {way}" for way in WAYS]
