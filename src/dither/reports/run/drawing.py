"""Charts as SVG to be put into a page: no font, no script, no colour of the text is brought along.

Lines differ in colour (Okabe and Ito's) and in dashes. Text and axes have the page's own colour,
lines the page's colours ``--line-1`` …, so that a dark page can choose lighter ones.
"""

import io
import re
from typing import TYPE_CHECKING, Any

from dither.reports.figures import BLUE, GREEN, ORANGE, VERMILION
from dither.reports.run.report import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#010203"  # stands for the colour of the page's text
_COLOURS = (BLUE, ORANGE, GREEN)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)))
_WIDTH, _HEIGHT, _LEGEND_ROW = 5.0, 3.0, 0.25  # inches
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "path",
    "svg.hashsalt": "dither",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.labelsize": 10.0,
    "legend.fontsize": 9.0,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **{
        f"{name}": _INK
        for name in (
            "text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color",
        )
    },
}  # fmt: skip


def svg_of(chart: Chart) -> str:
    """Return a chart as an ``<svg>`` element, the same text every time."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        lines = len(chart.series) + (chart.limit is not None)
        legend = _LEGEND_ROW * (lines > 1) * ((lines + 1) // 2)
        figure = Figure(figsize=(_WIDTH, _HEIGHT + legend), layout="constrained")
        axes = figure.subplots()
        _draw(axes, chart)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _for_a_page(drawn.getvalue(), chart)


def _draw(axes: "Axes", chart: Chart) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, series in enumerate(chart.series):
        marker = "o" if len(series.x) < 30 and not chart.is_square else ""
        axes.plot(
            series.x, series.y, color=_COLOURS[place], linestyle=_DASHES[place], linewidth=2.0,
            marker=marker, markersize=4.0, label=series.name,
        )  # fmt: skip
    if chart.limit is not None:
        name, level = chart.limit
        axes.axhline(level, color=VERMILION, linestyle=(0, (6, 2, 1, 2)), label=name)
    axes.set(xlabel=chart.x_name, ylabel=chart.y_name)
    axes.grid(visible=True, color=_INK, alpha=0.15, linewidth=0.6)
    if chart.is_log:
        _logarithmic(axes, chart)
    elif chart.is_square:
        axes.set(xlim=(0.0, 100.0), ylim=(0.0, 100.0))
    elif chart.limit is not None or chart.key == "ledger":
        axes.set_ylim(bottom=0.0)
    if not chart.is_square:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, min_n_ticks=1))
    if len(chart.series) > 1 or chart.limit is not None:
        handles, names = axes.get_legend_handles_labels()
        axes.figure.legend(
            handles, names, loc="outside lower center", ncols=2 if len(names) > 2 else len(names),
            frameon=False, handlelength=3.0,
        )  # fmt: skip


def _logarithmic(axes: "Axes", chart: Chart) -> None:
    """Use a logarithmic axis with plain numbers, which are there however narrow the range is."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    y = [value for series in chart.series for value in series.y if value > 0.0]
    if not y or max(y) < 5.0 * min(y):
        if y and max(y) - min(y) < 1e-6 * max(y):
            axes.set_ylim(0.0, 2.0 * max(y))
        return
    axes.set_yscale("log")
    axes.set_ylim(min(y) / 1.15, max(y) * 1.15)
    if max(y) < 40.0 * min(y):
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def _for_a_page(text: str, chart: Chart) -> str:
    """Return the drawing without its prologue, with ids and colours that suit a page."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{chart.key}-", body)
    body = body.replace(_INK, "currentColor")
    for place, colour in enumerate((*_COLOURS, VERMILION), start=1):
        body = body.replace(colour.lower(), f"var(--line-{place}, {colour.lower()})")
    body = re.sub(r'<svg([^>]*?) width="[^"]*"', r"<svg\1", body, count=1)
    body = re.sub(r'<svg([^>]*?) height="[^"]*"', r"<svg\1", body, count=1)
    labels = f'role="img" aria-labelledby="{chart.key}-title {chart.key}-words"'
    return body.replace("<svg", f"<svg {labels}", 1).strip()
