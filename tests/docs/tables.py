"""The rows of the tables on the pages, made anew from the records that they quote."""

import json
import math
from collections.abc import Iterator
from statistics import mean, stdev
from typing import Any

from tests.docs.pages import ROOT

SCHEDULES = ("1/√(20+t)", "linear to 0", "cosine to 0", "exponential")
EPSILONS = ("0.3", "1", "3", "8")
WAYS = ("dither", "Opacus hooks", "Opacus functorch", "Opacus ghost")


def results(name: str) -> dict[str, Any]:
    text = (ROOT / "benchmarks/results" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["results"]
    return found


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def shaping() -> Iterator[str]:
    cells = results("shaping")
    for schedule in SCHEDULES:
        for noise in ("matched", "optimal"):
            places = (f"{schedule}, q=256/60k, T=5,000, ε={epsilon}" for epsilon in EPSILONS)
            yield row(schedule, noise, *(f"{cells[place][noise]:.2f}" for place in places))


def clipping() -> Iterator[str]:
    found = results("clipping")
    for model, speed in found["speed"].items():
        memory = found["memory"][model]["MiB of the process"]
        times = (f"{speed['times plain'][way]:.2f}" for way in WAYS)
        plain = f"{speed['milliseconds']['plain']:.1f} ms"
        sizes = ", ".join(str(memory[way]) for way in ("plain", "dither", "Opacus ghost"))
        yield row(model, plain, *times, f"{sizes} MiB")


def training() -> Iterator[str]:
    found = results("training")["epochs"]
    ways = ("plain", *WAYS)
    yield row("seconds", *(f"{found['seconds an epoch'][way]:.2f}" for way in ways))
    yield row("relative to plain", *(f"{found['times plain'][way]:.2f}" for way in ways))


def steps() -> Iterator[str]:
    names = ("times its parts", "times plain", "first step, times plain")
    for model, found in results("training")["steps"].items():
        yield row(model, *(f"{found[name]:.2f}" for name in names))


def noise() -> Iterator[str]:
    for model, found in results("training")["noise"].items():
        yield row(model, f"{found['parameters']:,}", f"{100 * found['share']:.1f} %")


def accounting() -> Iterator[str]:
    found = results("accounting")
    for peer, seconds in found["seconds"].items():
        shown = f"{seconds:.2f}" if seconds < 1 else f"{seconds:.0f}"
        yield row(peer, f"{shown} s", f"{found['times faster than'][peer]:,}")


def estimators() -> Iterator[str]:
    for table, found in results("estimators")["accuracy"].items():
        for epsilon in ("0.5", "1", "3"):
            scores = [
                spread(found[epsilon]["dither"]),
                spread(found[epsilon]["diffprivlib"]),
                spread(found["without privacy"]),
            ]
            yield row(table, f"{found['records']:,}", epsilon, *scores)


def audit() -> Iterator[str]:
    found = results("audit")
    for plan in ("dither train", "dither plan"):
        each = found[plan]
        lower = ", ".join(f"{math.floor(100 * value) / 100:.2f}" for value in each["lower"])
        seconds = ", ".join(f"{value:.0f}" for value in each["seconds"])
        yield row(f"`{plan}`", f"{each['steps']:,}", f"{each['claimed']:.2f}", lower, seconds)


def noise_shapes() -> Iterator[str]:
    text = (ROOT / "experiments/records/noise_shapes.json").read_text(encoding="utf-8")
    runs = json.loads(text)["results"]
    found = {(each["dataset"], each["epsilon"], each["noise"]): each for each in runs}
    for key, name in (("mnist", "MNIST"), ("fashion-mnist", "Fashion-MNIST")):
        for epsilon in (0.3, 1.0, 3.0):
            cells = (found[key, epsilon, noise] for noise in ("uniform", "matched", "optimal"))
            shown = (f"{100 * each['mean']:.1f} ± {100 * each['sd']:.1f}" for each in cells)
            yield row(name, f"{epsilon:g}", *shown)


def distributed() -> Iterator[str]:
    found = results("distributed")["milliseconds a step"]
    alone = sum(found["1"].values())
    for size, parts in found.items():
        step = sum(parts.values())
        gain = (
            f"{int(size) * alone / step:,.2f}"
            if int(size) < 10
            else f"{int(size) * alone / step:,.0f}"
        )
        cells = (f"{parts[part]:.1f}" for part in ("computing", "sampling", "noise", "sending"))
        yield row(f"{int(size):,}", *cells, f"{step:.1f}", gain)


def spread(values: list[float]) -> str:
    percent = [100 * value for value in values]
    around = f" ± {stdev(percent):.1f}" if len(percent) > 1 else ""
    return f"{mean(percent):.1f}{around}"


TABLES = {
    "why.md": (shaping,),
    "experiments.md": (noise_shapes,),
    "guides/distributed.md": (distributed,),
    "benchmarks.md": (clipping, training, steps, noise, accounting, estimators, audit),
}


def single_numbers() -> dict[str, str]:
    """Return the numbers that stand in the sentences of benchmarks.md, each with its sentence."""
    counted, fitted = results("accounting"), results("estimators")["speed"]["times_faster"]
    schedules = {key: each for key, each in results("schedules").items() if "(" in key}
    slowest = max(each["ratio"] for each in schedules.values())
    ledger = results("ledger")["with a ledger relative to without"]
    ranks = results("distributed")["throughput of two ranks relative to one process"]
    return {
        "two ranks": f"two ranks take {ranks:.2f} times as many records",
        "ledger": f"step of the MNIST CNN takes {ledger:.2f} times as long",
        "gap": f"bounds lie {100 * counted['relative gap']:.2f} % apart",
        "optimal": f"time of {counted['optimal plan, in certified evaluations of it']:.0f} such",
        "diffprivlib": f"diffprivlib took {fitted['diffprivlib']:.1f} times as",
        "Opacus": f"with Opacus {fitted['Opacus']:.1f} times as long",
        "schedules": f"take at most {slowest:.0f} times as long",
    }
