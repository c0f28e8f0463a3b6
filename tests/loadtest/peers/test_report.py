"""The report comes from the files of a run: medians, ratios round by round, and failures without numbers."""

from __future__ import annotations

from pathlib import Path

import orjson

from loadtest.peers.report import LINES, markdown, ratio, rows_of, write_report

BATCHED = next(line for line in LINES if line.step == "batched")
PUSH = next(line for line in LINES if line.step == "push_200")
ABOUT = {
    "windows": [{"started_at": "2026-01-01T00:00:00+00:00", "commit": "c0ffee", "load_average": 0.1}],
    "rounds": 3,
    "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "k", "file_system": "ext4"},
    "versions": {},
    "steps": {"batched": {"duration_s": 1}},
    "peers": {"mq": {"version": "1", "about": "ours"}},
    "missing": {"kafka": "no Java here"},
}


def result(number: int, peer: str, step: str, **values: object) -> dict[str, object]:
    return {"round": number, "peer": peer, "durability": "synced", "step": step, **values}


def test_a_ratio_is_taken_round_by_round_against_our_better_row() -> None:
    results = [
        *(result(number, "mq", "batched", records_per_s=100) for number in range(3)),
        *(result(number, "mq, record batches", "batched", records_per_s=200 * (number + 1)) for number in range(3)),
        *(result(number, "kafka", "batched", records_per_s=100 * (number + 1)) for number in range(3)),
    ]
    rows = rows_of(results, "batched")
    found = ratio(BATCHED, rows[2], rows)
    assert found is not None
    assert (found.median, found.low, found.high) == (2, 2, 2)
    assert ratio(BATCHED, rows[0], rows) is None


def test_less_is_better_for_times() -> None:
    rows = rows_of([result(0, "mq", "push_200", p99_ms=10), result(0, "nats", "push_200", p99_ms=5)], "push_200")
    found = ratio(PUSH, rows[1], rows)
    assert found is not None
    assert found.median == 0.5


def test_a_failed_row_has_no_number_and_a_reason() -> None:
    results = [
        result(0, "mq", "batched", records_per_s=123),
        result(0, "kafka", "batched", failed="it died"),
        result(1, "kafka", "batched", failed="it died"),
    ]
    page = markdown(ABOUT, results)
    line = next(line for line in page.splitlines() if line.startswith("| kafka"))
    assert "failed 2 of 2: it died" in line
    assert "123" not in line
    assert "**kafka**: not measured: no Java here" in page


def test_where_we_are_behind_is_said() -> None:
    results = [result(0, "mq", "batched", records_per_s=50), result(0, "kafka", "batched", records_per_s=100)]
    page = markdown(ABOUT, results)
    assert "Batches of 1,000, kafka (synced): 0.50x" in page
    assert "Because of C." in markdown(ABOUT, results, "Because of C.\n")
    assert "Because of C." not in markdown(ABOUT, results[:1], "Because of C.\n")  # nothing to explain


def test_the_report_is_made_from_the_files_of_a_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "about.json").write_bytes(orjson.dumps(ABOUT))
    (runs / "0-mq-synced-batched.json").write_bytes(orjson.dumps(result(0, "mq", "batched", records_per_s=77)))
    write_report(runs, tmp_path / "out")
    assert "77" in (tmp_path / "out" / "peers.md").read_text()
    assert orjson.loads((tmp_path / "out" / "peers.json").read_bytes())["results"][0]["records_per_s"] == 77
    assert "mq, synced" in (tmp_path / "out" / "peers-batched-records-per-s.svg").read_text()
