"""Norms and sums of float32 are computed in float32, whatever torch is set to."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter

import numpy as np
import pytest
import torch
from tests.clipping.comparing import cross_entropy
from torch import Tensor, nn

from dither.clipping import clipped_sum
from dither.clipping.clip import Clip, full_precision
from dither.clipping.linear import linear_clipped_sum
from dither.clipping.linear_rows import DenseRows

PLACES = {"fast": "engine", "reference": "functional"}
ON_CPU, ON_GPU = attrgetter("mkldnn.matmul", "cudnn.conv")(torch.backends)


@pytest.fixture(autouse=True)
def coarse() -> Iterator[None]:
    """Let torch round the factors of products to bfloat16."""
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


def test_the_settings_come_back() -> None:
    before = ON_CPU.fp32_precision, ON_GPU.fp32_precision
    with full_precision("cpu"), full_precision("cuda"):
        assert (ON_CPU.fp32_precision, ON_GPU.fp32_precision) == ("ieee", "ieee")
    assert (ON_CPU.fp32_precision, ON_GPU.fp32_precision) == before == ("bf16", "tf32")
    with pytest.raises(KeyError), full_precision("cpu"):
        raise KeyError
    assert ON_CPU.fp32_precision == "bf16"
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_clipping_is_computed_in_full(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the clipped sum is made, and not where the model is called, by either engine."""
    seen: dict[str, str] = {}

    @contextmanager
    def full(device: str) -> Iterator[None]:
        with full_precision(device):
            seen["clip"] = ON_CPU.fp32_precision
            yield

    monkeypatch.setattr(f"dither.clipping.{PLACES[engine]}.full_precision", full)

    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen["model"] = ON_CPU.fp32_precision
            return super().forward(x)

    batch = torch.randn(8, 4), torch.arange(8) % 3
    clipped_sum(Model(4, 3), cross_entropy, *batch, clip_norm=0.1, engine=engine)
    assert seen == {"clip": "ieee", "model": "bf16"}


def test_sums_of_linear_models_are_those_of_full_precision() -> None:
    torch.manual_seed(0)
    rows, weight = DenseRows(torch.randn(512, 256), Clip(1.0)), torch.zeros(256, 64)
    fixed = torch.randn(512, 64)

    def total() -> Tensor:
        return linear_clipped_sum(
            rows, weight, lambda scores, records: fixed[records], np.arange(512)
        ).gradients["weight"]

    coarsely = total()
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(coarsely, total())
