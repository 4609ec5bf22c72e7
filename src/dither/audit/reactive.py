"""Trials of plans whose noise reacts: every trial walks a state of its own.

What is released moves b, and b moves the noise of the steps after it, so that trials that shared
one run would not be independent, and a single canary among thousands would move nothing. Here each
has its own state, budget and one coordinate. The random numbers are the library's own, coins from
its sampler and noise from its release, for all trials of a step together; the release is asked for
in units of each trial's noise. The loop of training, and its clipping, have no part in this: the
attack "one-run" goes through them for such plans, too.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dither.audit.evidence import Coins, Scores, log_likelihood_ratio, signs_of
from dither.clipping import ClippedSum
from dither.planning import ReactivePlan
from dither.progress import Progress
from dither.randomness import Source
from dither.release import release
from dither.sampling import Poisson
from dither.types import FloatArray


@dataclass(frozen=True)
class _Coordinate:
    """A release of one coordinate, as a state sees it."""

    value: float
    noise: float
    dimension: int = 1

    def squared_norm(self) -> float:
        """Return ‖g‖²."""
        return self.value**2


def attack_reactive_plan(
    plan: ReactivePlan, included: Coins, *, seed: int | None = None, progress: bool = False
) -> Scores:
    """Walk one state a canary and return what two attackers see of each.

    Under fixed sampling a canary takes part with its marginal probability, m/n; one that is out is
    replaced by its opposite.
    """
    q, source, trials = plan.sample_rate, Source(seed), included.size
    replaced = plan.sampling == "fixed"
    signs = signs_of(included, replaced=replaced)
    states = [plan.new_state() for _ in range(trials)]
    scale = plan.clip_norm / plan.batch_size
    ratio, final_model = np.zeros(trials), np.zeros(trials)
    with Progress("attacking", plan.steps, shown=progress) as bar:
        for t in range(plan.steps):
            bar.update()
            z = np.array([state.noise_multiplier or np.nan for state in states])
            runs = np.flatnonzero(np.isfinite(z))
            if runs.size == 0:
                break
            drawn = np.zeros(trials)
            drawn[Poisson(q).draw(trials, source.stream("sampling", t))] = 1.0
            signal = (drawn * signs)[runs]
            x = _released(signal / z[runs], source, t) * z[runs]
            ratio[runs] += log_likelihood_ratio(x, z[runs], q, replaced=replaced)
            for run, value, raw in zip(runs, x * scale, signal * scale, strict=True):
                states[run].spend()
                seen = _Coordinate(float(value), float(z[run]) * scale)
                stepsize = states[run].stepsize(seen, partial(pow, float(raw), 2.0))
                final_model[run] += stepsize * value / scale
    return Scores(included, ratio, final_model, ("white-box", "final-model"))


def _released(signal: FloatArray, source: Source, step: int) -> FloatArray:
    """Return what is released of a sum in units of its noise."""
    total = ClippedSum({"along": torch.from_numpy(signal)}, torch.ones(0))
    noisy = release(
        total,
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=1,
        stream=source.stream("noise", step),
    )
    return noisy.gradients["along"].numpy()
