"""The paid search: what a record can change, what is charged, what is chosen."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn
from torch.nn import functional

import dither
from dither import Plan, accounting
from dither.accounting import BudgetExceededError
from dither.ledger import Ledger
from dither.planning.search import FACTORS, with_search
from dither.schedules import AdaGradNorm
from dither.training import LinearLoss, Private, train_linear
from dither.training.make_private import join
from dither.training.tuning import best_factor, choose_learning_rate, record_scores

STEPS = 10


@functools.cache
def plan_of(**settings: Any) -> Plan:
    given: dict[str, Any] = {
        "epsilon": 2.0, "delta": 1e-3, "dataset_size": 120, "batch_size": 24, "steps": STEPS,
        "clip_norm": 0.7, "noise": "uniform", **settings,
    }  # fmt: skip
    share = given.pop("share", 0.5)
    return with_search(dither.plan(**given), share=share, trial_rate=lambda *_: 1.0)


def data(records: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(records, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(5, 2)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def run_of(plan: Plan, dataset: Any = None, **settings: Any) -> Private:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=1.0, momentum=0.9)
    return join(made, optimizer, plan, data() if dataset is None else dataset, **settings)


def take_step(run: Private, batch: Any) -> None:
    run.backward(loss(run.model(batch[0]), batch[1]))
    run.optimizer.step()
    run.optimizer.zero_grad()


def search(run: Private) -> bool:
    return choose_learning_rate(run, lambda batch: take_step(run, batch), loss, microbatch_size=50)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The sums of scores before their noise, of all score steps."""
    found: list[Tensor] = []
    release = dither.release.release

    def spy(clipped: Any, **settings: Any) -> Any:
        if "scores" in clipped.gradients:
            found.append(clipped.gradients["scores"].clone())
            assert settings["clip_norm"] == 0.7
        return release(clipped, **settings)

    monkeypatch.setattr("dither.training.private.release", spy)
    return found


class Scored(nn.Module):
    """Its loss for a record is the record itself, whatever was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] + 0.0 * self.weight


@pytest.mark.parametrize(("sampling", "rows"), [("poisson", 1), ("fixed", 1), ("poisson", 5)])
def test_a_record_moves_the_scores_by_no_more_than_is_accounted(
    sums: list[Tensor], sampling: str, rows: int
) -> None:
    """Or a user, with so many rows."""
    plan = plan_of(batch_size=120, sampling=sampling, steps=2)  # every record in every step

    def scores(last: float) -> Tensor:
        sums.clear()
        x = torch.full((120 * rows, 1), 0.3)
        x[-rows:] = last
        x = x if math.isfinite(last) or sampling == "fixed" else x[:-rows]
        users = torch.arange(len(x)) // rows if rows > 1 else None
        made = Scored()
        optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
        records = x, torch.zeros(len(x), dtype=torch.int64)
        run = join(made, optimizer, plan, records, users=users, seed=1)

        def step(batch: Any) -> None:
            run.backward(run.model(batch[0]))
            run.optimizer.step()
            run.optimizer.zero_grad()

        choose_learning_rate(run, step, lambda out, _: out, microbatch_size=50)
        return sums[0]

    extremes = {value: scores(value) for value in (-5.0, 0.0, 0.3, 100.0, math.nan, math.inf)}
    if sampling == "poisson":
        without = extremes[math.nan]
        moved = [float((each - without).norm()) for each in extremes.values()]
        assert max(moved) == pytest.approx(0.7)
    else:
        moved = [float((a - b).norm()) for a in extremes.values() for b in extremes.values()]
        assert max(moved) == pytest.approx(2.0 * 0.7)


def noise_of_scores(plan: Plan, seed: int) -> list[float]:
    """Return the noise of the scores of one search, in units of the plan's."""
    run, found = run_of(plan, seed=seed), list[float]()
    release = run._release_sums

    def listen(z: float, sums: Any, released: Any) -> Any:
        before = {name: each.clone() for name, each in sums.items()}
        facts = release(z, sums, released)
        for name in sums.keys() & {"scores"}:
            noise = released[name] * plan.batch_size - before[name]
            found.extend((noise / (z * plan.clip_norm)).tolist())
        return facts

    run._release_sums = listen  # type: ignore[method-assign]
    assert search(run)
    return found


def test_scores_get_the_noise_of_the_plan() -> None:
    plan = plan_of(steps=20)
    noise = np.array([noise_of_scores(plan, seed) for seed in range(8)]).ravel()

    def fits(scale: float) -> bool:
        low, high = chi2.interval(1.0 - 1e-6, noise.size)
        return bool(low <= np.sum((noise / scale) ** 2) <= high)

    assert noise.size == 8 * 5 * len(FACTORS)
    assert fits(1.0)
    assert not fits(0.7)
    assert not fits(1.5)


def test_an_empty_draw_releases_noise(sums: list[Tensor]) -> None:
    run = run_of(plan_of(batch_size=1, steps=40))
    assert search(run)
    assert any(not each.any() for each in sums)
    assert run.step == run.plan.search.steps


def test_model_and_optimizer_begin_again_after_every_trial() -> None:
    seen: list[tuple[Tensor, int]] = []
    run = run_of(plan_of(), seed=4)
    assert isinstance(run.plan, Plan)
    assert run.plan.search is not None
    start = {name: each.clone() for name, each in run.model.state_dict().items()}

    def step(batch: Any) -> None:
        seen.append((run.model.weight.detach().clone(), len(run.optimizer.state)))
        take_step(run, batch)

    assert choose_learning_rate(run, step, loss, microbatch_size=50)
    first = seen[:: run.plan.search.trial_steps]
    assert len(first) == len(FACTORS)
    assert all(torch.equal(weight, start["weight"]) and not states for weight, states in first)
    assert not torch.equal(seen[1][0], start["weight"])
    assert all(torch.equal(each, start[name]) for name, each in run.model.state_dict().items())
    assert not run.optimizer.state
    assert run.model.training
    assert not search(run), "it is done once"


def test_the_rest_uses_the_factor_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dither.training.tuning.best_factor", lambda *_: 4.0)
    plan = plan_of()
    result = dither.train(model(), data(), plan, progress=False, every=1, seed=1)
    assert plan.search is not None
    assert result.factor == 4.0
    assert [row.step for row in result.history] == [*range(plan.search.steps + 1, plan.steps + 1)]
    assert [row.stepsize for row in result.history] == [4.0] * STEPS
    assert result.bound == plan.bound
    before = result.history[0].epsilon
    assert before >= accounting.epsilon(
        plan.noise_multipliers[: plan.search.steps + 1],
        sample_rate=plan.sample_rate, delta=plan.delta,
    ).lower  # fmt: skip
    text = " ".join(dither.reports.statement(result).split())
    assert f"{plan.search.steps} steps chose the learning rate, and are included" in text
    assert "it chose 4." in text


@pytest.mark.parametrize(
    ("scores", "noise", "expected"),
    [
        ([0.5, 0.5, 0.5], 0.0, 1.0),
        ([0.7, 0.5, 0.7], 0.0, 0.25),
        ([0.7, 0.5, 0.71], 0.01, 4.0),
        ([0.53, 0.5, 0.51], 0.01, 1.0),  # within two standard deviations of a difference
        ([0.504, 0.5, 0.1], 0.0, 1.0),  # too little to leave the recipe's rate for
        ([math.nan, 0.5, 0.6], 0.01, 4.0),
    ],
)
def test_the_best_factor(scores: list[float], noise: float, expected: float) -> None:
    assert best_factor((0.25, 1.0, 4.0), scores, noise) == expected


def test_scores_are_right_classes_or_likelihoods() -> None:
    x, y = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])
    assert record_scores(nn.Identity(), (x, y), loss).tolist() == [1.0, 0.0]
    # One output is not a class by itself: integers may be numbers to predict.
    five = torch.arange(1, 6)
    square = lambda a, b: (a.squeeze(1) - b) ** 2  # noqa: E731
    assert record_scores(nn.Identity(), (five[:, None] * 1.0, five), square).tolist() == 5 * [1.0]
    squared = record_scores(nn.Identity(), (x[:, 0], torch.zeros(2)), lambda a, b: (a - b) ** 2)
    assert squared.tolist() == pytest.approx([math.exp(-4.0), 1.0])
    assert record_scores(nn.Identity(), (x[:, 0], y * 1.0), lambda a, b: a - 9.0).tolist() == [1, 1]


def test_scores_are_of_the_mode_that_was_checked() -> None:
    """Models that mix records in evaluation mode alone, and frozen layers, are as in training."""

    class MixesInEval(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert self.training
            return super().forward(x)

    net = nn.Sequential(nn.BatchNorm1d(4).eval().requires_grad_(False), MixesInEval(4, 2))
    data = torch.randn(60, 4), torch.randint(2, (60,))
    result = dither.train(net, data, epsilon=3.0, tune=0.2, compute=600, progress=False)
    assert result.factor is not None
    assert [module.training for module in net.modules()] == [True, False, True]


def test_a_rate_that_is_far_too_small_is_corrected() -> None:
    plan = plan_of(epsilon=8.0, dataset_size=2000, batch_size=200, steps=60)
    made = nn.Linear(5, 2)
    nn.init.zeros_(made.weight)
    nn.init.constant_(made.bias, 1.0)
    with torch.no_grad():
        made.bias[1] = -1.0  # predicts one class until it has moved
    optimizer = torch.optim.SGD(made.parameters(), lr=0.2)
    found = dither.train(made, data(2000), plan, optimizer=optimizer, progress=False, seed=1)
    assert found.factor == 4.0


@pytest.mark.parametrize("optimizer", ["momentum", "sgd", "adam"])
def test_a_trial_has_the_learning_rate_that_the_rule_gives_a_run_like_it(optimizer: str) -> None:
    given: dict[str, Any] = {"dataset_size": 5000, "batch_size": 250, "optimizer": optimizer}
    wide = nn.Linear(100, 100)
    made = dither.recipe(wide, epsilon=1.0, steps=150, noise="uniform", tune=0.4, **given)
    plan = made.plan()
    assert isinstance(plan, Plan)
    assert plan.search is not None
    assert plan.bound.epsilon <= 1.0
    trial = plan.noise_multipliers[: plan.search.trial_steps]
    alone = accounting.epsilon(trial, sample_rate=plan.sample_rate, delta=plan.delta).epsilon
    like_it = dither.recipe(wide, epsilon=alone, steps=trial.size, **given)
    first = plan.search.trial_steps * FACTORS.index(1.0)
    own = made.learning_rate * plan.stepsizes[first]
    # The rule goes by the central limit, which is rough for a few steps.
    assert own == pytest.approx(like_it.learning_rate, rel=0.15)
    assert own != pytest.approx(made.learning_rate, rel=0.3)


def test_one_number_more_trains_with_a_search(tmp_path: Path) -> None:
    given: dict[str, Any] = {"epsilon": 1.0, "tune": 0.2, "steps": 10, "batch_size": 30}
    run = dither.Run(tmp_path / "run", resume=True)
    result = dither.train(model(), data(), run=run, progress=False, **given)
    assert result.bound.epsilon <= 1.0
    assert result.factor in FACTORS
    assert result.recipe is not None
    assert "tune" in str(result.recipe)
    with pytest.raises(ValueError, match="tune must be what the run began with, 0.2, got 0.3"):
        dither.train(model(), data(), run=run, progress=False, **{**given, "tune": 0.3})


def test_copies_of_a_record_share_its_score(sums: list[Tensor]) -> None:
    plan = plan_of(batch_size=120, steps=2)

    def copies(inputs: Tensor) -> Tensor:
        return torch.stack([inputs, inputs, -inputs], 1)

    result = dither.train(model(), data(), plan, augment=copies, progress=False, seed=1)
    assert result.factor in FACTORS
    # One vector per record: scores that are all 0 or 1 would be as far from the middle.
    assert all(float(each.norm()) < 120 * 0.7 for each in sums)
    thirds = (sums[0] / (2.0 * 0.7 / math.sqrt(len(FACTORS))) + 60.0) * 3.0
    assert torch.allclose(thirds, thirds.round(), atol=1e-6)
    assert bool((thirds <= 360.0).all())


def test_step_sizes_that_react_are_refused() -> None:
    made = dither.recipe(
        model(), dataset_size=120, epsilon=1.0, steps=5, tune=0.2, noise="uniform",
        stepsizes=AdaGradNorm(1.0, 1.0),
    )  # fmt: skip
    with pytest.raises(ValueError, match="tune must be None for step sizes that react"):
        made.plan()


def test_own_loops_are_refused() -> None:
    message = r"plan must have no search \(tune=None\)"
    with pytest.raises(ValueError, match=message):
        dither.make_private(model(), torch.optim.SGD(model().parameters()), plan_of(), data())
    with pytest.raises(ValueError, match=message):
        train_linear(data()[0], LinearLoss(lambda scores, _: scores), plan_of(), outputs=2)


class Killed(BaseException):
    """Like a kill: nothing is cleaned up."""


class Dying:
    """A dataset that dies when it is asked for a batch too many."""

    def __init__(self, after: int) -> None:
        self._data, self._left = data(), after

    def __len__(self) -> int:
        return 120

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        self._left -= 1
        if self._left < 0:
            raise Killed
        return [(self._data[0][i], self._data[1][i]) for i in indices]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._data[0][index], self._data[1][index]


def trained(folder: Path, plan: Plan, after: int) -> Any:
    run = dither.Run(folder, resume=True, checkpoint_every=4)
    return dither.train(model(), Dying(after), plan, run=run, progress=False, seed=9)


@pytest.mark.filterwarnings("ignore:.*steps were spent and lost")
@pytest.mark.parametrize("after", [1, 12, 29, 30, 31])
def test_a_search_that_died_begins_again_and_stays_spent(tmp_path: Path, after: int) -> None:
    plan = plan_of()
    assert plan.search is not None
    assert plan.search.steps == 30
    with pytest.raises(Killed):
        trained(tmp_path / "run", plan, after)
    again = trained(tmp_path / "run", plan, 1000)
    lost = after - 30 if after >= 30 else after
    assert again.steps == plan.steps + lost
    assert again.bound.epsilon <= plan.bound.epsilon
    assert (again.plan == plan) == (not lost)
    ledger = Ledger(tmp_path / "run" / "ledger.sqlite", create=False)
    (run,) = ledger.runs.values()
    assert len(run.spent) == plan.steps + lost
    assert ledger.total_of(run.entry.run, delta=plan.delta).epsilon <= plan.bound.epsilon
    ledger.close()
    report = dither.reports.run_report(tmp_path / "run")
    assert report.claim.bound == again.bound
    assert "chose the learning rate" in " ".join(report.statement)
    if not lost:
        whole = trained(tmp_path / "whole", plan, 1000)
        assert (again.factor, again.steps) == (whole.factor, whole.steps)
        for one, two in zip(again.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(one, two)


def test_the_cost_of_all_is_registered_before_the_first_trial(tmp_path: Path) -> None:
    plan = plan_of()
    ledger, small = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "small")
    run = run_of(plan, ledger=ledger)
    next(iter(run.batches(1)))
    (state,) = ledger.runs.values()
    assert state.noise == tuple(plan.noise_multipliers)
    assert state.entry.epsilon == plan.bound.epsilon
    run.close()
    small.cap(0.9 * plan.bound.epsilon, plan.delta)
    with pytest.raises(BudgetExceededError, match="above the cap"):
        next(iter(run_of(plan, ledger=small).batches(1)))
