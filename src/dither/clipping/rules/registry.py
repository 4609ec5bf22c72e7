"""The registry of rules: from a function or a class of layers to its rule."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dither.clipping.contributions import Contribution
from dither.clipping.layouts import FIRST, Layout, Rows


class UnsupportedCallError(Exception):
    """A use of a parameter that no rule covers: it is computed record by record."""


@dataclass(frozen=True)
class Call:
    """One call that used parameters, with the records along the first dimension.

    Attributes:
        function: what was called: a function, or a layer of a registered kind.
        args: its positional arguments.
        kwargs: its keyword arguments.
        records: the number of records.
        parameters: those tensors among the arguments that are trainable parameters, or were
            computed from trainable parameters alone.
        layout: where the records are in the output of the call itself.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(3, 4))
        >>> call = Call(torch.nn.functional.linear, (torch.ones(2, 4), weight), {}, 2, (weight,))
        >>> inputs, weight, bias = call.arguments("input", "weight", "bias")
        >>> call.is_parameter(inputs), call.is_parameter(weight), bias
        (False, True, None)
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    records: int
    parameters: tuple[Tensor, ...] = ()
    layout: Layout | Rows = FIRST

    def is_parameter(self, argument: object) -> bool:
        """Return whether an argument is one of the parameters."""
        return any(argument is parameter for parameter in self.parameters)

    def arguments(self, *names: str) -> list[Any]:
        """Return the arguments by these names, in the order of the signature; None if not given."""
        given = dict(zip(names, self.args, strict=False)) | self.kwargs
        return [given.get(name) for name in names]


Rule = Callable[[Call, Tensor], Iterable[tuple[Tensor, Contribution]]]
"""From a call and the gradient with respect to its output to (parameter, contribution) pairs."""

Locate = Callable[[Call, torch.Size], Layout | None]
"""From a call and the shape of its output to where the records are in that, if it can be said."""

_RULES: dict[Any, Rule] = {}
_LOCATE: dict[Any, Locate] = {}
_LAYERS: set[Any] = set()
_ANY_LEADING_DIMS: set[Any] = set()
_BY_ENTRY: set[Any] = {torch.cat, torch.concat}


def register(
    *kinds: Callable[..., Any],
    any_leading_dims: bool = False,
    by_entry: bool = False,
    locate: Locate | None = None,
) -> Callable[[Rule], Rule]:
    """Register a rule for functions, or for classes of layers (not for their subclasses).

    The rule is called after the backward pass with the :class:`Call` and the gradient of the sum
    of the losses with respect to its output; inputs and gradient have one entry per record along
    the first dimension and are at least float32. It returns pairs of a parameter and its
    :class:`Contribution`: :class:`PerRecord` with one gradient per record, or :class:`Outer` or
    :class:`Lookup`, which avoid forming them. What a rule returns is compared with plain
    autograd when it is first used; parameters on which they differ are computed record by record.

    Args:
        kinds: functions as PyTorch calls them, or subclasses of ``torch.nn.Module``.
        any_leading_dims: whether inputs may have any leading dimensions, as those of a linear layer
            may. Then records may also be along the second dimension or joined with another one;
            what the rule gets has them first.
        by_entry: whether every entry of the output comes from one of each input.
        locate: says where the records are, in calls where their dimension may be any. Then the
            rule gets inputs and gradient as they are.

    Example:
        >>> import torch
        >>> from dither.clipping import Call, PerRecord, clipped_sum, register
        >>> class Scale(torch.nn.Module):
        ...     def __init__(self) -> None:
        ...         super().__init__()
        ...         self.factor = torch.nn.Parameter(torch.ones(3))
        ...     def forward(self, x):
        ...         return x * self.factor
        >>> @register(Scale)
        ... def scale(call: Call, gradient: torch.Tensor):
        ...     return [(call.function.factor, PerRecord(gradient * call.args[0]))]
        >>> total = clipped_sum(Scale(), lambda out, y: out.sum(1), torch.ones(4, 3),
        ...                     torch.zeros(4), clip_norm=1.0)
        >>> total.gradients["factor"]
        tensor([2.3094, 2.3094, 2.3094])

        A layer with a matrix, ``y = x @ w.T`` on records × terms × width, would return
        ``[(call.function.w, Outer(gradient, call.args[0]))]``, and form no per-record gradient.
    """

    def decorate(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        _LAYERS.update(kind for kind in kinds if isinstance(kind, type))
        if any_leading_dims:
            _ANY_LEADING_DIMS.update(kinds)
        if by_entry:
            _BY_ENTRY.update(kinds)
        if locate is not None:
            _LOCATE.update(dict.fromkeys(kinds, locate))
        return rule

    return decorate


def rule_of(function: Callable[..., Any]) -> Rule | None:
    """Return the rule for a function or a layer, if there is one."""
    return _RULES.get(_kind(function))


def layout_by_rule(function: Callable[..., Any]) -> Locate | None:
    """Return what says where the records are in a function's output, if its rule has that."""
    return _LOCATE.get(_kind(function))


def _kind(function: Callable[..., Any]) -> object:
    return type(function) if isinstance(function, nn.Module) else function


def has_rule_as_layer(layer: nn.Module) -> bool:
    """Return whether a rule was registered for a kind of layer as a whole."""
    return bool(_LAYERS) and type(layer) in _LAYERS


def takes_any_leading_dims(function: Callable[..., Any]) -> bool:
    """Return whether a function's rule takes records along other dimensions than the first."""
    return _kind(function) in _ANY_LEADING_DIMS


def is_by_entry(function: Callable[..., Any]) -> bool:
    """Return whether every entry of a function's output comes from one of each input."""
    return function in _BY_ENTRY
