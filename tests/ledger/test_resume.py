"""A run that died goes on: what was spent stays spent, and the total stays what was planned."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dither
from dither import Plan, accounting
from dither.ledger import Ledger, LedgerWriteError
from dither.ledger.files import DamagedCheckpointError
from dither.planning.resuming import MOST_NOISE, after_losses
from dither.schedules import AdaGradNorm, Linear

pytestmark = pytest.mark.filterwarnings("ignore:.*steps were spent and lost")
RECORDS, FEATURES, CLASSES, STEPS = 200, 6, 3, 24


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, CLASSES))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return dither.plan(
        epsilon=2.0, delta=1e-3, dataset_size=RECORDS, batch_size=20, steps=STEPS,
        stepsizes=Linear(1.0, 0.2),
    )  # fmt: skip


class Killed(BaseException):
    """Like a kill: nothing is cleaned up."""


class Dying:
    """A dataset that dies when it is asked for a batch too many."""

    def __init__(self, after: int) -> None:
        self._x, self._y = data()
        self._left = after

    def __len__(self) -> int:
        return RECORDS

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        self._left -= 1
        if self._left < 0:
            raise Killed
        return [(self._x[i], self._y[i]) for i in indices]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]


def train(plan: Any, folder: Path, deaths: Iterator[int] | None = None, **settings: Any) -> Any:
    """Train in a folder; with deaths, die after so many steps each time, and go on."""
    kept = {name: settings.pop(name) for name in ("ledger", "checkpoint_every") if name in settings}
    run = dither.Run(folder, resume=True, **{"checkpoint_every": 5, **kept})
    given = {"seed": 9, "progress": False, "optimizer": "adam", "run": run, **settings}
    for after in deaths or ():
        with pytest.raises(Killed):
            dither.train(model(), Dying(after), plan, **given)
    return dither.train(model(), Dying(1000), plan, **given)


def flat(result: Any) -> Tensor:
    return torch.cat([each.flatten() for each in result.model.state_dict().values()])


@pytest.mark.parametrize("averaging", [None, "ema", "tail"])
def test_a_seeded_run_that_lost_nothing_is_the_same(
    plan: Plan, tmp_path: Path, averaging: str | None
) -> None:
    whole = train(plan, tmp_path / "whole", averaging=averaging)
    # Died with 10 and 15 steps in the checkpoint, and while the next batch was being fetched.
    again = train(plan, tmp_path / "again", iter((10, 5)), averaging=averaging)
    assert torch.equal(flat(whole), flat(again))
    assert again.plan == whole.plan == plan
    assert again.bound == plan.bound
    assert [row.step for row in again.history] == [row.step for row in whole.history]
    assert Ledger(tmp_path / "again").total(1e-3) == plan.bound


def test_lost_steps_stay_spent(plan: Plan, tmp_path: Path) -> None:
    result = train(plan, tmp_path / "run", iter((8, 9)))
    ledger = Ledger(tmp_path / "run")
    (run,) = ledger.runs.values()
    # 8 steps, of which a checkpoint has 5; then 9 more, and it has 15 of the 17.
    assert len(run.spent) == STEPS + 3 + 2
    assert result.steps == len(run.spent)
    total = ledger.total(1e-3)
    assert 0.99 * plan.bound.epsilon <= total.epsilon <= plan.bound.epsilon
    assert result.bound == total
    expected = accounting.epsilon(run.spent, sample_rate=plan.sample_rate, delta=1e-3)
    assert total == expected
    assert np.all(np.asarray(run.spent[-10:]) > plan.noise_multipliers[-10:])


def test_a_run_that_died_before_its_first_checkpoint(plan: Plan, tmp_path: Path) -> None:
    result = train(plan, tmp_path / "run", iter((3,)))
    assert result.steps == STEPS + 3
    assert Ledger(tmp_path / "run").total(1e-3).epsilon <= plan.bound.epsilon


def test_a_run_that_lost_too_much_ends_early(plan: Plan, tmp_path: Path) -> None:
    settings = {"checkpoint_every": 100}
    with pytest.warns(UserWarning, match="the run ends early, after 0 steps: what is left of the"):
        result = train(plan, tmp_path / "run", iter((23,)), **settings)
    total = Ledger(tmp_path / "run").total(1e-3).epsilon
    assert total <= plan.bound.epsilon
    assert result.bound.epsilon <= plan.bound.epsilon
    assert result.steps == 23


def test_a_run_that_has_ended_stays_so(plan: Plan, tmp_path: Path) -> None:
    first = train(plan, tmp_path / "run")
    again = train(plan, tmp_path / "run")
    assert torch.equal(flat(first), flat(again))
    assert again.steps == STEPS
    assert Ledger(tmp_path / "run").total(1e-3) == plan.bound
    lost = train(plan, tmp_path / "lost", iter((8,)))
    again = train(plan, tmp_path / "lost")
    assert torch.equal(flat(lost), flat(again))
    assert again.steps == lost.steps == STEPS + 3


@pytest.mark.parametrize("noise", ["filter", "uniform"])
def test_step_sizes_that_react(noise: str, tmp_path: Path) -> None:
    plan = dither.plan(
        epsilon=2.0, delta=1e-3, dataset_size=RECORDS, batch_size=20, steps=STEPS, noise=noise,
        stepsizes=AdaGradNorm(20.0, 1e-3),
    )  # fmt: skip
    result = train(plan, tmp_path / "run", iter((8, 9)))
    ledger = Ledger(tmp_path / "run")
    assert ledger.total(1e-3).epsilon <= 2.0
    assert result.bound.epsilon <= 2.0
    (run,) = ledger.runs.values()
    assert len(run.spent) == result.steps > STEPS - 8
    same = train(plan, tmp_path / "same", iter((10, 5)))
    assert torch.equal(flat(same), flat(train(plan, tmp_path / "whole")))


def test_a_run_without_a_checkpoint_resumes_with_its_own_plan(plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        dither.train(model(), Dying(3), plan, run=dither.Run(folder), progress=False)
    other = dither.plan(epsilon=2.0, delta=1e-3, dataset_size=RECORDS, batch_size=10, steps=STEPS)
    again = dither.Run(folder, resume=True)
    with pytest.raises(ValueError, match="plan must be the one that run .* began with"):
        dither.train(model(), data(), other, run=again, progress=False)
    (run,) = Ledger(folder).runs.values()
    assert len(run.spent) == 3


def test_what_must_be_the_same(plan: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        dither.train(
            model(),
            Dying(7),
            plan,
            run=dither.Run(folder, checkpoint_every=5),
            seed=9,
            progress=False,
        )
    other = dither.plan(epsilon=1.0, delta=1e-3, dataset_size=RECORDS, batch_size=20, steps=STEPS)
    small = nn.Linear(FEATURES, CLASSES)

    def again(made: nn.Module, plan: Plan, **settings: Any) -> None:
        run = dither.Run(folder, resume=True, ledger=settings.pop("ledger", None))
        given = {"seed": 9, "progress": False, "run": run, **settings}
        dither.train(made, data(), plan, **given)

    with pytest.raises(ValueError, match="must be new or empty"):
        again(model(), plan, run=dither.Run(folder))
    with pytest.raises(ValueError, match="state must be of the same plan"):
        again(model(), other)
    with pytest.raises(ValueError, match="model must be the one of the run in"):
        again(small, plan)
    with pytest.raises(ValueError, match="same seed: the saved run has 9, this one 8"):
        again(model(), plan, seed=8)
    with pytest.raises(ValueError, match="optimizer must be the one of the run in"):
        again(model(), plan, optimizer="adam")
    with pytest.raises(ValueError, match="averaging must be the one of the run in"):
        again(model(), plan, averaging="ema")
    with pytest.raises(ValueError, match="ledger must be the one that the run began with"):
        again(model(), plan, ledger=tmp_path / "elsewhere.sqlite")
    checkpoint = folder / "checkpoint.safetensors"
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[:1000])
    with pytest.raises(DamagedCheckpointError, match="is damaged"):
        again(model(), plan)
    checkpoint.write_bytes(content)
    (run,) = Ledger(folder).runs.values()
    assert len(run.spent) == 7
    again(model(), plan)
    assert Ledger(folder).total(1e-3).epsilon <= plan.bound.epsilon


def test_nothing_is_left_of_a_run_that_was_refused(plan: Plan, tmp_path: Path) -> None:
    class Mixing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - x.mean(0))

    normed = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES))
    for made in (Mixing(FEATURES, CLASSES), normed):
        with pytest.raises(ValueError, match="treat every record by itself|normalises over"):
            dither.train(made, data(), plan, run=dither.Run(tmp_path / "run"), progress=False)
        assert not (tmp_path / "run").exists()


def test_a_ledger_is_shared_by_two_runs(plan: Plan, tmp_path: Path) -> None:
    shared = tmp_path / "all.sqlite"
    for name in ("one", "two"):
        train(plan, tmp_path / name, ledger=shared)
    ledger = Ledger(shared)
    assert ledger.composition == "adaptive"
    assert len(ledger.runs) == 2
    assert ledger.total(1e-3).epsilon > plan.bound.epsilon
    assert not (tmp_path / "one" / "ledger.sqlite").exists()


def test_a_cap_stops_a_run_before_its_first_step(plan: Plan, tmp_path: Path) -> None:
    shared = tmp_path / "all.sqlite"
    Ledger(shared).cap(1.5 * plan.bound.epsilon, 1e-3)
    train(plan, tmp_path / "one", ledger=shared)
    with pytest.raises(accounting.BudgetExceededError, match="above the cap of"):
        train(plan, tmp_path / "two", ledger=shared)
    assert len(Ledger(shared).runs) == 1
    assert not (tmp_path / "two").exists()


def test_no_release_without_its_cost(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model()
    run = dither.make_private(
        made, torch.optim.SGD(made.parameters(), lr=1.0), plan, data(), ledger=tmp_path / "l.sqlite"
    )
    x, y = next(run.batches())
    run.backward(nn.functional.cross_entropy(run.model(x), y, reduction="none"))
    account = run._account
    account.finish(0, account.noise[0])

    def full(_: Any) -> None:
        raise LedgerWriteError("ledger: database or disk is full")

    before = flat(run)
    with monkeypatch.context() as patch:
        patch.setattr(account, "_spent", [])
        patch.setattr(account, "_charge", full)
        for _ in range(2):
            with pytest.raises(LedgerWriteError):
                run.optimizer.step()
    assert torch.equal(flat(run), before)
    assert all(p.grad is None for p in made.parameters())
    assert run.step == 0
    run.optimizer.step()
    assert run.step == 1
    assert not torch.equal(flat(run), before)


def test_states_need_their_ledger(plan: Plan, tmp_path: Path) -> None:
    def new(**settings: Any) -> dither.training.Private:
        made = model()
        return dither.make_private(
            made, torch.optim.SGD(made.parameters(), lr=1.0), plan, data(), seed=1, **settings
        )

    run = new(ledger=tmp_path / "l.sqlite")
    for x, y in run.batches():
        run.backward(nn.functional.cross_entropy(run.model(x), y, reduction="none"))
        run.optimizer.step()
        if run.step == 3:
            break
    state = json.loads(json.dumps(run.state_dict()))
    with pytest.raises(ValueError, match=r"give it to make_private\(..., ledger=...\)"):
        new().load_state_dict(state)
    with pytest.raises(ValueError, match="has no run"):
        new(ledger=tmp_path / "other.sqlite").load_state_dict(state)
    with pytest.raises(ValueError, match="with other steps than it has"):
        new(ledger=tmp_path / "l.sqlite").load_state_dict(
            {**state, "plan_state": {"spent": [1.0, 2.0, 3.0]}}
        )
    following = new(ledger=tmp_path / "l.sqlite")
    following.load_state_dict(state)
    assert following.step == 3
    assert following.run == run.run


@pytest.mark.parametrize(("taken", "lost"), [(0, 1), (5, 0), (10, 4), (23, 1), (20, 4), (0, 24)])
def test_what_follows_after_losses_costs_what_was_planned(
    plan: Plan, taken: int, lost: int
) -> None:
    spent = plan.noise_multipliers[: taken + lost].tolist()
    made, noise, goes_on = after_losses(plan, taken=taken, spent=spent, noise=spent)
    assert made.bound.epsilon <= plan.bound.epsilon
    assert noise[: len(spent)].tolist() == spent
    if goes_on:
        factors = noise[len(spent) :] / plan.noise_multipliers[taken:]
        assert np.ptp(factors) < 1e-9
        assert 1.0 <= factors[0] <= MOST_NOISE * 1.02
        assert lost == 0 or made.bound.epsilon > 0.98 * plan.bound.epsilon
    else:
        assert made.steps == len(spent)
    assert goes_on == (taken + lost < STEPS)


def test_a_copy_of_a_folder_is_told_of(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        dither.train(model(), Dying(7), plan, run=dither.Run(tmp_path / "run"), progress=False)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    given: dict[str, Any] = {"progress": False}
    with pytest.warns(UserWarning, match="is a copy of the directory that the run began in"):
        dither.train(model(), data(), plan, run=dither.Run(tmp_path / "copy", resume=True), **given)
    for name in ("ledger.sqlite", "ledger.sqlite.mark", "ledger.sqlite-wal", "ledger.sqlite-shm"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
    with pytest.raises(ValueError, match="was not found"):
        dither.train(model(), data(), plan, run=dither.Run(tmp_path / "run", resume=True), **given)
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


def test_lost_steps_are_told_of(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        dither.train(model(), Dying(3), plan, run=dither.Run(tmp_path / "run"), progress=False)
    with pytest.warns(UserWarning, match="3 steps were spent and lost: .* the planned"):
        dither.train(
            model(), data(), plan, run=dither.Run(tmp_path / "run", resume=True), progress=False
        )
