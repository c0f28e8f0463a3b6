"""`python -m loadtest.bench.kafka_broker_trees OTHER`: CPU that a record on its way into a partition in Kafka costs the
server of this checkout and of another one.

As `loadtest.bench.trees`, of the works `in` of kafka_broker.py that go through mq: both servers are up at once, beside
one Apache Kafka of one node, and take turns, the first of a round alternating. What counts is the CPU time of each
server's process (user and system): rates of a shared machine are not told apart. Lines have seconds per million records
of both (medians), and the mean of the rounds' ratios, this / other, with its interval of 95 %.

The other checkout is run with this one's Python and packages. Nothing is written into it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from loadtest.bench import kafka_broker_work as works
from loadtest.bench import librdkafka
from loadtest.bench.kafka_broker import HTTP, PORT, SIZES
from loadtest.bench.kafka_broker_work import Run, Subjects
from loadtest.peers.fetch import TOOLS
from loadtest.peers.kafka import Kafka
from loadtest.peers.servers import free_port
from loadtest.process import end_when_told, running_server
from loadtest.stats import mean_ratio

ROUNDS = 8
RUN_S = 1.5
COUNTS = {100: 1_200_000, 1_000: 250_000}
"""Records that librdkafka sends in a run, by their size."""


class Work(NamedTuple):
    """Records of a size, by a way. `records`: of a way that sends so many."""

    name: str
    run: Run
    records: int = 0


WORKS = tuple(
    work
    for size, shown in SIZES.items()
    for work in (
        Work(f"records of {shown} in, {HTTP}", works.raw_in(size)),
        Work(f"records of {shown} in, {PORT}", works.client_in(size), COUNTS[size]),
    )
)


@contextmanager
def both(other: Path, directory: Path) -> Iterator[Sequence[Subjects]]:
    """The servers of this checkout and of the other one, and the Kafka that is a broker of both. Raises Unavailable,
    Died."""
    peer = Kafka()
    peer.prepare(TOOLS)
    (directory / "kafka").mkdir(parents=True)
    with ExitStack() as stack:
        kafka = stack.enter_context(peer.serve(TOOLS, directory / "kafka", peer.levels[0]))
        broker = f"{works.BROKER}=kafka://{kafka.endpoint}?replication=1&min_insync=1"
        subjects = []
        for name, tree in (("this", Path.cwd()), ("other", other.absolute())):
            port = free_port()
            flags = ("--kafka-port", str(port), "--broker", broker, "--log-level", "warning")
            mq = stack.enter_context(running_server(directory / name, *flags, tree=tree))
            subjects.append(Subjects(mq.url, f"127.0.0.1:{port}", kafka.endpoint, mq.pid, kafka.pids[0], ""))
        yield subjects


def cost_s(at: Subjects, work: Work, topic: str) -> float:
    """CPU seconds per million records that one run costs mq's server, on a topic of its own."""
    works.make_moved(at, topic)
    began_s = at.cpu_s()["mq"]
    done = work.run(at, topic, work.records, RUN_S)
    taken_s = at.cpu_s()["mq"] - began_s
    works.drop_moved(at, topic)
    return taken_s / done.records * 1e6


def measured(subjects: Sequence[Subjects], work: Work, rounds: int) -> Sequence[Sequence[float]]:
    """What each run of each server costs, behind one that does not count."""
    found: list[list[float]] = [[] for _ in subjects]
    for number in range(rounds + 1):
        order = range(len(subjects)) if number % 2 else reversed(range(len(subjects)))
        for index in order:
            cost = cost_s(subjects[index], work, f"{WORKS.index(work)}-{number}-{index}")
            if number:
                found[index].append(cost)
    return found


def line(name: str, this: Sequence[float], other: Sequence[float]) -> str:
    """A row of the table."""
    ratio = mean_ratio(this, other)
    costs = f"{median(this):.2f} | {median(other):.2f}"
    return f"| {name} | {costs} | {ratio.median:.2f} ({ratio.low:.2f} - {ratio.high:.2f}) |"


def main() -> None:
    """Measure, and print a table."""
    end_when_told()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of mq")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="5 at least")
    parser.add_argument("--only", default="", help="parts of the names of works, with '; ' between them")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where servers keep their files; a disk")
    asked = parser.parse_args()
    librdkafka.rdkafka_performance(TOOLS)
    chosen = [work for work in WORKS if any(part in work.name for part in asked.only.split("; "))]
    with (
        tempfile.TemporaryDirectory(prefix="mq-trees-", dir=asked.dir) as directory,
        both(asked.other, Path(directory)) as subjects,
    ):
        print("| work | this, CPU s per million records | other | this / other |\n|---|---:|---:|---|", flush=True)
        for work in chosen:
            this, other = measured(subjects, work, asked.rounds)
            print(line(work.name, this, other), flush=True)


if __name__ == "__main__":
    main()
