"""For all tests: failures of Hypothesis print what reproduces them, slow machines are no failures, and every answer
that a test receives is one that the served documents declare (tests/contract.py). What tests start can be interrupted,
also where the tests are a shell's background job, which begins with SIGINT ignored and would hand that on.

CI tries the same examples each time, so that it judges the change and not the dice; `make test` and `make torture`
elsewhere look for new ones. With MQ_NO_SKIP=1 a test that is skipped fails: CI has every tool and right that one needs.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests import fork_server, kafka_only

settings.register_profile("mq", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("mq")


def interrupted(number: int, frame: FrameType | None) -> None:
    """Python's own handler, and not known as such to asyncio, which would put one of its own there, and that one back,
    each time that a test or fixture is run on a loop: a fiftieth of the processor time of tests of a surface."""
    signal.default_int_handler(number, frame)


signal.signal(signal.SIGINT, interrupted)

gc.disable()  # until all tests are collected: they are a million objects, none of them garbage

# Without bytecode on disk, as container images often are, each server that a test starts compiles 300 modules: twice
# the processor time of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A server refuses settings that it does not know, so what the tests start must not inherit this one. Workers do.
if "MQ_NO_SKIP" in os.environ:
    os.environ["PYTEST_NO_SKIP"] = os.environ.pop("MQ_NO_SKIP")


kafka_only.take_from_environment()


@pytest.fixture(scope="session", autouse=True)
def kafka_is_the_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if kafka_only.is_asked_for():
        yield from kafka_only.serving(tmp_path_factory.mktemp("kafka"))
    else:
        yield


@pytest.fixture(scope="session", autouse=True)
def answers_are_as_declared() -> Iterator[None]:
    from tests import contract  # half of all that this file would import, for the process that only distributes files

    yield from contract.install()


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """The processes that run files side by side are forked from one that has imported them: each by itself would take
    six seconds of processor time for that."""
    if config.rootpath == REPOSITORY:
        installed = fork_server.install(tested=[arg.partition("::")[0] for arg in config.args])
        next(installed)
        config.add_cleanup(lambda: deque(installed))


@pytest.fixture(scope="session", autouse=True)
def servers_are_forked() -> Iterator[None]:
    yield from fork_server.install()


REPOSITORY = Path(__file__).parents[1]
WAITING = ("spark", "turns", "e2e", "cluster", "clients", "loadtest")
"""Names of folders whose tests mostly wait for processes that they have started."""

SLOW_FIRST = (*WAITING, "properties", "timer", "crash")
"""Names of folders."""

LONGEST_FIRST = (
    "e2e/test_js.py", "e2e/test_console.py", "e2e/test_kill9.py",
    "cluster/test_served.py", "e2e/test_kombu.py", "e2e/test_demo.py", "python/test_worker_cli.py", "e2e/test_kafka.py",
    "properties/test_store_crash.py", "crash/test_rocksdb_index.py", "coordinator/test_crash.py",
    "schemas/test_converter.py", "index/test_consume_queues.py", "crash/test_disk_errors.py", "crash/test_power_cut.py",
    "timer/test_crash.py", "offline/test_index_rebuild.py", "main/test_no_store.py", "cli/test_cli.py",
    "crash/test_bitflips.py", "offline/test_repair.py", "timer/test_service.py",
)  # fmt: skip
"""Files that took the most time when each was measured, those that wait before those that compute: begun late, one of
them is what the whole run waits for."""

COMPUTING_SHARE = 3
"""One in so many workers takes the other files first."""

GARBAGE_THRESHOLDS = (20_000, 20, 20)
"""Objects that come into being between two looks for garbage, and how many looks pass between two at older ones."""

LEFT_OUT = pytest.StashKey[list[str]]()
MUTANT = "::test_every_mutant_is_killed["
Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)


def _insisted(report: Report) -> Report:
    """A skip as a failure, where nothing may be skipped."""
    if report.skipped and os.environ.get("PYTEST_NO_SKIP"):
        report.outcome = "failed"
        report.longrepr = f"not to be skipped with MQ_NO_SKIP: {report.longrepr}"
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test is run with each seed. The long ones are thousands: where they are left out each process would make them
    only to leave them out, which took a third of the time that collecting takes."""
    if (mark := metafunc.definition.get_closest_marker("seeds")) is not None:
        quick, count = mark.args
        is_short = "not long" in metafunc.config.option.markexpr
        more = () if is_short else (seed for seed in range(count) if seed not in quick)
        metafunc.parametrize("seed", [*quick, *(pytest.param(seed, marks=pytest.mark.long) for seed in more)])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """A test that leaves a handler on the process's log fails: the handler's stream is closed when the test has ended,
    and what a later test logs puts `Logging error` on its stderr."""
    yield
    root = logging.getLogger()
    left = [handler for handler in root.handlers if not type(handler).__module__.startswith("_pytest.")]
    for handler in left:
        root.removeHandler(handler)
    assert not left, f"left on the root logger: {left}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _insisted((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _insisted((yield))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes long first: side by side, no worker then waits for one file at the end."""
    if kafka_only.is_asked_for() and (out := kafka_only.left_out(items)):
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=list(out))
        config.stash[LEFT_OUT] = [f"{item.nodeid}: {reason}" for item, reason in out.items()]
    items.sort(key=lambda item: begins(item.path))


@cache
def begins(path: Path) -> tuple[int, int]:
    """The lowest first: tests with Spark's JVM, LONGEST_FIRST, those of SLOW_FIRST, then the others, of which large
    files tend to take longer."""
    slow = min((SLOW_FIRST.index(part) for part in path.parts if part in SLOW_FIRST), default=None)
    name = "/".join(path.parts[-2:])
    if name in LONGEST_FIRST:
        return 1, LONGEST_FIRST.index(name)
    if slow is None:
        return len(SLOW_FIRST) + 1, -path.stat().st_size
    return (slow + 1 if slow else 0), 0


def pytest_collection_finish() -> None:
    """Collections of garbage need not look at the tests, now or later: each took half a second. They look as rarely as
    those of a server: as often as Python would have them, they took a tenth of the tests' processor time."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()


@cache
def uses_spark(file: str) -> bool:
    """Whether tests of this file take the session of tests/spark/conftest.py."""
    return file.startswith("tests/spark/") and "spark: SparkSession" in (REPOSITORY / file).read_text()


class FilesByKind(LoadFileScheduling):
    """A file is run by one worker, and so are all files that use Spark: each worker would start a JVM of its own.

    Tests that wait and tests that compute run beside each other: while all workers waited at first, and all computed
    later, the cores were idle for a quarter of the time, and then shared by too many.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if uses_spark(file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        nodes = self.nodes
        if len(nodes) > 1:
            waits = nodes.index(node) >= max(1, len(nodes) // COMPUTING_SHARE)
            of_kind = next((scope for scope in self.workqueue if is_waiting(scope) is waits), None)
            if of_kind is not None:
                self.workqueue.move_to_end(of_kind, last=False)
        super()._assign_work_unit(node)


def is_waiting(scope: str) -> bool:
    """Whether the tests of a file mostly wait."""
    return not set(WAITING).isdisjoint(scope.split("/"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FilesByKind | None:
    return FilesByKind(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many mutants were killed, where some were tried (tests/crash/test_mutants.py); what was left out."""
    if told := terminalreporter.config.stash.get(LEFT_OUT, None):
        terminalreporter.section("not with Kafka as the only broker")
        for line in told:
            terminalreporter.line(line)
    tried = {
        outcome: [report.nodeid for report in terminalreporter.getreports(outcome) if MUTANT in report.nodeid]
        for outcome in ("passed", "failed")
    }
    killed, survived = tried["passed"], tried["failed"]
    if killed or survived:
        terminalreporter.section(f"mutants: {len(killed)} of {len(killed) + len(survived)} killed")
        for nodeid in survived:
            terminalreporter.line(f"survived: {nodeid.partition('[')[2].rstrip(']')}")
