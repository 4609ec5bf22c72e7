"""Apply the rules: from recorded uses and the gradients of their outputs to contributions."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from dither.clipping.batch import accumulation_dtype, map_tensors, quiet_vmap, tensors
from dither.clipping.contributions import (
    MAX_KEPT,
    Contribution,
    Outer,
    PerRecord,
    Place,
    Placed,
    add_up,
    place_of,
)
from dither.clipping.layouts import Layout, Rows
from dither.clipping.recorder import Recorder, Use
from dither.clipping.rules.fallback import repeat_per_record
from dither.clipping.rules.registry import (
    Call,
    Rule,
    UnsupportedCallError,
    layout_by_rule,
    rule_of,
    takes_any_leading_dims,
)
from dither.validate import InvalidValueError

Gradients = Sequence[Tensor | None]


def unseen_parameters(recorder: Recorder, losses: Tensor) -> set[str]:
    """Return the parameters that some path from the losses reaches without a recorded use."""
    names = {id(parameter): name for name, parameter in recorder.parameters.items()}
    seen: dict[Node, list[Node]] = {}
    for use in recorder.uses:
        for edge in use.edges:
            if edge is not None:
                seen.setdefault(edge.node, []).extend(use.sources)
    unseen: set[str] = set()
    visited: set[Node | None] = {None}
    ahead = [losses.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        parameter = getattr(node, "variable", None)
        if parameter is not None and id(parameter) in names:
            unseen.add(names[id(parameter)])
        if "CheckpointFunctionBackward" in node.name():
            raise InvalidValueError(
                "model must not use reentrant activation checkpointing; "
                "call torch.utils.checkpoint.checkpoint with use_reentrant=False"
            )
        ahead += seen[node] if node in seen else [follower for follower, _ in node.next_functions]
    return unseen


def gradients_at(
    losses: Tensor,
    edges: Sequence[GradientEdge],
    *,
    weights: Tensor | None = None,
    keep_graph: bool = True,
) -> list[Tensor | None]:
    """Return the gradients of the sum of the losses at some edges of the graph."""
    if not edges:
        return []
    with torch.enable_grad():  # the gradient of a scalar: anything else makes torch import sympy
        total = (losses if weights is None else losses * weights.to(losses)).sum()
    return list(torch.autograd.grad(total, edges, allow_unused=True, retain_graph=keep_graph))


def reason_for_fallback(use: Use, recorder: Recorder) -> str | None:
    """Return why a use cannot be computed by a rule, as far as is known without gradients."""
    if any(tensor._version != version for tensor, version in use.versions):
        return f"an input of {use.name} was changed in place after it was used"
    held = [t for t in tensors((use.args, use.kwargs)) if recorder.stands_for_parameters(t)]
    if any(recorder.was_changed(tensor) for tensor in held):
        return "what was derived from it was changed in place"
    rule = rule_of(use.function)
    if rule is not None and use.layout is None and not use.is_moved:
        return f"{use.name} does not have the records along its output's first dimension"
    formed = [t for t in held if rule is None or not _keeps_form(t, recorder)]
    roots = sum(recorder.parameters[name].numel() for name in recorder.parameters_in(formed))
    if recorder.records * (roots + sum(t.numel() for t in formed)) > 4 * MAX_KEPT and formed:
        return f"{use.name} would need too much memory for all records at once"
    return None


def _keeps_form(tensor: Tensor, recorder: Recorder) -> bool:
    """Return whether contributions to a tensor are contributions to one parameter as they are."""
    if id(tensor) not in recorder.derived:
        return True
    names = recorder.parameters_in(tensor)
    return place_of(tensor, recorder.parameters[names[0]]) is not None


def apply_rules(
    recorder: Recorder, uses: list[Use], gradients: dict[int, Gradients], slow: dict[str, str]
) -> tuple[dict[str, Contribution], list[str]]:
    """Return the contribution of every parameter, and the calls that were repeated per record.

    Args:
        recorder: what was recorded.
        uses: all that were recorded. They are taken out one by one, so that what a contribution
            has a copy of is freed.
        gradients: position of a use → the gradients of its outputs, which are taken out, too.
        slow: parameters that are not computed here, with the reason; those whose calls turn out
            to be unsupported are added.
    """
    parts: defaultdict[str, list[Contribution]] = defaultdict(list)
    repeated: list[str] = []
    while uses:
        use, found = uses.pop(), gradients.pop(len(uses), [])
        if not any(each is not None and each.numel() for each in found):
            continue
        try:
            for tensor, part in _apply_to_use(use, found, recorder, repeated):
                for name, pulled in _pull_back(tensor, part, recorder):
                    parts[name].append(pulled)
        except UnsupportedCallError as reason:
            slow.update({name: slow.get(name, str(reason)) for name in use.names})
    return {name: add_up(parts[name]) for name in parts if name not in slow}, repeated


def _apply_to_use(
    use: Use, gradients: Gradients, recorder: Recorder, repeated: list[str]
) -> Iterable[tuple[Tensor, Contribution]]:
    rule = rule_of(use.function)
    if rule is not None:
        return _apply_rule(rule, use, gradients, recorder)
    found = repeat_per_record(use, gradients, recorder)
    repeated.append(f"{use.name} with {', '.join(use.names)}")
    return found


def _apply_rule(
    rule: Rule, use: Use, gradients: Gradients, recorder: Recorder
) -> Iterable[tuple[Tensor, Contribution]]:
    layout, (gradient, *others) = use.layout, gradients
    assert gradient is not None  # noqa: S101 (uses without a gradient were left out)
    if layout is None or others:
        raise UnsupportedCallError(
            f"{use.name} does not have the records along its output's first dimension"
        )
    rows = _RecordRows(use, layout, recorder.records)
    held = [t for t in tensors((use.args, use.kwargs)) if recorder.stands_for_parameters(t)]
    prepare = partial(rows.of_argument, held={id(tensor) for tensor in held})
    args, kwargs = map_tensors((use.args, use.kwargs), prepare)
    moved = rows.of(gradient)
    call = Call(use.function, args, kwargs, recorder.records * rows.times, tuple(held), layout)
    found = rule(call, moved.to(accumulation_dtype(moved.dtype)))
    return [
        (tensor, part.join(rows.times) if rows.times > 1 else part)
        for tensor, part in _check_rule_output(rule, use, found, call.records)
        if recorder.stands_for_parameters(tensor)
    ]


class _RecordRows:
    """How the arguments and the gradient of a use are given to its rule."""

    def __init__(self, use: Use, layout: Layout | Rows, records: int) -> None:
        self._use, self._layout, self._records = use, layout, records
        self._is_raw = layout_by_rule(use.function) is not None
        self._is_flat = not (self._is_raw or takes_any_leading_dims(use.function))
        self.times = 1

    def of(self, tensor: Tensor) -> Tensor:
        """Return a tensor with one entry per record first, or one per row of a record."""
        layout = self._layout
        if self._is_raw:
            return tensor
        if not layout.fits(tensor, self._records):
            raise UnsupportedCallError(f"{self._use.name} has records in different dimensions")
        tensor = layout.record_first(tensor, self._records)
        if not (self._is_flat and layout.joined):
            return tensor
        self.times = tensor.shape[1]
        return tensor.flatten(0, 1)

    def of_argument(self, tensor: Tensor, held: Collection[int]) -> Tensor:
        """Return an argument as the rule gets it, but for parameters, which are left alone."""
        if id(tensor) in held:
            return tensor
        is_list = tensor.dim() == 1 and not tensor.is_floating_point()  # such as ends of groups
        is_shared = is_list and not self._layout.fits(tensor, self._records)
        if id(tensor) in self._use.from_batch and not is_shared:
            tensor = self.of(tensor)
        return tensor.to(accumulation_dtype(tensor.dtype)) if tensor.is_floating_point() else tensor


def _check_rule_output(
    rule: Rule, use: Use, found: Any, records: int
) -> Iterable[tuple[Tensor, Contribution]]:
    """Yield what a rule returned; raise if it has another size than the parameters and records."""
    name = f"rule {getattr(rule, '__name__', rule)!s} for {use.name}"
    for tensor, part in found:
        if part.size != tensor.numel() or part.records != records:
            got = "another number of them" if part.records != records else f"{part.size} entries"
            raise InvalidValueError(
                f"the {name} must return one gradient per record, each of the parameter's "
                f"{tensor.numel()} entries, got {got}"
            )
        yield tensor, part


def _pull_back(
    tensor: Tensor, part: Contribution, recorder: Recorder
) -> list[tuple[str, Contribution]]:
    """Propagate a contribution to a tensor derived from parameters back to the parameters."""
    names = recorder.parameters_in(tensor)
    if id(tensor) not in recorder.derived:
        return [(names[0], part)]
    place = place_of(tensor, recorder.parameters[names[0]])
    if place is not None:
        parameter = recorder.parameters[names[0]]
        return [(names[0], _placed(part, place, parameter))]
    roots = [recorder.parameters[name].detach() for name in names]
    replay = _replay(recorder, tensor, names)
    try:
        pull = torch.func.vjp(replay, *roots)[1]
    except RuntimeError as reason:  # a function that torch.func does not know
        raise UnsupportedCallError("what it was used for cannot be computed again") from reason
    rows = part.rows(0, part.records).to(tensor.dtype)
    pulled = quiet_vmap(pull)(rows)
    return [
        (name, PerRecord(gradients.to(accumulation_dtype(gradients.dtype))))
        for name, gradients in zip(names, pulled, strict=True)
    ]


def _placed(part: Contribution, place: Place, parameter: Tensor) -> Contribution:
    """Return a contribution to a view of a parameter as one to the parameter."""
    is_turned = parameter.dim() == 2 and place == place_of(parameter.t(), parameter)
    if is_turned and isinstance(part, Outer) and part.groups == 1 and not part.right.is_copied:
        return Outer(part.right.rows(0, part.records), part.left)
    return Placed([part], [place], parameter.shape)


def _replay(recorder: Recorder, tensor: Tensor, names: list[str]) -> Callable[..., Tensor]:
    """Return the function that made a derived tensor from the parameters of these names."""
    ids = [id(recorder.parameters[name]) for name in names]

    def replay(*roots: Tensor) -> Tensor:
        values = dict(zip(ids, roots, strict=True))

        def value_of(argument: Tensor) -> Tensor:
            made = recorder.derived.get(id(argument))
            if id(argument) in values or made is None:
                return values.get(id(argument), argument)
            args, kwargs = map_tensors((made.args, made.kwargs), value_of)
            output = made.function(*args, **kwargs)
            result: Tensor = output if made.position is None else output[made.position]
            return result

        return value_of(tensor)

    return replay
