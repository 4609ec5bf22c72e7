"""Claim: the paper's adaptive step sizes leak more than its privacy theorem claims.

Algorithm 1 divides the noisy gradient by b_{t+1}, where b_{t+1}² = b_t² + max(‖∇f‖², ν) has the raw
gradient of the record that was drawn. The neighbouring pair: a hundred records, of which the first
has a gradient of norm C along one coordinate, or none at all; the others have none. In every other
coordinate all gradients are zero, and each step adds nothing but noise of a known scale, divided by
b_{t+1}. The attacker looks at those coordinates only, and from the size of the steps reads b: once
the first record was drawn, they are smaller.

T = 100 steps of m = 1 out of n = 100, α_t = (b_0² + t·ν)^(1/4), C = 1, ν = 1e-4, σ from the theorem
at ε = 1, δ = 1e-5, whose condition holds. 50,000 trials, in each of which the record is included
with probability 1/2, for every b_0² and number of coordinates d; the threshold is the best of a
rehearsal of 200,000; the lower bounds hold with 95 % confidence. Beside it, the same attack on
dither's rule, whose b grows by what was released; and, to show what such an attack can find, on
scores that are Gaussian with ε = 1, 2, 4 and 8. That the sizes of d normals are drawn as one chi-
square number is exact, and makes d = 10⁷ as quick as 10.

Run by ``make experiments`` (or ``python -m experiments.adaptive_leak``): about a minute. Writes
adaptive_leak.json and adaptive_leak.png to records/.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.recording import origin
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.progress import track

import dither
from dither import theory
from dither.audit import independent_bound
from dither.noise import GrowthBound
from dither.reports import save_figure

RECORDS = Path(__file__).parent / "records"
COMMAND = "python -m experiments.adaptive_leak"
EPSILON, DELTA, DATASET, STEPS, NU = 1.0, 1e-5, 100, 100, 1e-4
TRIALS, REHEARSAL, SEED, CONFIDENCE = 50_000, 200_000, 7, 0.95
STARTS = (0.1, 1.0, 20.0)
LEVELS = (0.0, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.3)
DIMENSIONS = (10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """One pair of b_0² and d, against one of the two rules."""

    rule: str
    b0_squared: float
    dimension: int

    def noises(self) -> Floats:
        """Return α_t·σ for every step, by the theorem."""
        alphas = GrowthBound(self.b0_squared, NU).alphas(np.ones(STEPS))
        sizes: dict[str, Any] = {"clip_norm": 1.0, "dataset_size": DATASET, "batch_size": 1}
        sigma = theory.adp_sigma(alphas, epsilon=EPSILON, delta=DELTA, **sizes)
        budget: dict[str, Any] = {"dataset_size": DATASET, "batch_size": 1, "delta": DELTA}
        if not theory.adp_condition(alphas, epsilon=EPSILON, **budget):
            raise ArithmeticError("the theorem's condition must hold")
        return np.asarray(alphas * sigma)

    def scores(self, included: NDArray[np.bool_], random: np.random.Generator) -> Floats:
        """Return how small the steps were, one number per trial."""
        size = included.size
        b_squared, total = np.full(size, self.b0_squared), np.zeros(size)
        idle = self.dimension - 1
        score = np.zeros(size)
        for t, noise in enumerate(self.noises()):
            drawn = included & (random.random(size) < 1.0 / DATASET)
            others = random.chisquare(idle, size) * noise**2
            if self.rule == "raw":
                b_squared += np.where(drawn, 1.0, NU)
            else:
                along = drawn + noise * random.standard_normal(size)
                total += along**2 + others - self.dimension * noise**2
                least = self.b0_squared + np.maximum(total, (t + 1) * NU)
                b_squared = np.maximum(b_squared, least)
            expected = idle * noise**2 / (self.b0_squared + (t + 1) * NU)
            score -= np.log(others / b_squared / expected)
        return score

    def lower(self) -> tuple[float, int, int]:
        """Return the lower bound on ε, right guesses and guesses."""
        random = np.random.default_rng([SEED, self.dimension, int(100 * self.b0_squared)])
        return run_attack(self.scores, random)


Scorer = Callable[[NDArray[np.bool_], np.random.Generator], Floats]


def run_attack(scores: Scorer, random: np.random.Generator) -> tuple[float, int, int]:
    """Rehearse, fix a threshold, attack; return the lower bound, right guesses and guesses."""
    included = random.random(REHEARSAL) < 0.5
    found = scores(included, random)
    outside = found[~included]
    candidates = [float(np.quantile(outside, 1.0 - level)) for level in LEVELS]
    threshold = max(candidates, key=lambda each: lower_bound(found > each, included)[0])
    included = random.random(TRIALS) < 0.5
    return lower_bound(scores(included, random) > threshold, included)


def lower_bound(guessed: NDArray[np.bool_], included: NDArray[np.bool_]) -> tuple[float, int, int]:
    """Return the lower bound that guesses "in" prove, right guesses and guesses."""
    right, made = int((guessed & included).sum()), int(guessed.sum())
    trials = included.size
    lower = independent_bound(right, made, trials=trials, delta=DELTA, confidence=CONFIDENCE)
    return lower, right, made


def gaussian_controls() -> list[dict[str, float]]:
    """Return what the same attack finds where the truth is known."""
    rows = []
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        plan = dither.plan(epsilon=epsilon, delta=DELTA, dataset_size=1, batch_size=1, steps=1)
        mu = 1.0 / float(plan.noise_multipliers[0])

        def scores(
            included: NDArray[np.bool_], random: np.random.Generator, mu: float = mu
        ) -> Floats:
            return np.asarray(mu * included + random.standard_normal(included.size))

        lower = run_attack(scores, np.random.default_rng([SEED, int(epsilon)]))[0]
        rows.append({"epsilon": epsilon, "lower": lower})
    return rows


def run_attacks(attacks: list[Attack]) -> list[dict[str, Any]]:
    """Make every attack."""
    rows = []
    for attack in track(attacks, "attacking"):
        lower, right, guesses = attack.lower()
        setting = {"rule": attack.rule, "b0_squared": attack.b0_squared, "d": attack.dimension}
        rows.append({**setting, "lower": lower, "right": right, "guesses": guesses})
    return rows


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Draw the lower bounds over the number of coordinates."""
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots()
    colours = {0.1: "#0072B2", 1.0: "#009E73", 20.0: "#D55E00"}
    for rule, line in (("raw", "-"), ("released", ":")):
        for start in STARTS:
            found = [r for r in rows if r["rule"] == rule and r["b0_squared"] == start]
            axes.plot(
                [r["d"] for r in found],
                [r["lower"] for r in found],
                line,
                marker="o",
                color=colours[start],
                label=f"{rule} gradients, b₀² = {start:g}",
            )
    axes.axhline(EPSILON, color="black", linestyle="--", label="what the theorem claims")
    axes.set(xscale="log", xlabel="number of coordinates d", ylabel="ε is at least")
    axes.legend(fontsize=8)
    return figure


def main() -> None:
    """Attack, save, draw."""
    attacks = [Attack(*each) for each in product(("raw", "released"), STARTS, DIMENSIONS)]
    rows = run_attacks(attacks)
    gaussians = gaussian_controls()
    setting = {
        "epsilon": EPSILON, "delta": DELTA, "dataset_size": DATASET, "steps": STEPS, "nu": NU,
        "trials": TRIALS, "seed": SEED, "confidence": CONFIDENCE,
    }  # fmt: skip
    found = {
        **origin(COMMAND, ("numpy", "scipy")),
        **setting,
        "gaussians": gaussians,
        "attacks": rows,
    }
    (RECORDS / "adaptive_leak.json").write_text(json.dumps(found, indent=2) + "\n")
    save_figure(draw(rows), RECORDS / "adaptive_leak.png")
    for each in gaussians:
        print(f"Gaussian  ε = {each['epsilon']:g}: ε ≥ {each['lower']:.2f}")
    for row in rows:
        print(
            f"{row['rule']:9} b0² {row['b0_squared']:5g}  d {row['d']:9,}  ε ≥ {row['lower']:.2f}"
        )


if __name__ == "__main__":
    main()
