"""Whether a module keeps its records apart: its calls tried with other records.

Before a call it is tried with its own inputs, random state and buffers, all of which are put back.
First unchanged; then one half of the records is overwritten by copies of the others, then the
other half. The rows of the records that were kept must come out as before, and so must the buffers
that the call writes. Nothing is enlarged: a loss of inputs in [0, 1] does not fail. The call itself
comes last, so that whatever hooks keep of a call is of this one.
"""

import copy
import random
import warnings
from collections import OrderedDict, defaultdict, deque
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
        is_final: whether the call need not be repeated on another batch.
    """

    refusal: str | None = None
    mixed: frozenset[int] = frozenset()
    constants: frozenset[int] = frozenset()
    buffers: frozenset[str] = frozenset()
    is_final: bool = True


@dataclass(frozen=True)
class _Reading:
    """Which arguments have rows of records: position → (dimension, the record of every index).

    It is a guess where there are several rows per record: there may be more of one than of another.
    """

    rows: dict[int, tuple[int, Tensor]]
    is_guess: bool = False


@dataclass(frozen=True)
class _Run:
    """What one repetition has made."""

    outputs: list[Tensor]
    buffers: dict[str, Tensor]


class _FailedCallError(Exception):
    """A call that was tried has raised an exception."""


@dataclass(frozen=True)
class Trial:
    """What trying a call has shown.

    Attributes:
        verdict: on the call, if it gives the same again.
        outputs: what it gave unchanged; None if it failed.
        note: what to warn of.
    """

    verdict: Verdict
    outputs: list[Tensor] | None = None
    note: str | None = None

    def verdict_on(self, call: Callable[..., Any], outputs: Sequence[Tensor]) -> Verdict:
        """Return the verdict, given what the call itself has returned after it was tried."""
        note = self.note
        is_reproduced = self.outputs is not None and _agree(self.outputs, outputs)
        if not is_reproduced:
            note = "does not give the same twice from the same random state"
        if note is not None:
            warnings.warn(
                f"a call of {type(call).__name__} {note}: whether it keeps its records apart was "
                "not checked",
                stacklevel=2,
            )
        return self.verdict if is_reproduced else Verdict()


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
    _writes: bool = True
    _buffers: list[tuple[str, nn.Module, str, Tensor]] = field(default_factory=list)
    _attributes: list[tuple[nn.Module, dict[str, Any]]] = field(default_factory=list)
    _contents: list[tuple[Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Copy what the call may change."""
        self._random = _random_state(tensors((self.args, self.kwargs)))
        self._buffers = [
            (f"{path}.{name}".lstrip("."), module, name, buffer.clone())
            for path, module in self.model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._attributes = [(module, dict(vars(module))) for module in self.model.modules()]
        self._contents = [
            (value, copy.copy(value))
            for _, values in self._attributes
            for value in values.values()
            if type(value) in _CONTAINERS
        ]

    def check(
        self,
        call: Callable[..., Any],
        records: int,
        before: Verdict | None = None,
        attempt: int = 0,
    ) -> Trial:
        """Try a call, and say whether it keeps its records apart.

        Args:
            call: the module.
            records: how many records the batch has.
            before: what an earlier batch has shown.
            attempt: how many there were.
        """
        with self._put_back(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the call itself will give them
            try:
                base = self._run(call)
            except _FailedCallError:  # as the call itself will, which says what is wrong
                return Trial(Verdict(is_final=False))
            try:
                verdict = self._judge(call, base, records, before, attempt)
            except _FailedCallError:
                return Trial(Verdict(), base.outputs, "fails with other records")
            return Trial(verdict, base.outputs)

    def _judge(
        self,
        call: Callable[..., Any],
        base: _Run,
        records: int,
        before: Verdict | None,
        attempt: int,
    ) -> Verdict:
        given = tensors((self.args, self.kwargs))
        uses_random = _differs(self._random, _random_state(given))
        written = frozenset(self._written(base))
        half = random_half(records, attempt)
        halves = [half, ~half]
        first, *others = _readings(given, records) or [_Reading({})]
        found = self._compare(call, base, first, halves, records)
        if found.mixed and uses_random:
            for draw in _DRAWN:
                with _ConstantDraws(draw):
                    found = self._compare(call, self._run(call), first, halves, records)
                if found.mixed:
                    break
        is_final = records >= ENOUGH and len(found.constants) < len(base.outputs)
        if found.refusal is None and _have_rows(found.mixed, base, records):
            for other in others:
                again = self._compare(call, base, other, halves, records)
                if not _have_rows(again.mixed, base, records):
                    return Verdict(None, again.mixed, again.constants, written, is_final=False)
            if first.is_guess and not self._shares_rows(call, first, records):
                return Verdict(buffers=written)
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

    def _shares_rows(self, call: Callable[..., Any], reading: _Reading, records: int) -> bool:
        """Return whether a row of an argument has an effect on the outputs of two records.

        Where nobody knows which rows are of which record, the gradient tells.
        """
        given = tensors((self.args, self.kwargs))
        rows = [given[place] for place in reading.rows if given[place].is_floating_point()]
        leaves = [tensor.detach().clone().requires_grad_() for tensor in rows]
        half = random_half(records)
        with torch.enable_grad():
            made = self._call(call, dict(zip(map(id, rows), leaves, strict=True)))
            sums = [
                sum(out[which].sum() for out in made if out.shape[:1] == (records,))
                for which in (half, ~half)
            ]
        reached: list[list[Tensor]] = [
            [g.flatten(1).abs().sum(1) > 0 for g in _gradients(total, leaves)] for total in sums
        ]
        return any(bool((one & two).any()) for one, two in zip(*reached, strict=True))

    def _run(self, call: Callable[..., Any], changed: dict[int, Tensor] | None = None) -> _Run:
        """Try it once: without gradients, unless it needs them itself."""
        try:
            with torch.no_grad():
                made = self._call(call, changed)
        except _FailedCallError:
            if not torch.is_grad_enabled():
                raise
            made = self._call(call, changed)
        buffers = {path: module._buffers[name] for path, module, name, _ in self._buffers}
        kept = {path: b.detach() for path, b in buffers.items() if b is not None}
        return _Run([tensor.detach() for tensor in made], kept)

    def _call(self, call: Callable[..., Any], changed: dict[int, Tensor] | None) -> list[Tensor]:
        """Return the outputs of a call with some arguments replaced, by their ids."""
        self._reset()
        for _, module, name, value in self._buffers:
            module._buffers[name] = value.clone()
        given = tensors((self.args, self.kwargs))
        own = {id(t): _copy(t) if self._writes else t for t in given} | (changed or {})
        before = [tensor._version for tensor in own.values()]
        args, kwargs = mapped((self.args, self.kwargs), lambda tensor: own[id(tensor)])
        try:
            output = call(*args, **kwargs)
        except Exception as error:
            raise _FailedCallError from error
        if changed is None:
            self._writes = [tensor._version for tensor in own.values()] != before
        return tensors_anywhere(output)

    def _written(self, base: _Run) -> Iterator[str]:
        for path, _, name, before in self._buffers:
            after = base.buffers.get(path)
            if after is None or not _same(before, after):
                yield name

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """Leave buffers, attributes and random numbers as they were."""
        try:
            yield
        finally:
            self._reset()

    def _reset(self) -> None:
        for module, values in self._attributes:
            vars(module).clear()
            vars(module).update(values)
        for value, was in self._contents:
            value.clear()
            (value.extend if isinstance(value, list | deque) else value.update)(was)
        _set_random_state(self._random)


def random_half(records: int, attempt: int = 0) -> Tensor:
    """Return a half of the records, in no particular order, the same one for every run.

    Some mirror images, neighbours and records at the distance of a half are not in the same half,
    so that models which exchange records are found. Of up to four, a half is a single one.
    """
    generator = torch.Generator().manual_seed(attempt)
    far = records // 2
    while True:
        half = torch.randperm(records, generator=generator) < (far if records > 4 else 1)
        even, low, high = half[: 2 * far], half[:far], half[far : 2 * far]
        pairs = (half, half.flip(0)), (even[::2], even[1::2]), (low, high)
        if records < 4 or all(bool((one != two).any()) for one, two in pairs):
            return half


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
        vectors = {place for place in first if given[place].dim() == 1}
        squares = {place for place in first if given[place].shape == (records, records)}
        constants = [vectors, squares, *({place} for place in vectors | squares), vectors | squares]
        rest = [{p: first[p] for p in first if p not in each} for each in constants]
        return [_Reading(first), *(_Reading(each) for each in rest if 0 < len(each) < len(first))]
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
    as_neighbours = {p: (0, every.repeat_interleave(times)) for p, times in repeated.items()}
    apart = {place: (0, every.repeat(times)) for place, times in repeated.items()}
    return [_Reading(as_neighbours, is_guess=True), _Reading(apart, is_guess=True)]


def _is_transposed(tensor: Tensor, records: int) -> bool:
    """Return whether a square tensor has its records, which lie apart in memory, second."""
    return tensor.shape[1:2] == (records,) and tensor.stride(1) > tensor.stride(0)


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


def _gradients(total: Any, leaves: Sequence[Tensor]) -> Sequence[Tensor]:
    if not isinstance(total, Tensor) or not total.requires_grad or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(
        total, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
    )


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
    """Dropout is the identity, and random draws are constant: only permutations stay random.

    Args:
        uniform: what is drawn from the uniform distribution over [0, 1].
    """

    def __init__(self, uniform: float) -> None:
        super().__init__()
        self._uniform = uniform

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
        if func in _MEANS:
            return _MEANS[func](*args, **kwargs)
        output = func(*args, **kwargs)
        if func in _DRAWS:
            value = _DRAWS[func] if output.is_floating_point() else 0
            with torch.no_grad():
                return output.fill_(self._uniform if value is None else value)
        return output


_DROPOUT = {
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d,
    functional.alpha_dropout, functional.feature_alpha_dropout, torch.dropout,
}  # fmt: skip
_DRAWS: dict[Any, float | None] = {
    torch.rand: None, torch.rand_like: None, torch.randn: 0.0, torch.randn_like: 0.0,
    torch.normal: 0.0, torch.randint: 0.0, torch.randint_like: 0.0, torch.bernoulli: 1.0,
    Tensor.bernoulli: 1.0, Tensor.normal_: 0.0, Tensor.uniform_: None, Tensor.bernoulli_: 1.0,
    Tensor.random_: 0.0, Tensor.exponential_: 1.0, Tensor.log_normal_: 1.0, Tensor.cauchy_: 0.0,
    Tensor.geometric_: 1.0,
}  # fmt: skip
_MEANS: dict[Any, Callable[..., Tensor]] = {
    torch.poisson: lambda rate, *_: rate,
    torch._standard_gamma: lambda shape, *_: shape,
    torch._sample_dirichlet: lambda weights, *_: weights / weights.sum(-1, True),
    torch.binomial: lambda count, share, *_: count * share,
}
"""Draws that take more random numbers for some values than for others."""
_DRAWN = 0.5, 1e-3
"""Numbers to which a uniform draw is set: models may mix records by chance, if it is small."""
_CONTAINERS = {list, dict, set, deque, OrderedDict, defaultdict}
"""What a module may keep things in."""
