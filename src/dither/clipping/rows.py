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
ENOUGH = 8
"""With fewer records, a pair that mixes may be in one half: another batch is looked at, too."""


@dataclass(frozen=True)
class Verdict:
    """What repeating a call has shown.

    Attributes:
        refusal: why none of its outputs may lead to losses.
        mixed: the positions of outputs whose rows depend on other records.
        constants: the positions of outputs that no record changes.
        buffers: those that it writes, the same whatever the records.
        suspicion: (records, rows per record) where rows may be mixed, or may not be of records.
        is_final: whether the call need not be repeated on another batch.
    """

    refusal: str | None = None
    mixed: frozenset[int] = frozenset()
    constants: frozenset[int] = frozenset()
    buffers: frozenset[str] = frozenset()
    suspicion: tuple[int, int] | None = None
    is_final: bool = True


@dataclass(frozen=True)
class _Reading:
    """Which arguments have rows of records: position → (dimension, the record of every index)."""

    rows: dict[int, tuple[int, Tensor]]
    per_record: int = 1


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
        self,
        call: Callable[..., Any],
        outputs: Sequence[Tensor] | None,
        records: int,
        before: Verdict | None = None,
    ) -> Verdict:
        """Repeat a call, and say whether it keeps its records apart.

        Args:
            call: the module.
            outputs: the tensors that it has returned from this state; None if it was not called.
            records: how many records the batch has.
            before: what an earlier batch has shown.
        """
        with self._put_back(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were given by the call itself
            base = self._run(call)
            is_reproduced = outputs is None or _agree(base.outputs, outputs)
            if is_reproduced:
                return self._judge(call, base, records, before)
        warnings.warn(
            f"a call of {type(call).__name__} does not give the same twice from the same random "
            "state: whether it keeps its records apart was not checked",
            stacklevel=2,
        )
        return Verdict()

    def _judge(
        self, call: Callable[..., Any], base: _Run, records: int, before: Verdict | None
    ) -> Verdict:
        given = tensors((self.args, self.kwargs))
        uses_random = _differs(self._random, _random_state(given))
        written = frozenset(self._written(base))
        first, *others = _readings(given, records) or [_Reading({})]
        found = self._compare(call, base, first, _halves(records), records)
        if found.mixed and uses_random:
            with _ConstantDraws():
                quiet = self._run(call)
                found = self._compare(call, quiet, first, _halves(records)[:1], records)
        is_final = records >= ENOUGH
        if found.refusal is None and _have_rows(found.mixed, base, records):
            for other in others:
                again = self._compare(call, base, other, _halves(records)[:1], records)
                if not _have_rows(again.mixed, base, records):
                    return Verdict(None, again.mixed, again.constants, written, is_final=False)
            suspicion = records, first.per_record
            if first.per_record > 1 and not _confirms(before, suspicion):
                return Verdict(buffers=written, suspicion=suspicion, is_final=False)
        return Verdict(found.refusal, found.mixed, found.constants, written, is_final=is_final)

    def _compare(
        self,
        call: Callable[..., Any],
        base: _Run,
        reading: _Reading,
        halves: Iterable[Tensor],
        records: int,
    ) -> Verdict:
        """Overwrite halves of the records in turn, until rows of the others change."""
        given = tensors((self.args, self.kwargs))
        constants, mixed = set(range(len(base.outputs))), set()
        for half in halves if reading.rows else ():
            changed = {
                id(given[place]): _overwritten(given[place], *rows, half)
                for place, rows in reading.rows.items()
            }
            run = self._run(call, changed)
            for path, buffer in base.buffers.items():
                if not _same(buffer, run.buffers[path]):
                    return Verdict(
                        f"model must keep nothing of its records, but its buffer {path} is "
                        "computed from them, and would be released without noise"
                    )
            if [tensor.shape for tensor in run.outputs] != [t.shape for t in base.outputs]:
                continue  # sizes that depend on values cannot be compared
            for place, (one, two) in enumerate(zip(base.outputs, run.outputs, strict=True)):
                if not _same(one, two):
                    constants.discard(place)
                    if not _rows_agree(one, two, ~half, records):
                        mixed.add(place)
            if mixed:
                break
        return Verdict(None, frozenset(mixed), frozenset(constants - mixed))

    def _run(self, call: Callable[..., Any], changed: dict[int, Tensor] | None = None) -> _Run:
        _set_random_state(self._random)
        for _, module, name, value in self._buffers:
            module._buffers[name] = value.clone()
        writes = any(tensor._version != version for tensor, version in self._given)
        own = {id(t): _copy(t) if writes else t for t in tensors((self.args, self.kwargs))}
        own |= changed or {}
        args, kwargs = mapped((self.args, self.kwargs), lambda tensor: own[id(tensor)])
        made = [tensor.detach() for tensor in tensors_anywhere(call(*args, **kwargs))]
        buffers = {path: module._buffers[name] for path, module, name, _ in self._buffers}
        return _Run(made, {path: b.detach() for path, b in buffers.items() if b is not None})

    def _written(self, base: _Run) -> Iterator[str]:
        for path, _, name, before in self._buffers:
            after = base.buffers.get(path)
            if after is None or not _same(before, after):
                yield name

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


def random_half(records: int) -> Tensor:
    """Return a half of the records, always the same one, in no particular order."""
    order = torch.randperm(records, generator=torch.Generator().manual_seed(0))
    return order < records // 2


def _halves(records: int) -> list[Tensor]:
    half = random_half(records)
    return [half, ~half]


def _readings(given: Sequence[Tensor], records: int) -> list[_Reading]:
    """Return how the arguments may have rows of records, the most likely way first.

    Records are along the first dimension; repeated along it, as neighbours or apart, if no argument
    has just as many; else along the second. A vector or a square matrix may also be a constant that
    has as many entries as there are records.
    """
    every = torch.arange(records)
    first = {
        place: (1 if _is_transposed(tensor, records) else 0, every)
        for place, tensor in enumerate(given)
        if tensor.shape[:1] == (records,)
    }
    if first:
        certain = {
            place: rows
            for place, rows in first.items()
            if given[place].dim() > 1 and given[place].shape != (records, records)
        }
        return [_Reading(first), *([_Reading(certain)] if 0 < len(certain) < len(first) else [])]
    second = {
        place: (1, every) for place, tensor in enumerate(given) if tensor.shape[1:2] == (records,)
    }
    repeated = {
        place: len(tensor) // records
        for place, tensor in enumerate(given)
        if tensor.dim() and len(tensor) and len(tensor) % records == 0 and place not in second
    }
    if second or not repeated:
        return [_Reading(second)] if second else []
    most = max(repeated.values())
    as_neighbours = {p: (0, every.repeat_interleave(times)) for p, times in repeated.items()}
    apart = {place: (0, every.repeat(times)) for place, times in repeated.items()}
    return [_Reading(as_neighbours, most), _Reading(apart, most)]


def _is_transposed(tensor: Tensor, records: int) -> bool:
    """Return whether a square tensor has its records, which lie apart in memory, second."""
    return tensor.shape[1:2] == (records,) and tensor.stride(1) > tensor.stride(0)


def _confirms(before: Verdict | None, suspicion: tuple[int, int]) -> bool:
    """Return whether a batch of another size had as many rows per record: then they are rows."""
    earlier = None if before is None else before.suspicion
    return earlier is not None and earlier[0] != suspicion[0] and earlier[1] == suspicion[1]


def _have_rows(places: Iterable[int], base: _Run, records: int) -> bool:
    """Return whether any of some outputs has a dimension that may be the records'."""
    return any(_record_axes(base.outputs[place], records) for place in places)


def _record_axes(tensor: Tensor, records: int) -> list[tuple[int, Tensor]]:
    """Return the dimensions that may be the records', with the record of every index."""
    every = torch.arange(records)
    found = [(axis, every) for axis, size in enumerate(tensor.shape) if size == records]
    if tensor.dim() and len(tensor) > records and len(tensor) % records == 0:
        times = len(tensor) // records
        found += [(0, every.repeat_interleave(times)), (0, every.repeat(times))]
    return found


def _overwritten(tensor: Tensor, axis: int, owners: Tensor, half: Tensor) -> Tensor:
    """Return a tensor in which the rows of a half of the records are copies of others' rows."""
    replaced = half[owners].nonzero().squeeze(1)
    kept = (~half[owners]).nonzero().squeeze(1)
    index = torch.arange(len(owners))
    index[replaced] = kept[torch.arange(len(replaced)) % len(kept)]
    made = tensor.detach().index_select(axis, index.to(tensor.device))
    return made.requires_grad_(tensor.requires_grad)


def _rows_agree(one: Tensor, two: Tensor, kept: Tensor, records: int) -> bool:
    """Return whether the rows of the records that were kept agree, along any dimension of theirs.

    A tensor without such a dimension must be the same as a whole, and is not.
    """
    for axis, owners in _record_axes(one, records):
        rows = kept[owners].nonzero().squeeze(1).to(one.device)
        if _same(one.index_select(axis, rows), two.index_select(axis, rows)):
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


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


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
