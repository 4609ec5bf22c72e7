"""The weight and bias that follow a normalisation: gradients are sums of small products."""

from collections.abc import Sequence

from torch import Tensor

from dither.clipping.contributions import Contribution, PerRecord


def affine(
    gradient: Tensor,
    normalised: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    kept: Sequence[int],
) -> list[tuple[Tensor, Contribution]]:
    """Return contributions of y = weight·normalised + bias, whose shape is the ``kept`` axes."""
    summed = [axis for axis in range(1, gradient.dim()) if axis not in kept]

    def reduced(values: Tensor) -> PerRecord:
        return PerRecord(values.sum(summed) if summed else values)

    found: list[tuple[Tensor, Contribution]] = []
    if weight is not None:
        found.append((weight, reduced(gradient * normalised)))
    if bias is not None:
        found.append((bias, reduced(gradient)))
    return found
