"""Fourier sums over scattered losses, spread over a grid, against the sum itself."""

import math

import mpmath
import numpy as np
import pytest

from dither.accounting import fourier


def random_law(seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([seed, 81])
    weight = random.exponential(size=(2, number)) ** 3
    loss = random.normal(size=(2, number)) * 10.0 ** random.uniform(-3, 1)
    return weight / weight.sum(axis=1, keepdims=True), loss


@pytest.mark.parametrize("number", [2, 17, 400, 5_000])
@pytest.mark.parametrize("seed", range(4))
def test_the_grid_is_the_sum(seed: int, number: int) -> None:
    weight, loss = random_law(seed, 300)
    spacing = 0.37
    direct = fourier._direct_sums(weight, loss, spacing, number)
    for row in range(2):
        spread = fourier._grid_sums(weight[row], loss[row], spacing, number)
        # A phase n·h·L is good to a unit in its last place, in both.
        phases = 4e-16 * number * spacing * float(np.abs(loss[row]).max())
        turns = spacing * float(np.ptp(loss[row])) / (2.0 * math.pi)
        limit = fourier._grid_error(number, 300, turns) + phases
        assert np.abs(spread - direct[row]).max() <= limit


def test_the_error_of_the_grid_is_not_idle() -> None:
    """A spread over 11 cells instead of 14 is caught."""
    weight, loss = random_law(0, 300)
    direct = fourier._direct_sums(weight, loss, 0.37, 100)[0]
    with pytest.MonkeyPatch.context() as patch:
        limit = fourier._grid_error(100, 300, 1.0)
        patch.setattr(fourier, "_HALF", 11)
        wrong = fourier._grid_sums(weight[0], loss[0], 0.37, 100)
    assert np.abs(wrong - direct).max() > limit + 1e-13


@pytest.mark.parametrize("size", [1e-12, 1e-3, 2.0])
def test_the_direct_sum_is_exact_however_small(size: float) -> None:
    weight, loss = random_law(1, 50)
    loss = loss / np.abs(loss).max() * size
    found = fourier._direct_sums(weight, loss, 0.5, 30)
    with mpmath.workdps(40):
        for n in (1, 7, 29):
            terms = [
                mpmath.mpf(w) * (mpmath.expj(mpmath.mpf(0.5) * n * mpmath.mpf(x)) - 1)
                for w, x in zip(weight[0], loss[0], strict=True)
            ]
            truth = mpmath.fsum(terms)
            most = sum(float(abs(term)) for term in terms)
            assert float(abs(mpmath.mpc(found[0, n]) - truth)) <= 1e-14 * most


@pytest.mark.parametrize("size", [1e-9, 1e-3, 0.3, 40.0])
def test_the_quicker_way_is_the_sum(size: float) -> None:
    """Some losses are summed by their moments, others on the grid, and the error is theirs."""
    weight, loss = random_law(2, 300)
    loss = loss / np.abs(loss).max() * size / 69_999 / 0.37
    loss[:, :20] *= 1e3
    weight[:, :20] *= 1e-6
    found = fourier.fourier_excess(weight, loss, 0.37, 70_000)
    some = np.array([1, 17, 4_000, 69_999])
    phase = 0.37 * some[:, None, None] * loss
    terms = weight * (np.expm1(1j * phase))
    most = (weight * np.minimum(np.abs(phase), 2.0)).sum(axis=2)
    missed = np.abs(found.values[:, some].T - terms.sum(axis=2))
    assert (missed <= found.error + 1e-14 * most).all()
    assert (found.error < 1e-12).all()
    assert (found.error < 1e-18).all() or size > 1e-4  # of the losses on the grid alone


def test_many_equal_terms_are_added_in_pairs_however_they_lie_in_memory() -> None:
    losses, columns = 200_000, 3
    weight, loss = np.full((2, losses), 0.1 / losses), np.full((2, losses), 1e-3)
    for given in (np.ascontiguousarray, np.asfortranarray):
        found = fourier.fourier_excess(given(weight), given(loss), 1.0, columns)
        truth = losses * weight[0, 0] * np.expm1(1j * 1e-3 * np.arange(columns))
        missed = np.abs(found.values - truth)
        # Each weight is rounded alike in the product, as `losses` equal terms are.
        assert (missed <= 1.2e-16 * found.additions * np.abs(truth)).all()


def test_the_dearer_way_is_left_where_it_is_dearer() -> None:
    weight, loss = random_law(2, 300)
    few = fourier.fourier_excess(weight, loss, 0.37, 30)
    assert few.additions == 300
    assert not few.error.any()
    assert few.values.shape == (2, 30)
    many = fourier.fourier_excess(weight, loss, 0.37, 70_000)
    assert (many.error > 0.0).all()
    assert (many.error < 1e-12).all()
    np.testing.assert_allclose(many.values[:, :30], few.values, atol=many.error.max() + 1e-13)
    assert fourier.work(300, 70_000) < 0.4 * 300 * 70_000
    assert math.isclose(fourier.work(300, 30), 9_000.0)
