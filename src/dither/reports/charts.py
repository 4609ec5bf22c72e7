"""The charts of a report: their data, and how they are drawn as SVG.

Lines differ in colour (Okabe and Ito) and in dashes. Text and axes have the page's text colour, and
lines the page's colours ``--line-1`` …, so that a dark page can use lighter ones.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from dither.reports.claim import Claim
from dither.reports.figures import BLUE, GREEN, ORANGE, VERMILION
from dither.reports.load import RunFiles
from dither.training.history import Row
from dither.types import FloatArray, rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS = 400
_STEPS = "steps (number)"


@final
@dataclass(frozen=True)
class Series:
    """A line of a chart; with ``low`` and ``high``, points with intervals."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@final
@dataclass(frozen=True)
class Chart:
    """A chart as data.

    Attributes:
        key: its name in the document.
        title: its title.
        x_name: name and unit of the horizontal axis.
        y_name: name and unit of the vertical axis.
        series: its lines.
        description: what it shows, as text.
        is_log: whether the vertical axis is logarithmic.
        limit: the name and value of a horizontal line.
        is_square: whether both axes go from 0 to 100.
    """

    key: str
    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    description: str
    is_log: bool = False
    limit: tuple[str, float] | None = None
    is_square: bool = False


def find_charts(files: RunFiles, claim: Claim) -> tuple[Chart, ...]:
    """Return the charts for which the run directory has numbers."""
    charts = (
        _noise(files),
        _spending(files, claim),
        _metric(files.history, "accuracy", "accuracy on public data (%)", 100.0)
        or _metric(files.history, "loss", "mean loss per record on public data", 1.0),
        _audit(files),
        _calibration(files),
    )
    return tuple(chart for chart in charts if chart is not None)


def _series(name: str, x: Sequence[float] | Any, y: Sequence[float] | Any) -> Series:
    """Return a line of at most some hundred points, with the first and the last."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    some = np.unique(np.linspace(0, x.size - 1, min(_MAX_POINTS, x.size)).round().astype(int))
    return Series(name, tuple(x[some].tolist()), tuple(y[some].tolist()))


def _spent_noise(files: RunFiles) -> FloatArray:
    run = None if files.ledger is None else files.ledger.run
    return np.asarray([] if run is None else run.spent, np.float64)


def _noise(files: RunFiles) -> Chart | None:
    spent, plan = _spent_noise(files), None if files.plan is None else files.plan.plan
    planned = np.zeros(0) if plan is None else plan.noise_multipliers
    if files.bands > 1:  # what is charged is the least noise of every cycle
        is_planned = plan is not None and np.array_equal(spent, plan.charges)
        each = np.repeat(spent, files.bands)[: files.steps_of(spent.size)]
        spent = planned if is_planned else each
    lines = [_series("spent", np.arange(1, spent.size + 1), spent)] if spent.any() else []
    if planned.any() and not np.array_equal(spent, planned):
        lines.append(_series("planned", np.arange(1, planned.size + 1), planned))
    if not lines:
        return None
    z = spent if spent.any() else planned
    description = (
        f"Noise multiplier per step ({lines[0].name}): {z[0]:.4g} in the first and {z[-1]:.4g} in "
        f"the last of {z.size:,} steps, minimum {z.min():.4g}, maximum {z.max():.4g}."
    )
    title = "Noise per step"
    if files.bands > 1:
        title += f", correlated within {files.bands} steps"
        description += " Later steps cancel a part of the noise of earlier ones."
    return Chart(
        "noise", title, _STEPS, "noise multiplier z (clip norms)", tuple(lines),
        description, is_log=True,
    )  # fmt: skip


def _spending(files: RunFiles, claim: Claim) -> Chart | None:
    bound, run = claim.training, None if files.ledger is None else files.ledger.run
    if bound is None or run is None or not math.isfinite(bound.epsilon):
        return None
    plan, spent = None if files.plan is None else files.plan.plan, _spent_noise(files)
    counted = bound if claim.spent is None else claim.spent
    T = files.steps_of(spent.size)
    if plan is not None and spent.size and np.array_equal(spent, plan.charges[: spent.size]):
        steps, epsilons = plan.spending()
        x, y = steps[steps <= T].astype(float), epsilons[steps <= T]
        if x[-1] < T:
            x, y = np.append(x, T), np.append(y, counted.epsilon)
    else:
        rows = [(row.step, row.epsilon) for row in files.history if math.isfinite(row.epsilon)]
        x, y = np.array([(0.0, 0.0), *rows]).T
        if x[-1] == T:  # never below the ledger
            y[-1] = max(y[-1], counted.epsilon)
    if x.size < 2:
        return None
    budget = run.entry.epsilon
    description = (
        f"ε is {rounded(float(y[-1]), 4)} after {int(x[-1]):,} steps; the plan's budget is "
        f"ε = {rounded(budget, 4)}."
    )
    return Chart(
        "spending", "Privacy spent", _STEPS, f"ε (no unit), at δ = {rounded(bound.delta, 3)}",
        (_series("spent", x, y),), description, limit=("budget of the plan", budget),
    )  # fmt: skip


def _metric(history: Sequence[Row], metric: str, name: str, scale: float) -> Chart | None:
    def line(label: str, metrics: Callable[[Row], dict[str, float]]) -> Series | None:
        known = [
            (row.step, scale * metrics(row)[metric]) for row in history if metric in metrics(row)
        ]
        return _series(label, *zip(*known, strict=True)) if known else None

    final = line("with averaging", lambda row: row.metrics)
    iterate = line("last iterate", lambda row: row.iterate_metrics)
    if final is None:
        return None
    lines = (Series("measured", final.x, final.y),) if iterate is None else (final, iterate)
    ends = ", ".join(f"{each.y[-1]:.4g} ({each.name})" for each in lines)
    description = f"{name[0].upper()}{name[1:]}; at the last step {ends}."
    return Chart("metric", metric.capitalize(), _STEPS, name, lines, description)


def _audit(files: RunFiles) -> Chart | None:
    if not files.audits:
        return None
    curves = files.audits[-1].curves
    rates, hits, allowed = (curves[k] for k in ("false_positives", "true_positives", "allowed"))
    if not rates or hits is None:
        return None
    x = 100.0 * np.asarray(rates)
    lines = [_series("attack", x, 100.0 * np.asarray(hits))]
    if allowed is not None:
        lines.append(_series("allowed by the claim", x, 100.0 * np.asarray(allowed)))
    lines.append(Series("random guessing", (0.0, 100.0), (0.0, 100.0)))
    return Chart(
        "audit", "The last attack", "false positive rate (%)", "true positive rate (%)",
        tuple(lines), files.audits[-1].verdict, is_square=True,
    )  # fmt: skip


def _calibration(files: RunFiles) -> Chart | None:
    bins = () if files.evaluation is None else files.evaluation.calibration
    if len(bins) < 2:
        return None
    x = tuple(100.0 * each.predicted for each in bins)
    observed = [each.observed for each in bins]
    line = Series(
        "this model",
        x,
        tuple(100.0 * each.value for each in observed),
        tuple(100.0 * (each.value if each.low is None else each.low) for each in observed),
        tuple(100.0 * (each.value if each.high is None else each.high) for each in observed),
    )
    description = "Observed share of the class by predicted probability, with 95 % intervals."
    return Chart(
        "calibration", "Calibration", "predicted probability (%)", "observed share (%)",
        (line, Series("perfect", (0.0, 100.0), (0.0, 100.0))), description, is_square=True,
    )  # fmt: skip


INK = "#010203"  # replaced by the page's text colour
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
        f"{name}": INK
        for name in (
            "text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color",
        )
    },
}  # fmt: skip


def draw_svg(chart: Chart) -> str:
    """Return a chart as a deterministic ``<svg>`` element."""
    lines = len(chart.series) + (chart.limit is not None)
    legend = _LEGEND_ROW * (lines > 1) * ((lines + 1) // 2)
    return embedded_svg(chart.key, lambda axes: _draw(axes, chart), (_WIDTH, _HEIGHT + legend))


def embedded_svg(
    key: str, draw: "Callable[[Axes], None]", size: tuple[float, float] = (_WIDTH, _HEIGHT)
) -> str:
    """Return a drawing as an ``<svg>`` element, with unique ids and the page's colours.

    Args:
        key: its name in the document.
        draw: draws on the axes that it gets.
        size: width and height in inches.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    body = drawn.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{key}-", body)
    body = body.replace(INK, "currentColor")
    for place, colour in enumerate((*_COLOURS, VERMILION), start=1):
        body = body.replace(colour.lower(), f"var(--line-{place}, {colour.lower()})")
    body = re.sub(r'<svg([^>]*?) width="[^"]*"', r"<svg\1", body, count=1)
    body = re.sub(r'<svg([^>]*?) height="[^"]*"', r"<svg\1", body, count=1)
    labels = f'role="img" aria-labelledby="{key}-title {key}-description"'
    return body.replace("<svg", f"<svg {labels}", 1).strip()


def _draw(axes: "Axes", chart: Chart) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, series in enumerate(chart.series):
        marker = "o" if series.low or (len(series.x) < 30 and not chart.is_square) else ""
        if series.low:
            axes.vlines(series.x, series.low, series.high, color=_COLOURS[place], linewidth=1.5)
        axes.plot(
            series.x, series.y, color=_COLOURS[place], linestyle=_DASHES[place], linewidth=2.0,
            marker=marker, markersize=4.0, label=series.name,
        )  # fmt: skip
    if chart.limit is not None:
        name, level = chart.limit
        axes.axhline(level, color=VERMILION, linestyle=(0, (6, 2, 1, 2)), label=name)
    axes.set(xlabel=chart.x_name, ylabel=chart.y_name)
    axes.grid(visible=True, color=INK, alpha=0.15, linewidth=0.6)
    if chart.is_log:
        _set_log_scale(axes, chart)
    elif chart.is_square:
        axes.set(xlim=(0.0, 100.0), ylim=(0.0, 100.0))
    elif chart.limit is not None:
        axes.set_ylim(bottom=0.0)
    if not chart.is_square:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, min_n_ticks=1))
    if len(chart.series) > 1 or chart.limit is not None:
        handles, names = axes.get_legend_handles_labels()
        axes.figure.legend(
            handles, names, loc="outside lower center", ncols=2 if len(names) > 2 else len(names),
            frameon=False, handlelength=3.0,
        )  # fmt: skip


def _set_log_scale(axes: "Axes", chart: Chart) -> None:
    """Use a logarithmic axis with plain numbers, or a linear one for a narrow range."""
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
