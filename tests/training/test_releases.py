"""A step is charged, then released, once: also by ranks that receive the release."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tests.training.loops import flat, losses, noisy_plan, private
from torch import Tensor

from dither.ledger import Ledger
from dither.release import ReleaseFacts, release
from dither.training import Private, StepError
from dither.training.distributed import Ranks


def begun(**settings: Any) -> Private:
    """Return a run whose first step is ready to be released."""
    run = private(noisy_plan(z=2.0), **settings)
    run.backward(losses(run, *next(run.batches())))
    return run


def test_a_step_is_paid_for_before_it_is_released(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    run = begun(ledger=ledger)
    seen: list[tuple[int, int]] = []

    def watched(*args: Any, **settings: Any) -> Any:
        seen.append((run.step, len(ledger.runs[str(run.run)].spent)))
        return release(*args, **settings)

    monkeypatch.setattr("dither.training.private.release", watched)
    run.optimizer.step()
    assert seen == [(1, 1)]
    assert ledger.runs[str(run.run)].spent == [2.0]


def test_a_step_that_cannot_be_paid_for_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun()
    before = flat(run.model)

    def refuse(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(run._account, "finish", refuse)
    with pytest.raises(OSError, match="disk full"):
        run.optimizer.step()
    assert run.step == 0
    assert run.spent().epsilon == 0.0
    assert all(p.grad is None for p in run.model.parameters())
    assert torch.equal(flat(run.model), before)
    monkeypatch.undo()
    run.optimizer.step()
    assert run.step == 1


def test_a_step_whose_release_fails_stays_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise may have been drawn: the same step is not released again with other noise."""
    run = begun()
    before = flat(run.model)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("dither.training.private.release", fail)
    with pytest.raises(MemoryError):
        run.optimizer.step()
    assert run.step == 1
    assert run.spent().epsilon > 0.0
    assert torch.equal(flat(run.model), before)
    monkeypatch.undo()
    with pytest.raises(StepError, match="without private.backward"):
        run.optimizer.step()
    run.backward(losses(run, *next(run.batches())))
    run.optimizer.step()
    assert run.step == 2


class Second(Ranks):
    """The second of two ranks, which hears of a release with all entries 7."""

    def __init__(self, facts: ReleaseFacts) -> None:
        super().__init__()
        self.rank, self.size, self._facts = 1, 2, facts
        self.sent: dict[str, Tensor] = {}

    def on_rank_zero(self, work: Callable[[], Any]) -> Any:
        return self._facts

    def reduce_sums(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.sent = {name: each.clone() for name, each in sums.items()}
        return {name: torch.zeros_like(each) for name, each in sums.items()}

    def broadcast(self, tensors: Mapping[str, Tensor]) -> None:
        for each in tensors.values():
            each.fill_(7.0)


def heard(step: int, noise: float) -> tuple[Private, Second]:
    """Hear of a release, where it is the first step with noise 2."""
    run = begun()
    run._ranks = group = Second(ReleaseFacts(step, noise, 0.1, 1, float("nan"), float("nan")))
    run.optimizer.step()
    return run, group


def test_the_release_of_rank_0_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """This rank sends its own sum, draws no noise, charges nothing, and receives the release."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("dither.training.private.release", refuse)
    monkeypatch.setattr("dither.ledger.Account.finish", refuse)
    run, group = heard(step=0, noise=2.0)
    assert run.step == 1
    assert run.spent().epsilon > 0.0
    assert all(bool((p.grad == 7.0).all()) for p in run.model.parameters())
    assert {*group.sent} == {name for name, _ in run.model.named_parameters()}


@pytest.mark.parametrize(("step", "noise"), [(1, 2.0), (4, 2.0), (0, 2.5)])
def test_ranks_at_different_steps(step: int, noise: float) -> None:
    """With uniform noise the number of the step alone shows it."""
    with pytest.raises(StepError, match=f"rank 0 has released step {step} with noise {noise}"):
        heard(step=step, noise=noise)
