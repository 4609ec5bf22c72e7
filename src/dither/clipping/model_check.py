"""The user's check of a model: what is refused, what is slow, and what to change.

The layers that are refused, and why, are in `dither.clipping.layers`.
"""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from dither.clipping.batch import count_records, map_tensors, slice_rows, tensors, trainable
from dither.clipping.engine import FallbackWarning
from dither.clipping.functional import clipped_sum
from dither.clipping.layers import Finding, refused_layers
from dither.validate import InvalidValueError, instance

_TOLERANCE = 1e-3
_SLOW_REMEDY = "register a rule with dither.clipping.register, or accept the cost"


@dataclass(frozen=True)
class Findings:
    """All that :func:`check` found; ``ok`` if nothing is refused or wrong.

    Example:
        >>> check(nn.Linear(4, 3)).ok
        True
    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether the model can be trained as it is, fast or not."""
        return all(finding.verdict == "slow" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self.findings) or "no problems found"


def check(model: nn.Module, example: Any = None) -> Findings:
    """Return what prevents or slows private training of a model, with paths and remedies.

    Args:
        model: the module that is to be trained.
        example: a batch of at least two records, as the model takes it (a tensor, a tuple or a
            dict). With it a copy of the model is run with two batch sizes, and in evaluation mode
            the fast engine's sum is compared with single records.

    Example:
        >>> from torch import nn
        >>> print(check(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))))
        refused: 1 (BatchNorm1d): normalises over the records of a batch;
        dither.clipping.replace_batch_norm(model) returns a copy with GroupNorm in its place
        (create the optimizer for the copy),
        or keep its statistics as they are with .eval() on this layer
    """
    instance(nn.Module, model=model)
    found = list(refused_layers(model))
    if not trainable(model):
        reason, remedy = "no parameter is trainable", "call requires_grad_() on those to be trained"
        found.append(Finding("refused", "the model", reason, remedy))
    if example is not None and not found:
        return Findings(tuple(_check_example(copy.deepcopy(model), example)))
    return Findings(tuple(found))


def _check_example(model: nn.Module, example: Any) -> list[Finding]:
    records = count_records(example=example)
    if records < 2:
        raise InvalidValueError(f"example must have at least two records, got {records}")
    found: dict[Finding, None] = {}
    for size in (records, records - 1):
        part = map_tensors(slice_rows(example, slice(0, size), records), torch.clone)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                clipped_sum(model, _probe_loss, part, None, clip_norm=inf)
            slow = [w for w in caught if issubclass(w.category, FallbackWarning)]
            notes = [str(each.message).partition(": ") for each in slow]
            findings = [Finding("slow", where, why, _SLOW_REMEDY) for where, _, why in notes]
            findings += _compare(copy.deepcopy(model).eval(), part)
        except InvalidValueError as refusal:
            findings = [Finding("refused", "the model", str(refusal), "change the model")]
        found.update(dict.fromkeys(findings))
    return list(found)


def _compare(model: nn.Module, inputs: Any) -> list[Finding]:
    """Compare the fast sum with single records, in evaluation mode: without dropout."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        sums, expected = (
            clipped_sum(model, _probe_loss, inputs, None, clip_norm=inf, engine=engine).gradients
            for engine in ("fast", "reference")
        )
    scale = max((float(each.abs().max()) for each in expected.values()), default=0.0)
    reason = "the fast sum is not the sum of single records"
    return [
        Finding("wrong", name, reason, "do not use the model")
        for name, total in sums.items()
        if float((total - expected[name]).abs().max()) > _TOLERANCE * scale
    ]


def _probe_loss(outputs: Any, _: None) -> Tensor:
    """Return one value per record that depends on everything the model returns."""
    values = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
    found = [each for each in tensors(values) if each.dim() > 0]
    first = next(each for each in found if each.is_floating_point())
    flat = [each.reshape(len(each), -1) for each in found if len(each) == len(first)]
    joined = torch.cat([each.to(first.dtype) for each in flat], dim=1)
    weights = torch.cos(torch.arange(joined.shape[1], device=joined.device, dtype=joined.dtype))
    return joined @ weights
