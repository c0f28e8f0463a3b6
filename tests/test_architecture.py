"""docs/architecture.md: every function and test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


@lru_cache
def functions(file: str) -> set[str]:
    """Of a module and its classes."""
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_functions_of_the_hops_exist() -> None:
    rows = re.findall(r"^\| \d+ \|[^|]*\| `([^`|]+\.py)` \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| \d+ \|", PAGE, re.MULTILINE)) > 20
    for file, cell in rows:
        named = set(re.findall(r"`(\w+)`", cell))
        assert named
        assert named <= functions(file), file


def test_each_old_disagreement_has_its_test() -> None:
    rows = [row for row in PAGE.split("## What surfaces")[1].splitlines() if row.startswith("| ")]
    for row in rows[1:]:
        named = re.fullmatch(r"\|.+\| `(test_\w+\.py)::(test_\w+)` \|", row)
        assert named is not None, row
        file, test = named.groups()
        assert test in functions(f"tests/gateway/surfaces/{file}"), test
    assert len(rows) > 10
