"""The size of microbatches from the memory that is there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dither
from dither.clipping import FallbackWarning, clipped_sum, memory
from dither.clipping.memory import FIRST_ROWS, rows_that_fit
from dither.validate import InvalidTypeError, InvalidValueError

RECORDS = 30


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 3))


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(RECORDS, 6), torch.randint(3, (RECORDS,))


def test_half_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    assert rows_that_fit(50.0, torch.device("cpu")) == 10
    assert rows_that_fit(501.0, torch.device("cpu")) == 1


def test_a_container_may_have_less_than_its_machine(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory._of_container(tmp_path) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._of_container(tmp_path) > 1e18
    assert memory._of_container(tmp_path / "none") > 1e18
    assert 2**20 < memory.available_bytes(torch.device("cpu")) < 2**50


def sizes_of(run: Any) -> list[int]:
    sizes = []
    for batch in run.batches(steps=2):
        for x, y in run.microbatches(batch, "auto"):
            sizes.append(len(x))
            run.backward(losses(run.model(x), y))
        run.optimizer.step()
        run.optimizer.zero_grad()
    return sizes


def test_the_first_part_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # A row has 4·(50 + 50 + 3) bytes of outputs, 4·(50 + 3) of gradients at its layers, and 4·9
    # in its loss.
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2 * 12 * 4 * (103 + 53 + 9))
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    plan = dither.Plan.unsafe_without_noise(
        steps=2, dataset_size=RECORDS, batch_size=RECORDS, sampling="fixed"
    )
    sizes = sizes_of(dither.make_private(made, optimizer, plan, data(), seed=0))
    assert sizes == [FIRST_ROWS, 12, 10, 12, 12, 6]


def test_the_sum_is_the_same() -> None:
    found = clipped_sum(model(), losses, *data(), clip_norm=1.0, microbatch_size="auto")
    whole = clipped_sum(model(), losses, *data(), clip_norm=1.0)
    for name, gradient in found.gradients.items():
        assert torch.allclose(gradient, whole.gradients[name], atol=1e-6)


@pytest.mark.parametrize("size", ["all", 0, 2.5])
def test_other_sizes(size: Any) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError), match="microbatch_size must be an"):
        clipped_sum(model(), losses, *data(), clip_norm=1.0, microbatch_size=size)


class Mixed(nn.Module):
    """Autocast inside the model, with a norm that stays in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.layers:
                x = x + functional.gelu(layer(self.norm(x)))
            return self.head(x.mean(1)).float()


@pytest.mark.filterwarnings(f"error::{FallbackWarning.__module__}.FallbackWarning")
def test_autocast_stays_on_the_fast_engine() -> None:
    torch.manual_seed(0)
    made, x, y = Mixed(), torch.randn(RECORDS, 5, 8), torch.randint(3, (RECORDS,))
    found = clipped_sum(made, losses, x, y, clip_norm=1.0)
    truth = clipped_sum(made, losses, x, y, clip_norm=1.0, engine="reference")
    assert torch.allclose(found.norms, truth.norms.float(), rtol=0.02)
    for name, gradient in found.gradients.items():
        assert gradient.dtype == torch.float32
        off = (gradient - truth.gradients[name]).norm() / truth.gradients[name].norm()
        assert float(off) < 0.03  # a few roundings of bfloat16, of 2^-8 each
