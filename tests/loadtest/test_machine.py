"""loadtest/bench/machine.py: what a reader must know of the machine before figures of two are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import machine


def watcher(root: Path, number: int, state: str, action: str) -> None:
    """A thread of the kernel with one scheme, as /sys shows it."""
    scheme = root / str(number) / "contexts" / "0" / "schemes" / "0"
    scheme.mkdir(parents=True)
    (root / str(number) / "state").write_text(f"{state}\n")
    (scheme / "action").write_text(f"{action}\n")


@pytest.mark.parametrize(
    ("watchers", "expected"),
    [
        ([], False),
        ([("on", "stat")], False),
        ([("off", "pageout")], False),
        ([("off", "pageout"), ("on", "pageout")], True),
    ],
)
def test_a_kernel_that_pages_out_what_is_not_used_is_told(
    watchers: list[tuple[str, str]], expected: bool, tmp_path: Path
) -> None:
    for number, (state, action) in enumerate(watchers):
        watcher(tmp_path, number, state, action)
    assert machine.pages_out(tmp_path) is expected


def test_how_slow_it_is_is_the_median_of_some_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([9.0, 1.0, 3.04, 1.0, 9.0])  # the first may be of a processor that has just woken up
    monkeypatch.setattr(machine, "slowness", lambda: next(looks))
    assert machine.now_slowness() == 3.0


def test_a_line_of_a_report_has_all_that_makes_figures_differ(tmp_path: Path) -> None:
    facts = {**machine.facts(tmp_path), "cpu": "a CPU", "slowness": 3.1, "memory_gib": 8.0, "pages_out": False}
    line = machine.described(facts)
    assert line.startswith(f"a CPU, {facts['cores']} cores, 3.1 times as slow as our reference")
    assert line.endswith(f"8.0 GiB, Linux {facts['kernel']}, {facts['file_system']}")
    assert "8.0 GiB, memory that is not used for a while is paged out, Linux" in machine.described(
        {**facts, "pages_out": True}
    )


def test_files_of_earlier_runs_can_still_be_told(tmp_path: Path) -> None:
    facts = machine.facts(tmp_path)
    del facts["slowness"], facts["pages_out"]
    assert "reference" not in machine.described(facts)
