"""Charts are SVG that follow the reader's scheme, have every name in them as text, and are the same every time."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from loadtest.charts import SERIES_MAX, Measured, Series, lines, ranges
from loadtest.stats import Spread


def test_a_chart_of_lines_is_svg_with_its_names_in_it() -> None:
    drawn = lines(
        [Series("ours", [1, 2], [3, None]), Series("limit", [1, 2], [5, 6])], x_label="s", y_label="records/s"
    )
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    for text in ("ours", "limit", "records/s", "prefers-color-scheme: dark", "var(--series-1)"):
        assert text in drawn
    assert drawn == lines(
        [Series("ours", [1, 2], [3, None]), Series("limit", [1, 2], [5, 6])], x_label="s", y_label="records/s"
    )


def test_no_placeholder_colour_is_left() -> None:
    drawn = ranges([Measured("a", Spread(2, 1, 3), True), Measured("b", Spread(20, 10, 30), False)], x_label="ms")
    ElementTree.fromstring(drawn)
    assert "var(--quiet)" in drawn
    assert "#0" not in drawn.partition("</style>")[2].replace('"#', "")


def test_one_line_too_many_is_refused() -> None:
    few = [Series(str(number), [1], [1]) for number in range(SERIES_MAX)]
    lines(few, x_label="x", y_label="y", log=True)
    with pytest.raises(ValueError, match="at most"):
        lines([*few, few[0]], x_label="x", y_label="y")
