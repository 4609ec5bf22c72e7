"""Runs the clipping benchmarks, and turns their records into pictures and tables.

``python -m benchmarks.clipping_report`` writes the tables of docs/benchmarks.md anew, from the
records: those that stand between ``<!-- NAME -->`` and ``<!-- end -->``.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.progress import track

from benchmarks.clipping_methods import METHODS, PEERS
from benchmarks.clipping_workers import THREADS, compare
from benchmarks.recording import RESULTS, record
from dither.reports import save_figure

DOCS = Path(__file__).parents[1] / "docs/benchmarks.md"
PACKAGES = ("torch", "opacus", "opake", "transformers", "peft")
WRONG = 1e-3
"""A sum that differs from dither's by more than this, relatively, is called wrong."""
COLUMNS = ("Opacus hooks", "Opacus functorch", "Opacus ghost", "opake")
STYLES = dict(
    zip(
        METHODS,
        (
            ("#999999", ""), ("#0072b2", ""), ("#e69f00", "//"), ("#d55e00", "\\\\"),
            ("#cc79a7", ".."), ("#009e73", "xx"), ("#56b4e9", "--"),
        ),
        strict=True,
    )
)  # fmt: skip
"""Colour and hatch of each method."""


def compare_all(name: str, module: str, cases: Iterable[str], repeats: int) -> None:
    """Compare all methods on all models, print it, and write the record and the picture.

    The peers may be named on the command line: to compare with all of them takes half an hour.
    """
    peers = sys.argv[1:] or PEERS
    methods = [method for method in METHODS if method not in PEERS or method in peers]
    rows = {
        case: compare(module, case, repeats, methods)
        for case in track(list(cases), name, transient=True)
    }
    found: dict[str, Any] = {
        "setting": f"{THREADS} threads, a process per method, steps alternating, every second one "
        f"timed, median of {repeats}, of peers of as many as fit into about three seconds",
        **{
            key: {case: row[key] for case, row in rows.items()} for key in next(iter(rows.values()))
        },
    }
    command = " ".join([f"python -m benchmarks.{name}", *map(repr, sys.argv[1:])])
    record(name, command, PACKAGES, found)
    save_figure(draw(found["speed"]), RESULTS / f"{name}.png")
    print(json.dumps(found, indent=2, ensure_ascii=False))


def draw(speeds: dict[str, dict[str, Any]]) -> Figure:
    """Draw the times relative to a plain step, on a logarithmic axis."""
    figure = Figure(figsize=(max(10.0, 1.5 * len(speeds)), 4.2), layout="constrained")
    axes = figure.subplots()
    for offset, (method, (colour, hatch)) in enumerate(STYLES.items()):
        heights = [speed["times plain"].get(method, 0.0) for speed in speeds.values()]
        places = [index + 0.12 * (offset - 3) for index in range(len(speeds))]
        bars = axes.bar(
            places, heights, 0.11, label=method, color=colour, hatch=hatch, edgecolor="white"
        )
        if method != "plain":
            axes.bar_label(bars, [number(height) if height else "" for height in heights],
                           fontsize=5.5, rotation=60, padding=1)  # fmt: skip
    axes.set(
        yscale="log",
        ylabel="time of a step / plain step",
        xticks=range(len(speeds)),
        title=f"Clipped sums on {THREADS} threads; lower is better; no bar where a method fails",
    )
    axes.set_ylim(0.8, 3.0 * max(max(speed["times plain"].values()) for speed in speeds.values()))
    axes.set_xticklabels(list(speeds))
    axes.legend(ncols=len(STYLES), fontsize=7, loc="upper center")
    return figure


def number(value: float) -> str:
    """Return a ratio with as many digits as mean something."""
    return f"{value:.2f}" if value < 10.0 else f"{value:.1f}" if value < 100.0 else f"{value:,.0f}"


def row(*cells: object) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def results(name: str) -> dict[str, Any]:
    """Return the results of a record."""
    text = (RESULTS / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["results"]
    return found


def speed_table(name: str) -> Iterator[str]:
    """Yield the times relative to a plain step."""
    found = results(name)
    yield row("model", "plain step", "dither", "first step", *COLUMNS)
    yield row("---", *["---:"] * (3 + len(COLUMNS)))
    for model, speed in found["speed"].items():
        yield row(
            model,
            f"{speed['milliseconds']['plain']:.1f} ms",
            f"**{number(speed['times plain']['dither'])}**",
            number(speed["first step, times plain"]),
            *(peer_cell(found, model, column) for column in COLUMNS),
        )


def peer_cell(found: dict[str, Any], model: str, column: str) -> str:
    """Return what a peer takes, the better of its variants, or what it raises."""
    times = found["speed"][model]["times plain"]
    variants = [method for method in PEERS if method.startswith(column)]
    running = [method for method in variants if method in times]
    if not running:
        error: str = found["errors"][model].get(column, "not run")
        return error.split(":")[0]
    best = min(running, key=lambda method: float(times[method]))
    difference = found["difference from dither's sum"][model][best]
    is_right = isinstance(difference, float) and difference < WRONG
    return number(times[best]) + ("" if is_right else ", wrong sum")


def errors_of_peers(name: str) -> Iterator[str]:
    """Yield what the peers raise, and where their sums are wrong."""
    found = results(name)
    for model, errors in found["errors"].items():
        methods: dict[str, list[str]] = {}
        for method, error in errors.items():
            methods.setdefault(error, []).append(method)
        for error, together in methods.items():
            yield f"- {model}, {', '.join(together)}: `{error}`"
    for model, differences in found["difference from dither's sum"].items():
        for method, difference in differences.items():
            if isinstance(difference, str):
                yield f"- {model}, {method}: {difference}"
            elif not difference < WRONG:
                yield f"- {model}, {method}: its sum differs by {difference:.2g}, relatively"


def step_table() -> Iterator[str]:
    """Yield what a step of the GPT-2 of 124 million parameters takes."""
    found = results("large_model_step")
    steps, memory = found["steps"], found["GiB of the process"]
    first = " ".join(number(each) for each in steps["first steps, times plain"])
    yield row("", "plain", "private", "private / plain", "first steps / plain")
    yield row("---", *["---:"] * 4)
    yield row("seconds", *steps["seconds a step"].values(), steps["times plain"], first)
    ratio = number(memory["private"] / memory["plain"])
    yield row("memory of the process, GiB", *memory.values(), ratio, "")


def memory_table(*names: str) -> Iterator[str]:
    """Yield peak memory of the steps."""
    yield row("model", "plain", "dither", *COLUMNS[2:], "dither / plain", "dither / ghost")
    yield row("---", *["---:"] * 6)
    for found in map(results, names):
        for model, memory in found["memory"].items():
            steps = memory["MiB for the steps"]
            yield row(
                model,
                *(f"{steps[each]:,} MiB" if each in steps else "–"
                  for each in ("plain", "dither", *COLUMNS[2:])),
                *(memory.get(f"dither / {each}, for the steps", "–")
                  for each in ("plain", "Opacus ghost")),
            )  # fmt: skip


def growth_table() -> Iterator[str]:
    """Yield the fitted exponents."""
    found = results("growth")
    yield row("over", "from", "to", "time", "time of a plain step", "memory")
    yield row("---", *["---:"] * 5)
    for axis, curves in found["curves"].items():
        exponents = found["exponents"][axis]
        cells = (exponents.get(key) for key in ("milliseconds", "milliseconds, plain", "MiB"))
        yield row(
            axis,
            *(f"{curves['values'][place]:,}" for place in (0, -1)),
            *("–" if each is None else f"{each:.2f}" for each in cells),
        )


def source(name: str) -> Iterator[str]:
    """Yield where figures come from."""
    link = f"[{name}.json](../benchmarks/results/{name}.json)"
    yield f"Record: {link}, `python -m benchmarks.{name}`."
    yield ""


def picture(name: str, text: str) -> Iterator[str]:
    """Yield the picture of a record."""
    yield ""
    yield f"![{text}](../benchmarks/results/{name}.png){{ .wide }}"


RELATIVE = "Time of a step relative to a plain one: dither and its peers, on every model."
CURVES = (
    "Time and memory over batch size, sequence length, width, depth, vocabulary, steps and ranks."
)
TABLES: dict[str, Callable[[], Iterable[str]]] = {
    name: lambda name=name: chain(source(name), speed_table(name), picture(name, RELATIVE))
    for name in ("clipping", "models")
} | {
    "models errors": lambda: errors_of_peers("models"),
    "large model step": lambda: chain(source("large_model_step"), step_table()),
    "memory": lambda: memory_table("clipping", "models"),
    "growth": lambda: chain(source("growth"), growth_table(), picture("growth", CURVES)),
}

SEPARATE = {"large model step": "large_model_step", "growth": "growth"}
"""Tables with a record of their own, which may not have been made yet."""


def with_tables(page: str) -> str:
    """Return a page with its tables made anew from the records that there are."""
    for name, lines in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        is_missing = name in SEPARATE and not (RESULTS / f"{SEPARATE[name]}.json").exists()
        if pattern.search(page) and not is_missing:
            made = "".join(f"{line}\n" for line in lines())
            page = pattern.sub(lambda found, made=made: f"{found[1]}\n{made}\n{found[2]}", page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    DOCS.write_text(with_tables(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
