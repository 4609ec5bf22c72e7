"""What a claim allows, against the Gaussian's closed form; and the likelihood ratio's own."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import dither
from dither import Plan
from dither.audit import Allowed, allowed_by
from dither.audit.attacks import draw_included
from dither.audit.likelihood import log_likelihood_ratio
from dither.schedules import AdaGradNorm, UnsafeRawAdaGradNorm

ALPHAS = np.linspace(0.0, 1.0, 401)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_full_batches_allow_what_gaussians_do_and_little_more(sampling: str) -> None:
    plan = Plan.from_noise_multipliers(
        [5.0] * 4, delta=1e-5, dataset_size=10, batch_size=10, sampling=sampling
    )
    mu = (2.0 if sampling == "fixed" else 1.0) * 2.0 / 5.0
    allowed = allowed_by(plan)
    assert allowed is not None
    exact = norm.cdf(norm.ppf(ALPHAS) + mu)
    excess = allowed.true_positives(ALPHAS) - exact
    assert excess.min() >= -1e-12
    # The curve is convex, and touches the lines; between two of them it is lower than they are.
    assert excess.max() < 0.012


def test_half_of_the_noise_is_not_allowed() -> None:
    plan = Plan.from_noise_multipliers([5.0] * 4, delta=1e-5, dataset_size=10, batch_size=10)
    allowed = allowed_by(plan)
    assert allowed is not None
    assert (norm.cdf(norm.ppf(ALPHAS) + 0.8) - allowed.true_positives(ALPHAS)).max() > 0.1


def test_the_claims_own_pair_is_one_of_the_lines() -> None:
    plan = Plan.from_noise_multipliers([1.0] * 50, delta=1e-3, dataset_size=500, batch_size=20)
    allowed = allowed_by(plan)
    assert allowed is not None
    assert (allowed.epsilons[0], allowed.deltas[0]) == (plan.bound.epsilon, 1e-3)
    pair = Allowed(allowed.epsilons[:1], allowed.deltas[:1])
    assert np.all(allowed.true_positives(ALPHAS) <= pair.true_positives(ALPHAS))
    assert allowed.true_positives(0.2) < 0.9 * pair.true_positives(0.2)


def test_both_lines_of_a_pair() -> None:
    pair = Allowed((np.log(2.0),), (0.1,))
    np.testing.assert_allclose(pair.true_positives([0.0, 0.1, 0.3, 0.9]), [0.1, 0.3, 0.7, 1.0])


def test_plans_that_react() -> None:
    settings: dict[str, Any] = {
        "epsilon": 1.0, "delta": 1e-5, "dataset_size": 100, "batch_size": 10, "steps": 8,
    }  # fmt: skip
    rule = AdaGradNorm(1.0, 0.1)
    fixed = dither.plan(stepsizes=rule, noise="uniform", **settings)
    assert fixed.noises is not None
    assert allowed_by(fixed) == allowed_by(fixed.noises)
    follows = allowed_by(dither.plan(stepsizes=rule, noise="filter", **settings))
    assert follows is not None
    assert follows.deltas[-1] == pytest.approx(1e-5)
    raw = dither.plan(stepsizes=UnsafeRawAdaGradNorm(1.0, 0.1), noise="uniform", **settings)
    assert allowed_by(raw) is None


@pytest.mark.parametrize("q", [1.0, 0.3, 1e-4])
@pytest.mark.parametrize("z", [0.3, 1.0, 7.0])
def test_the_likelihood_ratio_is_that_of_the_densities(q: float, z: float) -> None:
    x = np.linspace(-3.0, 4.0, 15)

    def density(shift: float) -> np.ndarray:
        return np.asarray(q * norm.pdf(x, shift, z) + (1.0 - q) * norm.pdf(x, 0.0, z))

    added = log_likelihood_ratio(x, z, q, replaced=False)
    np.testing.assert_allclose(added, np.log(density(1.0) / norm.pdf(x, 0.0, z)), atol=1e-12)
    replaced = log_likelihood_ratio(x, z, q, replaced=True)
    np.testing.assert_allclose(replaced, np.log(density(1.0) / density(-1.0)), atol=1e-12)


def test_tiny_noise_does_not_overflow() -> None:
    assert np.isfinite(log_likelihood_ratio(np.array([30.0]), 0.02, 0.1, replaced=True)).all()


def test_half_of_the_canaries_are_included_and_a_seed_repeats_it() -> None:
    included = draw_included(100_000, 3)
    assert abs(int(included.sum()) - 50_000) < 5.0 * 158.2  # five standard deviations
    assert np.array_equal(included, draw_included(100_000, 3))
    assert not np.array_equal(included, draw_included(100_000, None))
