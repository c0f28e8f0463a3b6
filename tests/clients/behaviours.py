"""What the clients do, and which tests show it: `python -m tests.clients.behaviours > docs/clients.md` (`make
clients`).

The list is clients/behaviours.toml. Python tests say what they show by `@pytest.mark.behaviour(…)`; JavaScript tests
are named in the list, by file and the beginning of the title.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
LIST = REPOSITORY / "clients" / "behaviours.toml"
PAGE = REPOSITORY / "docs" / "clients.md"
JS = REPOSITORY / "clients" / "js"
PYTHON = (
    *sorted((REPOSITORY / "tests" / "clients").rglob("test_*.py")),
    REPOSITORY / "tests/e2e/test_python_client.py",
)

HEAD = """# What the clients do

The clients for [JavaScript](../clients/js/README.md) and [Python](python.md) do the same things in the words of their
languages. Each line is shown by tests of both, against real servers where it is about servers: what is named here is
run by `make test` (soaks by `make test-long`). `make clients` writes this page.
"""


def behaviours() -> list[dict[str, Any]]:
    """The list."""
    with LIST.open("rb") as file:
        listed: list[dict[str, Any]] = tomllib.load(file)["behaviour"]
    return listed


def python_tests() -> dict[int, list[str]]:
    """The tests of the Python client that show each behaviour."""
    shown: dict[int, list[str]] = {}
    for path in PYTHON:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in _numbers(node):
                    shown.setdefault(number, []).append(f"{path.name}: {node.name}")
    return shown


def _numbers(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    for mark in node.decorator_list:
        match mark:
            case ast.Call(func=ast.Attribute(attr="behaviour"), args=arguments):
                yield from (int(ast.literal_eval(argument)) for argument in arguments)
            case _:
                pass


def page() -> str:
    """docs/clients.md."""
    shown = python_tests()
    parts: list[str] = [HEAD]
    part = None
    for one in behaviours():
        if one["part"] != part:
            part = one["part"]
            parts.append(f"\n## {part}\n\n| | | JavaScript | Python |\n|---|---|---|---|\n")
        js = "<br>".join(_short(name) for name in one["js"]) or one["differs"].partition(": ")[2]
        python = "<br>".join(f"`{name}`" for name in shown.get(one["number"], []))
        parts.append(f"| {one['number']} | {one['text']} | {js} | {python} |\n")
    return "".join(parts)


def _short(name: str) -> str:
    path, _, title = name.partition(": ")
    return f"`{Path(path).name}`: {title}"


if __name__ == "__main__":
    print(page(), end="")
