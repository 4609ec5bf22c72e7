"""Realistic mistakes, each switched on by replacing one function, and what has to catch it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.planted.bug import AUDIT, Bug
from tests.planted.correlated_bugs import CORRELATED_BUGS
from tests.planted.estimator_bugs import ESTIMATOR_BUGS
from tests.planted.loop_bugs import LOOP_BUGS
from torch import Tensor

import dither
from dither import Plan
from dither.clipping import clip as clipping
from dither.clipping.contributions import Outer, Summed
from dither.ledger import Account
from dither.planning.fixed_state import FixedPlanState
from dither.planning.reactive_plan import ReactivePlanState
from dither.randomness import Source, Stream
from dither.release import add_noise, release
from dither.training.private import Private

Patch = pytest.MonkeyPatch


def full_batches() -> Plan:
    return dither.plan(epsilon=1.0, delta=1e-5, dataset_size=50, batch_size=50, steps=10)


def replacing() -> Plan:
    return dither.plan(
        epsilon=1.0, delta=1e-5, dataset_size=8_000, batch_size=8_000, steps=5, sampling="fixed"
    )


def falling() -> Plan:
    return Plan.from_noise_multipliers([30.0, 1.0], delta=1e-5, dataset_size=50, batch_size=50)


def one_epoch() -> Plan:
    return Plan.from_noise_multipliers([0.3] * 10, delta=1e-5, dataset_size=8_000, batch_size=800)


def many_equal_steps() -> Plan:
    return Plan.from_noise_multipliers([1.0] * 200, delta=1e-5, dataset_size=400, batch_size=20)


def noise_of_the_mean(patch: Patch) -> None:
    def wrong(clipped: Any, *, noise_multiplier: float, batch_size: int, **others: Any) -> Any:
        z = noise_multiplier / batch_size
        return release(clipped, noise_multiplier=z, batch_size=batch_size, **others)

    patch.setattr("dither.training.private.release", wrong)


def half_of_the_noise(patch: Patch) -> None:
    def wrong(sums: list[Tensor], scale: float, *others: Any) -> list[Tensor]:
        return add_noise(sums, 0.5 * scale, *others)

    patch.setattr("dither.release.add_noise", wrong)


def the_same_noise_in_every_step(patch: Patch) -> None:
    right = Source.stream

    def wrong(self: Source, purpose: str, step: int) -> Stream:
        return right(self, purpose, 0 if purpose == "noise" else step)

    patch.setattr(Source, "stream", wrong)


def a_key_that_repeats(patch: Patch) -> None:
    patch.setattr("dither.randomness.secrets.token_bytes", lambda count: bytes(count))


def clipping_of_a_complete_microbatch(patch: Patch) -> None:
    def wrong(
        contributions: Any, clip: clipping.Clip, weights: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        sums, norms = clipping.sum_clipped(contributions, clipping.Clip(float("inf")))
        norm = torch.stack([each.norm() for each in sums.values()]).norm()
        factor = float((clip.norm * max(len(norms), 1) / norm).clamp(max=1.0))
        return {name: each * factor for name, each in sums.items()}, norms

    patch.setattr("dither.clipping.engine.sum_clipped", wrong)


def one_layer_unclipped(patch: Patch) -> None:
    def wrong(contributions: Any, weights: Tensor, scale: float) -> dict[str, Tensor]:
        *others, last = contributions
        ones = torch.ones_like(weights)
        factors = {name: ones if name == last else weights for name in (*others, last)}
        return {
            name: part.weighted_sum(factors[name].to(part.dtype))
            for name, part in contributions.items()
        }

    patch.setattr("dither.clipping.clip._sums", wrong)


def tied_weights_counted_once(patch: Patch) -> None:
    patch.setattr(Summed, "norms", lambda self: self.parts[0].norms())


def norms_that_cancel(patch: Patch) -> None:
    """The norm from T × T inner products in float32, without a bound on what rounding hides."""

    def wrong(self: Any) -> tuple[Tensor, None]:
        left, right = self.left.flatten(1, -2).float(), self.right.rows(0, self.records).float()
        right = right.flatten(1, -2)
        inner = (left @ left.transpose(1, 2)) * (right @ right.transpose(1, 2))
        return inner.sum((1, 2)), None

    patch.setattr(Outer, "norms", wrong)


def half_of_the_sensitivity(patch: Patch) -> None:
    patch.setattr("dither.accounting.pld.sensitivity", lambda sampling: 1.0)


def the_drawn_size_as_divisor(patch: Patch) -> None:
    right = Private._release

    def wrong(self: Private) -> float:
        drawn = 1 if self._step is None else len(self._step.rows)
        stepsize = right(self)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= self.plan.batch_size / drawn
        return stepsize

    patch.setattr(Private, "_release", wrong)


def step_sizes_from_raw_gradients(patch: Patch) -> None:
    def wrong(self: Any, released: Any, raw_squared_norm: Callable[[], float]) -> float:
        self._growth = self._rule.after(self._growth, raw_squared_norm(), 0.0)
        return float(1.0 / self._growth.b)

    patch.setattr(ReactivePlanState, "stepsize", wrong)


def noise_of_the_next_step(patch: Patch) -> None:
    def wrong(self: Any) -> float | None:
        z = self._plan.noise_multipliers
        return float(z[min(self.steps + 1, z.size - 1)]) if self.steps < z.size else None

    patch.setattr(FixedPlanState, "noise_multiplier", property(wrong))


def spent_steps_forgotten(patch: Patch) -> None:
    right = Account.resume

    def wrong(self: Account, run: object, plan: Plan, taken: int, spent: Any) -> Any:
        right(self, run, plan, taken, spent)
        return plan, spent

    patch.setattr(Account, "resume", wrong)


class _Shuffled:
    """Every record once an epoch."""

    def __init__(self, batch_size: int) -> None:
        self._size = batch_size
        self._order: NDArray[np.int64] = np.empty(0, np.int64)

    def draw(self, length: int, stream: Stream, step: int = 0) -> NDArray[np.int64]:
        size = round(self._size * length / 8_000)
        if self._order.size < size:
            self._order = np.random.default_rng(5).permutation(length)
        taken, self._order = self._order[:size], self._order[size:]
        return np.sort(taken)


def shuffled_batches(patch: Patch) -> None:
    patch.setattr(
        "dither.training.records.sampler_for", lambda plan, **_: _Shuffled(plan.batch_size)
    )


def a_bad_record_wipes_the_batch(patch: Patch) -> None:
    def wrong(
        contributions: Any, clip: clipping.Clip, weights: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        sums, norms = clipping.sum_clipped(contributions, clip)
        kept = 1.0 if torch.isfinite(norms).all() else 0.0
        return {name: each * kept for name, each in sums.items()}, norms

    patch.setattr("dither.clipping.engine.sum_clipped", wrong)


def calibrated_to_the_wrong_side(patch: Patch) -> None:
    def wrong(shape: Plan, alphas: Any, budget: Any, _: Any) -> Plan:
        from dither.accounting.calibration import calibrate

        return Plan.from_noise_multipliers(
            alphas * calibrate(alphas, budget, accuracy=5e-4) * 0.998,
            delta=budget.delta,
            dataset_size=shape.dataset_size,
            batch_size=shape.batch_size,
            stepsizes=shape.stepsizes,
            sampling=budget.sampling,
        )

    patch.setattr("dither.planning.planner._search", wrong)


def charged_after_the_release(patch: Patch) -> None:
    right = Account.finish
    owed: list[tuple[int, float]] = []

    def wrong(self: Account, step: int, noise_multiplier: float) -> None:
        while owed:
            right(self, *owed.pop())
        owed.append((step, noise_multiplier))

    patch.setattr(Account, "finish", wrong)


def a_loss_that_couples_records(patch: Patch) -> None:
    def wrong(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        return losses / losses.detach().mean()

    patch.setitem(dither.training.losses.LOSSES, "cross_entropy", wrong)


def records_drawn_too_often(patch: Patch) -> None:
    from dither.sampling import Poisson

    def wrong(self: Poisson, length: int, stream: Stream) -> NDArray[np.int64]:
        return np.flatnonzero(stream.bytes(length) <= self.sample_rate * 256.0)

    patch.setattr(Poisson, "draw", wrong)


def an_empty_draw_without_noise(patch: Patch) -> None:
    right = Private._release

    def wrong(self: Private) -> float:
        empty = self._step is not None and self._step.is_empty
        stepsize = right(self)
        for parameter in self.model.parameters():
            if empty and parameter.grad is not None:
                parameter.grad.zero_()
        return stepsize

    patch.setattr(Private, "_release", wrong)


def a_filter_that_is_not_charged(patch: Patch) -> None:
    def wrong(self: Any) -> None:
        self._spent.append(self.noise_multiplier)

    patch.setattr(ReactivePlanState, "spend", wrong)


def the_same_noise_in_every_coordinate(patch: Patch) -> None:
    def wrong(sums: list[Tensor], scale: float, divisor: int, *others: Any) -> list[Tensor]:
        (one,) = add_noise([torch.zeros(1, dtype=torch.float64)], scale, divisor, *others)
        return [each / divisor + one.to(each.dtype) for each in sums]

    patch.setattr("dither.release.add_noise", wrong)


def steps_lost_by_the_accountant(patch: Patch) -> None:
    from dither.accounting import pld

    right = pld.bracket_epsilon

    def wrong(noise_multipliers: Any, **others: Any) -> Any:
        return right(np.unique(noise_multipliers), **others)

    patch.setattr("dither.accounting.pld.bracket_epsilon", wrong)


CLIPPING = "tests/clipping/test_clipped_sum.py::"
BUGS = (
    Bug("noise for the mean, added to the sum", noise_of_the_mean, AUDIT, full_batches),
    Bug("noise at half its scale", half_of_the_noise, AUDIT, full_batches),
    Bug(
        "the same noise in every step",
        the_same_noise_in_every_step,
        "tests/test_release.py::test_steps_are_independent",
    ),
    Bug(
        "the same noise in every coordinate",
        the_same_noise_in_every_coordinate,
        "tests/test_release.py::test_coordinates_are_independent",
    ),
    Bug(
        "a key that repeats",
        a_key_that_repeats,
        "tests/training/test_released_step.py::test_unseeded_steps_never_repeat",
    ),
    Bug(
        "a microbatch that is clipped as one record",
        clipping_of_a_complete_microbatch,
        f"{CLIPPING}test_microbatches_give_the_same_result",
    ),
    Bug(
        "one layer that is not clipped",
        one_layer_unclipped,
        "tests/clipping/test_models.py::test_models_without_a_fallback[mlp]",
    ),
    Bug(
        "tied weights counted once",
        tied_weights_counted_once,
        "tests/clipping/test_models.py::test_models_without_a_fallback[tied gpt]",
    ),
    Bug(
        "a norm that cancels in float32",
        norms_that_cancel,
        "tests/clipping/test_rounding.py::"
        "test_the_constructed_record_of_which_inner_products_lose_the_norm",
    ),
    Bug("sensitivity C where it is 2·C", half_of_the_sensitivity, AUDIT, replacing),
    Bug(
        "dividing by the batch size that was drawn",
        the_drawn_size_as_divisor,
        "tests/training/test_released_step.py::"
        "test_the_divisor_is_the_expected_batch_size_whatever_was_drawn",
    ),
    Bug(
        "step sizes from raw gradient norms",
        step_sizes_from_raw_gradients,
        "tests/training/test_loop.py::test_step_sizes_that_react_to_releases",
    ),
    Bug("the noise of the next step", noise_of_the_next_step, AUDIT, falling),
    Bug(
        "a resume that forgets spent steps",
        spent_steps_forgotten,
        "tests/ledger/test_resume.py::test_lost_steps_stay_spent",
    ),
    Bug("shuffled batches claimed as Poisson", shuffled_batches, AUDIT, one_epoch),
    Bug(
        "a record that is not a number wipes the batch",
        a_bad_record_wipes_the_batch,
        f"{CLIPPING}test_a_record_without_a_finite_gradient_counts_as_zero",
    ),
    Bug(
        "a calibration that ends on the wrong side",
        calibrated_to_the_wrong_side,
        "tests/planning/test_plan.py::test_full_batch_is_the_closed_form",
    ),
    Bug(
        "a step charged after its release",
        charged_after_the_release,
        "tests/ledger/test_resume.py::test_no_release_without_its_cost",
    ),
    Bug(
        "a loss that couples records",
        a_loss_that_couples_records,
        "tests/training/test_train.py::test_private_digits_are_learnt",
    ),
    Bug(
        "records that are drawn too often",
        records_drawn_too_often,
        "tests/sampling/test_poisson.py::test_records_take_part_as_often_as_the_rate_says",
    ),
    Bug(
        "an empty draw without noise",
        an_empty_draw_without_noise,
        "tests/training/test_loop.py::test_an_empty_draw_still_releases_noise_and_counts_nothing",
    ),
    Bug(
        "a filter that is not charged",
        a_filter_that_is_not_charged,
        "tests/planning/test_reactive_plan.py::test_a_run_ends_when_the_budget_is_spent",
    ),
    Bug("steps that the accountant loses", steps_lost_by_the_accountant, AUDIT, many_equal_steps),
    *CORRELATED_BUGS,
    *LOOP_BUGS,
    *ESTIMATOR_BUGS,
)
