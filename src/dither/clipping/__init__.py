"""The sum of clipped per-record (per-sample) gradients: the fast engine, and a slow reference.

:func:`clipped_sum` is the way in. :func:`check` tells beforehand what a model will cost and what
has to be changed. :func:`register` teaches the fast engine a layer of one's own.
"""

from dither.clipping.clip import ClippedSum
from dither.clipping.contributions import Contribution, Lookup, Outer, PerRecord
from dither.clipping.engine import FallbackWarning
from dither.clipping.functional import clipped_sum
from dither.clipping.layers import Finding, replace_batch_norm
from dither.clipping.model_check import Findings, check
from dither.clipping.rules.registry import Call, register

__all__ = [
    "Call",
    "ClippedSum",
    "Contribution",
    "FallbackWarning",
    "Finding",
    "Findings",
    "Lookup",
    "Outer",
    "PerRecord",
    "check",
    "clipped_sum",
    "register",
    "replace_batch_norm",
]
