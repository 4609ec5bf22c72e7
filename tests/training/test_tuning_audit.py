"""The whole of a tuned run, attacked: trials, scores, choice and training."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor, nn

import dither
from dither import Plan
from dither.audit.bounds import independent_bound
from dither.training import Private
from dither.training.make_private import join
from dither.training.tuning import choose_learning_rate
from dither.types import Search


def plan_of(trial: float, score: float, rest: float) -> Plan:
    """Return a plan of three trials of one step, one score step and two more, all full batch."""
    plan = Plan.from_noise_multipliers(
        [trial] * 3 + [score] + [rest] * 2, delta=1e-5, dataset_size=2, batch_size=2
    )
    return replace(plan, search=Search((0.25, 1.0, 4.0), trial_steps=1, score_steps=1))


class Coin(nn.Module):
    """The canary, x = 1, has a large gradient and loss 0; the other has none and a large loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        moving = self.weight.sum() - self.weight.sum().detach()
        return x[:, 0] * 1e3 * moving + torch.where(x[:, 0] > 0.0, 0.0, 1e3)


class Attacker:
    """Sees every release of a run, and adds up the likelihood ratio of the canary."""

    def __init__(self, run: Private) -> None:
        self.ratio, self._run, self._release = 0.0, run, run._release_sums
        run._release_sums = self  # type: ignore[method-assign]

    def __call__(self, z: float, sums: Any, released: Any) -> Any:
        facts = self._release(z, sums, released)
        (vector,) = released.values()
        along = float(vector.double().sum()) / math.sqrt(vector.numel())
        # The scores of the record that is always there are 0: half a unit below the middle.
        offset = 1.0 if "scores" in released else 0.0
        m = self._run.plan.batch_size
        self.ratio += (along * m + offset - 0.5) / (facts.noise * m) ** 2
        return facts


def right_guesses(plan: Plan, trials: int, seed: int = 1) -> int:
    """Run a tuned training many times, with the canary or without it, and guess each time."""
    rng, right = np.random.default_rng(seed), 0
    for trial in range(trials):
        is_in = bool(rng.integers(2))
        x = torch.tensor([[0.0], [1.0]])[: 1 + is_in]
        model = Coin()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = x, torch.zeros(len(x), dtype=torch.int64)
        run = join(model, optimizer, plan, data, seed=seed + 7919 * trial)
        attacker = Attacker(run)

        def step(batch: Any, run: Private = run) -> None:
            run.backward(run.model(batch[0]))
            run.optimizer.step()
            run.optimizer.zero_grad()

        choose_learning_rate(run, step, lambda outputs, _: outputs, microbatch_size=9)
        for batch in run.batches():
            step(batch)
        right += (attacker.ratio > 0.0) == is_in
        run.close()
    return right


def proven(right: int, trials: int, delta: float = 1e-5) -> float:
    return independent_bound(right, trials, trials=trials, delta=delta, confidence=0.999)


def is_as_accounted(right: int, trials: int, noise: np.ndarray, level: float = 1e-6) -> bool:
    """Whether so many guesses are right as Gaussian noise in all steps allows, no more or fewer."""
    mu = math.sqrt(float(np.sum(noise**-2.0)))
    low, high = binom.interval(1.0 - level, trials, norm.cdf(mu / 2.0))
    return bool(low <= right <= high)


def test_an_attacker_who_sees_all_stays_below_the_claim() -> None:
    plan, trials = plan_of(2.0, 2.0, 2.0), 80
    right = right_guesses(plan, trials)
    assert proven(right, trials) <= plan.bound.epsilon
    assert is_as_accounted(right, trials, plan.noise_multipliers)


def test_a_search_that_is_not_charged_is_caught() -> None:
    plan, trials = plan_of(0.5, 0.5, 8.0), 60
    claimed = dither.epsilon([8.0, 8.0], sample_rate=1.0, delta=1e-5).epsilon
    found = proven(right_guesses(plan, trials), trials)
    assert claimed < found <= plan.bound.epsilon


def test_scores_without_noise_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    release, trials = dither.release.release, 60

    def bug(clipped: Any, **settings: Any) -> Any:
        is_score = "scores" in clipped.gradients
        return release(clipped, **settings | ({"noise_multiplier": 1e-3} if is_score else {}))

    monkeypatch.setattr("dither.training.private.release", bug)
    plan = plan_of(8.0, 4.0, 8.0)
    right = right_guesses(plan, trials)
    assert proven(right, trials) > plan.bound.epsilon
    assert not is_as_accounted(right, trials, plan.noise_multipliers)


@pytest.mark.evidence
@pytest.mark.parametrize("noise", [(2.0, 2.0, 2.0), (4.0, 1.0, 4.0), (1.5, 4.0, 4.0)])
def test_every_part_gives_away_what_is_accounted(noise: tuple[float, float, float]) -> None:
    plan, trials = plan_of(*noise), 4000
    right = right_guesses(plan, trials)
    assert proven(right, trials) <= plan.bound.epsilon
    assert is_as_accounted(right, trials, plan.noise_multipliers)
    # Less noise in the scores, or scores that a record moves by more, would be noticed where they
    # are most of the cost.
    if noise[1] < noise[0]:
        half = plan.noise_multipliers.copy()
        half[3] *= 0.7
        assert not is_as_accounted(right, trials, half)
