"""Whether a module keeps its records apart: its calls repeated with other records.

A call is repeated from its own inputs, random state and buffers, all of which are put back
afterwards. First unchanged; then one half of the records is overwritten by copies of the others,
then the other half. The rows of the records that were kept must come out as before, and so must
the buffers that the call writes. Nothing is enlarged: a loss of inputs in [0, 1] does not fail.
"""

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dither.clipping.batch import mapped, tensors, tensors_anywhere

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.05}


@dataclass(frozen=True)
class Verdict:
    """What repeating a call has shown.

    Attributes:
        refusal: why its outputs must not lead to losses; None if records are kept apart.
        constants: the positions of outputs that no record changes.
        buffers: those that it writes, the same whatever the records.
        is_final: whether the call need not be repeated on another batch.
    """

    refusal: str | None = None
    constants: frozenset[int] = frozenset()
    buffers: frozenset[str] = frozenset()
    is_final: bool = True


@dataclass(frozen=True)
class _Run:
    """What one repetition has made."""

    outputs: list[Tensor]
    buffers: dict[str, Tensor]


@dataclass
class Snapshot:
    """All that a call depends on, taken before it.

    Args:
        model: the model, whose buffers are kept.
        args: positional arguments.
        kwargs: keyword arguments.
    """

    model: nn.Module
    args: Any
    kwargs: Any
    _random: Any = None
    _given: list[tuple[Tensor, int]] = field(default_factory=list)
    _buffers: list[tuple[str, nn.Module, str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Copy what the call may change."""
        self._given = [(tensor, tensor._version) for tensor in tensors((self.args, self.kwargs))]
        self.args, self.kwargs = mapped((self.args, self.kwargs), _copy)
        self._random = _random_state(tensors((self.args, self.kwargs)))
        self._buffers = [
            (f"{path}.{name}".lstrip("."), module, name, buffer.clone())
            for path, module in self.model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def check(
        self, call: Callable[..., Any], outputs: Sequence[Tensor] | None, records: int
    ) -> Verdict:
        """Repeat a call, and say whether it keeps its records apart.

        Args:
            call: the module.
            outputs: the tensors that it has returned from this state; None if it was not called.
            records: how many records the batch has.
        """
        given = tensors((self.args, self.kwargs))
        chosen = _rows_of_arguments(given, records)
        first = Verdict()
        with self._put_back(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were given by the call itself
            base = self._run(call, {})
            if outputs is not None and not _agree(base.outputs, outputs):
                return _not_reproduced(call)
            uses_random = _differs(self._random, _random_state(given))
            written = frozenset(self._written(base))
            if not chosen:
                return Verdict(buffers=written)
            for owners in _alternatives(given, chosen, records):
                halves = [self._half(call, given, owners, half) for half in _halves(records)]
                found = self._compare(base, halves, records)
                if found.refusal is not None and uses_random:
                    with _ConstantDraws():
                        base_again = self._run(call, {})
                        again = [self._half(call, given, owners, h) for h in _halves(records)]
                    found = self._compare(base_again, again, records)
                if found.refusal is None:
                    is_final = owners is chosen
                    return Verdict(None, found.constants, written, is_final)
                first = found if owners is chosen else first
        return first

    def _half(
        self, call: Callable[..., Any], given: list[Tensor], owners: dict[int, Tensor], half: Tensor
    ) -> tuple[Tensor, _Run]:
        """Overwrite the records of a half by copies of the others, and repeat the call."""
        changed = {
            id(given[place]): _overwritten(given[place], owner, half)
            for place, owner in owners.items()
        }
        return ~half, self._run(call, changed)

    def _run(self, call: Callable[..., Any], changed: dict[int, Tensor]) -> _Run:
        _set_random_state(self._random)
        for _, module, name, value in self._buffers:
            module._buffers[name] = value.clone()
        writes = any(tensor._version != version for tensor, version in self._given)
        keep = _copy if writes else _same_tensor
        args, kwargs = mapped((self.args, self.kwargs), lambda t: changed.get(id(t), keep(t)))
        made = [tensor.detach() for tensor in tensors_anywhere(call(*args, **kwargs))]
        buffers = {path: module._buffers[name] for path, module, name, _ in self._buffers}
        return _Run(made, {path: b.detach() for path, b in buffers.items() if b is not None})

    def _written(self, base: _Run) -> Iterator[str]:
        for path, _, name, before in self._buffers:
            after = base.buffers.get(path)
            if after is None or not _same(before, after):
                yield name

    def _compare(self, base: _Run, halves: Iterable[tuple[Tensor, _Run]], records: int) -> Verdict:
        """Return a verdict on the rows that were kept, and on all buffers."""
        constants = set(range(len(base.outputs)))
        for kept, run in halves:
            for path, buffer in base.buffers.items():
                if not _same(buffer, run.buffers[path]):
                    return Verdict(
                        f"model must keep nothing of its records, but its buffer {path} is "
                        "computed from them, and would be released without noise"
                    )
            if [tensor.shape for tensor in run.outputs] != [t.shape for t in base.outputs]:
                continue  # sizes that depend on values cannot be compared
            for place, (one, two) in enumerate(zip(base.outputs, run.outputs, strict=True)):
                if _same(one, two):
                    continue
                constants.discard(place)
                if not _rows_agree(one, two, kept, records):
                    return Verdict(
                        "model must treat every record by itself, but its outputs for a record "
                        "change with the other records of the batch"
                    )
        return Verdict(None, frozenset(constants))

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """Leave buffers, attributes and random numbers as they are now."""
        state = _random_state(tensors((self.args, self.kwargs)))
        attributes = [(module, dict(vars(module))) for module in self.model.modules()]
        buffers = [(module, dict(module._buffers)) for module in self.model.modules()]
        try:
            yield
        finally:
            for module, values in attributes:
                vars(module).clear()
                vars(module).update(values)
            for module, found in buffers:
                module._buffers.clear()
                module._buffers.update(found)
            _set_random_state(state)


def _not_reproduced(call: Callable[..., Any]) -> Verdict:
    warnings.warn(
        f"a call of {type(call).__name__} does not give the same twice from the same random state: "
        "whether it keeps its records apart was not checked",
        stacklevel=2,
    )
    return Verdict()


def _halves(records: int) -> tuple[Tensor, Tensor]:
    first = torch.arange(records) % 2 == 0
    return first, ~first


def _rows_of_arguments(given: Sequence[Tensor], records: int) -> dict[int, Tensor]:
    """Return, for each argument with rows of records, the record of every index of its dimension.

    The dimension is the first; the second if no argument has the records first.
    """
    found = {
        place: torch.arange(records).view(-1, *(1 for _ in tensor.shape[1:]))
        for place, tensor in enumerate(given)
        if tensor.shape[:1] == (records,) and not _is_transposed(tensor, records)
    }
    if not found:
        found = {
            place: (torch.arange(len(tensor)) // (len(tensor) // records)).view(
                -1, *(1 for _ in tensor.shape[1:])
            )
            for place, tensor in enumerate(given)
            if tensor.dim()
            and len(tensor)
            and len(tensor) % records == 0
            and tensor.shape[1:2] != (records,)
        }
    if not found:
        found = {
            place: torch.arange(records).view(1, -1, *(1 for _ in tensor.shape[2:]))
            for place, tensor in enumerate(given)
            if tensor.dim() > 1 and tensor.shape[1] == records
        }
    return found


def _is_transposed(tensor: Tensor, records: int) -> bool:
    """Return whether a square tensor has its records, which lie apart in memory, second."""
    return tensor.shape[1:2] == (records,) and tensor.stride(1) > tensor.stride(0)


def _alternatives(
    given: Sequence[Tensor], chosen: dict[int, Tensor], records: int
) -> Iterator[dict[int, Tensor]]:
    """Yield which arguments have rows of records: all that look so, then other readings.

    A vector or a square matrix may be a constant that has as many entries as there are records;
    and where records are repeated, the repetitions of one may be apart instead of neighbours.
    """
    yield chosen
    doubtful = [
        place
        for place in chosen
        if given[place].dim() == 1 or given[place].shape == (records, records)
    ]
    if doubtful and len(doubtful) < len(chosen):
        yield {place: owner for place, owner in chosen.items() if place not in doubtful}
    if any(owner.numel() > records for owner in chosen.values()):
        yield {
            place: (torch.arange(owner.numel()) % records).view(owner.shape)
            for place, owner in chosen.items()
        }


def _overwritten(tensor: Tensor, owner: Tensor, half: Tensor) -> Tensor:
    """Return a tensor in which the rows of a half of the records are copies of others' rows."""
    axis = next((axis for axis, size in enumerate(owner.shape) if size > 1), 0)
    owners = owner.flatten()
    replaced = half[owners].nonzero().squeeze(1)
    kept = (~half[owners]).nonzero().squeeze(1)
    if not len(kept):
        return _copy(tensor)
    index = torch.arange(len(owners))
    index[replaced] = kept[torch.arange(len(replaced)) % len(kept)]
    made = tensor.detach().index_select(axis, index.to(tensor.device))
    return made.requires_grad_(tensor.requires_grad)


def _rows_agree(one: Tensor, two: Tensor, kept: Tensor, records: int) -> bool:
    """Return whether the rows of the records that were kept agree, along any dimension of theirs.

    A tensor without such a dimension must be the same as a whole, and is not.
    """
    kept = kept.to(one.device)
    for axis, size in enumerate(one.shape):
        if size == records:
            rows = kept.nonzero().squeeze(1)
            if _same(one.index_select(axis, rows), two.index_select(axis, rows)):
                return True
        elif axis == 0 and size and size % records == 0:
            for shape in ((records, -1), (-1, records)):
                first, second = (t.unflatten(0, shape) for t in (one, two))
                along = 0 if shape[0] == records else 1
                rows = kept.nonzero().squeeze(1)
                if _same(first.index_select(along, rows), second.index_select(along, rows)):
                    return True
    return False


def _agree(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(ones) == len(others) and all(
        one.shape == other.shape and _same(one, other)
        for one, other in zip(ones, others, strict=True)
    )


def _same(one: Tensor, two: Tensor) -> bool:
    """Return whether two tensors are equal but for rounding."""
    if one is two or one.shape != two.shape:
        return one is two
    if one.layout != torch.strided or not (one.is_floating_point() or one.is_complex()):
        return one.layout != torch.strided or torch.equal(one, two)
    tolerance = _TOLERANCE.get(one.dtype, 1e-4)
    one, two = one.detach(), two.detach()
    finite = torch.isfinite(one) & torch.isfinite(two)
    size = torch.where(finite, one, 0.0).abs()
    floor = tolerance * float(size.double().mean()) if size.numel() else 0.0
    close = (one - two).abs() <= floor + tolerance * size
    return bool((close | ~finite & (torch.isfinite(one) == torch.isfinite(two))).all())


def _same_tensor(tensor: Tensor) -> Tensor:
    return tensor


def _copy(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return copy.requires_grad_(tensor.requires_grad)


def _random_state(given: Iterable[Tensor]) -> tuple[Any, ...]:
    devices = sorted({t.device.index or 0 for t in given if t.device.type == "cuda"})
    cuda = tuple((device, torch.cuda.get_rng_state(device)) for device in devices)
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()  # noqa: NPY002 (models draw from it)


def _set_random_state(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    for device, found in state[1]:
        torch.cuda.set_rng_state(found, device)
    random.setstate(state[2])
    np.random.set_state(state[3])  # noqa: NPY002


def _differs(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Return whether random numbers were drawn between two states."""
    return (
        not torch.equal(one[0], two[0])
        or any(not torch.equal(a[1], b[1]) for a, b in zip(one[1], two[1], strict=True))
        or one[2] != two[2]
        or one[3][2] != two[3][2]
        or not np.array_equal(one[3][1], two[3][1])
    )


class _ConstantDraws(TorchFunctionMode):
    """Dropout is the identity, and random draws are constant: only permutations stay random."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace one draw."""
        kwargs = kwargs or {}
        if func in _DROPOUT:
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            kwargs = dict(zip(names, args, strict=False)) | kwargs | {"dropout_p": 0.0}
            return func(**kwargs)
        output = func(*args, **kwargs)
        if func in _DRAWS:
            value = _DRAWS[func] if output.is_floating_point() else 0
            with torch.no_grad():
                return output.fill_(value)
        return output


_DROPOUT = {
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d,
    functional.alpha_dropout, functional.feature_alpha_dropout, torch.dropout,
}  # fmt: skip
_DRAWS: dict[Any, float] = {
    torch.rand: 0.5, torch.rand_like: 0.5, torch.randn: 0.0, torch.randn_like: 0.0,
    torch.normal: 0.0, torch.randint: 0.0, torch.randint_like: 0.0, torch.bernoulli: 1.0,
    Tensor.bernoulli: 1.0, Tensor.normal_: 0.0, Tensor.uniform_: 0.5, Tensor.bernoulli_: 1.0,
    Tensor.random_: 0.0, Tensor.exponential_: 1.0,
}  # fmt: skip
