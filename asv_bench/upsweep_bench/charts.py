"""Bar charts of committed results as SVG, drawn by matplotlib, readable on light and on dark pages.

Colours are CSS variables that follow the reader's colour scheme, and a chart has a background of its own, since a
page may be switched to another scheme than the browser's. The file's ``desc`` has the values: what matplotlib
writes depends on its version, so a test compares only this text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal
from xml.sax.saxutils import escape, unescape

__all__ = ["Bar", "Panel", "described", "description", "number", "write"]

# Each variable is drawn in a colour that nothing else has, which is then replaced by the variable's name.
_COLOURS = {  # name: light, dark
    "page": ("#ffffff", "#14181e"),
    "text": ("#24292f", "#e6edf3"),
    "grid": ("#d0d7de", "#3a424c"),
    "bar": ("#1f77b4", "#58a6ff"),
    "slower": ("#bc5a00", "#f0983e"),
}
_DRAWN = {name: f"#0102{n:02x}" for n, name in enumerate(_COLOURS, 3)}
# Inches: the width of a chart, the height of a bar, that of titles; then the part of a bar between two cases.
_WIDTH, _ROW, _FRAME, _GAP = 6.2, 0.19, 0.7, 0.35
_CHARACTER = 0.023  # of the length of an axis


@dataclass(frozen=True)
class Bar:
    """A case, what is measured of it (a peer, a dtype), and the value."""

    case: str
    series: str
    value: float


@dataclass(frozen=True)
class Panel:
    """Bars of one machine.

    `kind`: "ratio" is drawn from 1 to both sides on a logarithmic axis, "fraction" from 0; both have a line at 1.
    """

    title: str
    axis: str
    kind: Literal["ratio", "fraction"]
    bars: Sequence[Bar]


def described(panels: Sequence[Panel]) -> str:
    """The values as text."""
    return "; ".join(
        f"{panel.title}, {panel.axis}: "
        + ", ".join(f"{bar.case} {bar.series} {number(bar.value)}" for bar in panel.bars)
        for panel in panels
        if panel.bars
    )


def description(path: Path) -> str:
    """The text of a chart that `write` has written."""
    match = re.search(r"<desc>(.*?)</desc>", path.read_text(), re.DOTALL)
    return unescape(match[1]) if match else ""


def number(value: float) -> str:
    """A ratio with two or three digits."""
    return f"{value:.2f}" if value < 1.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def write(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw the panels that have bars one above the other. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    panels = [panel for panel in panels if panel.bars]
    heights = [_FRAME + _ROW * (len(panel.bars) + _GAP * _n_gaps(panel)) for panel in panels]
    style = {
        "svg.fonttype": "none", "svg.hashsalt": "upsweep", "font.size": 9.0, "text.color": _DRAWN["text"],
        "axes.edgecolor": _DRAWN["grid"], "axes.labelcolor": _DRAWN["text"], "axes.facecolor": "none",
        "xtick.labelcolor": _DRAWN["text"], "ytick.labelcolor": _DRAWN["text"], "grid.color": _DRAWN["grid"],
        "grid.linewidth": 0.6,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained", facecolor=_DRAWN["page"])
        grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
        for axes, panel in zip(grid[:, 0], panels):
            _draw(axes, panel)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(_themed(path.read_text(), title, described(panels)))


def _n_gaps(panel: Panel) -> int:
    return len({bar.case for bar in panel.bars}) - 1


def _length(value: float, low: float) -> float:
    """From `low` to a value on an axis, which is logarithmic unless it begins at 0."""
    return math.log(value / low) if low else value


def _draw(axes: Any, panel: Panel) -> None:
    ratio = panel.kind == "ratio"
    values = [1.0, *(bar.value for bar in panel.bars)]
    low = min(0.8, *values) / 1.1 if ratio else 0.0
    # Where each bar ends, over the part of the axis that the text after it leaves.
    ends = [(_length(max(bar.value, 1.0), low), _CHARACTER * (7 + len(bar.series))) for bar in panel.bars]
    reach = max(end / (1 - min(0.75, text)) for end, text in ends)
    if ratio:
        axes.set_xscale("log")
        start, high = 1.0, low * math.exp(reach)
        ticks = [0.5, 1, 2, 5, 10, 20, 50] if max(values) < 100 else [1, 10, 100, 1000]
    else:
        start, high = 0.0, reach
        ticks = [0, 0.5, 1, 1.5, 2]
    ticks = [tick for tick in ticks if low <= tick <= max(values)]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    position, places, names = 0.0, [], []
    for case, bars in groupby(panel.bars, key=lambda bar: bar.case):
        for k, bar in enumerate(bars):
            colour = "slower" if ratio and bar.value < 0.995 else "bar"
            axes.barh(position, bar.value - start, left=start, height=0.78, color=_DRAWN[colour])
            words = f"{number(bar.value)}  {bar.series}"
            box = {"facecolor": _DRAWN["page"], "edgecolor": "none", "pad": 0.6}  # hides the grid behind the text
            at = max(bar.value, start), position
            drawn = axes.annotate(words, at, (5, 0), textcoords="offset points", va="center", bbox=box)
            drawn.set_in_layout(False)
            if k == 0:
                places.append(position)
                names.append(case)
            position += 1
        position += _GAP
    axes.set_yticks(places, names)
    axes.tick_params(length=0)
    axes.set_ylim(position - _GAP - 0.4, -0.6)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.axvline(1, color=_DRAWN["text"], linewidth=1.2, zorder=0.9)
    axes.set_title(panel.title, fontsize=10, fontweight="bold", loc="left")
    axes.set_xlabel(panel.axis, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _themed(svg: str, title: str, text: str) -> str:
    """The drawing with variables for colours, the reader's sans-serif font, a title and the values as text."""
    for name, colour in _DRAWN.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r"'DejaVu Sans'(, '[^']*')*", "system-ui, Helvetica, Arial", svg)
    light, dark = ("".join(f"--{name}:{colours[n]};" for name, colours in _COLOURS.items()) for n in range(2))
    style = f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    begin = svg.index("<svg")
    body = svg.index(">", begin) + 1
    inserted = f"\n<title>{escape(title)}</title><desc>{escape(text)}</desc><style>{style}</style>"
    return re.sub(r"[ \t]+\n", "\n", svg[begin:body] + inserted + svg[body:])
