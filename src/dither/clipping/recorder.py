"""Records which calls of a forward pass bring parameters and records together.

A :class:`Recorder` sees every PyTorch function that is called while it is active, in a layer or
elsewhere: functions that borrow a layer's weight, bare parameters. It follows which tensors
come from the batch. A call that joins such a tensor with a parameter is a *use* and is noted with
the edge of the graph at which its output's gradient will be computed; what is computed from
parameters alone (a transposed weight, a slice of a position table) stands for its parameters.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dither.clipping.batch import tensors
from dither.clipping.layouts import FIRST, JOINED, SECOND, Layout, Rows, layout_of
from dither.clipping.memory import SeenBytes
from dither.clipping.moves import are_of_records
from dither.clipping.origins import Origins, SeenCall
from dither.clipping.replacements import (
    ATTENTION_ARGUMENTS,
    mask_of_scores,
    max_pool2d,
    spelled_out,
)
from dither.clipping.rules import registry
from dither.clipping.rules.registry import Call
from dither.validate import InvalidValueError

_EXPANDING = {Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.broadcast_to}
_CASTS = {Tensor.to, Tensor.type_as}
_IN_PLACE_SUMS = {Tensor.add_, Tensor.sub_, Tensor.__iadd__, Tensor.__isub__}


@dataclass(frozen=True, eq=False)
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
        names: the parameters that it uses.
        layout: where the records seem to be in the first output.
        form: the same for uses that are called alike.
        is_moved: whether records may have been moved, or it is unknown where they are.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    from_batch: frozenset[int]
    shapes: tuple[torch.Size, ...]
    edges: tuple[GradientEdge | None, ...]
    sources: tuple[Node, ...]
    versions: tuple[tuple[Tensor, int], ...]
    names: tuple[str, ...]
    layout: Layout | Rows | None
    form: object
    is_moved: bool

    @property
    def key(self) -> object:
        """The same for uses that are computed alike; None if records may have been moved."""
        layout = self.layout if isinstance(self.layout, Layout) else type(self.layout)
        return None if self.is_moved else (self.form, layout)

    @property
    def name(self) -> str:
        """What to call the function or layer in a message."""
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor that was computed from parameters alone: the output at ``position`` of a call."""

    value: Tensor
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int | None
    version: int


class Recorder(TorchFunctionMode):
    """Records every use of the parameters while it is active.

    Args:
        parameters: the trainable ones, by name.
        records: how many records the batch has.
        seen: counts the memory of what functions return, if it is to be measured.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], records: int, seen: SeenBytes | None = None
    ) -> None:
        super().__init__()
        self._seen = seen
        self.parameters = dict(parameters)
        self.records = records
        self.uses: list[Use] = []
        self.derived: dict[int, Derived] = {}
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._origins = Origins(records)
        self._inside_layers, self._is_paused = 0, False
        self._listener: object = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See one call of a PyTorch function."""
        kwargs = kwargs or {}
        if self._is_paused:
            return func(*args, **kwargs)
        order = self._origins.other_order(args[0]) if args else None
        replacement = spelled_out(func, args, kwargs, order)
        if replacement is not None:
            with self:
                return replacement()
        if func is functional.embedding and (kwargs.get("max_norm") or (len(args) > 3 and args[3])):
            raise InvalidValueError(
                "model must leave its weights alone, got an embedding with max_norm, which "
                "rewrites the rows that the records use"
            )
        if func is functional.scaled_dot_product_attention:
            args, kwargs = self._with_mask_of_records(args, kwargs)
        given = tensors((args, kwargs) if kwargs else args)
        before = [(tensor, tensor._version, tensor.grad_fn) for tensor in given]
        output = (max_pool2d if func is functional.max_pool2d else func)(*args, **kwargs)
        made = [args[0]] if func is Tensor.__setitem__ else tensors(output)
        if self._seen is not None:
            self._seen.add(made)
        if made:
            self._record(SeenCall(func, args, kwargs, before, made))
        return output

    def _with_mask_of_records(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give every record a copy of a mask of parameters, such as biases of positions."""
        named = dict(zip(ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
        query, key, mask = named["query"], named["key"], named.get("attn_mask")
        if mask is None or not (self.stands_for_parameters(mask) and self.comes_from_batch(query)):
            return args, kwargs
        if self._is_per_record(mask, query):
            self._record_as_use(mask)
            return args, kwargs
        own = mask_of_scores(mask, query, key)
        inputs = [(each, each._version, each.grad_fn) for each in (mask, query)]
        self._record(SeenCall(mask_of_scores, (mask, query, key), {}, inputs, [own]))
        return (), named | {"attn_mask": own}

    def _promoted(self, given: Sequence[Tensor], batch: frozenset[int]) -> frozenset[int]:
        """Record derived tensors with a row for every record, such as codes of random times."""
        origins = [(t, self._origins.layout_of(t)) for t in given if id(t) in batch]
        rows = [t for t, layout in origins if layout is not None and layout.axis == 0]
        found = [t for t in given if any(self._is_per_record(t, each) for each in rows)]
        for tensor in found:
            self._record_as_use(tensor)
        return frozenset(id(tensor) for tensor in found)

    def _is_per_record(self, tensor: Tensor, other: Tensor) -> bool:
        """Return whether a derived tensor has a row for each of a tensor from the batch."""
        is_alike = tensor.dim() == other.dim() > 0 and len(tensor) == len(other) > 1
        return is_alike and id(tensor) in self.derived

    def _record_as_use(self, tensor: Tensor) -> None:
        """Record what has made a derived tensor as a use, in which constants have the records."""
        made = self.derived.pop(id(tensor))
        self._origins.keep([tensor])
        for each in tensors((made.args, made.kwargs)):
            if id(each) in self.derived and each.shape[:1] == tensor.shape[:1]:
                self._record_as_use(each)
        given = tensors((made.args, made.kwargs))
        inputs = [(each, each._version, each.grad_fn) for each in given]
        seen = SeenCall(made.function, made.args, made.kwargs, inputs, [tensor])
        self._origins.add(tensor, FIRST if len(tensor) == self.records else JOINED)
        held = [each for each in given if self.stands_for_parameters(each)]
        rows = frozenset(id(each) for each in given if each.shape[:1] == tensor.shape[:1])
        if held:
            self._record_use(seen, rows - {id(each) for each in held})

    def begin_call(self, arguments: Any, ragged: Collection[int]) -> None:
        """Track the arguments of a module that have rows of the batch.

        Several rows per record are tracked only if no argument has one. Records may have different
        numbers of rows, so that it is unknown which row belongs to which record.

        Args:
            arguments: of the call.
            ragged: positions of tensors that had another number of rows in other batches.
        """
        rows = {k: t for k, t in enumerate(tensors(arguments)) if self._has_rows(t)}
        single = {k: t for k, t in rows.items() if len(t) == self.records}
        for place, tensor in (single or rows).items():
            if tensor not in self._origins:
                is_moved = not single or place in ragged
                self._origins.add(tensor, FIRST if single else None, is_moved=is_moved)
        seconds = [] if rows else [t for t in tensors(arguments) if SECOND.fits(t, self.records)]
        for tensor in seconds:
            self._origins.add(tensor, SECOND, is_moved=True)
        self._origins.keep([*(single or rows).values(), *seconds])

    def end_call(self, outputs: list[Tensor]) -> None:
        """Forget what was computed inside a call, but for its outputs."""
        self._origins.keep(outputs, others=False)

    def start(self, listener: object) -> None:
        """Start recording, and keep alive the listener that waits for the end of the call."""
        self._listener = listener
        self.__enter__()  # type: ignore[no-untyped-call] # torch's

    def stop(self) -> None:
        """Stop recording."""
        self._listener = None
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call] # torch's

    def enter_layer(self) -> None:
        """Record nothing inside a layer that has a rule of its own."""
        self._inside_layers += 1

    def leave_layer(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Record a layer as one call; without an output it has failed."""
        self._inside_layers -= 1
        if not tensors(output):
            return
        self._is_paused = True
        given = tensors((args, kwargs))
        before = [(tensor, tensor._version, tensor.grad_fn) for tensor in given]
        before += [(p, p._version, None) for p in layer.parameters() if id(p) in self._names]
        self._record(SeenCall(layer, args, kwargs, before, tensors(output)))
        self._is_paused = False

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

    def was_changed(self, tensor: Any) -> bool:
        """Return whether something derived, or what it was derived from, was changed in place."""
        made = self.derived.get(id(tensor))
        return made is not None and (
            made.value._version != made.version
            or any(self.was_changed(each) for each in tensors((made.args, made.kwargs)))
        )

    def _has_rows(self, tensor: Tensor) -> bool:
        rows = tensor.dim() > 0 and len(tensor) > 0 and len(tensor) % self.records == 0
        return rows and not self.stands_for_parameters(tensor)

    def comes_from_batch(self, tensor: Tensor) -> bool:
        """Return whether a tensor has rows of the batch, as far as is known.

        A function that torch does not show, such as a custom autograd function, leaves tensors of
        unknown origin: with a gradient, they come from something that was computed here.
        """
        if tensor in self._origins:
            return True
        unknown = tensor.requires_grad and tensor.grad_fn is not None and self._has_rows(tensor)
        if unknown:
            is_single = len(tensor) == self.records
            self._origins.add(tensor, FIRST if is_single else None, is_moved=not is_single)
        return unknown

    def _record(self, seen: SeenCall) -> None:
        given = [tensor for tensor, _, _ in seen.inputs]
        valued = given[:1] if seen.function in _CASTS else given
        batch = frozenset(id(tensor) for tensor in valued if self.comes_from_batch(tensor))
        if batch and registry.is_by_entry(seen.function):
            batch |= self._promoted(given, batch)
        held = [tensor for tensor in given if self.stands_for_parameters(tensor)]
        is_per_record = seen.outputs[0].shape[:1] == (self.records,)
        # Positions or types of tokens may be looked up once per record, whatever the record is.
        looks_up = seen.function is functional.embedding and any(map(are_of_records, given))
        spread = bool(held) and (seen.function in _EXPANDING or looks_up) and is_per_record
        if not (batch or spread):
            self._origins.forget(seen.outputs)
            if held and not self._inside_layers:
                self._record_derived(seen)
            return
        self._origins.follow(seen, batch)
        if held and not self._inside_layers:
            self._record_use(seen, batch)

    def _record_derived(self, seen: SeenCall) -> None:
        for position, tensor in enumerate(seen.outputs):
            if tensor.requires_grad and not self.stands_for_parameters(tensor):
                place = position if len(seen.outputs) > 1 else None
                call = seen.function, seen.args, seen.kwargs
                self.derived[id(tensor)] = Derived(tensor, *call, place, tensor._version)

    def _record_use(self, seen: SeenCall, batch: frozenset[int]) -> None:
        if not any(tensor.requires_grad for tensor in seen.outputs):
            return
        function, shape = seen.function, seen.outputs[0].shape
        later = function in _IN_PLACE_SUMS
        layout = self._layout_of(seen, shape)
        names = self.parameters_in([tensor for tensor, _, _ in seen.inputs])
        kind = type(function) if isinstance(function, nn.Module) else function
        form = self._signature((seen.args, seen.kwargs), batch)
        is_unknown = layout is None and registry.rule_of(function) is not None
        is_ambiguous = shape[:2] == (self.records, self.records)
        use = Use(
            function,
            seen.args,
            seen.kwargs,
            batch,
            tuple(tensor.shape for tensor in seen.outputs),
            tuple(get_gradient_edge(t) if t.requires_grad else None for t in seen.outputs),
            tuple(node for t, _, node in seen.inputs if node and not self.stands_for_parameters(t)),
            tuple((t, t._version if later else version) for t, version, _ in seen.inputs),
            tuple(names),
            layout,
            (kind, tuple(names), is_ambiguous, len(shape), form),
            self._origins.is_moved(seen.outputs[0]) or is_unknown,
        )
        self.uses.append(use)

    def _layout_of(self, seen: SeenCall, shape: torch.Size) -> Layout | None:
        locate = registry.layout_by_rule(seen.function)
        if locate is None:
            any_dims = registry.takes_any_leading_dims(seen.function)
            return layout_of(
                shape, self.records, any_dims, self._origins.layout_of(seen.outputs[0])
            )
        held = tuple(t for t, _, _ in seen.inputs if self.stands_for_parameters(t))
        return locate(Call(seen.function, seen.args, seen.kwargs, self.records, held), shape)

    def _signature(self, arguments: Any, batch: frozenset[int]) -> object:
        """Return the kinds of arguments of a call, without their values and sizes."""
        if isinstance(arguments, Tensor):
            if id(arguments) in batch:
                return "batch", arguments.dim()
            if id(arguments) in self._names:
                return self._names[id(arguments)]
            made = self.derived.get(id(arguments))
            kind = "constant" if made is None else (made.function, made.position)
            return kind, arguments.dim()
        if isinstance(arguments, tuple | list):
            return tuple(self._signature(each, batch) for each in arguments)
        if isinstance(arguments, dict):
            return tuple((name, self._signature(each, batch)) for name, each in arguments.items())
        return type(arguments)
