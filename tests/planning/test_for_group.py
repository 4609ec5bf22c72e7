"""What a plan says of groups of records."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from scipy import special

from dither import accounting
from dither.accounting.gaussian import gaussian_delta
from dither.accounting.group import LARGEST
from dither.planning import Plan


def plan_of(*, batch_size: int = 100, **options: Any) -> Plan:
    z = np.linspace(2.0, 4.0, 60)
    return Plan.from_noise_multipliers(
        z, delta=1e-5, dataset_size=2_000, batch_size=batch_size, **options
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "fixed": {"sampling": "fixed"},
    "cyclic": {"correlation": [1.0, -0.4, -0.2]},
    "full": {"batch_size": 2_000},
}
each_plan = pytest.mark.parametrize("name", OPTIONS)


@functools.cache
def named(name: str) -> Plan:
    return plan_of(**OPTIONS[name])


@each_plan
def test_a_group_of_one_costs_what_the_plan_says(name: str) -> None:
    plan = named(name)
    assert plan.for_group(1) == plan.bound


@each_plan
def test_larger_groups_and_smaller_deltas_cost_more(name: str) -> None:
    plan = named(name)
    bounds = [plan.for_group(size) for size in (1, 2, 5)]
    epsilons = [bound.epsilon for bound in bounds]
    assert epsilons == sorted(epsilons)
    assert all(bound.is_upper_bound for bound in bounds)
    assert plan.for_group(2, delta=1e-7).epsilon > epsilons[1]


def test_full_batches_have_a_closed_form() -> None:
    plan = named("full")
    mu = math.sqrt(math.fsum(plan.noise_multipliers**-2.0))
    for size in (2, 7, 50):
        bound = plan.for_group(size)
        assert gaussian_delta(size * mu, bound.epsilon) <= 1e-5
        assert gaussian_delta(size * mu, bound.epsilon * (1.0 - 1e-6)) > 1e-5
        assert bound.sampling == "full"


@pytest.mark.parametrize("name", ["fixed", "cyclic"])
@pytest.mark.parametrize("size", [2, 5])
def test_chained_guarantees_are_no_worse_than_equal_ones(name: str, size: int) -> None:
    """δ·Σ_i e^(i·ε) at k·ε, by another search; and no better than records one would see alone."""
    plan = named(name)
    equal = math.inf
    for log_delta in np.arange(-12.0, -48.0, -4.0):
        one = accounting.epsilon(
            plan.charges,
            sample_rate=plan.charge_rate,
            delta=math.exp(log_delta),
            sampling=plan.charge_sampling,
        ).epsilon
        if log_delta + special.logsumexp(one * np.arange(size)) <= math.log(1e-5):
            equal = min(equal, size * one)
    assert plan.bound.epsilon < plan.for_group(size).epsilon <= 1.01 * equal


@pytest.mark.parametrize("accountant", ["rdp", "gdp"])
def test_groups_are_accounted_by_pld_whatever_made_the_plan(accountant: str) -> None:
    assert plan_of(accountant=accountant).for_group(3) == named("poisson").for_group(3)


def test_the_bound_says_what_it_is_about() -> None:
    bound = named("poisson").for_group(5)
    assert bound.adjacency_text == "adjacency: add or remove one group of 5 records"
    assert named("fixed").for_group(2).adjacency == "replace-one"


def test_a_plan_without_noise_claims_nothing() -> None:
    plan = Plan.unsafe_without_noise(steps=3, dataset_size=100, batch_size=10)
    bound = plan.for_group(4)
    assert math.isinf(bound.epsilon)
    assert not bound.is_upper_bound
    assert bound.unit == "group of 4 records"


@pytest.mark.parametrize("size", [0, -1, 2.5, LARGEST + 1])
def test_sizes_that_are_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="size must be"):
        named("poisson").for_group(size)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0])
def test_deltas_that_are_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must be"):
        named("poisson").for_group(2, delta=delta)
