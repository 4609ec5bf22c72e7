"""How many rows users have: what one user changes, what it costs, and what the rule chooses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import Rectangle
from torch import nn

import dither
from dither.accounting import BudgetExceededError
from dither.accounting.gaussian import gaussian_epsilon
from dither.evaluation import RowsPerUser
from dither.evaluation.row_counts import _histogram, _nearest_shares
from dither.ledger import Ledger
from dither.release import margin
from dither.validate import InvalidTypeError, InvalidValueError


def ids_of(rows: dict[int, int]) -> list[int]:
    """Return the ids of users, of whom so many have so many rows."""
    counts = np.repeat([*rows], [*rows.values()])
    return np.repeat(np.arange(counts.size), counts).tolist()


@given(st.lists(st.integers(1, 100), max_size=20), st.integers(1, 10**6), st.integers(1, 70))
def test_one_user_changes_one_cell_by_one(others: list[int], rows: int, most: int) -> None:
    before = _histogram(np.array(others, np.int64), most)
    change = _histogram(np.array([*others, rows], np.int64), most) - before
    assert sorted(change.tolist()) == [*[0.0] * (most - 1), 1.0]
    assert change[min(rows, most) - 1] == 1.0


def test_a_count_of_rows_would_change_by_more() -> None:
    """The wrong answer: with one count per row, a user with many rows moves the cells by them."""
    by_rows = np.bincount(np.minimum([1, 2, 3], 3), weights=[1, 2, 10**6])
    assert np.abs(by_rows - np.bincount([1, 2], weights=[1, 2], minlength=4)).max() > 1.0


def test_without_noise_shares_are_exact() -> None:
    ids = ids_of({1: 500, 3: 300, 70: 200})
    found = RowsPerUser.measure(ids, epsilon=1e3, delta=1e-3, most=10, random_state=0)
    expected = np.zeros(10)
    expected[[0, 2, 9]] = 0.5, 0.3, 0.2
    assert np.allclose(found.shares, expected, atol=1e-3)
    rows = np.repeat([1, 3, 70], [500, 300, 200]).tolist()
    public = RowsPerUser.from_public(rows, most=10)
    assert np.allclose(public.shares, expected)
    assert found.chosen == public.chosen
    assert public.privacy is None


def test_shares_are_near_with_noise_and_unbiased_tails() -> None:
    """Many empty cells do not add up to users with many rows, as they would set to 0 one by one."""
    ids = ids_of({1: 600, 2: 400})
    found = [
        RowsPerUser.measure(ids, epsilon=0.5, delta=1e-4, most=100, random_state=k)
        for k in range(30)
    ]
    shares = np.array([each.shares for each in found])
    assert np.allclose(shares.sum(1), 1.0)
    assert shares.min() >= 0.0
    noise = found[0].noise / 1000
    tails = shares[:, 2:].sum(1)
    assert tails.mean() < 0.1
    assert 98 * noise / np.sqrt(2 * np.pi) > 0.2  # what setting negative cells to 0 would add


@pytest.mark.parametrize("rows", [1, 2, 5, 10, 40, 64, 1000])
def test_the_rule_is_its_closed_form(rows: int) -> None:
    """k/(k + 8) ≥ 0.95·R/(R + 8) for users who all have R rows, up to 64."""
    R = min(rows, 64)
    c = 0.95 * R / (R + 8)
    assert RowsPerUser.from_public(rows).chosen == int(np.ceil(8 * c / (1 - c) - 1e-9))


def test_the_rule_averages_over_users() -> None:
    rows = np.array([1, 1, 4, 9, 30])
    found = RowsPerUser.from_public(rows.tolist())

    def signal(k: int) -> float:
        return float(np.mean(1.0 / (1.0 + 8.0 / np.minimum(rows, k))))

    for k in (1, 3, 9, 30):
        assert found.signal(k) == pytest.approx(signal(k))
        assert found.rows(k) == pytest.approx(np.minimum(rows, k).mean())
    assert signal(found.chosen) >= 0.95 * signal(30) > signal(found.chosen - 1)


def test_its_price_is_that_of_one_gaussian_release_of_sensitivity_one() -> None:
    found = RowsPerUser.measure(ids_of({2: 100}), epsilon=1.0, delta=1e-4, random_state=0)
    assert found.privacy is not None
    assert (found.privacy.unit, found.privacy.sampling) == ("user", "full")
    assert found.is_seeded
    assert "SEEDED" in str(found)
    z = found.noise / (1.0 + margin(1))
    claim = gaussian_epsilon(1.0 / z, 1e-4)
    assert claim.upper == pytest.approx(found.privacy.epsilon, rel=1e-3)
    # Noise for rows instead of users would have to be as large as the largest user's rows.
    assert gaussian_epsilon(64.0 / z, 1e-4).lower > 50.0 * found.privacy.epsilon


def test_rows_without_an_id_and_users_of_any_size() -> None:
    ids: list[Any] = [*["a"] * 10**5, "b", "c", "c", None, float("nan"), ""]
    much: dict[str, Any] = {"epsilon": 1e3, "delta": 1e-3, "most": 4, "random_state": 0}
    found = RowsPerUser.measure(ids, **much)
    assert np.allclose(found.shares, [1 / 3, 1 / 3, 0.0, 1 / 3], atol=0.05)
    own = RowsPerUser.measure(ids, missing="own", **much)
    assert np.allclose(own.shares, [4 / 6, 1 / 6, 0.0, 1 / 6], atol=0.05)
    again = RowsPerUser.measure(ids, dataset_size=3, **much)
    assert again == found


def test_a_training_that_was_planned_before_composes_like_one_run(tmp_path: Path) -> None:
    ids, ledger = ids_of({1: 500, 4: 500}), Ledger(tmp_path)
    training = dither.plan(
        epsilon=1.0, delta=1e-5, dataset_size=1000, batch_size=100, steps=100
    ).for_users(5)
    found = RowsPerUser.measure(ids, epsilon=0.1, delta=1e-5, ledger=ledger)
    assert ledger.runs[found.run or ""].entry.unit == "user"
    x, y = np.zeros((len(ids), 2), np.float32), np.zeros(len(ids), np.int64)
    for handle, composition in ((ledger.preplanned(), "fixed"), (ledger, "adaptive")):
        dither.train(
            nn.Linear(2, 2), (x, y), training, users=ids, rows_per_user=5, progress=False,
            run=dither.Run(ledger=handle),
        )  # fmt: skip
        assert ledger.composition == composition
        if composition == "fixed":
            rates = np.array([1.0, *[0.1] * 100])
            assert found.privacy is not None
            z = [found.noise / (1.0 + margin(1)), *training.noise_multipliers]
            expected = dither.accounting.epsilon(z, sample_rate=rates, delta=1e-5).epsilon
            assert ledger.total(1e-5).epsilon == pytest.approx(expected, rel=1e-3)
            assert expected < 1.02  # instead of 1.1, or the odometer's
    with pytest.raises(BudgetExceededError, match="protects records"):
        dither.train(
            nn.Linear(2, 2), (x, y), epsilon=1.0, steps=2, batch_size=10, progress=False,
            run=dither.Run(ledger=ledger),
        )  # fmt: skip


def test_the_nearest_shares_are_nearest() -> None:
    """Against a search over all shares of three cells."""
    rng = np.random.default_rng(0)
    grid = np.arange(0, 1.0001, 0.01)
    a, b = (each.ravel() for each in np.meshgrid(grid, grid))
    points = np.stack([a, b, 1.0 - a - b], axis=1)[a + b <= 1.0 + 1e-9]
    for values in rng.normal(0.33, 0.4, (50, 3)):
        found = _nearest_shares(values)
        best = np.linalg.norm(points - values, axis=1).min()
        assert np.linalg.norm(found - values) <= best + 1e-9
        assert found.sum() == pytest.approx(1.0)


def test_the_figure_has_shares_gain_and_cost() -> None:
    found = RowsPerUser.from_public([1, 2, 2, 20])
    left, right = found.plot().axes
    bars = [bar.get_height() for bar in left.patches if isinstance(bar, Rectangle)]
    assert bars == [*found.shares]
    signal, time, chosen = (np.asarray(line.get_xydata()) for line in right.lines)
    assert signal[-1, 1] == time[-1, 1] == 1.0
    assert (signal[:, 1] >= time[:, 1] - 1e-12).all()
    assert chosen[0, 0] == found.chosen
    assert f"rows_per_user = {found.chosen}" in str(found)


def test_mistakes_are_one_line() -> None:
    for rows, words in (([], "rows must be of at least one user"), ([1, 0], "rows must be")):
        with pytest.raises(InvalidValueError, match=words):
            RowsPerUser.from_public(rows)
    with pytest.raises(InvalidTypeError, match="users must be one id per row"):
        RowsPerUser.measure("abc", epsilon=1.0)
    with pytest.raises(InvalidValueError, match="most must be an integer of at least 1"):
        RowsPerUser.measure([1, 2], epsilon=1.0, most=0)
