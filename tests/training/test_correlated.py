"""Runs with correlated noise: the noise against a dense matrix, charges, and what restarts it."""

import sqlite3
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.normals import standard_normals
from tests.training.loops import data, flat, losses, noisy_plan, private
from torch import Tensor

import dither
from dither import Plan
from dither.ledger import Ledger
from dither.normals import for_each_block
from dither.randomness import Source
from dither.release import margin, release
from dither.sampling import Cyclic
from dither.training import LinearLoss, Private, StepError, linear, train_linear
from dither.training.statement import statement
from dither.types import FloatArray

THETA = (1.0, 0.6, 0.35, 0.2)
BANDS, SEED = len(THETA), 7


def plan(steps: int = 10, **settings: Any) -> Plan:
    return noisy_plan(steps, correlation=THETA, **settings)


def nothing(run: Private, *batch: Tensor) -> Tensor:
    return losses(run, *batch) * 0.0


def released(run: Private, steps: int | None = None) -> FloatArray:
    """Take steps without a gradient; return their noise in units of z·clip_norm, one row each."""
    rows = []
    for batch in run.batches(steps):
        run.backward(nothing(run, *batch))
        run.optimizer.step()
        grads = [p.grad.flatten() for p in run.model.parameters() if p.grad is not None]
        unit = run.plan.clip_norm * run.noise_multiplier * (1.0 + margin(run.plan.batch_size))
        rows.append(torch.cat(grads).double().numpy() * run.plan.batch_size / unit)
        run.optimizer.zero_grad()
    return np.array(rows)


def fresh(steps: Iterable[int], dimension: int) -> FloatArray:
    """Return the standard normals that a seeded run draws in its steps."""
    found = []
    for step in steps:
        stream = Source(SEED).stream("noise", step + 1)
        found.append(standard_normals(dimension, stream))
    return np.array(found)


def banded(steps: int, theta: tuple[float, ...] = THETA) -> FloatArray:
    """Return B with unit columns, cut off at the last step."""
    dense = np.zeros((steps, steps))
    for lag, value in enumerate(theta):
        dense[np.arange(lag, steps), np.arange(steps - lag)] = value
    return dense / np.linalg.norm(dense, axis=0)


def close(found: FloatArray, expected: FloatArray) -> bool:
    # A release is rounded to 2^(−20) of its noise and then to float32.
    return bool(np.allclose(found, expected, rtol=0.0, atol=1e-5))


def test_the_noise_is_that_of_the_matrix() -> None:
    noise = released(private(plan()))
    expected = fresh(range(10), noise.shape[1])
    assert close(banded(10) @ noise, expected)
    assert not close(banded(10, (1.0, 0.6, 0.35)) @ noise, expected)
    assert not close(noise, expected)


def test_microbatches_release_the_same_noise() -> None:
    whole, parts = private(plan()), private(plan())
    expected = released(whole, 3)
    for batch, row in zip(parts.batches(3), expected, strict=True):
        for part in parts.microbatches(batch, 4):
            parts.backward(nothing(parts, *part))
        parts.optimizer.step()
        grads = torch.cat(
            [p.grad.flatten() for p in parts.model.parameters() if p.grad is not None]
        )
        unit = parts.noise_multiplier * (1.0 + margin(12))
        assert close(grads.double().numpy() * 12 / unit, row)
        parts.optimizer.zero_grad()


def test_a_frozen_parameter_lets_the_ring_begin_again() -> None:
    run = private(plan())
    before = released(run, 5)
    first = next(iter(run.model.parameters()))
    first.requires_grad_(False)
    after = released(run, 2)
    assert after.shape[1] == before.shape[1] - first.numel()
    norms = run.plan.column_norms
    assert close(after[0] / norms[5], fresh([5], after.shape[1])[0])
    first.requires_grad_(True)
    again = released(run, 1)
    assert close(again[0] / norms[7], fresh([7], again.shape[1])[0])


def test_a_failed_release_lets_the_ring_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = private(plan())
    released(run, 2)

    def cut_off(work: Any, count: int, stream: Any, threads: int) -> Any:
        for_each_block(work, count // 2, stream, threads)
        raise OSError("no more random numbers")

    monkeypatch.setattr("dither.release.for_each_block", cut_off)
    with pytest.raises(OSError, match="no more random"):
        released(run, 1)
    monkeypatch.undo()
    assert run.step == 3
    after = released(run, 1)
    assert close(after[0] / np.linalg.norm(THETA), fresh([3], after.shape[1])[0])


def test_a_step_that_was_spent_and_not_released_lets_the_ring_begin_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = private(plan())
    released(run, 2)

    def refuse(*_: Any) -> None:
        raise OSError("no random numbers")

    with monkeypatch.context() as patch:
        patch.setattr(Source, "stream", refuse)
        with pytest.raises(OSError, match="no random numbers"):
            run._charge_and_release(1.0, {"weight": torch.zeros(1)}, {})
    assert run.step == 3
    after = released(run, 1)
    assert close(after[0] / run.plan.column_norms[3], fresh([3], after.shape[1])[0])


def test_cycles_are_charged_once_and_before_their_first_release(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    run = private(plan(), ledger=ledger)
    seen = []
    for batch in run.batches():
        run.backward(nothing(run, *batch))
        run.optimizer.step()
        seen.append(len(ledger.runs[str(run.run)].spent))
    assert seen == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    entry = ledger.runs[str(run.run)].entry
    assert (entry.sampling, entry.sample_rate, len(entry.noise)) == ("poisson", 0.4, 3)
    total = ledger.total(delta=1e-3).epsilon
    assert total == pytest.approx(run.plan.bound.epsilon, rel=1e-9)
    expected = dither.epsilon([1.0] * 3, sample_rate=0.4, delta=1e-3).epsilon
    assert total == pytest.approx(expected, rel=1e-9)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        (steps,) = database.execute("SELECT count(*) FROM entries WHERE kind = 'step'").fetchone()
    assert steps == 3


def test_what_was_spent_so_far_counts_the_cycle_that_was_begun() -> None:
    run = private(plan())
    spent = []
    for batch in run.batches():
        run.backward(nothing(run, *batch))
        run.optimizer.step()
        spent.append(run.spent().epsilon)
    costs = [dither.epsilon([1.0] * k, sample_rate=0.4, delta=1e-3).epsilon for k in (1, 2, 3)]
    for step, epsilon in enumerate(spent):
        assert epsilon >= costs[step // BANDS] * (1.0 - 0.005)
    assert spent[-1] == pytest.approx(costs[-1], rel=1e-9)


@pytest.mark.parametrize("has_ledger", [True, False])
def test_a_run_resumes_with_whole_cycles_and_an_empty_ring(
    tmp_path: Path, has_ledger: bool
) -> None:
    ledger = {"ledger": tmp_path / "ledger.sqlite"} if has_ledger else {}
    planned = plan(steps=16)
    run = private(planned, **ledger)
    released(run, 6)
    state = run.state_dict()
    assert state["plan_state"]["spent"] == [1.0, 1.0]
    run._account._wait()
    again = private(planned, **ledger)
    with pytest.warns(UserWarning, match="steps") as seen:
        again.load_state_dict(state)
    assert "2 steps were charged in whole cycles and not taken" in str(seen[-1].message)
    assert {each.filename for each in seen} == {__file__}
    # Two cycles are spent, and ten steps are left: three more cycles, one more than was planned.
    assert (again.step, again.steps_left, again.plan.steps) == (8, 10, 18)
    assert again.plan.charges.size == 5
    assert again.plan.bound.epsilon <= planned.bound.epsilon
    assert again.plan.noise_multipliers[8:].min() > 1.0
    noise = released(again, 5)
    expected = fresh(range(8, 13), noise.shape[1])
    norms = again.plan.column_norms[8:13]
    dense = banded(5) * np.linalg.norm(np.tril(_toeplitz(5)), axis=0)
    assert close(dense @ (noise / norms[:, None]), expected)
    assert _subsets(again) != _subsets(run)


def _toeplitz(steps: int) -> FloatArray:
    dense = np.zeros((steps, steps))
    for lag, value in enumerate(THETA):
        dense[np.arange(lag, steps), np.arange(steps - lag)] = value
    return dense


def _subsets(run: Private) -> list[list[int]]:
    sampler = run._draws._sampler
    assert isinstance(sampler, Cyclic)
    return [each.tolist() for each in sampler._subsets]


def test_a_run_that_resumes_between_cycles_keeps_its_plan(tmp_path: Path) -> None:
    path, planned = tmp_path / "ledger.sqlite", plan(steps=16)
    run = private(planned, ledger=path)
    released(run, 8)
    again = private(planned, ledger=path)
    again.load_state_dict(run.state_dict())
    assert (again.step, again.plan) == (8, planned)
    released(again)
    assert Ledger(path).total(delta=1e-3).epsilon == pytest.approx(planned.bound.epsilon, rel=1e-9)


def test_a_loop_from_before_a_state_was_loaded_has_ended() -> None:
    run = private(plan())
    loop = run.batches()
    run.backward(nothing(run, *next(loop)))
    run.optimizer.step()
    with pytest.warns(UserWarning, match="steps"):
        run.load_state_dict(run.state_dict())
    with pytest.raises(StepError, match=r"private.batches\(\) was called again"):
        next(loop)


def test_going_back_within_a_cycle_is_refused() -> None:
    run = private(plan())
    released(run, 1)
    state = run.state_dict()
    released(run, 2)
    with pytest.raises(ValueError, match="must have spent the 3 steps that were released, got 1"):
        run.load_state_dict(state)


@pytest.mark.parametrize("has_ledger", [True, False])
def test_a_finished_run_stays_as_it_is(tmp_path: Path, has_ledger: bool) -> None:
    ledger = {"ledger": tmp_path / "ledger.sqlite"} if has_ledger else {}
    planned = plan(steps=10)
    run = private(planned, **ledger)
    released(run)
    again = private(planned, **ledger)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="without a ledger")
        again.load_state_dict(run.state_dict())
    assert (again.step, again.steps_left, again.plan) == (10, 0, planned)


def test_lost_cycles_stay_spent(tmp_path: Path) -> None:
    path, planned = tmp_path / "ledger.sqlite", plan(steps=16)
    run = private(planned, ledger=path)
    released(run, 3)
    state = run.state_dict()
    released(run, 6)  # and is killed
    again = private(planned, ledger=path)
    with pytest.warns(UserWarning, match="9 steps were charged in whole cycles"):
        again.load_state_dict(state)
    assert (again.step, again.steps_left) == (12, 13)
    released(again)
    spent = Ledger(path).total(delta=1e-3).epsilon
    assert spent <= planned.bound.epsilon
    z = Ledger(path).runs[str(state["run"])].noise
    assert z[:3] == (1.0, 1.0, 1.0)
    assert len(z) == 7


def test_records_take_part_in_the_steps_of_their_subset_only() -> None:
    run = private(plan(steps=40))
    seen: dict[int, set[int]] = {}
    for step, (inputs, targets) in enumerate(run.batches()):
        run.backward(losses(run, inputs, targets))
        run.optimizer.step()
        for key in inputs[:, 0].tolist():
            seen.setdefault(key, set()).add(step % BANDS)
    assert len(seen) > 100
    assert {len(each) for each in seen.values()} == {1}


def test_the_means_of_a_linear_model_have_independent_noise() -> None:
    dimension, first = 4, 6
    made = Plan.from_noise_multipliers(
        [1.0] * 16, delta=1e-3, dataset_size=120, batch_size=12, correlation=THETA
    )
    seen = []

    def gradients(scores: Tensor, _: Any) -> Tensor:
        return torch.zeros_like(scores)

    original = release

    def watched(*args: Any, **settings: Any) -> Any:
        found = original(*args, **settings)
        seen.append((settings["ring"] is None, found.noise * 12.0 / (1.0 + margin(12))))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "release", watched)
        train_linear(
            torch.zeros(120, dimension), LinearLoss(gradients), made, outputs=1, seed=SEED,
            standardizing=first,
        )  # fmt: skip
    assert [each[0] for each in seen] == [True] * first + [False] * 10
    norms = np.array([each[1] for each in seen])
    assert np.allclose(norms[:first], 1.0)
    assert np.allclose(norms[first:], made.column_norms[first:])


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizers_that_undo_the_gain_are_warned_of(kind: Any) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = kind(net.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="divides every step by the size of its noise") as seen:
        dither.make_private(net, optimizer, plan(), torch.zeros(120, 2))
    assert [each.filename for each in seen] == [__file__]
    records = torch.zeros(120, 2), torch.zeros(120, dtype=torch.int64)
    with pytest.warns(UserWarning, match="divides every step by the size of its noise") as seen:
        dither.train(torch.nn.Linear(2, 2), records, plan(), optimizer=kind, progress=False)
    assert [each.filename for each in seen] == [__file__]
    independent = Plan.from_noise_multipliers([1.0], delta=1e-3, dataset_size=120, batch_size=12)
    net = torch.nn.Linear(2, 1)
    dither.make_private(net, kind(net.parameters(), lr=0.1), independent, torch.zeros(120, 2))


def test_the_statement_says_how_records_were_drawn() -> None:
    run = private(plan())
    released(run, 5)
    text = " ".join(statement(run).split())
    assert "Training: 5 steps, charged as 2 cycles of at most 4 steps." in text
    assert "Cyclic Poisson sampling" in text
    assert "one of 4 subsets" in text
    assert "4·q = 0.4" in text
    assert "correlated within 4 consecutive steps" in text


def test_training_with_correlated_noise_learns() -> None:
    inputs, _ = data(2000)
    targets = (inputs[:, 0] > 0.0).long()
    planned = dither.plan(
        epsilon=8.0, delta=1e-4, dataset_size=2000, batch_size=40, steps=120, noise="correlated"
    )
    assert planned.bands > 1
    run = private(planned, (inputs, targets))
    start = flat(run.model)
    for batch in run.batches():
        run.backward(losses(run, *batch))
        run.optimizer.step()
    assert not torch.equal(flat(run.model), start)
    with torch.no_grad():
        right = (run.model(inputs).argmax(1) == targets).double().mean()
    assert float(right) > 0.85
