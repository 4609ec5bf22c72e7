"""The batches of a loop: how many there are, and every way of going through them."""

import io
import itertools
from typing import Any

import pytest
import torch
from tests.training.loops import (
    RECORDS,
    batch_by_hand,
    data,
    flat,
    losses,
    model,
    noisy_plan,
    private,
    quiet_plan,
    take_steps,
)
from torch import Tensor

import dither
from dither.training import Private, StepError


def step(run: Private, batch: Any) -> None:
    run.backward(losses(run, *batch))
    run.optimizer.step()
    run.optimizer.zero_grad()


def test_they_are_drawn_as_planned() -> None:
    plan = noisy_plan()
    run = private(plan)
    for number, batch in enumerate(run.batches()):
        expected = batch_by_hand(plan, number)
        assert all(torch.equal(one, two) for one, two in zip(batch, expected, strict=True))
        step(run, batch)


def test_they_have_a_length_which_is_the_number_of_steps() -> None:
    run = private(noisy_plan())
    assert len(run.batches()) == 6
    assert len(run.batches(2)) == 2
    assert len(run.batches(steps=100)) == 6
    for batch in run.batches(steps=4):
        step(run, batch)
    assert run.step == 4
    assert len(run.batches()) == 2
    assert len(run.batches(steps=4)) == 2


def test_epochs_of_a_few_steps_are_the_same_run() -> None:
    expected = take_steps(private(noisy_plan(steps=7)))
    run = private(noisy_plan(steps=7))
    counts = []
    while run.step < run.plan.steps:
        batches = run.batches(steps=3)
        before = run.step
        for batch in batches:
            step(run, batch)
        counts.append(run.step - before)
        assert len(batches) == counts[-1]
    assert counts == [3, 3, 1]
    assert torch.equal(flat(run.model), expected)
    assert run.spent() == run.plan.bound


def test_no_batch_is_left_at_the_end() -> None:
    run = private(quiet_plan(steps=2))
    batches = run.batches()
    for batch in batches:
        step(run, batch)
    assert list(batches) == []  # the loop itself has ended
    for steps in (None, 1):
        with pytest.raises(StepError, match="all 2 steps of the plan were taken"):
            run.batches(steps)
    with pytest.raises(StepError, match=r"optimizer.step\(\) was called without"):
        run.optimizer.step()
    assert run.step == 2


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_bad_numbers_of_steps(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps must be an integer of at least 1"):
        private().batches(steps)


def test_a_progress_bar() -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    shown = io.StringIO()
    run = private(quiet_plan(steps=5))
    for batch in tqdm(run.batches(steps=4), file=shown, mininterval=0.0):
        step(run, batch)
    assert "4/4" in shown.getvalue()
    assert run.step == 4


def test_enumerate_islice_and_next() -> None:
    expected = take_steps(private(noisy_plan()))
    run = private(noisy_plan())
    for number, batch in enumerate(itertools.islice(run.batches(), 2)):
        assert number == run.step
        step(run, batch)
    batches = run.batches()
    assert iter(batches) is batches
    step(run, next(batches))
    for batch in batches:
        step(run, batch)
    assert torch.equal(flat(run.model), expected)


def test_break_and_go_on() -> None:
    """A batch that is left alone costs nothing, and comes again."""
    expected = take_steps(private(noisy_plan()))
    run = private(noisy_plan())
    rounds = 0
    while run.step < 6:
        rounds += 1
        for batch in run.batches():
            step(run, batch)
            break
        for _ in run.batches() if run.step < 6 else ():
            break
    assert rounds == 6
    assert torch.equal(flat(run.model), expected)
    assert run.spent() == run.plan.bound


def test_a_batch_that_was_left_comes_again_also_without_a_seed() -> None:
    """Whoever could draw until a batch is to their liking would not sample as was accounted for."""
    made = model()
    run = dither.make_private(
        made, torch.optim.SGD(made.parameters(), lr=1.0), noisy_plan(batch_size=50), data()
    )
    left = [next(run.batches())[0] for _ in range(3)]
    assert all(torch.equal(left[0], each) for each in left)
    batch = next(run.batches())
    losses(run, *batch)  # and one whose forward pass was computed
    batch = next(run.batches())
    assert torch.equal(batch[0], left[0])
    step(run, batch)
    following = next(run.batches())[0]
    assert following.shape != left[0].shape or not torch.equal(following, left[0])


def test_a_step_that_was_begun_can_be_begun_again() -> None:
    """What was added up before the break does not count."""
    expected = take_steps(private(quiet_plan()))
    run = private(quiet_plan())
    run.backward(losses(run, *next(run.batches())))
    batch = next(run.batches())
    part = next(run.microbatches(batch, 3))
    run.backward(losses(run, *part))
    assert float((take_steps(run) - expected).abs().max()) == 0.0


def test_a_batch_without_a_step_is_not_passed_over() -> None:
    run = private()
    batches = run.batches()
    batch = next(batches)
    with pytest.raises(StepError, match=r"no optimizer.step\(\).*private.microbatches"):
        next(batches)
    run.backward(losses(run, *batch))
    with pytest.raises(StepError, match=r"step 0\) had no optimizer"):
        next(batches)
    run.optimizer.step()
    next(batches)


def test_an_older_loop_does_not_go_on_beside_a_newer_one() -> None:
    run = private()
    older = run.batches()
    step(run, next(older))
    newer = run.batches()
    step(run, next(older))  # the newer one was not begun
    step(run, next(newer))
    with pytest.raises(StepError, match="was called again"):
        next(older)
    assert run.step == 3


def test_two_private_loops_side_by_side() -> None:
    """As in federated or ensemble training: each is the run that it would be alone."""
    expected = take_steps(private(noisy_plan())), take_steps(private(noisy_plan(z=2.0)))
    one, two = private(noisy_plan()), private(noisy_plan(z=2.0))
    for first, second in zip(one.batches(), two.batches(), strict=True):
        found = losses(one, *first), losses(two, *second)
        two.backward(found[1])
        one.backward(found[0])
        one.optimizer.step()
        two.optimizer.step()
    assert torch.equal(flat(one.model), expected[0])
    assert torch.equal(flat(two.model), expected[1])


def test_a_public_loader_beside_a_private_loop() -> None:
    run = private(noisy_plan())
    public = [torch.full((3,), float(k)) for k in range(4)]
    seen = []
    for batch, other in zip(run.batches(), public, strict=False):
        step(run, batch)
        seen.append(float(other[0]))
    assert seen == [0.0, 1.0, 2.0, 3.0]
    assert run.step == 4  # the fifth batch was drawn, and comes again
    step(run, next(run.batches()))


def test_an_exception_in_the_loop_and_another_loop() -> None:
    expected = take_steps(private(noisy_plan()))
    run = private(noisy_plan())

    def stopped(run: Private, x: Tensor, y: Tensor) -> Tensor:
        found = losses(run, x, y)
        if run.step == 2:
            raise KeyboardInterrupt
        return found

    with pytest.raises(KeyboardInterrupt):
        take_steps(run, stopped)
    assert run.step == 2
    assert torch.equal(take_steps(run), expected)


def test_draws_are_those_of_the_sampler() -> None:
    """On average the expected batch size, and another one nearly every time."""
    run = private(quiet_plan(steps=40))
    sizes = []
    for batch in run.batches():
        sizes.append(len(batch[0]))
        step(run, batch)
    mean = sum(sizes) / 40
    assert abs(mean - 12.0) < 4.0 * (12.0 * 0.9 / 40) ** 0.5
    assert len({*sizes}) > 5
    fixed = private(quiet_plan(steps=4, sampling="fixed"))
    for batch in fixed.batches():
        assert len(batch[0]) == 12
        step(fixed, batch)


def test_microbatches_are_the_batch_in_its_order() -> None:
    run = private()
    batch = next(run.batches())
    sizes = []
    parts: list[Tensor] = []
    for inputs, targets in run.microbatches(batch, 4):
        sizes.append(len(inputs))
        parts.append(inputs)
        run.backward(losses(run, inputs, targets))
    assert torch.equal(torch.cat(parts), batch[0])
    assert max(sizes) <= 4
    assert len(sizes) == -(-len(batch[0]) // 4)
    run.optimizer.step()


@pytest.mark.parametrize("size", [1, 5, RECORDS])
def test_microbatches_of_any_size_are_the_same_step(size: int) -> None:
    plan = quiet_plan(clip_norm=0.3)
    expected = take_steps(private(plan))
    found = take_steps(private(plan), microbatch_size=size)
    assert float((found - expected).abs().max()) < 1e-6


def test_microbatches_may_change_their_size_from_step_to_step() -> None:
    plan = quiet_plan(clip_norm=0.3)
    run = private(plan)
    for batch in run.batches():
        for part in run.microbatches(batch, 2 + run.step):
            run.backward(losses(run, *part))
        run.optimizer.step()
    assert float((flat(run.model) - take_steps(private(plan))).abs().max()) < 1e-6


def test_microbatches_of_dicts_lists_and_constants() -> None:
    x, y = data()
    run = private(quiet_plan(), {"x": x, "y": y})
    batch = next(run.batches())
    batch["names"] = [f"name {k}" for k in range(len(batch["x"]))]
    batch["scale"] = torch.tensor([1.0, 2.0])
    names = []
    for part in run.microbatches(batch, 3):
        assert len(part["names"]) == len(part["x"]) <= 3
        assert torch.equal(part["scale"], batch["scale"])
        names += part["names"]
        run.backward(losses(run, part["x"], part["y"]))
    assert names == batch["names"]
    run.optimizer.step()


def test_a_step_before_all_microbatches() -> None:
    run = private()
    batch = next(run.batches())
    run.backward(losses(run, *next(run.microbatches(batch, 2))))
    with pytest.raises(StepError, match="for all records that were drawn"):
        run.optimizer.step()
    assert run.step == 0


def test_another_round_of_microbatches_after_a_backward_pass() -> None:
    run = private()
    batch = next(run.batches())
    run.backward(losses(run, *next(run.microbatches(batch, 2))))
    with pytest.raises(StepError, match="before any private.backward"):
        next(run.microbatches(batch, 2))


def test_two_backward_passes_for_one_microbatch() -> None:
    run = private()
    batch = next(run.batches())
    part = next(run.microbatches(batch, 2))
    found = losses(run, *part)
    run.backward(found)
    with pytest.raises(StepError, match="twice for the same records"):
        run.backward(found)


def test_microbatches_without_a_batch() -> None:
    with pytest.raises(StepError, match="that private.batches"):
        next(private().microbatches(data(), 2))


@pytest.mark.parametrize("size", [0, -3])
def test_bad_sizes_of_microbatches(size: int) -> None:
    run = private()
    batch = next(run.batches())
    with pytest.raises(ValueError, match="size must be an integer of at least 1"):
        next(run.microbatches(batch, size))


def test_microbatches_of_something_else_than_the_batch() -> None:
    run = private(quiet_plan(batch_size=40))
    x, y = next(run.batches())
    with pytest.raises(StepError, match="with all its rows"):
        next(iter(run.microbatches((x[:3], y[:3]), 3)))
