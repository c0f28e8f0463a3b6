"""When everything happens: Locust's events, in one process or in a master and its workers.

    master, or the only process                       worker
    --------------------------------------------      -----------------------------------------------
    test_start: names the run, makes its topic   ->   test_start: takes the name from the options that
                                                      Locust sends along; `mq_begun`
    worker_report: adds the counts               <-   report_to_master: counts since the last one
    test_stop: `mq_stop` to those still at work  ->   stops its users
               waits for every ledger            <-   test_stop: `mq_ended` with its ledger
               audits, deletes the topic

Locust ends a headless master before its workers, hence `mq_stop`. A worker that never told its ledger is a failure:
what the server told it is lost.
"""

from __future__ import annotations

import time
from typing import Any, cast
from weakref import WeakKeyDictionary

import gevent
import psutil
from gevent.event import Event
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner
from locust.stats import CSV_STATS_INTERVAL_SEC

from loadtest.load.audit import audit
from loadtest.load.metrics import History, Machine, Report
from loadtest.load.page import add_tab, write_row
from loadtest.load.run import RUNS, CheckFailed, Run, new_name

ROW_S, MASTER_ROW_S = 1.0, 6.0
"""Seconds of a row of the history; workers report every three."""

WORKERS_TIMEOUT_S = 60.0
ALONE = "alone"


class Coordinator:
    """What only the master, or the only process, has."""

    def __init__(self, environment: Environment, run: Run) -> None:
        self._environment = environment
        self.run = run
        self.history = History()
        self._at_work: set[str] = set()
        self._all_ended = Event()
        self._server = _server(environment)
        self._rows = gevent.spawn(self._write_rows)

    def begun(self, worker: str) -> None:
        """A worker takes part."""
        self._at_work.add(worker)
        self._all_ended.clear()

    def ended(self, worker: str, data: dict[str, Any]) -> None:
        """A worker's users have gone; this is what it knows."""
        self.run.ledger.merge(data["acknowledged"], data["consumed"], data["twice"])
        self.run.ways |= set(data["ways"])
        self.reported(worker, data["report"])
        self._at_work.discard(worker)
        if not self._at_work:
            self._all_ended.set()

    def reported(self, process: str, report: Report) -> None:
        """Counts of a process."""
        self.history.add(process, report)

    def finish(self) -> None:
        """Wait for the workers, audit, and clean up when all is well: what failed is left to be looked at."""
        runner = self._environment.runner
        self._rows.kill()
        if isinstance(runner, MasterRunner) and self._at_work:
            for worker in sorted(self._at_work):
                runner.send_message("mq_stop", None, client_id=worker)
            self._all_ended.wait(WORKERS_TIMEOUT_S)
        self._write_row()
        missing = f"{len(self._at_work)} workers never told what they sent" if self._at_work else None
        if isinstance(runner, MasterRunner):
            self.run.report("CHECK", "every worker told what it did", took_ms=0, problem=missing)
        try:
            if audit(self.run) and missing is None:
                self.run.clean()
        except (CheckFailed, OSError) as error:
            self.run.report("CHECK", "audit", took_ms=0, problem=str(error))

    def _write_rows(self) -> None:
        interval_s = MASTER_ROW_S if isinstance(self._environment.runner, MasterRunner) else ROW_S
        while True:
            self._write_row()
            gevent.sleep(interval_s)

    def _write_row(self) -> None:
        runner = self._environment.runner
        if not isinstance(runner, MasterRunner):
            self.reported(ALONE, self.run.metrics.take(time.process_time()))
        server = None
        if self._server is not None and self._server.is_running():
            times = self._server.cpu_times()
            server = Machine(times.user + times.system, self._server.memory_info().rss)
        row = self.history.row(time.time(), runner.user_count if runner is not None else 0, server)
        if row is not None:
            write_row(self._environment, row, is_first=len(self.history.rows) == 1)


COORDINATORS: WeakKeyDictionary[Environment, Coordinator] = WeakKeyDictionary()


def _server(environment: Environment) -> psutil.Process | None:
    options = environment.parsed_options
    pid = getattr(options, "mq_server_pid", None)
    return psutil.Process(pid) if pid else None


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: LocustArgumentParser) -> None:
    """Options of ours, for Locust; not in its page."""
    hidden: dict[str, Any] = {"include_in_web_ui": False}
    parser.add_argument("--mq-server-pid", type=int, help="measure the CPU and memory of this process too", **hidden)
    parser.add_argument("--mq-run", default="", help="made up by the master", **hidden)


@events.init.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Environment, **_: object) -> None:
    """Listen to the other side, and add a tab to the page."""
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        # A greenlet of its own: the handler of messages must go on, or Locust takes the worker for dead.
        runner.register_message("mq_stop", lambda environment, msg: environment.runner.stop(), concurrent=True)
    elif isinstance(runner, MasterRunner):
        runner.register_message("mq_begun", _worker_begun)
        runner.register_message("mq_ended", _worker_ended)
    if environment.web_ui is not None:
        add_tab(environment, lambda: _history(environment))


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def begin(environment: Environment, **_: object) -> None:
    """Name the run and make its topic; or take part in it."""
    options = environment.parsed_options
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        RUNS[environment] = Run(environment, cast(Any, options).mq_run)
        runner.send_message("mq_begun")
        return
    run = Run(environment, new_name())
    if options is not None:
        options.mq_run = run.name  # Locust sends it to every worker with the number of users
    run.prepare()
    RUNS[environment] = run
    COORDINATORS[environment] = Coordinator(environment, run)


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def end(environment: Environment, **_: object) -> None:
    """All users of this process have gone."""
    run = RUNS.pop(environment, None)
    if run is None:
        return
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        last = run.metrics.take(time.process_time())
        runner.send_message("mq_ended", {**run.ledger.packed(), "ways": sorted(run.ways), "report": last})
        return
    COORDINATORS[environment].finish()
    if environment.parsed_options is not None and environment.parsed_options.csv_prefix:
        time.sleep(2 * CSV_STATS_INTERVAL_SEC)  # Locust writes its files now and then, and not at its end


@events.report_to_master.add_listener  # type: ignore[untyped-decorator]
def report(client_id: str, data: dict[str, Any]) -> None:
    """Of a worker, whose process has one environment."""
    for run in RUNS.values():
        data["mq"] = run.metrics.take(time.process_time())


@events.worker_report.add_listener  # type: ignore[untyped-decorator]
def add_report(client_id: str, data: dict[str, Any]) -> None:
    """At the master."""
    for coordinator in COORDINATORS.values():
        if "mq" in data:
            coordinator.reported(client_id, data["mq"])


def _worker_begun(environment: Environment, msg: Any) -> None:
    COORDINATORS[environment].begun(msg.node_id)


def _worker_ended(environment: Environment, msg: Any) -> None:
    COORDINATORS[environment].ended(msg.node_id, msg.data)


def _history(environment: Environment) -> History:
    coordinator = COORDINATORS.get(environment)
    return coordinator.history if coordinator is not None else History()
