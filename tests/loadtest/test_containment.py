"""loadtest/bench/containment.py on a directory that looks like a cgroup file system, v1 and v2."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.containment import MEMORY_BYTES, memory_limited


@pytest.mark.parametrize(("parent", "limit"), [("memory", "memory.limit_in_bytes"), ("", "memory.max")])
def test_servers_are_in_a_group_of_their_own_while_they_are_measured(parent: str, limit: str, tmp_path: Path) -> None:
    (tmp_path / parent).mkdir(exist_ok=True)
    group = tmp_path / parent / "mq-bench-mq"
    with memory_limited("mq", [7], tmp_path) as said:
        assert said.startswith("2 GiB")
        assert (group / limit).read_text() == str(MEMORY_BYTES)
        assert (group / "cgroup.procs").read_text() == "7"
    assert (tmp_path / parent / "cgroup.procs").read_text() == "7"  # back where all are


def test_where_there_are_no_groups_it_says_so(tmp_path: Path) -> None:
    with memory_limited("mq", [7], tmp_path / "none") as said:
        assert said == "not limited: No such file or directory"
