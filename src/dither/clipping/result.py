"""What a clipped sum is: the sensitive value that only the release may consume."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class ClippedSum:
    """The sum of clipped per-record gradients of one batch. Sensitive: no noise has been added.

    Attributes:
        gradients: parameter name → sum over the records, for every trainable parameter; float32
            where the parameter is of half precision, else of the parameter's own type.
        norms: one norm a record, before clipping; infinite where the record's gradient is not
            finite, and such a record counts as zero.
    """

    gradients: dict[str, Tensor]
    norms: Tensor

    def __repr__(self) -> str:
        """Show names only: the values belong to the records."""
        names = ", ".join(self.gradients)
        return f"ClippedSum(gradients of {names}; {len(self.norms)} norms: sensitive)"
