"""What one use of a parameter adds to each record's gradient, without forming it if possible.

A contribution stands for one gradient per record. It knows its squared norms with a bound on their
rounding errors, the weighted sum over records, and, a few records at a time, the gradients
themselves. Three kinds are enough: gradients that are small anyway (:class:`PerRecord`), sums of
outer products as matrix products have them (:class:`Outer`), and rows of a table
(:class:`Lookup`). Those of views of a parameter are :class:`Placed`. The weight of a convolution
has outer products, too, or what PyTorch itself computes for it (:class:`Convolved`). Those of a
parameter that is used more than once are joined, or :class:`Summed` where they are of different
kinds. Rows that are clipped together are merged:
what is stored is added up, and what is not is :class:`Grouped`.

**Rounding.** The bound beside a squared norm covers what rounding can hide of it, in the norm or in
the sum: a record must not contribute more than its norm says. Stored gradients are summed as they
are, and only the rounding of their norm counts. Otherwise norm and sum are two computations on the
same factors, and large terms that cancel leave errors in proportion to S = Σ_t ‖l_t‖·‖r_t‖,
what the norm would be if nothing cancelled; ‖L‖·‖R‖ bounds it. Inner products, in which
cancellation is worst, are taken in float64; gradients that are formed for their norms alone are
added up in blocks of 64 terms: with u the unit roundoff, sums of 64 equal terms are off by up to
14u, and T/64 such sums by T/320·u more.
"""

from dither.clipping.contributions.base import (
    Clippable,
    Contribution,
    Lookup,
    PerRecord,
    Records,
    unit_roundoff,
)
from dither.clipping.contributions.convolved import MAX_KEPT, Convolved, WeightGradients
from dither.clipping.contributions.grouped import Grouped
from dither.clipping.contributions.outer import Factor, Outer
from dither.clipping.contributions.placed import Place, Placed, place_of
from dither.clipping.contributions.summed import Summed, add_up

__all__ = [
    "MAX_KEPT",
    "Clippable",
    "Contribution",
    "Convolved",
    "Factor",
    "Grouped",
    "Lookup",
    "Outer",
    "PerRecord",
    "Place",
    "Placed",
    "Records",
    "Summed",
    "WeightGradients",
    "add_up",
    "place_of",
    "unit_roundoff",
]
