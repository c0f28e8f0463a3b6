"""loadtest.bench.celery."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.celery import measure
from loadtest.process import server


@pytest.mark.matrix
def test_tasks_are_counted_from_the_first_to_the_last(tmp_path: Path) -> None:
    with server(tmp_path / "data") as url:
        sent_per_s, done_per_s = measure(url, tmp_path, "solo", 1, 4, 50)
    assert sent_per_s > 1
    assert done_per_s > 1
    assert len((tmp_path / "done.txt").read_text().splitlines()) == 50
