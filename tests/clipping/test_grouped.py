"""Rows that are clipped together, different numbers of them, against gradients that are formed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping import Lookup, Outer, PerRecord
from dither.clipping.clip import Clip, sum_clipped
from dither.clipping.contributions import Contribution, Grouped, Place, Placed, Summed, add_up
from dither.clipping.rules.convolution import convolution
from dither.clipping.rules.registry import Call

COUNTS = torch.tensor([1, 1, 2, 4, 4, 9, 1])
ROWS = int(COUNTS.sum())


def convolved(channels: int, size: int) -> Contribution:
    """Return a convolution's weight; gradients are kept where they are small for the inputs."""
    weight = torch.nn.Parameter(torch.randn(channels, 3, 3, 3, dtype=torch.float64))
    inputs = torch.randn(ROWS, 3, size, size, dtype=torch.float64)
    gradient = torch.randn_like(functional.conv2d(inputs, weight))
    call = Call(torch.conv2d, (inputs, weight), {}, ROWS, (weight,))
    return convolution(call, gradient)[0][1]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def lookup() -> Lookup:
    return Lookup(torch.randint(5, (ROWS, 3)), normal(ROWS, 3, 2), 5)


def placed(offset: int, *, stored: bool = False) -> Contribution:
    """Return gradients of a transposed part of a parameter."""
    part = (
        PerRecord(normal(ROWS, 3, 2)) if stored else Outer(normal(ROWS, 4, 3), normal(ROWS, 4, 2))
    )
    return Placed([part], [Place((3, 2), (1, 3), offset)], (4, 3))


KINDS: dict[str, Callable[[], Contribution]] = {
    "stored": lambda: PerRecord(normal(ROWS, 3, 2)),
    "inner products": lambda: Outer(normal(ROWS, 1, 60), normal(ROWS, 1, 50)),
    "formed": lambda: Outer(normal(ROWS, 5, 6), normal(ROWS, 5, 4)),
    "rows of a table": lookup,
    "table and head": lambda: Summed([lookup(), Outer(normal(ROWS, 2, 5), normal(ROWS, 2, 2))]),
    "views": lambda: add_up([placed(0), placed(0, stored=True), placed(6)]),
    "overlapping views": lambda: add_up([placed(0), placed(3)]),
    "kept": lambda: convolved(4, size=8),
    "kept for many rows": lambda: convolved(30, size=3),
}


def test_gradients_may_be_kept_for_some() -> None:
    merged = KINDS["kept for many rows"]().merge(COUNTS)
    assert isinstance(merged, Grouped)
    merged.norms()
    assert [run.is_kept for run in merged.runs] == [False, False, False, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_norms_and_sums_are_those_of_added_gradients(kind: str) -> None:
    torch.manual_seed(0)
    part, clip = KINDS[kind](), Clip(3.0)
    owners = torch.arange(len(COUNTS)).repeat_interleave(COUNTS)
    formed = part.rows(0, ROWS)
    added = torch.zeros(len(COUNTS), *formed.shape[1:], dtype=torch.float64)
    added.index_add_(0, owners, formed)
    norms = added.flatten(1).norm(dim=1)
    weights = torch.rand(len(COUNTS), dtype=torch.float64)
    expected = torch.tensordot(weights * clip.factors(norms), added, 1)
    merged = part.merge(COUNTS)
    sums, found = sum_clipped({"w": merged}, clip, weights)
    torch.testing.assert_close(found, norms, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(sums["w"], expected, rtol=1e-7, atol=1e-9)
    # What is computed again is the same, whichever records it are.
    for chosen in (torch.tensor([0, 3, 6]), torch.tensor([5]), slice(1, 4)):
        some = merged.select(chosen).double()
        torch.testing.assert_close(some.norms()[0].sqrt(), norms[chosen], rtol=1e-9, atol=0.0)
        torch.testing.assert_close(
            some.weighted_sum(weights[chosen]), torch.tensordot(weights[chosen], added[chosen], 1)
        )


def test_users_that_cancel_or_overflow_are_computed_again() -> None:
    """Terms that cancel hide a norm in float32; one infinite row makes a user count as zero."""
    torch.manual_seed(1)
    left, right = torch.randn(ROWS, 1, 40), torch.randn(ROWS, 1, 30)
    left[2:4], right[2:4] = 1e6, 1.0
    left[3] = -1e6
    left[3, 0, 0] += 8.0  # the gradient of user 2 is this alone
    left[5] = torch.inf
    sums, norms = sum_clipped({"w": Outer(left, right).merge(COUNTS)}, Clip(1e3))
    assert norms[2] == pytest.approx(8.0 * 30**0.5, rel=1e-6)
    assert torch.isinf(norms[3])
    owners = torch.arange(len(COUNTS)).repeat_interleave(COUNTS)
    kept = owners != 3
    expected = torch.einsum("rp,rd->pd", left[kept, 0].double(), right[kept, 0].double())
    torch.testing.assert_close(sums["w"].double(), expected, rtol=1e-3, atol=1e-3)
