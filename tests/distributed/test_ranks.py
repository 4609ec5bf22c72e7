"""Ranks do what one process does: the same sums, the noise once, independent draws."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from tests.distributed import rank as cases
from tests.distributed.launching import TIMEOUT, run

import dither
from dither.planning.search import FACTORS
from dither.training import Shard

SIZE = len(cases.SHARDS)


def check_equal(folder: Path, size: int, case: str, starts: dict[str, torch.Tensor]) -> None:
    """Compare what so many ranks have trained with what one process trains."""
    alone = folder / f"{case} alone"
    alone.mkdir()
    cases.CASES[case](alone, 0)
    one = torch.load(alone / "0.pt")
    ranks = [torch.load(folder / case / f"{rank}.pt") for rank in range(size)]
    for name, expected in one.items():
        assert torch.allclose(ranks[0][name], expected, rtol=0.0, atol=1e-5), name
        assert all(torch.equal(each[name], ranks[0][name]) for each in ranks), name
    moved = {name: float((one[name] - start).abs().max()) for name, start in starts.items()}
    assert all(distance > 1e-3 for distance in moved.values()), "training must go somewhere"


def test_ranks_add_up_to_one_process(folder: Path) -> None:
    check_equal(folder, SIZE, "equal", _starts())


def test_ranks_with_users_add_up_to_one_process(folder: Path) -> None:
    check_equal(folder, SIZE, "users", cases.models()["cnn"][0].state_dict())


@pytest.mark.evidence
@pytest.mark.parametrize("size", [2, 4])
def test_other_numbers_of_ranks_add_up(size: int, tmp_path: Path) -> None:
    run(size, cases.main, tmp_path, "equal")
    check_equal(tmp_path, size, "equal", _starts())


def _starts() -> dict[str, torch.Tensor]:
    return {
        f"{kind} {name} {key}": value
        for kind in cases.OPTIMIZERS
        for name, (model, _) in cases.models().items()
        for key, value in model.state_dict().items()
    }


CASES = (
    "equal",
    "noise",
    "correlated",
    "draws",
    "reactive",
    "refusals",
    "users",
    "together",
    "tuned",
    "wrapped",
    "chosen",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of three ranks for all cases, made once for all workers of pytest."""
    base = tmp_path_factory.getbasetemp()
    made = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks"
    end = made / "end"
    try:
        made.mkdir()
    except FileExistsError:
        since = time.monotonic()
        while not end.exists() and time.monotonic() - since < TIMEOUT:
            time.sleep(0.1)
    else:
        run(SIZE, cases.main, made, *CASES)
        end.touch()
    assert end.exists(), "the worker that made it has failed"
    return made


@pytest.fixture(scope="module")
def released(folder: Path) -> list[torch.Tensor]:
    return [torch.load(folder / "noise" / f"{rank}.pt") for rank in range(SIZE)]


def test_all_ranks_get_the_same_release(released: list[torch.Tensor]) -> None:
    assert all(torch.equal(each, released[0]) for each in released)


@pytest.mark.parametrize(("coefficient", "agrees"), [(0.7, True), (0.9, False), (0.0, False)])
def test_rank_zero_correlates_the_noise(folder: Path, coefficient: float, agrees: bool) -> None:
    """χ² of u_t + θ·u_{t−1}, which is independent again, with a false alarm in 10^9."""
    ranks = [torch.load(folder / "correlated" / f"{rank}.pt") for rank in range(SIZE)]
    assert all(torch.equal(each, ranks[0]) for each in ranks)
    steps = np.arange(cases.NOISY_STEPS)
    norms = np.sqrt(1.0 + np.where(steps < steps[-1], cases.CORRELATION[1] ** 2, 0.0))
    planned = cases.NOISE * (1.0 + steps) * norms / 50 * (1.0 + dither.release.margin(50))
    noise = ranks[0].double().numpy() / planned[:, None]
    energy = float(np.square(noise[1:] + coefficient * noise[:-1]).sum())
    low, high = stats.chi2.interval(1.0 - 1e-9, noise[1:].size)
    assert bool(low <= energy <= high) == agrees


@pytest.mark.parametrize(
    ("factor", "agrees"), [(1.0, True), (0.97, False), (1.03, False), (2.0**0.5, False)]
)
def test_the_noise_is_added_once(released: list[torch.Tensor], factor: float, agrees: bool) -> None:
    """χ² of all coordinates of all steps, each by its own plan, with a false alarm in 10^9."""
    steps = torch.arange(cases.NOISY_STEPS, dtype=torch.float64)
    planned = cases.NOISE * (1.0 + steps) / 50 * (1.0 + dither.release.margin(50))
    energy = float((released[0].double() / (factor * planned)[:, None]).square().sum())
    low, high = stats.chi2.interval(1.0 - 1e-9, released[0].numel())
    assert bool(low <= energy <= high) == agrees


@pytest.fixture(scope="module")
def taken(folder: Path) -> list[np.ndarray]:
    return [np.load(folder / "draws" / f"{rank}.npy") for rank in range(SIZE)]


def fits(taken: np.ndarray, rate: float) -> bool:
    """Whether records are drawn with that probability: χ² over records, false alarm in 10^9."""
    steps, records = taken.shape
    counts = taken.sum(axis=0)
    energy = ((counts - rate * steps) ** 2 / (steps * rate * (1.0 - rate))).sum()
    low, high = stats.chi2.interval(1.0 - 1e-9, records)
    return bool(low <= energy <= high)


def test_every_record_is_drawn_independently(taken: list[np.ndarray]) -> None:
    drawn = np.concatenate(taken, axis=1)
    assert drawn.shape == (cases.DRAWS, sum(cases.SHARDS))
    assert fits(drawn, cases.RATE)
    assert not fits(drawn, 1.35 * cases.RATE)
    assert not fits(drawn, 0.65 * cases.RATE)
    empty = [int((~each.any(axis=1)).sum()) for each in taken]
    assert empty[1] > 50, "empty draws must have happened"
    assert empty[2] == cases.DRAWS


def independent(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two records' draws agree no more often than independent ones, over all pairs."""
    rate, pairs = cases.RATE, one.shape[1] * two.shape[1]
    both = float((one.sum(1) * two.sum(1)).sum())
    expected = rate**2 * pairs * len(one)
    # The variance of Σ_t a_t·b_t, with a_t and b_t independent binomials.
    a, b = (each.shape[1] * rate for each in (one, two))
    va, vb = (each.shape[1] * rate * (1.0 - rate) for each in (one, two))
    spread = (len(one) * (va * vb + va * b**2 + vb * a**2)) ** 0.5
    return bool(abs(both - expected) < 6.0 * spread)


def test_ranks_draw_independently(taken: list[np.ndarray]) -> None:
    first, second = taken[0][:, :10], taken[1]
    assert independent(first, second)
    assert not independent(np.concatenate([second] * 3, axis=1), second)
    assert not np.array_equal(first, second)


def written(folder: Path) -> list[Any]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)]


def test_what_follows_releases_is_the_same_everywhere(folder: Path) -> None:
    one, *others = written(folder / "reactive")
    assert all(each == one for each in others)
    assert 0.0 < one["epsilon"] <= 2.0
    assert len({z for z, _ in one["seen"]}) > 1


def test_a_search_chooses_the_same_everywhere(folder: Path) -> None:
    one, *others = written(folder / "tuned")
    assert all(each == one for each in others)
    assert one["factor"] in FACTORS
    assert one["steps"] == 5 * 5 + 2 + 6


def test_ranks_have_one_recipe(folder: Path) -> None:
    one, *others = written(folder / "chosen")
    assert all(each == one for each in others)
    assert one["dataset_size"] == sum(10 + 5 * rank for rank in range(SIZE))
    assert "0.01 s" in one["reasons"]["compute"]


def test_refusals_reach_every_rank(folder: Path) -> None:
    first, *others = written(folder / "refusals")
    different = "must be the same on every rank, got different ones"
    for found in (first, *others):
        assert found["plans"].endswith(f"plan {different}")
        assert found["clipping"].endswith(f"plan {different}")
        for case in ("models", "layers", "frozen"):
            assert found[case].endswith(f"model {different}")
        assert "Poisson sampling in a process group" in found["fixed"]
        assert found["seeds"].endswith(f"seed {different}")
        assert found["rates"].endswith(f"optimizer {different}")
        assert found["averaging"] == f"averaging {different}"
        for case in ("order", "length", "fetched length", "fetched split"):
            assert "the data must be the same on every rank, in the same order" in found[case]
        for case in ("kinds", "keys of some"):
            assert f"complete, a Shard or a Shard with keys, {different}" in found[case]
        assert "users must have all of their rows on one rank" in found["a user in common"]
        assert "the data must be the same on every rank, in the same order" in found["other users"]
        assert found["users of some"].endswith(f"users {different}")
        for case in ("a key in common", "a name in common", "a number and its digits"):
            assert "keys must be different for all records of all ranks" in found[case]
        assert "train_linear is for one process" in found["linear"]
        for case in ("ledger", "folder"):
            assert "must be given to rank 0, which keeps it for all" in found[f"{case} elsewhere"]
        assert "run directory must be new or empty" in found["folder that is not empty"]
        fine = {
            *("nothing", "rounded", "missing", "fetched", "fetched, same split"),
            *("declared", "keys", "names", "keys of nobody", "users"),
        }
        assert not fine & found.keys()
    assert first["cap"].startswith("BudgetExceededError")
    for found in others:
        assert found["cap"].startswith("RankZeroError: rank 0 has refused: BudgetExceeded")
    assert [each.name for each in (folder / "refusals").glob("ledger*.sqlite")] == [
        "ledger-0.sqlite"
    ]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (range(20), None),
        ([*map(str, range(20))], None),
        (torch.arange(20), None),
        (pd.Series(range(20)), None),
        (pd.Series(map(str, range(20))), None),
        (np.array([np.int64(i) for i in range(20)], object), None),
        ([2**70 + i for i in range(20)], None),
        (np.array(["a"] + ["a" + "b" * i for i in range(1, 20)], object), None),
        ([*range(19), 0], "got one that occurs twice"),
        (["0", *range(19)], "got one that occurs twice"),
        (range(19), "one entry per record"),
        (np.zeros((20, 2), int), "one entry per record"),
        (np.arange(20.0), "integers or strings"),
        ([None, *range(19)], "integers or strings"),
        ([True] * 20, "integers or strings"),
    ],
)
def test_keys_of_one_process(keys: Any, message: str | None) -> None:
    plan = dither.Plan.from_noise_multipliers([2.0], delta=1e-5, dataset_size=20, batch_size=5)
    model = torch.nn.Linear(3, 2)
    data = torch.randn(20, 3), torch.zeros(20, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if message is None:
        cases.go(dither.make_private(model, optimizer, plan, Shard(data, keys=keys)))
        return
    with pytest.raises((ValueError, TypeError), match=message):
        dither.make_private(model, optimizer, plan, Shard(data, keys=keys))


def test_modules_that_spread_themselves_are_refused_by_name(folder: Path) -> None:
    for found in written(folder / "wrapped"):
        for name in ("DistributedDataParallel", "FullyShardedDataParallel"):
            assert f"the model ({name}) distributes the model by itself" in found[name]
            assert found[name].endswith("pass the module inside it, .module")
        assert "the model (FSDPLinear) is sharded by fully_shard" in found["FSDPLinear"]
        assert "the model (Linear) has parameters that are spread over ranks" in found["Linear"]


def test_runs_that_take_turns(folder: Path) -> None:
    for found in written(folder / "together"):
        assert found["sizes"] == [90] * 8
        alone, *others = found["weights"]
        assert others == [alone, alone]
        assert found["states"].startswith("state must be the same on every rank")


def test_a_group_that_comes_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = dither.Plan.from_noise_multipliers([2.0], delta=1e-5, dataset_size=20, batch_size=5)
    model = torch.nn.Linear(3, 2)
    data = torch.randn(20, 3), torch.zeros(20, dtype=torch.int64)
    private = dither.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, data)
    monkeypatch.setattr("dither.training.distributed.rank_and_size", lambda: (0, 2))
    with pytest.raises(dither.training.StepError, match="call init_process_group first"):
        cases.go(private)
