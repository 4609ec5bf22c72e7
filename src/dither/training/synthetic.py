"""What a model does to synthetic records: how long its gradients are, and how long they take."""

import copy
import math
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dither import validate
from dither.clipping import FallbackWarning, clipped_sum
from dither.clipping.batch import map_tensors, tensors
from dither.randomness import Source
from dither.release import release
from dither.training.distributed import rank_and_size

_UNITS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0,
}  # fmt: skip
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*")
_SHARE = 0.9
"""Of a given time; the rest is for planning, metrics and checkpoints."""

_LONGEST = 1.0
"""Seconds to measure for, after a first step that is not counted."""

_NORMS = 32
"""Records whose gradients' norms are taken."""

_MOST_RECORDS = 1024
"""The most records at once, as in `dither.train`."""


def seconds_in(text: str) -> float:
    """Return the number of seconds of a time such as "90 s", "2 min" or "1 h".

    >>> seconds_in("2 min"), seconds_in("1.5 hours"), seconds_in("90s")
    (120.0, 5400.0, 90.0)
    """
    found = _TIME.fullmatch(text.lower())
    if found is None or found[2] not in _UNITS or not float(found[1]) > 0.0:
        raise validate.InvalidValueError(
            'compute must be a number of record-gradients or a time such as "90 s", "2 min" or '
            f'"1 h", got {text!r}'
        )
    return float(found[1]) * _UNITS[found[2]]


def measured_compute(compute: str, model: nn.Module, inputs: Any, batch: int) -> tuple[float, str]:
    """Return how many record-gradients a time is good for, and how that is known."""
    seconds = seconds_in(compute)
    if inputs is None:
        raise validate.InvalidTypeError(
            "inputs must be a batch as the model takes it where compute is a time, got None with "
            f"compute={compute!r}"
        )
    ranks = rank_and_size()[1]  # each takes its part of a batch, at the same time as the others
    speed = ranks * record_gradients_per_second(model, inputs, math.ceil(batch / ranks))
    reason = f"given: {compute}, at {speed:,.0f} record-gradients per second"
    return max(1.0, _SHARE * speed * seconds), reason


def record_gradients_per_second(model: nn.Module, inputs: Any, batch_size: int) -> float:
    """Return the speed of private steps on a copy of the model.

    Args:
        model: any module that `dither.train` takes; it is not changed.
        inputs: a batch as the model is called with it. Only shapes and dtypes are used.
        batch_size: records per step.
    """
    records = min(batch_size, _MOST_RECORDS)
    source, steps, began = Source(None), 0, 0.0
    with _synthetic_batch(model, inputs, records) as (trial, batch):
        device = next(trial.parameters()).device
        while steps == 0 or time.perf_counter() - began < _LONGEST:
            found = clipped_sum(trial, _unit_error, batch, None, clip_norm=1.0)
            release(
                found, clip_norm=1.0, noise_multiplier=1.0, batch_size=records,
                stream=source.stream("noise", steps),
            )  # fmt: skip
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            # The first step checks the model, which the others do not.
            began = time.perf_counter() if steps == 0 else began
            steps += 1
    return (steps - 1) * records / (time.perf_counter() - began)


def gradient_norm(model: nn.Module, inputs: Any) -> float | None:
    """Return the median norm of per-record gradients for errors of norm 1 at the outputs.

    Of untrained models, that is about what a loss gives: cross entropy has errors of norm
    √(1 − 1/k) for k equally probable classes. None if the model does not take synthetic records, or
    if they have no gradient.

    Args:
        model: any module that `dither.train` takes; it is not changed.
        inputs: a batch as the model is called with it. Only shapes and dtypes are used.

    Example:
        >>> round(gradient_norm(nn.Linear(3, 2, bias=False), torch.ones(1, 3)), 1)
        1.0
    """
    try:
        with _synthetic_batch(model, inputs, _NORMS) as (trial, batch):
            norms = clipped_sum(trial, _unit_error, batch, None, clip_norm=1.0).norms
    except (RuntimeError, IndexError, ValueError, TypeError):  # a model that takes no such values
        return None
    norm = float(norms.median())
    return norm if 0.0 < norm < math.inf else None


@contextmanager
def _synthetic_batch(
    model: nn.Module, inputs: Any, records: int
) -> Iterator[tuple[nn.Module, Any]]:
    """Give a copy of the model and synthetic records, the same every time.

    Floats are uniform on [−1, 1]; integers, which may be tokens or classes, are 0 or 1.
    """
    _check_only_tensors(inputs)
    trial = copy.deepcopy(model)
    device = next(trial.parameters()).device

    def synthetic(tensor: Tensor) -> Tensor:
        shape = (records, *tensor.shape[1:])
        if tensor.is_floating_point():
            values = 2.0 * torch.rand(shape) - 1.0
        else:
            values = torch.randint(2, shape)
        return values.to(device, tensor.dtype)

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        torch.default_generator.manual_seed(0)  # that of a GPU would stay seeded
        yield trial, map_tensors(inputs, synthetic)


def _check_only_tensors(inputs: Any) -> None:
    """Raise if there is anything else: it would keep the value that a record has."""
    ahead = [inputs]
    while ahead:
        each = ahead.pop()
        if isinstance(each, Mapping):
            ahead += each.values()
        elif isinstance(each, tuple | list) and each:
            ahead += each
        elif not isinstance(each, Tensor):
            raise validate.InvalidTypeError(
                f"inputs must be tensors with one row per record, got {type(each).__name__}"
            )


def _unit_error(outputs: Any, _: Any) -> Tensor:
    """Return losses whose gradients at the outputs are of norm 1 per record."""
    logits = getattr(outputs, "logits", outputs)
    first = next(each for each in tensors(logits) if each.is_floating_point()).flatten(1)
    error = torch.randn(first.shape).to(first)
    losses: Tensor = (first * error / error.norm(dim=1, keepdim=True)).sum(1)
    return losses
