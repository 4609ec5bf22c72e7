"""What a rank makes of a release that is not its own."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dither
from dither.randomness import Source
from dither.training import StepError
from dither.training.payments import payments_into
from dither.training.releases import Ready, Releases, Told

PLAN = dither.Plan.from_noise_multipliers([2.0] * 5, delta=1e-5, dataset_size=20, batch_size=5)


class Second:
    """The second of two ranks, which hears of a release."""

    rank, size, is_first = 1, 2, False

    def __init__(self, told: Told) -> None:
        self._told = told

    def by_first(self, work: Callable[[], Any]) -> Any:
        return self._told

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        return sums

    def shared(self, gradients: Mapping[str, Tensor]) -> None:
        for each in gradients.values():
            each.fill_(7.0)

    def gathered(self, value: Any) -> list[Any]:
        return [value, value]

    def sent(self) -> int:
        return 0

    def close(self) -> None: ...


def heard(monkeypatch: pytest.MonkeyPatch, *, step: int, noise: float) -> tuple[float, list[int]]:
    """Hear of a release at the fourth step with noise 2; return a gradient, and what was spent."""
    monkeypatch.setattr("dither.training.releases.place", lambda: (1, 2))
    layer, spent = nn.Linear(1, 1, bias=False), list[int]()
    group = Second(Told(step, noise, 0.1, 1))
    payments = payments_into(None, name=None, is_seeded=False)
    releases = Releases(group, payments, Source(None), dict(layer.named_parameters()))
    ready = Ready(PLAN, 3, 2.0, {"weight": torch.ones(1, 1)}, lambda: spent.append(3))
    gradients, _ = releases.release(ready)
    return float(gradients["weight"]), spent


def test_the_release_of_rank_0_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heard(monkeypatch, step=3, noise=2.0) == (7.0, [3])


@pytest.mark.parametrize(("step", "noise"), [(2, 2.0), (4, 2.0), (3, 2.5)])
def test_ranks_at_different_steps(monkeypatch: pytest.MonkeyPatch, step: int, noise: float) -> None:
    """With uniform noise the number of the step alone tells."""
    with pytest.raises(StepError, match=f"rank 0 has released step {step} with noise {noise}"):
        heard(monkeypatch, step=step, noise=noise)
