"""Losses in which records depend on each other break the bound, and are found."""

from collections.abc import Callable

import pytest
import torch
from tests.training.loops import CLASSES, losses, noisy_plan, private, take_steps
from torch import Tensor
from torch.nn import functional

from dither import Private

Compute = Callable[[Private, Tensor, Tensor], Tensor]
WEIGHTS = torch.tensor([1.0, 5.0, 0.2])


def weighted_mean(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(run.model(inputs), targets, weight=run.public(WEIGHTS))


def ignoring(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(run.model(inputs), targets, ignore_index=1)


def contrastive(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    outputs = functional.normalize(run.model(inputs))
    return functional.cross_entropy(outputs @ outputs.T, run.public(torch.arange(len(outputs))))


@pytest.mark.parametrize("compute", [weighted_mean, ignoring, contrastive])
def test_means_that_are_not_of_the_records_own_losses(compute: Compute) -> None:
    run = private(noisy_plan(), reduction="mean")
    with pytest.raises(ValueError, match="the records alone give another|any number"):
        take_steps(run, compute)
    assert run.step == 0


def contrastive_losses(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    outputs = functional.normalize(run.model(inputs))
    return functional.cross_entropy(
        outputs @ outputs.T, run.public(torch.arange(len(outputs))), reduction="none"
    )


def divided_by_the_batch(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    return losses(run, inputs, targets) / len(inputs)


def divided_by_a_multiple(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    return losses(run, inputs, targets) * (1.0 / (2 * len(inputs)))


def by_the_spread(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    found = losses(run, inputs, targets)
    return found / found.detach().std()


def by_the_weights_of_all(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    weights = run.public(WEIGHTS)[targets]
    return losses(run, inputs, targets) * weights / weights.sum()


def centred_inputs(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    return losses(run, inputs - inputs.mean(0), targets)


def shuffled(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(run.model(inputs).flip(0), targets, reduction="none")


@pytest.mark.parametrize("engine", ["fast", "oracle"])
@pytest.mark.parametrize(
    "compute",
    [
        contrastive_losses,
        divided_by_the_batch,
        divided_by_a_multiple,
        by_the_spread,
        by_the_weights_of_all,
        centred_inputs,
        shuffled,
    ],
)
def test_losses_that_depend_on_other_records(compute: Compute, engine: str) -> None:
    run = private(noisy_plan(), engine=engine)
    with pytest.raises(ValueError, match="record alone|every record by itself|any number"):
        take_steps(run, compute)
    assert run.step == 0


def read_on_the_way(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
    found = losses(run, inputs, targets)
    return found / found.mean().item()


def test_values_that_leave_the_tensors_on_the_way() -> None:
    run = private(noisy_plan())
    with pytest.raises(ValueError, match=r"by item\(\) before private.backward"):
        take_steps(run, read_on_the_way)
    assert run.step == 0


def test_values_may_be_read_after_backward() -> None:
    run = private(noisy_plan())
    for inputs, targets in run.batches():
        found = losses(run, inputs, targets)
        run.backward(found)
        assert found.mean().item() > 0.0
        run.optimizer.step()
    assert run.step == 6


def test_class_weights_of_single_records_are_fine() -> None:
    def compute(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = run.model(inputs.view(len(inputs), -1) * 1.0)
        return functional.cross_entropy(
            outputs, targets, weight=run.public(WEIGHTS), reduction="none"
        )

    expected = take_steps(private(noisy_plan(), engine="oracle"), compute)
    assert float((take_steps(private(noisy_plan()), compute) - expected).abs().max()) < 1e-6


def test_a_mean_with_ignored_targets_later_in_the_run_is_found_when_they_come() -> None:
    def compute(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
        if run.step == 3:
            run.accept_loop()
        marked = targets.clone()
        marked[-1] = CLASSES if run.step == 3 else marked[-1]
        return functional.cross_entropy(run.model(inputs), marked, ignore_index=CLASSES)

    run = private(noisy_plan(), reduction="mean")
    with pytest.raises(ValueError, match="the records alone give another one"):
        take_steps(run, compute)
    assert run.step == 3


def test_numbers_that_equal_the_number_of_records_by_chance_are_no_trouble() -> None:
    def compute(run: Private, inputs: Tensor, targets: Tensor) -> Tensor:
        wide: Tensor = run.model(inputs)[:, :1].expand(len(inputs), 12).reshape(-1, 12)
        hot = functional.one_hot(targets, 12).float()
        return wide.view(len(inputs), 12).sum(1) * 0.5 + hot.sum(1)

    run = private(noisy_plan(sampling="fixed"))  # twelve records in every step
    assert take_steps(run, compute).isfinite().all()


def test_dividing_by_the_size_of_a_batch_is_fine_where_it_is_the_same_every_time() -> None:
    plan = noisy_plan(sampling="fixed")
    assert take_steps(private(plan), divided_by_the_batch).isfinite().all()
