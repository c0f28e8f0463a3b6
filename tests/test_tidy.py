"""What no linter knows about this repository, as tests."""

from __future__ import annotations

import ast
import json
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
TESTS = REPOSITORY / "tests"
ROOTS = {
    "store": REPOSITORY,
    "timer": REPOSITORY,
    "gateway": REPOSITORY,
    "pyspark_mq": REPOSITORY / "spark_connector",
    "mq": REPOSITORY / "clients" / "python",
}
"""Packages, and the directories they are imported from."""

TESTED_THROUGH_OTHERS = {
    "gateway.__main__": "e2e/server.py",
    "gateway.api.shapes.server": "gateway/surfaces/native/test_stats.py",
    "gateway.api.topics": "gateway/surfaces/native/test_topics.py",
    "gateway.brokers.kafka.attached_writer": "gateway/brokers/kafka/test_attached.py",
    "gateway.cli.bench": "gateway/cli/test_cli.py",
    "gateway.cli.cluster": "gateway/cluster/test_cluster_backup.py",
    "gateway.cli.config": "gateway/cli/test_token.py",
    "gateway.cli.dump": "gateway/cli/test_cli.py",
    "gateway.cli.partition": "gateway/cluster/test_served.py",
    "gateway.cli.send": "gateway/cli/test_cli.py",
    "gateway.cli.serve": "gateway/cli/test_cli.py",
    "gateway.cli.status": "gateway/cli/test_cli.py",
    "gateway.cli.tail": "gateway/cli/test_cli.py",
    "gateway.cli.topic": "gateway/cli/test_cli.py",
    "gateway.cli.trail": "gateway/cli/test_offline.py",
    "gateway.cluster.move_stats": "gateway/cluster/test_served.py",
    "gateway.codec.topic_configs": "gateway/surfaces/native/test_topics.py",
    "gateway.groups.coordinator.light_offsets": "gateway/surfaces/ws/test_light.py",
    "gateway.main.shards": "gateway/main/test_recurring_shards.py",
    "gateway.groups.coordinator.waiting": "gateway/groups/coordinator/test_many_partitions.py",
    "gateway.main.group_shards": "gateway/brokers/kafka/test_groups_served.py",
    "gateway.main.readings": "gateway/surfaces/native/test_stats.py",
    "gateway.main.recurring_names": "gateway/cluster/test_served.py",
    "gateway.main.storeless": "gateway/main/test_workers.py",
    "gateway.main.worker": "gateway/main/test_workers.py",
    "gateway.main.worker_counts": "gateway/main/test_workers.py",
    "gateway.surfaces.http.access_log": "gateway/security/test_server.py",
    "gateway.surfaces.http.fetching": "gateway/surfaces/rest_v2/test_fetch.py",
    "gateway.surfaces.http.gathering": "gateway/cluster/test_served.py",
    "gateway.surfaces.http.light": "gateway/surfaces/ws/test_light.py",
    "gateway.surfaces.http.plain_stream": "gateway/surfaces/http/test_fast_path.py",
    "gateway.surfaces.http.reading": "gateway/surfaces/http/test_application.py",
    "gateway.surfaces.kafka.by_hand": "gateway/surfaces/kafka/test_produce.py",
    "gateway.surfaces.kafka.sasl": "e2e/test_kafka.py",
    "gateway.surfaces.kafka.trail": "gateway/surfaces/kafka/test_rights.py",
    "gateway.surfaces.native.audit": "gateway/surfaces/http/test_auditing.py",
    "gateway.surfaces.native.connections": "gateway/surfaces/native/test_access.py",
    "gateway.surfaces.native.me": "gateway/surfaces/native/test_stats.py",
    "gateway.surfaces.native.tickets": "gateway/security/test_server.py",
    "gateway.surfaces.openapi.schemas.sent": "gateway/surfaces/openapi/test_document.py",
    "gateway.surfaces.openapi.schemas.settings": "gateway/surfaces/openapi/test_document.py",
    "gateway.surfaces.openapi.schemas.shown": "gateway/surfaces/openapi/test_document.py",
    "gateway.surfaces.peer.light": "gateway/cluster/test_light_moves.py",
    "gateway.surfaces.rest_v2.plain": "gateway/surfaces/http/test_fast_path.py",
    "gateway.surfaces.rest_v2.topics": "gateway/surfaces/native/test_topics.py",
    "gateway.surfaces.rest_v3.groups": "gateway/surfaces/rest_v3/test_resources.py",
    "gateway.surfaces.rest_v3.records": "gateway/surfaces/rest_v3/test_resources.py",
    "gateway.surfaces.rest_v3.schema_data": "gateway/surfaces/rest_v2/test_schema_records.py",
    "gateway.surfaces.sse.light_stream": "gateway/surfaces/ws/test_light.py",
    "gateway.surfaces.ws.commits": "gateway/surfaces/ws/test_stream.py",
    "gateway.surfaces.ws.feed": "gateway/surfaces/ws/test_sessions.py",
    "gateway.surfaces.ws.metrics": "gateway/surfaces/native/test_ops.py",
    "gateway.surfaces.ws.sends": "gateway/surfaces/ws/test_conformance.py",
    "gateway.surfaces.ws.settling": "gateway/surfaces/ws/test_conformance.py",
    "mq.clock": "clients/python/peer.py",
    "mq.leases": "clients/python/test_queue.py",
    "mq.message": "clients/python/test_behaviours.py",
    "mq.partitioned": "clients/python/test_read.py",
    "mq.record": "clients/python/test_send.py",
    "mq.subscription": "clients/python/test_read.py",
    "mq.testing.fake": "clients/python/test_testing.py",
    "mq.testing.fixtures": "clients/python/test_testing.py",
    "mq.testing.recurring": "clients/python/test_behaviours.py",
    "pyspark_mq.catalog": "spark/test_batch.py",
    "timer.key_rows": "timer/test_schedule_keys.py",
    "timer.recovery": "timer/test_crash.py",
}
"""Modules that have no test file of their own and that no test imports, and where each is tested nevertheless: over
HTTP, from the command line or through the module it belongs to. Words in a docstring are no test."""

TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".js",
    ".mjs",
    ".ts",
    ".json",
    ".yml",
    ".yaml",
    ".cfg",
    ".sh",
    ".html",
    ".css",
    "",
}
FOREIGN = {"node_modules", "__pycache__", "artifacts", "build", "dist"}

# Written in pieces, so that this file does not find itself.
PATHS_OF_ONE_MACHINE = re.compile(
    "|".join(["/" + "root/", "/" + r"home/\w+/", "/" + "Users/", "/" + "work/", r"\." + "pyenv/"])
)


def source_files() -> Iterator[Path]:
    """The modules of all packages."""
    for package, root in ROOTS.items():
        yield from sorted(path for path in (root / package).rglob("*.py") if not FOREIGN & set(path.parts))


def module_name(path: Path) -> str:
    root = next(root for package, root in ROOTS.items() if path.is_relative_to(root / package))
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def text_files() -> Iterator[Path]:
    """Everything people read in this repository."""
    for directory, folders, names in os.walk(REPOSITORY):
        # Pruned here: a virtual environment has a hundred thousand files.
        folders[:] = sorted(name for name in folders if not is_hidden(name) and name not in FOREIGN)
        for path in (Path(directory, name) for name in sorted(names) if not is_hidden(name)):
            if path.suffix in TEXT_SUFFIXES and path.is_file():
                yield path


def is_hidden(name: str) -> bool:
    """Whether a file or folder is a tool's own."""
    return name.startswith(".") and name not in (".ci", ".gitignore")


def files_of_tests() -> Iterator[Path]:
    yield from sorted(TESTS.rglob("*.py"))


class Used(NamedTuple):
    """What a file of the tests imports and names, and its lines with `time.sleep`."""

    modules: set[str]
    words: set[str]
    sleeps: list[int]


@cache
def used_by_tests() -> dict[Path, Used]:
    """What is asked of each file; not its tree, which every later collection of garbage would look at."""
    found = {}
    for path in files_of_tests():
        nodes = list(ast.walk(ast.parse(path.read_text())))
        found[path] = Used({*imported_modules(nodes)}, {*words(nodes)}, [*calls(nodes, "time", "sleep")])
    return found


def imported_modules(nodes: list[ast.AST]) -> Iterator[str]:
    """Absolute names of what a file imports: `from a import b` names a and a.b, as b may be a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def limits_of(path: Path) -> Iterator[tuple[str, str]]:
    """Constants of a module and fields of its dataclasses; with each, the constant it repeats, or itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Assign(targets=[ast.Name(name)]) if name.isupper():
                yield name, name
            case ast.AnnAssign(target=ast.Name(name), value=ast.Name(repeated)):
                yield name, repeated
            case ast.AnnAssign(target=ast.Name(name)):
                yield name, name
            case _:
                pass


def words(nodes: list[ast.AST]) -> Iterator[str]:
    """Every name that code uses, strings that are one name, and a setting's own name: the c of `a__b__c=1`. What
    comments and docstrings say does not count."""
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)) if " " not in name:
                yield re.split(r"__|\.", name)[-1]
            case _:
                pass


def is_tested(module: str, imported: set[str]) -> bool:
    """A test imports the module, or lies in its mirror image: tests/a/b/test_c.py for a.b.c."""
    *packages, name = module.split(".")
    mirrors = {"pyspark_mq": "spark", "mq": "clients/python"}
    mirror = TESTS.joinpath(*(mirrors.get(package, package) for package in packages), f"test_{name}.py")
    return module in imported or mirror.exists()


def calls(nodes: list[ast.AST], owner: str, name: str) -> Iterator[int]:
    """Lines that call `owner.name(...)`."""
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == name
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == owner
        ):
            yield node.lineno


def test_every_module_says_what_it_is() -> None:
    texts = {
        module_name(path): path.read_text()
        for path in source_files()
        if path.name != "__init__.py" or path.stat().st_size
    }
    assert len(texts) > 200
    assert [name for name, text in texts.items() if not text.startswith('"""')] == [], "no module docstring"


def test_every_module_has_a_test() -> None:
    imported = {name for used in used_by_tests().values() for name in used.modules}
    modules = {module_name(path) for path in source_files() if path.name != "__init__.py"}
    untested = {module for module in modules if not is_tested(module, imported)}
    without = sorted(untested - TESTED_THROUGH_OTHERS.keys())
    assert not without, f"write a test, or say in TESTED_THROUGH_OTHERS where there is one: {', '.join(without)}"
    outdated = sorted(TESTED_THROUGH_OTHERS.keys() - untested)
    assert not outdated, f"these have a test now, or are gone: {', '.join(outdated)}"
    assert [path for path in TESTED_THROUGH_OTHERS.values() if not (TESTS / path).exists()] == []


def test_every_fixed_limit_is_used_in_a_test() -> None:
    used = {word for one in used_by_tests().values() for word in one.words}
    limits = {limit for path in source_files() if path.name == "limits.py" for limit in limits_of(path)}
    assert len(limits) >= 10
    unused = sorted(name for name, same in limits if not {name, same} & used)
    assert not unused, f"no test uses {', '.join(unused)}"


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if PATHS_OF_ONE_MACHINE.search(line)
    ]
    assert found == []


def test_no_test_sleeps_outside_e2e() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path, used in used_by_tests().items()
        if "e2e" not in path.parts
        for line in used.sleeps
    ]
    assert found == []


def test_nothing_is_left_to_do_without_an_issue() -> None:
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b(?!.*#\d+)")
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in text_files()
        if path.suffix in (".py", ".js", ".mjs", ".ts", "")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if mark.search(line)
    ]
    assert found == []


def test_packages_that_are_called_typed_say_so_to_type_checkers() -> None:
    """PEP 561: without the file a checker ignores the annotations of an installed package."""
    packages = []
    for distribution in (REPOSITORY, REPOSITORY / "clients" / "python"):
        project = tomllib.loads((distribution / "pyproject.toml").read_text())
        assert "Typing :: Typed" in project["project"]["classifiers"]
        names = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        packages += [distribution / name for name in names]
    assert len(packages) == len(ROOTS)
    assert [package for package in packages if not (package / "py.typed").exists()] == []


def test_whatever_names_the_version_names_the_same() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    python = tomllib.loads((REPOSITORY / "clients" / "python" / "pyproject.toml").read_text())["project"]["version"]
    package, lock = (
        json.loads((REPOSITORY / "clients" / "js" / name).read_text()) for name in ("package.json", "package-lock.json")
    )
    assert {python, package["version"], lock["version"], lock["packages"][""]["version"]} == {version}
    headings = re.findall(r"^## (\S+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(name for name in headings if name != "Unreleased") == version
    assert f"\n### {version}\n" in (REPOSITORY / "docs" / "upgrade.md").read_text()


def test_every_test_directory_is_a_package() -> None:
    """Two test files may have the same name only inside packages."""
    directories = {path.parent for path in files_of_tests()}
    assert {d.relative_to(REPOSITORY).as_posix() for d in directories if not (d / "__init__.py").exists()} == set()
