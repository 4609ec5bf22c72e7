"""Mistakes planted into private loops: in what is recorded, checked and drawn, and in steps."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from tests.planted.bug import Bug
from torch import Tensor

from dither.clipping import clip as clipping
from dither.clipping.engine import clip_recording
from dither.planning.fixed_state import FixedPlanState
from dither.training.model_randomness import ModelRandomness
from dither.training.optimizer_hooks import OptimizerHooks
from dither.training.private import Private

Patch = pytest.MonkeyPatch


def nothing_is_clipped(patch: Patch) -> None:
    def wrong(
        contributions: Any, clip: clipping.Clip, weights: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        return clipping.sum_clipped(contributions, clipping.Clip(math.inf))

    patch.setattr("dither.clipping.engine.sum_clipped", wrong)


def no_noise(patch: Patch) -> None:
    def wrong(sums: Any, scale: float, divisor: int, *_: Any) -> Any:
        return [each / divisor for each in sums]

    patch.setattr("dither.release.add_noise", wrong)


def losses_are_not_checked(patch: Patch) -> None:
    patch.setattr("dither.clipping.engine.check_own_rows", lambda *_: True)


def calls_are_not_checked(patch: Patch) -> None:
    patch.setattr("dither.clipping.independence.almost_equal", lambda one, two: True)


def buffers_are_not_checked(patch: Patch) -> None:
    patch.setattr("dither.clipping.recording._changes", lambda before, after: (frozenset(), False))


def sums_are_not_compared(patch: Patch) -> None:
    patch.setattr("dither.clipping.engine.find_mismatches", lambda *_: (set(), True))


def unseen_parameters_are_dropped(patch: Patch) -> None:
    patch.setattr("dither.clipping.engine.unseen_parameters", lambda recorder, losses: set())


def totals_are_not_detected(patch: Patch) -> None:
    patch.setattr("dither.training.losses._are_close", lambda one, two: True)


def dropout_of_the_caller(patch: Patch) -> None:
    def wrong(self: ModelRandomness) -> AbstractContextManager[None]:
        return nullcontext()

    patch.setattr(ModelRandomness, "__call__", wrong)


def the_same_masks_in_every_step(patch: Patch) -> None:
    right: Any = ModelRandomness.begin
    patch.setattr(ModelRandomness, "begin", lambda self, *given: right(self, *given[:-1], 0))


def augmented_copies_as_records(patch: Patch) -> None:
    def wrong(recording: Any, losses: Tensor, clip: clipping.Clip, rows: Tensor, _: object) -> Any:
        copies = len(losses) // len(rows)
        smaller = clipping.Clip(clip.norm / copies, clip.mode)
        return clip_recording(recording, losses / copies, smaller)

    patch.setattr("dither.training.private.clip_recording", wrong)


def gradients_added_to_what_was_there(patch: Patch) -> None:
    right = Private._release

    def wrong(self: Private) -> float:
        before = [p.grad for p in self.model.parameters()]
        stepsize = right(self)
        for parameter, old in zip(self.model.parameters(), before, strict=True):
            if parameter.grad is not None and old is not None:
                parameter.grad += old
        return stepsize

    patch.setattr(Private, "_release", wrong)


def microbatches_that_are_missing(patch: Patch) -> None:
    right = Private._ready_step

    def wrong(self: Private) -> Any:
        if self._step is not None and self._step.received:
            self._step.received = len(self._step.rows)
        return right(self)

    patch.setattr(Private, "_ready_step", wrong)


def losses_of_an_earlier_batch(patch: Patch) -> None:
    patch.setattr("dither.training.private.ref", lambda losses: lambda: None)


def rates_that_may_change(patch: Patch) -> None:
    patch.setattr(OptimizerHooks, "check", lambda self: None)


def rates_without_the_plans_factor(patch: Patch) -> None:
    right = Private._release

    def wrong(self: Private) -> float:
        right(self)
        return 1.0

    patch.setattr(Private, "_release", wrong)


def scores_of_a_search_without_noise(patch: Patch) -> None:
    right: Any = Private._release_sums

    def wrong(self: Private, z: float, sums: Any, released: Any) -> Any:
        facts = right(self, z, sums, released)
        if "scores" in sums:
            released["scores"] = sums["scores"] / self.plan.batch_size
        return facts

    patch.setattr(Private, "_release_sums", wrong)


def scores_of_a_search_without_bounds(patch: Patch) -> None:
    right: Any = Private._release_sums

    def wrong(self: Private, z: float, sums: Any, released: Any) -> Any:
        factor = 2.0 if "scores" in sums else 1.0
        return right(self, z, {name: factor * each for name, each in sums.items()}, released)

    patch.setattr(Private, "_release_sums", wrong)


def a_choice_that_is_forgotten(patch: Patch) -> None:
    def wrong(self: FixedPlanState, state: Mapping[str, Any]) -> None:
        self.steps = len(state["spent"])

    patch.setattr(FixedPlanState, "load_state_dict", wrong)


def sums_in_half_precision(patch: Patch) -> None:
    right = clip_recording

    def wrong(*args: Any, **settings: Any) -> Any:
        found = right(*args, **settings)
        for total in found.gradients.values():
            total.copy_(total.to(torch.bfloat16))
        return found

    patch.setattr("dither.training.private.clip_recording", wrong)


TRAINING = "tests/training/"
LOOP_BUGS = (
    Bug(
        "no clipping at all",
        nothing_is_clipped,
        f"{TRAINING}test_sensitivity.py::"
        "test_an_outlier_changes_every_sum_by_the_clip_norm_and_no_more",
    ),
    Bug(
        "no noise at all",
        no_noise,
        f"{TRAINING}test_released_step.py::test_noise_is_as_planned",
    ),
    Bug(
        "losses that are not checked for other records",
        losses_are_not_checked,
        f"{TRAINING}test_mixing.py::test_losses_that_depend_on_other_records",
    ),
    Bug(
        "calls that are not compared with other records",
        calls_are_not_checked,
        f"{TRAINING}test_mixing.py::test_models_that_mix_records",
    ),
    Bug(
        "buffers that are not checked after the first step",
        buffers_are_not_checked,
        f"{TRAINING}test_mixing.py::test_buffers_that_keep_something_of_the_records",
    ),
    Bug(
        "sums that are not compared with plain autograd",
        sums_are_not_compared,
        "tests/clipping/test_gradient_checks.py::"
        "test_wrong_rules_are_found_and_their_parameters_computed_record_by_record",
    ),
    Bug(
        "a parameter in the loop that is left out",
        unseen_parameters_are_dropped,
        f"{TRAINING}test_model_calls.py::test_calls_that_are_computed_record_by_record",
    ),
    Bug(
        "a loss of train() that is divided by a total",
        totals_are_not_detected,
        f"{TRAINING}test_train.py::test_losses_that_depend_on_totals_of_the_batch",
    ),
    Bug(
        "dropout masks that follow the caller's seed",
        dropout_of_the_caller,
        f"{TRAINING}test_model_randomness.py::"
        "test_masks_of_unseeded_runs_differ_whatever_seed_torch_has",
    ),
    Bug(
        "the same dropout masks in every step",
        the_same_masks_in_every_step,
        f"{TRAINING}test_model_randomness.py::"
        "test_masks_of_a_seeded_run_repeat_and_differ_between_steps_and_calls",
    ),
    Bug(
        "augmented copies that are clipped one by one",
        augmented_copies_as_records,
        f"{TRAINING}test_loop.py::test_views_of_a_record_are_averaged_before_clipping",
    ),
    Bug(
        "a release that is added to other gradients",
        gradients_added_to_what_was_there,
        f"{TRAINING}test_loop.py::test_gradients_of_a_plain_backward_pass_are_overwritten",
    ),
    Bug(
        "a step before all of its microbatches",
        microbatches_that_are_missing,
        f"{TRAINING}test_batches.py::test_a_step_before_all_microbatches",
    ),
    Bug(
        "losses of an earlier batch",
        losses_of_an_earlier_batch,
        f"{TRAINING}test_refusals.py::test_losses_of_an_earlier_batch",
    ),
    Bug(
        "a learning rate that is changed midway",
        rates_that_may_change,
        f"{TRAINING}test_refusals.py::test_a_changed_learning_rate_or_a_scheduler_on_the_way",
    ),
    Bug(
        "learning rates without the plan's step sizes",
        rates_without_the_plans_factor,
        f"{TRAINING}test_loop.py::test_learning_rates_follow_the_plan_group_by_group",
    ),
    Bug(
        "sums in half precision",
        sums_in_half_precision,
        f"{TRAINING}test_reductions.py::"
        "test_with_clipping_alone_it_is_descent_along_clipped_gradients",
    ),
    Bug(
        "scores of a search without noise",
        scores_of_a_search_without_noise,
        f"{TRAINING}test_tuning.py::test_scores_get_the_noise_of_the_plan",
    ),
    Bug(
        "scores of a search without bounds",
        scores_of_a_search_without_bounds,
        f"{TRAINING}test_tuning.py::test_a_record_moves_the_scores_by_no_more_than_is_accounted",
    ),
    Bug(
        "a choice of the learning rate that is forgotten",
        a_choice_that_is_forgotten,
        "tests/planning/test_search.py::test_the_choice_multiplies_the_rest_and_is_kept",
    ),
)
