"""Mistakes planted into the estimators and the direct path of linear models."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.planted.bug import Bug

from dither.clipping.linear_rows import row_norms
from dither.release import release

Patch = pytest.MonkeyPatch


def norms_that_miss_a_column(patch: Patch) -> None:
    patch.setattr("dither.clipping.linear_rows.row_norms", lambda values: row_norms(values[:, 1:]))


def means_with_half_of_the_noise(patch: Patch) -> None:
    def wrong(clipped: Any, *, clip_norm: float, **others: Any) -> Any:
        return release(clipped, clip_norm=clip_norm / 2.0, **others)

    patch.setattr("dither.training.linear.release", wrong)


def a_search_charged_as_one_run(patch: Patch) -> None:
    def wrong(divergences: Any, orders: Any, trials: Any) -> Any:
        return divergences

    patch.setattr("dither.estimators.trials.selection_divergences", wrong)


def scores_with_half_of_the_noise(patch: Patch) -> None:
    def wrong(clipped: Any, *, noise_multiplier: float, **others: Any) -> Any:
        return release(clipped, noise_multiplier=noise_multiplier / 2.0, **others)

    patch.setattr("dither.estimators.trials.release", wrong)


def weights_without_bounds(patch: Patch) -> None:
    patch.setattr("dither.clipping.linear_rows.bounded_weights", lambda weights: weights)


def users_clipped_row_by_row(patch: Patch) -> None:
    def wrong(rows: Any, taken: Any, r: Any, records: Any, counts: Any) -> Any:
        shares = torch.from_numpy(np.repeat(1.0 / counts, counts))[:, None]
        factors = rows.clip.factors(r.norm(dim=1) * rows.norms[records])[:, None]
        return rows.transposed_matmul(taken, r * factors * shares)

    patch.setattr("dither.clipping.linear.users_sum", wrong)


ESTIMATOR_BUGS = (
    Bug(
        "users of a linear model clipped row by row",
        users_clipped_row_by_row,
        "tests/clipping/test_linear_users.py::test_equals_a_loop_over_users[dense-12-flat-softmax]",
    ),
    Bug(
        "record weights that are not bounded",
        weights_without_bounds,
        "tests/training/test_record_weights.py::"
        "test_the_linear_path_adds_weighted_clipped_gradients",
    ),
    Bug(
        "row norms that miss a column",
        norms_that_miss_a_column,
        "tests/clipping/test_linear.py::test_equals_the_reference[0.1-flat-softmax]",
    ),
    Bug(
        "means of the features with half of their noise",
        means_with_half_of_the_noise,
        "tests/training/test_linear.py::test_moments_come_with_the_noise_that_was_paid_for",
    ),
    Bug(
        "a search charged as one run",
        a_search_charged_as_one_run,
        "tests/estimators/test_search.py::"
        "test_the_search_costs_what_dp_accounting_computes[12.0-1.0]",
    ),
    Bug(
        "scores of a search with half of their noise",
        scores_with_half_of_the_noise,
        "tests/estimators/test_search.py::"
        "test_scores_have_their_noise_and_one_record_moves_them_by_one",
    ),
)
