"""From what a recorder saw, and the gradients of the outputs, to each parameter's contribution."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dither.clipping.batch import tensors, vmapped, wide
from dither.clipping.contributions import KEPT, Contribution, PerRecord, Summed
from dither.clipping.layout import layout_of
from dither.clipping.recorder import Derived, Recorder, Use
from dither.clipping.registry import Call, Rule, UnseenUseError, rule_of, treats_leading_alike
from dither.clipping.rules.explicit import one_by_one
from dither.clipping.rules.recurrent import is_recurrent, recurrent
from dither.validate import InvalidTypeError, InvalidValueError

Gradients = Sequence[Tensor | None]


def contributions(
    recorder: Recorder, gradients: Mapping[int, Gradients]
) -> tuple[dict[str, Contribution], list[str]]:
    """Return each parameter's contribution, and what had to be computed record by record.

    Args:
        recorder: what was seen.
        gradients: position of a use → the gradients of its outputs.
    """
    parts: defaultdict[str, list[Contribution]] = defaultdict(list)
    slow: list[str] = []
    for position, use in enumerate(recorder.uses):
        _refuse_changed_inputs(use, recorder)
        if all(gradient is None for gradient in gradients[position]):
            continue
        for tensor, part in _apply(use, gradients[position], recorder, slow):
            for name, pulled in _pulled_back(tensor, part, recorder):
                parts[name].append(pulled)
    summed = {name: found[0] if len(found) == 1 else Summed(found) for name, found in parts.items()}
    return summed, slow


def _apply(
    use: Use, gradients: Gradients, recorder: Recorder, slow: list[str]
) -> Iterable[tuple[Tensor, Contribution]]:
    rule = rule_of(use.function)
    if rule is not None:
        return _apply_rule(rule, use, gradients, recorder)
    names = ", ".join(recorder.parameters_in(use.args, use.kwargs))
    slow.append(f"{use.name} with {names}")
    if is_recurrent(use):
        return recurrent(use, gradients, recorder)
    return one_by_one(use, gradients, recorder)


def _apply_rule(
    rule: Rule, use: Use, gradients: Gradients, recorder: Recorder
) -> Iterable[tuple[Tensor, Contribution]]:
    layout = layout_of(use.shapes[0], recorder.records, treats_leading_alike(use.function))
    if layout is None or len(gradients) != 1:
        raise UnseenUseError(
            f"{use.name} does not have the records along its output's first dimension"
        )

    def prepared(value: Any) -> Any:
        if isinstance(value, Tensor) and not recorder.stands_for_parameters(value):
            value = (
                layout.record_first(value, recorder.records)
                if id(value) in use.from_batch
                else value
            )
            return value.to(wide(value.dtype)) if value.is_floating_point() else value
        return value

    (gradient,) = gradients
    call = Call(
        use.function,
        tuple(prepared(value) for value in use.args),
        {name: prepared(value) for name, value in use.kwargs.items()},
        recorder.records,
        tuple(t for t in tensors((use.args, use.kwargs)) if recorder.stands_for_parameters(t)),
    )
    assert gradient is not None  # noqa: S101 (uses without a gradient were left out)
    found = rule(call, layout.record_first(gradient, recorder.records).to(wide(gradient.dtype)))
    return [
        (tensor, part)
        for tensor, part in _checked(rule, use, found, recorder.records)
        if recorder.stands_for_parameters(tensor)
    ]


def _checked(
    rule: Rule, use: Use, found: Any, records: int
) -> Iterable[tuple[Tensor, Contribution]]:
    """Yield what a rule returned, if that is what a rule must return."""
    name = f"rule {getattr(rule, '__name__', rule)!s} for {use.name}"
    for pair in found if isinstance(found, Iterable) else [found]:
        if not isinstance(pair, tuple) or [isinstance(pair[0], Tensor), len(pair)] != [True, 2]:
            raise InvalidTypeError(
                f"the {name} must return pairs of a parameter and a Contribution, got {pair!r:.60}"
            )
        tensor, part = pair
        if not isinstance(part, Contribution):
            raise InvalidTypeError(
                f"the {name} must return a Contribution, such as PerRecord, for each parameter, "
                f"got {type(part).__name__}"
            )
        if part.size != tensor.numel() or part.records != records:
            raise InvalidValueError(
                f"the {name} must return one gradient a record, each of the parameter's "
                f"{tensor.numel()} entries, got {part.records} of {part.size}"
            )
        yield tensor, part


def _refuse_changed_inputs(use: Use, recorder: Recorder) -> None:
    for tensor, version in use.versions:
        if tensor._version != version:
            names = ", ".join(recorder.parameters_in(use.args, use.kwargs))
            raise UnseenUseError(
                f"an input of {use.name} with {names} was changed in place after it was used"
            )


def _pulled_back(
    tensor: Tensor, part: Contribution, recorder: Recorder
) -> list[tuple[str, Contribution]]:
    """Carry a contribution to what was derived from parameters back to the parameters."""
    names = recorder.parameters_in(tensor)
    if id(tensor) not in recorder.derived:
        return [(names[0], part)]
    if recorder.was_changed(tensor):
        raise UnseenUseError(f"what was derived from {', '.join(names)} was changed in place")
    roots = [recorder.parameters[name].detach() for name in names]
    size = sum(root.numel() for root in roots) + tensor.numel()
    if part.records * size > 4 * KEPT:
        raise UnseenUseError(f"{', '.join(names)}: too large to be derived record by record")
    replay = _replay(recorder, tensor, names)
    pull = torch.func.vjp(replay, *roots)[1]
    rows = part.rows(0, part.records).to(tensor.dtype)
    pulled = vmapped(pull)(rows)
    return [
        (name, PerRecord(gradients.to(wide(gradients.dtype))))
        for name, gradients in zip(names, pulled, strict=True)
    ]


def _replay(recorder: Recorder, tensor: Tensor, names: list[str]) -> Callable[..., Tensor]:
    """Return the function that made a derived tensor from the parameters of these names."""
    ids = [id(recorder.parameters[name]) for name in names]

    def replay(*roots: Tensor) -> Tensor:
        values = dict(zip(ids, roots, strict=True))

        def value_of(argument: Any) -> Any:
            if isinstance(argument, tuple | list):
                return type(argument)(value_of(each) for each in argument)
            if id(argument) in values:
                return values[id(argument)]
            made = recorder.derived.get(id(argument))
            return argument if made is None else made_again(made)

        def made_again(made: Derived) -> Tensor:
            args = [value_of(argument) for argument in made.args]
            kwargs = {name: value_of(argument) for name, argument in made.kwargs.items()}
            output = made.function(*args, **kwargs)
            result: Tensor = output if made.position is None else output[made.position]
            return result

        return made_again(recorder.derived[id(tensor)])

    return replay
