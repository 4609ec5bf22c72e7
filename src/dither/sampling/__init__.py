"""Which records take part in a step.

Every sampler is a frozen value whose one method ``draw(length, stream)`` returns the indices of a
step's records, in ascending order. `sampler_for` gives the one that a plan was accounted for: the
two cannot disagree.
"""

from dither.sampling.fixed import Fixed
from dither.sampling.for_plan import sampler_for
from dither.sampling.full_batch import FullBatch
from dither.sampling.poisson import Poisson
from dither.sampling.sampler import Sampler

__all__ = ["Fixed", "FullBatch", "Poisson", "Sampler", "sampler_for"]
