"""Attacks on correlated noise: that of the library, and of attackers who know more than it says."""

from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binomtest, multivariate_normal

import dither
from dither import Plan, accounting
from dither.audit import audit, independent_bound
from dither.audit.attacks import Directions
from dither.audit.likelihood import LikelihoodRatio
from dither.types import FloatArray

LEVEL = 1e-6


def noise_covariance(plan: Plan) -> FloatArray:
    """Return the covariance of the plan's noise between steps, in clip norms."""
    bands = [np.eye(plan.steps, k=-k) * each for k, each in enumerate(plan.correlation or (1.0,))]
    B = np.sum(bands, axis=0)
    B /= np.linalg.norm(B, axis=0)
    noise = plan.noise_multipliers[:, None] * np.linalg.inv(B)
    return np.asarray(noise @ noise.T)


def exact_log_ratio(plan: Plan, y: FloatArray) -> FloatArray:
    """Return the log likelihood ratio by the densities of all patterns of draws."""
    noise, rate, terms = noise_covariance(plan), plan.charge_rate, []
    for subset in range(plan.bands):
        steps = range(subset, plan.steps, plan.bands)
        for drawn in product((0.0, 1.0), repeat=len(steps)):
            mean = np.zeros(plan.steps)
            mean[subset :: plan.bands] = drawn
            chance = np.prod([rate if each else 1.0 - rate for each in drawn]) / plan.bands
            if chance > 0.0:
                terms.append(np.log(chance) + multivariate_normal(mean, noise).logpdf(y.T))
    nothing = multivariate_normal(np.zeros(plan.steps), noise).logpdf(y.T)
    return np.asarray(logsumexp(terms, axis=0) - nothing)


@pytest.mark.parametrize(
    ("theta", "steps", "batch_size"),
    [
        ((1.0, 0.6, 0.3), 7, 20),
        ((1.0, 0.9), 5, 50),
        ((1.0, -0.4, 0.2, 0.5), 3, 25),  # fewer steps than bands
        (None, 4, 30),
    ],
)
def test_the_likelihood_ratio_is_that_of_the_densities(
    theta: tuple[float, ...] | None, steps: int, batch_size: int
) -> None:
    random = np.random.default_rng(1)
    z = random.uniform(0.5, 2.0, steps)
    plan = Plan.from_noise_multipliers(
        z, delta=1e-5, dataset_size=100, batch_size=batch_size, correlation=theta
    )
    y, ratio = 2.0 * random.standard_normal((steps, 50)), LikelihoodRatio(plan, 50)
    for release, noise in zip(y, z, strict=True):
        ratio.add(release, float(noise))
    found = ratio.finish()
    assert np.allclose(found, exact_log_ratio(plan, y), rtol=0.0, atol=1e-10)
    assert not np.allclose(found, exact_log_ratio(plan, 1.01 * y), rtol=0.0, atol=1e-3)


def test_a_ratio_of_tiny_noise_is_finite() -> None:
    plan = Plan.from_noise_multipliers(
        [0.02] * 6, delta=1e-5, dataset_size=100, batch_size=10, correlation=[1.0, 0.9, 0.8]
    )
    ratio = LikelihoodRatio(plan, 2)
    for step in range(6):
        ratio.add(np.array([0.0, float(step % 3 == 1)]), 0.02)
    outside, inside = ratio.finish()
    assert np.isfinite([outside, inside]).all()
    assert outside < 0.0 < 100.0 < inside


@pytest.mark.parametrize("noise_multiplier", [1.0, 2.0])
def test_the_white_box_attack_proves_half_of_epsilon(noise_multiplier: float) -> None:
    """The subset is secret: the truth itself is below the claim, which holds if it is known."""
    plan = Plan.from_noise_multipliers(
        [noise_multiplier] * 4, delta=1e-5, dataset_size=100, batch_size=50, correlation=[1.0, 0.6]
    )
    found = audit(plan, trials=50_000, seed=1)
    assert 0.5 * plan.bound.epsilon <= found.lower <= plan.bound.epsilon
    assert not found.is_violated
    assert found.gaussian is None  # a mixture over the subsets is no Gaussian


def test_one_run_of_correlated_noise() -> None:
    plan = Plan.from_noise_multipliers(
        [1.0] * 4, delta=1e-5, dataset_size=100, batch_size=50, correlation=[1.0, 0.6]
    )
    found = audit(plan, attack="one-run", trials=500, seed=2)
    assert 0.5 < found.lower < plan.bound.epsilon


def watched_run(plan: Plan, signs: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return what a run releases along each of its records, and in which steps they take part.

    Every record has a coordinate of its own, and a gradient of the clip norm times its sign.
    """
    model = Directions(signs.size).model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    records = torch.arange(signs.size), torch.from_numpy(signs).float()
    private = dither.make_private(model, optimizer, plan, records)
    (weight,) = model.parameters()
    seen, drawn = np.zeros((2, plan.steps, signs.size))
    for step, (rows, sign) in enumerate(private.batches()):
        private.backward(-10.0 * sign * private.model(rows)[:, 0])
        optimizer.step()
        assert weight.grad is not None
        seen[step] = -plan.batch_size * weight.grad[:, 0].double().numpy()
        drawn[step, rows.numpy()] = 1.0
    private.close()
    return seen, drawn > 0.0


def test_an_attacker_who_knows_the_subsets_gains_no_more_than_is_claimed() -> None:
    """The proof fixes the subsets: the claim holds even for an attacker who knows them.

    This one also measures the noise along records without a gradient, instead of trusting the plan,
    and guesses about the records that it expects to see best. As b·q is 1, the subsets are all that
    there is to know about the draws.
    """
    bands, size = 3, 90_000
    plan = Plan.from_noise_multipliers(
        [0.9] * 9, delta=1e-5, dataset_size=size, batch_size=size // bands,
        correlation=[1.0, 0.8, 0.6],
    )  # fmt: skip
    part = np.arange(size) % 3  # left out, in the data, and of those that are not guessed about
    y, drawn = watched_run(plan, np.where(part == 1, 1.0, 0.0))
    idle = y[:, part == 2]
    weights = np.linalg.inv(idle @ idle.T / idle.shape[1]) @ drawn
    power = np.sum(weights * drawn, axis=0)
    guessed = (part < 2) & (power >= np.quantile(power, 1.0 - 1.0 / bands))
    right = ((np.sum(weights * y, axis=0) > 0.5 * power) == (part == 1))[guessed]
    # Guesses are right with probability (1 + δ(0))/2 at most.
    q, z = plan.sample_rate, plan.noise_multipliers
    claimed = accounting.delta(z, sample_rate=q, epsilon=0.0, sampling="cyclic", bands=bands).delta
    test = binomtest(int(right.sum()), right.size, 0.5 + 0.5 * claimed, alternative="greater")
    assert test.pvalue > LEVEL
    assert right.mean() > 0.5 + 0.49 * claimed  # the attack is a good one


def test_one_record_tells_nothing_about_the_subsets_of_the_others() -> None:
    """The attacker knows the order of the data, in which the canary would be the first record.

    If subsets followed from the index, all others would change theirs with the canary: those with
    even indices among the others would be in the second subset.
    """
    size, trials, right = 600, 60, 0
    plan = Plan.from_noise_multipliers(
        [4.0, 4.0], delta=1e-5, dataset_size=size, batch_size=size // 2, correlation=[1.0, -0.5]
    )
    parity = np.where(np.arange(size) % 2 == 0, 1.0, -1.0)
    for trial in range(trials):
        is_in = trial % 2
        y, _ = watched_run(plan, np.ones(size + is_in))
        first, second = y[:, is_in:]
        right += bool(parity @ (second - first) > 0.0) == bool(is_in)
    # It is above the claim if 57 of 60 guesses are right.
    lower = independent_bound(right, trials, trials=trials, delta=1e-5, confidence=0.9999)
    assert lower <= plan.bound.epsilon, (right, lower)
