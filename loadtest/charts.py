"""Charts as SVG texts that follow the reader's light or dark scheme, drawn with matplotlib.

Colours are drawn as placeholders and then replaced by CSS variables (`style="fill: var(--ink)"`); the text carries the
values of both schemes and paints its ground, so it looks right in a page, in a Markdown file and by itself. Text stays
text. The same numbers give the same bytes: no date, no random ids.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from loadtest.stats import Spread

WIDTH_IN, HEIGHT_IN = 7.2, 2.6
ROW_IN, ROWS_FRAME_IN = 0.3, 0.7
PANEL_IN = 1.5

_BACK, _INK, _GRID = "#000001", "#010101", "#020202"
_SERIES = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306")
_QUIET = "#040404"
SERIES_MAX = len(_SERIES)
BAND_OPACITY = 0.25
Y_LABEL_CHARS = 28
_LIGHT = ("#ffffff", "#1f2933", "#d5dbe1", "#0f766e", "#b45309", "#4f46e5", "#be185d", "#0369a1", "#65734a", "#9aa5b1")
_DARK = ("#14181d", "#dbe2ea", "#3a4552", "#5eead4", "#fbbf24", "#a5b4fc", "#f9a8d4", "#7dd3fc", "#c3d08b", "#64707d")
_VARIABLES = ("--back", "--ink", "--grid", *(f"--series-{number}" for number in range(SERIES_MAX)), "--quiet")
_PLACEHOLDERS = (_BACK, _INK, _GRID, *_SERIES, _QUIET)


class Series(NamedTuple):
    """One line: its name and its points. A point without a value (None) is left out.

    `ranges`: from where to where each point lies, drawn as a band. A reference is drawn thin and without colour.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    ranges: Sequence[Spread] = ()
    is_reference: bool = False


class Measured(NamedTuple):
    """One row of a comparison; those that are ours are in colour."""

    name: str
    value: Spread
    is_ours: bool


class Panel(NamedTuple):
    """One of several charts above each other. A missing value (None) is a gap. `bound`: drawn as a reference."""

    y_label: str
    x: Sequence[float]
    y: Sequence[float | None]
    bound: float | None = None
    log: bool = False


class Span(NamedTuple):
    """From where to where on the x axis something went on."""

    start: float
    end: float
    label: str


def lines(series: Sequence[Series], *, x_label: str, y_label: str, log: bool = False, marked: bool = False) -> str:
    """Lines over one axis, at most SERIES_MAX; `log`: both axes logarithmic; `marked`: points are shown."""
    if len(series) > SERIES_MAX:
        raise ValueError(f"at most {SERIES_MAX} series in one chart")
    figure, axes = _figure(HEIGHT_IN)
    for one, own_colour in zip(series, _SERIES, strict=False):
        colour = _QUIET if one.is_reference else own_colour
        points = [(x, y) for x, y in zip(one.x, one.y, strict=True) if y is not None]
        if one.ranges:
            lows, highs = [value.low for value in one.ranges], [value.high for value in one.ranges]
            axes.fill_between(one.x, lows, highs, color=colour, alpha=BAND_OPACITY, linewidth=0)
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=colour,
            linewidth=1.6,
            linestyle="--" if one.is_reference else "-",
            marker="o" if (marked and not one.is_reference) or len(points) == 1 else None,
            markersize=4,
            label=one.name,
        )
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        _label_decades(axes.xaxis)
        _label_decades(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(textwrap.fill(y_label, Y_LABEL_CHARS))
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    if len(series) > 1:
        axes.legend(frameon=False, labelcolor=_INK, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return _svg(figure)


def ranges(rows: Sequence[Measured], *, x_label: str) -> str:
    """Medians as points with their ranges, first one on top, over a logarithmic axis (so no bars: it has no zero)."""
    figure, axes = _figure(ROWS_FRAME_IN + ROW_IN * len(rows))
    for number, row in enumerate(rows):
        colour = _SERIES[0] if row.is_ours else _QUIET
        axes.plot([row.value.low, row.value.high], [number, number], color=colour, linewidth=3)
        axes.plot([row.value.median], [number], "o", color=colour, markersize=6)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    _label_decades(axes.xaxis)
    axes.set_xlabel(x_label)
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    return _svg(figure)


def panels(rows: Sequence[Panel], spans: Sequence[Span], *, x_label: str) -> str:
    """Charts above each other over one x axis, with spans behind them that are labelled above the first.

    Labels stand in two lines in turn: short spans have little room.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, PANEL_IN * len(rows)), layout="constrained")
    all_axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for number, (axes, row) in enumerate(zip(all_axes, rows, strict=True)):
        for place, span in enumerate(spans):
            axes.axvspan(span.start, span.end, color=_GRID, alpha=BAND_OPACITY, linewidth=0)
            if number == 0:
                middle = (span.start + span.end) / 2
                axes.annotate(span.label, (middle, 1), (0, 8 * (place % 2)), xycoords=("data", "axes fraction"),
                              textcoords="offset points", ha="center", va="bottom", color=_INK,
                              fontsize=7)  # fmt: skip
        axes.plot(row.x, [float("nan") if y is None else y for y in row.y], color=_SERIES[number], linewidth=1)
        if row.bound is not None:
            axes.axhline(row.bound, color=_QUIET, linewidth=1, linestyle="--")
        if row.log and any(row.y):
            axes.set_yscale("log")
            _label_decades(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
        _dress(axes)
        axes.set_ylabel(textwrap.fill(row.y_label, Y_LABEL_CHARS))
        axes.grid(visible=True, color=_GRID, linewidth=0.6)
    all_axes[-1].set_xlabel(x_label)
    return _svg(figure)


def _label_decades(axis: Any) -> None:
    """1, 2, 5, 10, ... as people write them: 20, 5k, 1M."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


def _figure(height_in: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.add_subplot()
    _dress(axes)
    return figure, axes


def _dress(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.tick_params(which="both", color=_GRID, labelcolor=_INK)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)


def _svg(figure: Any) -> str:
    from matplotlib import rc_context

    written = io.StringIO()
    fonts: Any = {"svg.fonttype": "none", "svg.hashsalt": "mq", "font.size": 9, "font.family": "sans-serif"}
    with rc_context(fonts):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = text[text.index("<svg") :]
    for placeholder, variable in zip(_PLACEHOLDERS, _VARIABLES, strict=True):
        text = text.replace(placeholder, f"var({variable})")
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', text, count=1)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", text)
    head, _, rest = text.partition(">")
    return f"{head}>\n{_style()}{rest}"


def _style() -> str:
    light, dark = (
        "; ".join(f"{name}: {value}" for name, value in zip(_VARIABLES, values, strict=True))
        for values in (_LIGHT, _DARK)
    )
    ground = "background: var(--back)"
    return f"<style>svg {{{light}; {ground}}} @media (prefers-color-scheme: dark) {{svg {{{dark}}}}}</style>"
