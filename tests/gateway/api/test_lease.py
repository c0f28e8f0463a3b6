"""gateway/api/lease.py: what a consumer has in its hands, and who says that there is room again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.lease import AllLeases, Lease, Leases
from gateway.api.workers import SWEEP_COUNT, Pollers
from gateway.groups.machines.receipts import RunReceipts
from gateway.groups.protocol import LEASE_OVER, RECEIPT_ILLEGAL, Accepted, Run, Settled
from store.record_batch import Record, decode, encode


def message(offset: int, *, partition: int = 0, until_ms: int = 100, count: int = 1) -> Run:
    records = list(decode(encode([Record(None, b"1", 0)] * count)))
    receipts = [f"r{partition}-{offset + index}" for index in range(count)]
    return Run("t", partition, offset, records, 0, True, False, 1, receipts, until_ms)


def holding(*runs: Run, frame: int = 0) -> tuple[Leases, list[tuple[int, int]]]:
    """And what it tells of those that are done: how many, and their bytes."""
    done: list[tuple[int, int]] = []
    leases = Leases(lambda *told: done.append(told))
    leases.took(runs, [10] * sum(len(run.receipts) for run in runs), frame)
    return leases, done


def test_records_of_runs_are_held_each_by_itself() -> None:
    leases = Leases(lambda *_: None)
    of_queue = message(7, partition=1, until_ms=90)._replace(queue="q", queue_offset=3)
    leases.took([message(5, count=2), of_queue], [11, 12, 13], frame=4)
    assert (len(leases), leases.next_end_ms) == (3, 90)
    assert leases.take_after(0) == [
        Lease("t", 0, 5, 100, "r0-5", 4, 11), Lease("t", 0, 6, 100, "r0-6", 4, 12),
        Lease("t/q", 1, 3, 90, "r1-7", 4, 13),
    ]  # fmt: skip
    leases.took([message(5, count=2)])
    assert [lease.byte_count for lease in leases.take_after(-1)] == [0, 0]


def test_what_was_all_accepted_leaves_and_the_rest_is_for_others() -> None:
    for is_extended in (False, True):  # then there are two receipts of a lease
        leases, done = holding(message(0, count=3))
        if is_extended:
            leases.extended([Settled("r0-2", True, new_receipt="n")], 500)
        assert list(leases.settled(Accepted(["r0-0", "of nobody", "r0-1"]))) == [Settled("of nobody", True)]
        assert not leases.settled(Accepted(["n" if is_extended else "r0-2"]))
        assert (done, len(leases)) == ([(2, 20), (1, 10)], 0)


def of_run(signed: str, first: int, count: int, *, until_ms: int) -> Run:
    return message(first, count=count, until_ms=until_ms)._replace(receipts=RunReceipts(signed, first, count))


RECEIPTS = [f"{signed}.{index}" for signed in "abc" for index in range(6)]
SOME = st.one_of(
    st.builds(RunReceipts, st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 6)),
    st.lists(st.sampled_from([*RECEIPTS, "a.new", "of nobody"]), max_size=4),
)


@given(st.lists(st.tuples(st.sampled_from(
    ("took", "took", "accepted", "accepted", "settled", "extended", "sweep", "up_to", "take_after"),
), SOME, st.integers(0, 5)), max_size=12))  # fmt: skip
def test_a_run_that_is_kept_as_one_is_what_its_records_are(
    calls: list[tuple[str, RunReceipts | list[str], int]],
) -> None:
    """A ledger, and the consumers that poll, that are given runs, beside ones that are given the texts."""
    done: list[list[tuple[int, int]]] = [[], []]
    ledgers = [Leases(lambda *told, to=to: to.append(told)) for to in done]
    pollers, given_out = [Pollers(), Pollers()], set[str]()
    for number, (call, some, index) in enumerate(calls, 1):
        results = [Settled(one, index > 1, None if index > 1 else LEASE_OVER) for one in some]
        told: list[object] = []
        is_new = isinstance(some, RunReceipts) and not given_out.intersection(some)
        if call == "took" and is_new:
            assert isinstance(some, RunReceipts)
            given_out.update(some)
            run = of_run(some.signed, some.first, some.size, until_ms=10 * index)
            for one, own in enumerate((run, run._replace(receipts=list(run.receipts)))):
                ledgers[one].took([own], list(range(len(run.receipts))), number)
                pollers[one].took(f"c{index}", own.receipts, own.until_ms, number)
        for ledger, polled in zip(ledgers, pollers, strict=True):
            if call == "accepted":
                told.append((list(ledger.settled(Accepted(some))), list(polled.settled(Accepted(some)))))
            elif call == "settled":
                told.append((list(ledger.settled(results)), list(polled.settled(results))))
            elif call == "extended":
                renewed = [one._replace(new_receipt=f"{one.receipt}.new") for one in results]
                told.append((ledger.extended(renewed, 20 * index), polled.extended(renewed, 20 * index)))
            elif call == "sweep":
                told.append((ledger.sweep(10 * index), polled.workers(10 * index)))
            elif call == "up_to":
                told.append((sorted(ledger.up_to("t", 0, index)), polled.held()))
            elif call == "take_after":
                told.append(sorted(ledger.take_after(number - index)))
            told.append((len(ledger), ledger.next_end_ms))
        assert told[: len(told) // 2] == told[len(told) // 2 :]
        assert done[0] == done[1]
    assert sorted(ledgers[0].receipts()) == sorted(ledgers[1].receipts())


def test_runs_of_consumers_that_poll_are_bounded_as_receipts_are() -> None:
    pollers = Pollers()
    for number in range(SWEEP_COUNT + 1):
        assert len(pollers._runs) == number
        pollers.took("ann", RunReceipts(f"r{number}", 0, 2), until_ms=number, now_ms=number)
    assert not pollers._runs


def test_a_lease_that_is_over_counts_no_more() -> None:
    leases, done = holding(message(0), message(1, until_ms=50))
    assert (len(leases), leases.next_end_ms) == (2, 50)
    leases.sweep(49)
    assert len(leases) == 2
    leases.sweep(50)
    assert (len(leases), leases.next_end_ms, leases.receipts(), done) == (1, 100, ["r0-0"], [(1, 10)])


def test_what_is_settled_or_found_over_leaves_and_the_rest_is_for_others() -> None:
    leases, done = holding(message(0), message(1), message(2))
    illegal, strange = Settled("r0-2", False, RECEIPT_ILLEGAL), Settled("of nobody", True)
    assert leases.settled([Settled("r0-0", True), Settled("r0-1", False, LEASE_OVER), illegal, strange]) == [
        illegal, strange,
    ]  # fmt: skip
    assert (done, leases.receipts()) == ([(2, 20)], ["r0-2"])


def test_an_extended_lease_ends_later_and_both_its_receipts_are_good() -> None:
    for receipt in ("r0-0", "second"):
        leases, done = holding(message(0))
        leases.extended([Settled("r0-0", True, new_receipt="first")], 500)
        assert leases.extended([Settled("first", True, new_receipt="second")], 700) == []
        leases.sweep(600)
        assert (len(leases), leases.up_to("t", 0, 0)) == (1, ["second"])
        assert leases.settled([Settled(receipt, True)]) == []
        assert (done, leases._first_of) == ([(1, 10)], {})
    leases, done = holding(message(0))
    leases.extended([Settled("r0-0", False, LEASE_OVER)], 500)
    assert (len(leases), len(done)) == (0, 1)


def test_frames_that_were_not_seen_are_taken_back() -> None:
    leases, done = holding(message(0), frame=1)
    leases.took([message(1)], [20], frame=2)
    leases.extended([Settled("r0-1", True, new_receipt="n")], 500)
    assert [(lease.offset, lease.byte_count, lease.receipt) for lease in leases.take_after(1)] == [(1, 20, "n")]
    assert (len(leases), done, leases._first_of) == (1, [], {})
    assert leases.settled([Settled("n", True)]) == [Settled("n", True)]


def test_whoever_settles_tells_all_consumers_of_the_group() -> None:
    everything = AllLeases()
    first, of_first = holding(message(0), message(1))
    second, of_second = holding(message(0, partition=1), message(1, partition=1))
    for leases in (first, second):
        everything.add("g", leases)
    everything.settled("other", [Settled("r0-0", True)])
    assert (len(first), len(second)) == (2, 2)
    everything.settled("g", [Settled("r1-0", True), Settled("r0-0", True)])
    assert (of_first, of_second) == ([(1, 10)], [(1, 10)])
    assert (first.receipts(), second.receipts()) == (["r0-1"], ["r1-1"])
    everything.extended("g", [Settled("r1-1", True, new_receipt="n")], 500)
    assert second.up_to("t", 1, 9) == ["n"]
    everything.settled_up_to("g", "t", 1, 0)
    assert len(second) == 1
    everything.settled_up_to("g", "t", 1, 1)
    assert len(second) == 0
    for leases in (first, second, second):
        everything.remove("g", leases)
    assert not everything._by_group
