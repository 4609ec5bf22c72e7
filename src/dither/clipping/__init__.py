"""The sum of clipped per-record (per-sample) gradients: the fast engine, and a slow reference.

:func:`clipped_sum` is the entry point. :func:`check` reports beforehand what is slow or refused.
:func:`register` adds a rule for a layer of your own.

A batch goes through these files:

1. ``recording``: hooks on the model report its calls. ``independence`` checks that a call treats
   every record by itself, on the first batches; ``recorder`` notes which PyTorch functions use
   parameters on records; ``layouts`` and ``moves`` say where the records are in a tensor. Attention
   and recurrent layers are spelled out by ``replacements``.
2. ``engine``: from the losses to the clipped sum. ``apply_rules`` turns uses into ``contributions``
   by the ``rules``, or record by record; ``locate`` finds rows that were moved;
   ``gradient_checks`` compares them with plain autograd and checks that losses depend on their own
   records alone.
3. ``clip``: norms, clip factors and the weighted sum.

Layers that are refused by their type are in ``layers``, losses of a wrong shape in ``batch``.
``linear`` is the direct path for linear models, and ``functional`` has the reference.
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
