"""The model that ``--model`` names: one of ours, or a function of the user's."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither import validate

if TYPE_CHECKING:
    from torch import nn


def model_of(name: str) -> Callable[..., "nn.Module"]:
    """Return what makes a model from the shape of a record and the number of classes."""
    from dither.training import MODELS

    if name in MODELS:
        return MODELS[name]
    module, colon, function = name.partition(":")
    if not colon or not module or module.startswith("."):
        raise validate.InvalidValueError(
            f"model must be one of {', '.join(MODELS)} or MODULE:FUNCTION, got {name!r}"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, SyntaxError) as problem:
        raise validate.InvalidValueError(f"model must be found, got {name!r}: {problem}") from None
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise validate.InvalidValueError(f"model must be a function, got {name!r}: {found!r}")

    def build(shape: tuple[int, ...], classes: int) -> "nn.Module":
        return _tried(found, name, shape, classes)

    return build


def _tried(
    function: Callable[..., Any], name: str, shape: tuple[int, ...], classes: int
) -> "nn.Module":
    """Return a user's model, after two empty records went through it."""
    import torch

    try:
        model = validate.instance(torch.nn.Module, model=function(shape, classes))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = model(torch.zeros(2, *shape))
    except (TypeError, RuntimeError, AttributeError, IndexError) as problem:
        why = " ".join(str(problem).split())[:200]
        raise validate.InvalidValueError(
            f"model must take records of shape {shape}, got {name!r}: {why}"
        ) from None
    if not isinstance(outputs, torch.Tensor) or outputs.shape != (2, classes):
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise validate.InvalidValueError(
            f"model must give {classes} numbers a record, shape (2, {classes}) for two, got {got} "
            f"from {name!r}"
        )
    return model
