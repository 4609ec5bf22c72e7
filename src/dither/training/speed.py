"""How many record-gradients a second a model takes, measured on synthetic records."""

import copy
import re
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from dither import validate
from dither.clipping import FallbackWarning, clipped_sum
from dither.clipping.batch import map_tensors, tensors
from dither.randomness import Source
from dither.release import release

_UNITS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0,
}  # fmt: skip
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*")
_SHARE = 0.9
"""Of a given time; the rest is for planning, metrics and checkpoints."""

_LONGEST = 1.5
"""Seconds to measure for, after a first step that is not counted."""

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
    speed = record_gradients_per_second(model, inputs, batch)
    reason = f"given: {compute}, at {speed:,.0f} record-gradients per second"
    return max(1.0, _SHARE * speed * seconds), reason


def record_gradients_per_second(model: nn.Module, inputs: Any, batch_size: int) -> float:
    """Return the speed of private steps on a copy of the model.

    Args:
        model: any module that `dither.train` takes; it is not changed.
        inputs: a batch as the model is called with it. Only shapes and dtypes are used: the
            records are ones, or zeros where they are integers.
        batch_size: records per step.
    """
    if not tensors(inputs):
        raise validate.InvalidTypeError(
            f"inputs must be tensors with one row per record, got {type(inputs).__name__}"
        )
    trial, records = copy.deepcopy(model).train(), min(batch_size, _MOST_RECORDS)
    device = next(trial.parameters()).device
    batch = map_tensors(inputs, lambda tensor: _synthetic(tensor, records).to(device))
    source, steps, began = Source(None), 0, 0.0
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        while steps == 0 or time.perf_counter() - began < _LONGEST:
            found = clipped_sum(trial, _energy, batch, None, clip_norm=1.0)
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


def _synthetic(tensor: Tensor, records: int) -> Tensor:
    shape = (records, *tensor.shape[1:])
    fill = 1 if tensor.is_floating_point() else 0
    return torch.full(shape, fill, dtype=tensor.dtype)


def _energy(outputs: Any, _: Any) -> Tensor:
    """Return a loss of every record that needs no targets."""
    logits = getattr(outputs, "logits", outputs)
    first = next(each for each in tensors(logits) if each.is_floating_point())
    return first.flatten(1).square().mean(1)
