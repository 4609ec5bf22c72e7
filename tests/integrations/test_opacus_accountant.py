"""The accountant that Opacus knows as "dither", against other libraries' and Opacus' own."""

import json
import math
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from opacus.accountants import PRVAccountant, RDPAccountant, create_accountant
from opacus.accountants.utils import get_noise_multiplier
from tests.integrations.opacus_runs import (
    ADAPTIVE_CLIPPING,
    DELTA,
    backward,
    engine,
    made_private,
    records,
    step,
)

from dither.integrations.opacus import DitherAccountant
from dither.training import StepError

History = list[tuple[float, float, int]]

UNEQUAL: History = [(3.0, 0.05, 4), (2.0, 0.05, 4), (1.2, 0.05, 3), (0.9, 0.05, 1)]
SEVERAL_RATES: History = [(1.5, 0.02, 5), (1.1, 0.1, 2), (2.5, 0.4, 3), (1.5, 1.0, 1)]


def accountant_with(history: History) -> DitherAccountant:
    accountant = DitherAccountant()
    for z, q, times in history:
        for _ in range(times):
            accountant.step(noise_multiplier=z, sample_rate=q)
    assert accountant.history == history
    return accountant


def independent_epsilon(history: History) -> float:
    """Return dp-accounting's upper bound, which rounds every step up to a grid of 1e-4."""
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=1e-4)
    for z, q, times in history:
        event = dp_accounting.GaussianDpEvent(z)
        sampled = event if q == 1.0 else dp_accounting.PoissonSampledDpEvent(q, event)
        accountant.compose(sampled, times)
    return float(accountant.get_epsilon(DELTA))


@pytest.mark.parametrize("history", [UNEQUAL, SEVERAL_RATES])
def test_unequal_steps_cost_what_dp_accounting_computes(history: History) -> None:
    bound, independent = accountant_with(history).bound(DELTA), independent_epsilon(history)
    assert bound.lower is not None
    assert bound.lower <= independent
    assert bound.epsilon == pytest.approx(independent, rel=0.006)
    assert (bound.adjacency, bound.is_upper_bound) == ("add-remove", True)


def test_unequal_steps_are_not_accounted_as_equal_ones() -> None:
    """A history taken for its mean noise would be off by far more than the test above lets by."""
    steps = [z for z, _, times in UNEQUAL for _ in range(times)]
    flat = accountant_with([(sum(steps) / len(steps), 0.05, len(steps))])
    assert flat.get_epsilon(DELTA) < 0.8 * accountant_with(UNEQUAL).get_epsilon(DELTA)


@pytest.mark.parametrize("line", [(1.1, 0.01, 1000), (0.8, 0.05, 100), (2.0, 0.2, 50)])
def test_equal_steps_cost_what_opacus_computes(line: tuple[float, float, int]) -> None:
    rdp, prv = RDPAccountant(), PRVAccountant()
    rdp.history = prv.history = [line]
    ours = DitherAccountant()
    ours.history = [line]
    found = ours.bound(DELTA)
    assert found.epsilon <= rdp.get_epsilon(DELTA)
    assert found.lower is not None
    assert found.lower <= prv.get_epsilon(DELTA, eps_error=0.01)
    # PRV's upper bound is at most 2·eps_error above what it estimates.
    assert found.epsilon == pytest.approx(
        prv.get_epsilon(DELTA, eps_error=0.01), rel=0.005, abs=0.02
    )


def test_the_ends_of_the_scale() -> None:
    accountant = DitherAccountant()
    assert accountant.get_epsilon(DELTA) == 0.0
    assert len(accountant) == 0
    accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    assert 0.0 < accountant.get_epsilon(DELTA) < math.inf
    for none in (0.0, 1e-3):
        without = accountant_with([(1.0, 0.1, 1), (none, 0.1, 1)])
        assert without.get_epsilon(DELTA) == math.inf
        assert not without.bound(DELTA).is_upper_bound


def test_bad_steps_are_refused_and_not_counted() -> None:
    accountant = DitherAccountant()
    with pytest.raises(ValueError, match="noise_multiplier must be a finite number of at least 0"):
        accountant.step(noise_multiplier=math.nan, sample_rate=0.1)
    with pytest.raises(ValueError, match=r"sample_rate must be above 0 and at most 1, got 1.5"):
        accountant.step(noise_multiplier=1.0, sample_rate=1.5)
    with pytest.raises(ValueError, match="delta must be strictly between 0 and 1, got 0"):
        accountant.get_epsilon(0)
    assert accountant.history == []


def test_equal_steps_share_a_line() -> None:
    accountant = accountant_with([(1.0, 0.1, 3), (2.0, 0.1, 1), (2.0, 0.2, 2), (1.0, 0.1, 1)])
    assert len(accountant) == 7


def test_a_history_survives_saving() -> None:
    accountant = accountant_with(SEVERAL_RATES)
    later: Any = create_accountant("dither")
    assert isinstance(later, DitherAccountant)
    later.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert later.history == SEVERAL_RATES
    later.step(noise_multiplier=1.0, sample_rate=0.5)
    assert accountant.history == SEVERAL_RATES
    assert later.get_epsilon(DELTA) > accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "either None or empty"),
        (None, "either None or empty"),
        ({"mechanism": "dither"}, "does not have the key `history`"),
        ({"mechanism": "rdp", "history": []}, "state_dict of rdp cannot be loaded"),
        ({"mechanism": "dither", "history": [(1.0, 0.1, 0)]}, "steps must be"),
        ({"mechanism": "dither", "history": [(-1.0, 0.1, 1)]}, "noise_multiplier must be"),
    ],
)
def test_a_history_that_is_none_is_refused_and_nothing_is_lost(state: Any, message: str) -> None:
    accountant = accountant_with(UNEQUAL)
    with pytest.raises(ValueError, match=message):
        accountant.load_state_dict(state)
    assert accountant.history == UNEQUAL


def test_opacus_calibrates_with_it() -> None:
    found = get_noise_multiplier(
        target_epsilon=2.0, target_delta=DELTA, sample_rate=0.05, steps=200, accountant="dither"
    )
    ours = accountant_with([(found, 0.05, 200)])
    assert 1.99 <= ours.get_epsilon(DELTA) <= 2.0


def test_it_counts_the_steps_of_an_engine_without_a_plan() -> None:
    torch.manual_seed(7)
    private_engine = engine()
    model, optimizer, loader = made_private(private_engine, records(60), batch_size=10)
    for batch in loader:
        step(model, optimizer, batch)
    assert private_engine.accountant.history == [(1.0, 1 / 6, 6)]
    expected = accountant_with([(1.0, 1 / 6, 6)]).get_epsilon(DELTA)
    assert private_engine.get_epsilon(DELTA) == expected


def test_several_batches_in_one_step_are_refused() -> None:
    """Opacus would account two draws as one with twice the rate, but a record can be in both."""
    private_engine = engine()
    model, optimizer, loader = made_private(private_engine, records(60), batch_size=10)
    model.allow_grad_accumulation()
    backward(model, next(iter(loader)))
    backward(model, next(iter(loader)))
    with pytest.raises(StepError, match="gradients of one batch, got 2"):
        optimizer.step()
    assert private_engine.accountant.history == []


def test_adaptive_clipping_is_rejected() -> None:
    model, optimizer, loader = made_private(
        engine(), records(60), batch_size=10, **ADAPTIVE_CLIPPING
    )
    with pytest.raises(StepError, match="adaptive clipping is not covered"):
        step(model, optimizer, next(iter(loader)))
