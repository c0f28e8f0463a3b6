"""The results of `make bench-spark`: what is measured again takes its old place."""

from __future__ import annotations

from pathlib import Path

import orjson

from loadtest.bench.spark import Row, write_results

READ = Row("read", 2.0, {"memory": 4.0}, "records/s", ">= 1", True)
WRITE = Row("write", 1.0, {}, "records/s", ">= 3", False)


def test_a_part_that_is_measured_again_leaves_the_others(tmp_path: Path) -> None:
    write_results(tmp_path, {"started": "Monday"}, [READ, WRITE], again="")
    write_results(tmp_path, {"started": "Tuesday"}, [WRITE._replace(ours=3e6, is_met=True)], again="writes")
    found = orjson.loads((tmp_path / "spark.json").read_bytes())
    assert found["conditions"] == {"started": "Monday", "writes_measured_again": "Tuesday"}
    assert [(row["work"], row["ours"], row["is_met"]) for row in found["rows"]] == [
        ("read", 2, True),
        ("write", 3e6, True),
    ]
    page = (tmp_path / "spark.md").read_text()
    assert "| write | 3.00 M/s |  | >= 3 | yes |" in page
    assert "- writes measured again: Tuesday" in page


def test_a_part_alone_is_all_there_is_when_nothing_was_measured_before(tmp_path: Path) -> None:
    write_results(tmp_path, {"started": "Monday"}, [WRITE], again="writes")
    assert "| write | 0.00 M/s |  | >= 3 | **no** |" in (tmp_path / "spark.md").read_text()
