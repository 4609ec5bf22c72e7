"""Watches a forward pass: which calls bring parameters and records together.

A :class:`Recorder` sees every PyTorch function that is called while it is active, whoever calls
it: a layer, a function that borrows a layer's weight, a bare parameter. It follows which tensors
come from the batch. A call that joins such a tensor with a parameter is a *use* and is noted with
the edge of the graph at which its output's gradient will be asked for; what is computed from
parameters alone (a transposed weight, a slice of a position table) stands for its parameters.
The model is not touched, apart from layers of registered kinds, which carry hooks while the
recorder is active.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dither.clipping import attention
from dither.clipping.batch import tensors
from dither.clipping.layout import layout_of
from dither.clipping.moving import may_depend_on_data, moves_records
from dither.clipping.pooling import max_pool2d
from dither.clipping.refusals import RENORMALISED
from dither.clipping.registry import layers_with_rules, treats_leading_alike
from dither.validate import InvalidValueError

_EXPANDING = {Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.broadcast_to}
_FEW = 64
"""Of a constant with up to this many entries, a proof depends on which of them are zero."""

_RESHAPING = {
    Tensor.view, Tensor.reshape, torch.reshape, Tensor.expand, Tensor.repeat, Tensor.new_zeros,
    Tensor.new_ones, Tensor.new_empty, Tensor.new_full, torch.unflatten, Tensor.unflatten,
}  # fmt: skip
_VALUE_FREE = {
    Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full, torch.zeros_like,
    torch.ones_like, torch.empty_like, torch.full_like,
}  # fmt: skip
"""What they make does not depend on the values that they are given."""

_PLAIN = frozenset({int, bool, str, type(None)})
_IN_PLACE_SUMS = {Tensor.add_, Tensor.sub_, Tensor.__iadd__, Tensor.__isub__}


@dataclass(frozen=True)
class Use:
    """A call that joined records with parameters, as it was seen.

    Attributes:
        function: what was called.
        args: positional arguments.
        kwargs: keyword arguments.
        from_batch: the ids of the tensors among them that come from the batch.
        shapes: of the outputs.
        edges: the outputs' places in the graph, None for those without a gradient.
        sources: the nodes that made the inputs which do not stand for parameters.
        versions: the inputs with their version counters, which change with their values.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    from_batch: frozenset[int]
    shapes: tuple[torch.Size, ...]
    edges: tuple[GradientEdge | None, ...]
    sources: tuple[Node, ...]
    versions: tuple[tuple[Tensor, int], ...]

    @property
    def name(self) -> str:
        """What to call the function or layer in a message."""
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True)
class Derived:
    """A tensor that was computed from parameters alone: the output at ``position`` of a call."""

    value: Tensor
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int | None
    version: int


class Seen(NamedTuple):
    """One call, as it was seen: with each tensor that it was given, the version and the maker."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[tuple[Tensor, int, Node | None]]
    made: list[Tensor]


class Recorder(TorchFunctionMode):
    """Notes every use of the parameters while it is active."""

    without_gradients = False

    def __init__(self, parameters: Mapping[str, Tensor], batch: Any, records: int) -> None:
        super().__init__()
        self.parameters = dict(parameters)
        self.records = records
        self.uses: list[Use] = []
        self.trace = 0
        self.data_dependent: set[str] = set()
        self.has_hooks = False
        self.joining: set[str] = set()
        self.floats: list[float] = []
        self.derived: dict[int, Derived] = {}
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._kept: list[Any] = [batch]  # an id must not be given away while it is known
        self._from_batch = {id(tensor): serial for serial, tensor in enumerate(tensors(batch))}
        self._serial = len(self._from_batch)
        self._inside_layers, self._looking_away = 0, False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See one call of a PyTorch function."""
        kwargs = kwargs or {}
        if self._looking_away:
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            named = attention.arguments_of(args, kwargs)
            if attention.covers(named):
                with self:
                    return attention.forward(named)
        if func is Tensor.register_hook:
            self.has_hooks = True
        if func is functional.embedding and (kwargs.get("max_norm") or (len(args) > 3 and args[3])):
            raise InvalidValueError(f"model must leave its weights alone, got an {RENORMALISED}")
        if func is functional.batch_norm and _uses_batch_statistics(*args, **kwargs):
            raise InvalidValueError(
                "model must not mix records, got batch_norm in training mode; "
                "dither.clipping.replace_batch_norm(model) puts GroupNorm in its place"
            )
        given = tensors((args, kwargs) if kwargs else args)
        before = [(tensor, tensor._version, tensor.grad_fn) for tensor in given]
        output = (max_pool2d if func is functional.max_pool2d else func)(*args, **kwargs)
        made = [args[0]] if func is Tensor.__setitem__ else tensors(output)
        if may_depend_on_data(func) and self._moves_records(func, args, kwargs, given):
            self.data_dependent.add(func.__name__)
        if made:
            self._note(Seen(func, args, kwargs, before, made))
        return output

    def follow(self, arguments: Any) -> None:
        """Count what a model is called with as coming from the batch, if it is of its records."""
        for tensor in tensors(arguments):
            of_records = tensor.dim() > 0 and len(tensor) > 0 and len(tensor) % self.records == 0
            if of_records and not self.stands_for_parameters(tensor):
                self._kept.append(tensor)
                self._from_batch[id(tensor)] = self._serial
                self._serial += 1

    def following(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model as one that follows what it is called with."""

        def called(*args: Any, **kwargs: Any) -> Any:
            self.follow((args, kwargs))
            return model(*args, **kwargs)

        return called

    def parameters_in(self, *arguments: Any) -> list[str]:
        """Return the names of the parameters that the arguments hold or were computed from."""
        found: dict[str, None] = {}
        for tensor in tensors(arguments):
            if id(tensor) in self._names:
                found[self._names[id(tensor)]] = None
            elif id(tensor) in self.derived:
                made = self.derived[id(tensor)]
                found.update(dict.fromkeys(self.parameters_in(made.args, made.kwargs)))
        return list(found)

    def stands_for_parameters(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a parameter or was computed from parameters alone."""
        return id(tensor) in self._names or id(tensor) in self.derived

    @property
    def tells_values(self) -> bool:
        """Whether something may have told Python about values of the batch."""
        return bool(self.joining or self.data_dependent)

    def comes_from_batch(self, tensor: Tensor) -> bool:
        """Return whether a tensor was computed from the batch."""
        return id(tensor) in self._from_batch

    def was_changed(self, tensor: Any) -> bool:
        """Return whether something derived, or what it was derived from, was changed in place."""
        made = self.derived.get(id(tensor))
        return made is not None and (
            made.value._version != made.version
            or any(self.was_changed(each) for each in tensors((made.args, made.kwargs)))
        )

    def enter_layer(self) -> None:
        """Look away: a layer with a rule of its own begins."""
        self._inside_layers += 1

    def leave_layer(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Note a whole layer as one call."""
        self._inside_layers -= 1
        self._looking_away = True
        given = tensors((args, kwargs))
        before = [(tensor, tensor._version, tensor.grad_fn) for tensor in given]
        before += [(p, p._version, None) for p in layer.parameters() if id(p) in self._names]
        self._note(Seen(layer, args, kwargs, before, tensors(output)))
        self._looking_away = False

    def _extend_trace(self, seen: Seen, held: list[Tensor]) -> None:
        function, output = seen.function, seen.made[0]
        parameters = self.parameters_in(held) if held else ()
        layout = layout_of(output.shape, self.records, treats_leading_alike(function))
        settings = () if function in _RESHAPING else self._settings((seen.args, seen.kwargs))
        serials = [self._from_batch.get(id(tensor), -1) for tensor, _, _ in seen.given]
        step = (function, *parameters, output.dim(), layout, settings, *serials)
        self.trace = hash((self.trace, step))

    def _settings(self, arguments: Any) -> object:
        """Return what a call was given besides the batch; the number of records goes by a name.

        Of floats, and of the entries of small constants, it matters whether they are zero: a
        factor that changes with every step must not ask for a new proof every time.
        """
        if isinstance(arguments, tuple | list):
            return tuple(self._settings(each) for each in arguments)
        if isinstance(arguments, dict):
            return tuple((name, self._settings(each)) for name, each in arguments.items())
        if isinstance(arguments, slice):
            parts = (arguments.start, arguments.stop, arguments.step)
            return tuple(self._settings(each) for each in parts)
        if isinstance(arguments, Tensor):
            if id(arguments) in self._from_batch or self.stands_for_parameters(arguments):
                return "tensor"
            few = arguments.numel() <= _FEW and not arguments.is_meta
            return str((arguments != 0).tolist()) if few else "constant"
        if isinstance(arguments, float):
            self.floats.append(arguments)
            return arguments != 0.0
        if arguments == self.records:
            return "records"
        return arguments if type(arguments) in _PLAIN else str(arguments)

    def _moves_records(
        self, func: Callable[..., Any], args: Any, kwargs: Any, given: list[Tensor]
    ) -> bool:
        subjects = args[:1] if func is Tensor.__getitem__ else given
        touched = func is torch.randperm or any(id(each) in self._from_batch for each in subjects)
        return touched and moves_records(func, args, kwargs)

    def _note(self, seen: Seen) -> None:
        given = [tensor for tensor, _, _ in seen.given]
        batch = frozenset(id(tensor) for tensor in given if id(tensor) in self._from_batch)
        held = [tensor for tensor in given if self.stands_for_parameters(tensor)]
        wide_enough = seen.made[0].shape[:1] == (self.records,)
        spread = bool(held) and seen.function in _EXPANDING and wide_enough
        if not (batch or spread):
            for tensor in seen.made:
                self._from_batch.pop(id(tensor), None)
            if held and not self._inside_layers:
                self._note_derived(seen)
            return
        if not self._inside_layers:
            self._extend_trace(seen, held)
            if self._joins_records(seen, batch):
                self.joining.add(getattr(seen.function, "__name__", "a function"))
        for tensor in seen.made:
            self._from_batch[id(tensor)] = self._serial
            self._serial += 1
        if held and not self._inside_layers:
            self._note_use(seen, batch)

    def _joins_records(self, seen: Seen, batch: frozenset[int]) -> bool:
        """Return whether a call leaves no dimension that could be the records', or drops the first.

        A mean over the batch does so, and a record picked by its place.
        """
        R = self.records
        if R == 1 or seen.function in _VALUE_FREE:
            return False
        shapes = [tensor.shape for tensor, _, _ in seen.given if id(tensor) in batch]
        return any(
            made.numel() < prod(shape)
            and any(size and size % R == 0 for size in shape)
            and (
                not any(size % R == 0 for size in made.shape) or _drops_first(shape, made.shape, R)
            )
            for made in seen.made
            for shape in shapes
        )

    def _note_derived(self, seen: Seen) -> None:
        for position, tensor in enumerate(seen.made):
            matters = tensor.requires_grad or self.without_gradients
            if matters and not self.stands_for_parameters(tensor):
                place = position if len(seen.made) > 1 else None
                call = seen.function, seen.args, seen.kwargs
                self.derived[id(tensor)] = Derived(tensor, *call, place, tensor._version)

    def _note_use(self, seen: Seen, batch: frozenset[int]) -> None:
        if not any(tensor.requires_grad for tensor in seen.made):
            return
        later = seen.function in _IN_PLACE_SUMS
        use = Use(
            seen.function,
            seen.args,
            seen.kwargs,
            batch,
            tuple(tensor.shape for tensor in seen.made),
            tuple(get_gradient_edge(t) if t.requires_grad else None for t in seen.made),
            tuple(node for t, _, node in seen.given if node and not self.stands_for_parameters(t)),
            tuple((t, t._version if later else version) for t, version, _ in seen.given),
        )
        self.uses.append(use)


@contextmanager
def watching(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Watch what happens inside the ``with``; layers of registered kinds carry hooks meanwhile."""
    hooks = []
    for layer in layers_with_rules(model):
        hooks.append(layer.register_forward_pre_hook(lambda *_: recorder.enter_layer()))
        hooks.append(
            layer.register_forward_hook(
                lambda *call: recorder.leave_layer(*call), with_kwargs=True, prepend=True
            )
        )
    try:
        with recorder:
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _uses_batch_statistics(*args: object, **kwargs: object) -> bool:
    """Return whether ``batch_norm(input, mean, variance, weight, bias, training, …)`` trains."""
    return bool(args[5] if len(args) > 5 else kwargs.get("training"))


def _drops_first(given: Sequence[int], made: Sequence[int], records: int) -> bool:
    """Return whether the records were the first dimension, and are gone or have become one."""
    if given[0] != records or records in given[1:]:
        return False
    return tuple(made) in (tuple(given[1:]), (1, *given[1:]))
