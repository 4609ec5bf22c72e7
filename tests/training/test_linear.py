"""Training of linear models: plain descent without noise, the right noise, and its cost."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats
from torch import Tensor

import dither
from dither import Plan
from dither.clipping.clip import Clip
from dither.ledger import Ledger
from dither.progress import Progress
from dither.schedules import AdaGradNorm, Linear
from dither.training.linear import _means_of, _moments, _Steps, train_linear
from dither.training.linear_losses import (
    LinearLoss,
    hinge_loss,
    logistic_loss,
    softmax_loss,
    squared_loss,
)

N = 50

nothing = LinearLoss(lambda scores, _: torch.zeros_like(scores))


def noiseless(steps: int, **more: Any) -> Plan:
    given = {"dataset_size": N, "batch_size": N, "stepsizes": Linear(0.5, 0.1), **more}
    return Plan.unsafe_without_noise(steps=steps, **given)


def test_without_noise_and_clipping_it_is_descent_with_momentum_and_a_mean() -> None:
    x = torch.randn(N, 3, dtype=torch.float64)
    y = np.random.default_rng(0).normal(size=N)
    plan = noiseless(8)
    result = train_linear(x, squared_loss(y), plan, outputs=1, momentum=0.6, constant=0.7)
    columns = np.hstack([x.numpy(), np.full((N, 1), 0.7)])
    weight, velocity, iterates = np.zeros((4, 1)), np.zeros((4, 1)), []
    for eta in plan.stepsizes:
        gradient = columns.T @ (columns @ weight - y[:, None]) / N
        velocity = 0.6 * velocity + 0.4 * gradient
        weight = weight - eta * velocity
        iterates.append(weight)
    mean = np.mean(iterates[4:], axis=0)
    found = result.model.weight.detach().numpy().T, result.model.bias.detach().numpy()
    assert np.allclose(found[0], mean[:3], rtol=1e-12)
    assert np.allclose(found[1], 0.7 * mean[3], rtol=1e-12)


def test_standardized_training_is_training_on_standardized_records() -> None:
    x = torch.rand(N, 3, dtype=torch.float64) * 0.4 + 0.3
    loss = LinearLoss(squared_loss(np.random.default_rng(0).normal(size=N)).gradients)
    plan = noiseless(6)
    found = train_linear(x, loss, plan, outputs=1, standardizing=3).model(x)
    centred = x - x.mean(0)
    scaled = centred / float(centred.square().sum(1).mean().sqrt())
    # Half of six steps are averaged there, and here all three: after each, one more.
    three = [
        train_linear(
            scaled, loss, noiseless(k, stepsizes=plan.stepsizes[3 : 3 + k]), outputs=1
        ).model(scaled)
        for k in (1, 2, 3)
    ]
    last = 2.0 * three[2] - three[1]  # the mean of the last two of three, and the last of two
    # Squared norms are summed in float32.
    assert torch.allclose(found, (three[0] + three[1] + last) / 3.0, rtol=1e-6)


def first_steps(steps: int, noise: float, seed: int) -> _Steps:
    """Return a run that is about to release means."""
    plan = Plan.from_noise_multipliers(
        [noise] * (steps + 1), delta=1e-3, dataset_size=N, batch_size=N
    )
    return _Steps(plan, N, seed, None, Progress("training", 1, shown=False))


def moments(steps: int, noise: float, features: Any, seed: int) -> tuple[Tensor, float]:
    """Return what the first steps say of the mean and the spread."""
    return _moments(features, nothing, None, first_steps(steps, noise, seed), steps)[:2]


def test_moments_come_with_the_noise_that_was_paid_for() -> None:
    shares = {"records": 0.33, "norms": 0.07, "targets": 0.6}
    for names in (["records", "norms", "targets"], ["norms", "targets"], ["norms"]):
        blocks = {name: torch.zeros(N, 4000) for name in names}
        means, noise = _means_of(blocks, first_steps(4, 3.0, 1), 4)
        for name in names:
            share = shares[name] / sum(shares[each] for each in names)
            expected = 3.0 / math.sqrt(share) / N / math.sqrt(4.0)
            assert noise[name] == pytest.approx(expected)
            # The mean square of 4,000 normals is within 10 % of its expectation: 4.5 standard
            # deviations.
            found = float(means[name].square().mean())
            assert found == pytest.approx(expected**2 * 1.001**2, rel=0.1)
            assert abs(found / (0.9 * expected) ** 2 - 1.0) > 0.1  # less is found out


@given(
    st.integers(0, 10**6),
    st.floats(0.0, 2.0),
    st.sampled_from(["logistic", "softmax", "squares", "nothing"]),
    st.booleans(),
)
def test_what_a_record_adds_to_the_means_is_not_clipped(
    seed: int, length: float, kind: str, is_sparse: bool
) -> None:
    """Whatever a record is, its vector has norm at most 1, and the means are those of the data."""
    rng = np.random.default_rng(seed)
    uneven = rng.normal(size=(N, 3)) * 10.0 ** rng.uniform(-3.0, 3.0, 3)
    x = (length * torch.nn.functional.normalize(torch.from_numpy(uneven))).float()
    y = rng.integers(3, size=N)
    loss = {
        "logistic": logistic_loss((y > 0).astype(int)),
        "softmax": softmax_loss(y, 3),
        "squares": squared_loss(rng.choice([-1.0, 1.0], N)),
        "nothing": nothing,
    }[kind]
    run = _Steps(noiseless(2), N, 1, None, Progress("", 2, shown=False))
    with patch.object(run, "release", wraps=run.release) as watched:
        _moments(sparse.csr_array(x.numpy()) if is_sparse else x, loss, None, run, 1)
    rows = watched.call_args.args[0]
    assert rows.clip == Clip(1.0)
    assert float(rows.norms.max()) <= 1.0 + 1e-6  # rounding to float32
    if length == 2.0 and loss.targets is not None:
        assert float(rows.norms.min()) >= 1.0 - 1e-6  # nothing is given away either


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_training_begins_at_the_base_rate(share: float) -> None:
    x = torch.rand(N, 3)
    y = (np.arange(N) < share * N).astype(int)
    still = noiseless(2, stepsizes=[1e-12, 1e-12])
    centre = x.mean(0, keepdim=True)
    logit = train_linear(x, logistic_loss(y), still, outputs=1, standardizing=1).model(centre)
    assert torch.sigmoid(logit).item() == pytest.approx(share, rel=1e-5)
    three = np.where(y == 1, 2, np.arange(N) % 2)
    scores = train_linear(x, softmax_loss(three, 3), still, outputs=3, standardizing=1).model(
        centre
    )
    shares = np.bincount(three, minlength=3) / N
    np.testing.assert_allclose(scores.softmax(1).detach().numpy()[0], shares, rtol=1e-5)
    values = np.linspace(-1.0, 2.0 * share, N).clip(-1.0, 1.0)
    mean = train_linear(x, squared_loss(values), still, outputs=1, standardizing=1).model(centre)
    assert mean.item() == pytest.approx(values.mean(), abs=1e-6)
    none = train_linear(x, hinge_loss(2.0 * y[:, None] - 1.0), still, outputs=1, standardizing=1)
    assert none.model(centre).item() == pytest.approx(0.0, abs=1e-6)


def test_a_share_within_the_noise_counts_as_the_noise() -> None:
    y = np.zeros(N, np.int64)  # nobody of the second class
    for seed in range(5):
        run = first_steps(4, 3.0, seed)
        _, _, intercept = _moments(torch.rand(N, 2), logistic_loss(y), None, run, 4)
        # z/√steps/n over the root of the share of targets; the first share is at most 1 + 5 of it.
        noise = 1.5 / math.sqrt(0.6) / N
        assert float(intercept) >= math.log(noise / (1.0 + 5.0 * noise))


def test_noise_is_not_taken_for_a_mean() -> None:
    mean, spread = moments(4, 3.0, torch.zeros(N, 4000), seed=1)
    of_records, of_norms = (2.0 * 1.5 / N / math.sqrt(share / 0.4) for share in (0.33, 0.07))
    assert float(mean.norm()) < 0.3 * math.sqrt(4000.0) * of_records
    # A part of it is a usual spread, 0.3; the other has a noise of 4·of_norms/2.
    assert spread**2 < 0.3 + 4.0 * 2.0 * of_norms


def test_moments_are_near_the_truth_where_noise_is_small() -> None:
    x = torch.rand(N, 5, dtype=torch.float64) * 0.5
    mean, spread = moments(2, 0.02, x, seed=1)
    # Four standard deviations: 2·0.02/√2/50/√(0.33/0.4), and of the squared norms 4·… over √0.175.
    assert torch.allclose(mean, x.mean(0), atol=4.0 * 2.0 * 0.02 / 2**0.5 / N / 0.825**0.5)
    of_norms = 4.0 * 4.0 * 0.02 / 2**0.5 / N / 0.175**0.5
    assert spread**2 == pytest.approx(float((x - x.mean(0)).square().sum(1).mean()), abs=of_norms)
    nothing_taken_off, norm = moments(2, 0.02, sparse.csr_array(x.numpy()), seed=1)
    assert not nothing_taken_off.any()
    assert norm**2 == pytest.approx(float(x.square().sum(1).mean()), abs=of_norms)


def test_automatic_clipping_scales_every_record() -> None:
    """Of gradients alone: means that are released to standardize records are bounded anyway."""
    x = torch.randn(N, 3, dtype=torch.float64)
    y = np.random.default_rng(0).normal(size=N)
    plan = noiseless(1, clip_norm=0.3, clipping="automatic", stepsizes=[1.0])
    result = train_linear(x, squared_loss(y), plan, outputs=1, momentum=0.0)
    gradients = -np.hstack([x.numpy(), np.full((N, 1), 0.5)]) * y[:, None]
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    expected = -(0.3 * gradients / (norms + 0.01)).sum(0) / N
    np.testing.assert_allclose(result.model.weight.detach().numpy()[0], expected[:3], rtol=1e-9)
    two = noiseless(2, clip_norm=0.3, clipping="automatic")
    bar = Progress("", 2, shown=False)
    means = [
        _moments(x / 9.0, nothing, None, _Steps(each, N, 1, None, bar), 1)[0]
        for each in (two, replace(two, clipping="flat"))
    ]
    assert torch.equal(*means)


def test_every_step_has_the_plans_noise() -> None:
    plan = Plan.from_noise_multipliers(
        [2.0, 5.0], delta=1e-3, dataset_size=N, batch_size=10, clip_norm=0.3, stepsizes=[1.0, 0.5]
    )
    result = train_linear(torch.zeros(N, 4000), nothing, plan, outputs=1, momentum=0.0, seed=4)
    # The mean of the iterates after step 2 of 2 is the last: −(2·N₁ + 0.5·5·N₂)·0.3/10.
    expected = math.hypot(2.0, 2.5) * 0.3 / 10.0 * (1.0 + dither.release.margin(10))
    weights = result.model.weight.detach().numpy().ravel() / expected
    energy = float(np.square(weights).sum())
    low, high = stats.chi2(4000).interval(1.0 - 1e-4)
    assert low < energy < high
    assert not low < energy / 1.1**2 < high  # noise that is a tenth too small is found out


def test_batches_are_those_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = dither.clipping.linear.linear_clipped_sum

    def counted(rows: Any, weight: Any, gradients: Any, records: Any, counts: Any) -> Any:
        sizes.append(len(records))
        return real(rows, weight, gradients, records, counts)

    monkeypatch.setattr("dither.training.linear.linear_clipped_sum", counted)
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=1000, batch_size=100, steps=20)
    train_linear(torch.randn(1000, 2), nothing, plan, outputs=1, seed=0, standardizing=3)
    assert len(sizes) == 20
    assert len({*sizes}) > 5  # Poisson, not fixed
    assert stats.binomtest(sum(sizes), 20_000, 0.1).pvalue > 1e-3


def test_steps_are_in_the_ledger_before_they_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=N, batch_size=10, steps=5)
    ledger = Ledger(tmp_path / "book.sqlite")
    spent: list[int] = []
    real = dither.release.release

    def watched(*args: Any, **kwargs: Any) -> Any:
        spent.append(len([*ledger.runs.values()][-1].spent))
        return real(*args, **kwargs)

    monkeypatch.setattr("dither.training.linear.release", watched)
    train_linear(torch.randn(N, 2), nothing, plan, outputs=1, ledger=ledger, standardizing=1)
    assert spent == [1, 2, 3, 4, 5]
    assert ledger.total(1e-3).epsilon <= 3.0


def test_what_an_interrupted_run_did_not_spend_is_free(tmp_path: Path) -> None:
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=N, batch_size=10, steps=5)
    ledger = Ledger(tmp_path / "book.sqlite")
    calls: list[int] = []

    def broken(scores: Tensor, records: Any) -> Tensor:
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return torch.zeros_like(scores)

    with pytest.raises(KeyboardInterrupt):
        train_linear(torch.randn(N, 2), LinearLoss(broken), plan, outputs=1, ledger=ledger)
    (found,) = ledger.runs.values()
    assert len(found.spent) == 3
    assert not found.is_open


def test_rules_that_react_may_be_used_but_not_with_means() -> None:
    plan = dither.plan(
        epsilon=3.0, delta=1e-3, dataset_size=N, batch_size=10, steps=5,
        stepsizes=AdaGradNorm(1.0, 1e-3), noise="uniform",
    )  # fmt: skip
    assert train_linear(torch.randn(N, 2), nothing, plan, outputs=1, seed=0).steps == 5
    with pytest.raises(ValueError, match="standardizing must be fewer steps"):
        train_linear(torch.randn(N, 2), nothing, plan, outputs=1, standardizing=1)


def test_a_seed_repeats_and_none_does_not() -> None:
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=N, batch_size=10, steps=3)
    x = torch.randn(N, 2)

    def scores(seed: int | None) -> Tensor:
        scored: Tensor = train_linear(x, nothing, plan, outputs=1, seed=seed).model(x)
        return scored

    assert torch.equal(scores(9), scores(9))
    assert not torch.equal(scores(9), scores(10))
    assert not torch.equal(scores(None), scores(None))


def test_another_number_of_records_than_planned_is_warned_of() -> None:
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=N, batch_size=10, steps=3)
    with pytest.warns(UserWarning, match="by more than a factor of two"):
        train_linear(torch.randn(3 * N, 2), nothing, plan, outputs=1)


def test_averages_and_measurements_are_those_of_the_iterates() -> None:
    x = torch.randn(N, 3, dtype=torch.float64)
    y = np.random.default_rng(0).normal(size=N)
    public = dither.Public((torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 1).double()))
    given: dict[str, Any] = {"outputs": 1, "evaluate": public, "loss": "squared_error"}

    def trained(steps: int, averaging: str | None, every: int = 20) -> dither.training.TrainResult:
        # Step sizes that do not know how many steps there are: shorter runs are beginnings.
        plan = noiseless(steps, stepsizes=[0.3] * steps)
        how = {**given, "averaging": averaging, "every": every}
        return train_linear(x, squared_loss(y), plan, **how)

    def weight(result: dither.training.TrainResult) -> Tensor:
        return next(result.model.parameters()).detach()

    iterates = [weight(trained(steps, None)) for steps in range(1, 9)]
    run = trained(8, None, every=3)
    assert torch.equal(weight(run), iterates[-1])
    assert [row.step for row in run.history] == [3, 6, 8]
    for row in run.history:
        assert row.metrics == trained(row.step, None).metrics
    ema = torch.zeros_like(iterates[0])
    for step, iterate in enumerate(iterates, 1):
        ema = ema.lerp(iterate, 9.0 / (9.0 + step))
    assert torch.allclose(weight(trained(8, "ema")), ema, rtol=1e-12)
    tail = torch.stack(iterates[4:]).mean(0)
    assert torch.allclose(weight(trained(8, "tail")), tail, rtol=1e-12)


def test_it_measures_on_public_data_only() -> None:
    x, plan = torch.randn(N, 3), noiseless(2)
    with pytest.raises(TypeError, match="evaluate must be dither.Public"):
        train_linear(x, nothing, plan, outputs=1, evaluate=(x, x))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="evaluate must be data that is public"):
        train_linear(x, nothing, plan, outputs=1, evaluate=dither.Public((x, x)))
    with pytest.raises(ValueError, match="averaging must be one of ema, tail, got 'mean'"):
        train_linear(x, nothing, plan, outputs=1, averaging="mean")
    with pytest.raises(ValueError, match="every must be"):
        train_linear(x, nothing, plan, outputs=1, every=0)


def test_public_data_that_do_not_fit_are_found_before_anything_is_spent(tmp_path: Path) -> None:
    x = torch.randn(40, 4)
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=40, batch_size=10, steps=5)
    public = dither.Public((torch.randn(9, 5), torch.zeros(9, dtype=torch.int64)))
    ledger = dither.ledger.Ledger(tmp_path / "spent.sqlite")
    with pytest.raises(ValueError, match="evaluate must have rows of 4 columns"):
        train_linear(x, nothing, plan, outputs=2, evaluate=public, ledger=ledger)
    assert ledger.total(1e-3).epsilon == 0.0
    for averaging in ("", False, 0):
        with pytest.raises(ValueError, match="averaging must be one of ema, tail"):
            train_linear(x, nothing, plan, outputs=2, averaging=averaging)  # type: ignore[arg-type]
