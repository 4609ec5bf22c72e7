"""Recurrent layers and cells, spelled out while a model is recorded.

PyTorch's recurrent layers are one call with all products inside. Here the same is computed layer
by layer with functions that have rules: the product of the inputs with a weight, and that of the
states. The states are known only when a recurrence has been run. So it is run first, without a
graph, and :func:`state_product` then gives the weight its place in the graph.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import _VF, Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from dither.clipping.batch import accumulation_dtype, tensors
from dither.clipping.recurrence import Layer, Recurrence, Saved, run

_LAYERS: dict[Any, str] = {
    _VF.lstm: "lstm",
    _VF.gru: "gru",
    _VF.rnn_tanh: "rnn_tanh",
    _VF.rnn_relu: "rnn_relu",
}
_CELLS: dict[Any, str] = {
    _VF.lstm_cell: "lstm",
    _VF.gru_cell: "gru",
    _VF.rnn_tanh_cell: "rnn_tanh",
    _VF.rnn_relu_cell: "rnn_relu",
}


def recurrent(
    function: Callable[..., Any], args: Sequence[Any], order: Tensor | None = None
) -> Any:
    """Return what one of PyTorch's recurrent layers or cells returns.

    Args:
        function: the layer or cell.
        args: its arguments.
        order: of the records in packed sequences, if they were sorted by length.
    """
    if function in _CELLS:
        return _cell(_CELLS[function], *args)
    if isinstance(args[3], list | tuple):
        return _packed(_LAYERS[function], order, *args)
    return _padded(_LAYERS[function], *args)


def is_recurrent(function: Callable[..., Any]) -> bool:
    """Return whether a function is a recurrent layer or cell."""
    return function in _LAYERS or function in _CELLS


def state_product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return zeros with the derivative of ``linear(states, weight, bias)`` by weight and bias."""
    if has_torch_function((states, weight)):
        found: Tensor = handle_torch_function(state_product, (states, weight), states, weight, bias)
        return found
    made: Tensor = _Product.apply(states, weight, bias)  # type: ignore[no-untyped-call] # torch's
    return made


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight, bias)
        return states.new_zeros(()).expand(*states.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        states, weight, bias = ctx.saved_tensors
        rows = gradient.flatten(0, 1)
        of_weight = rows.t() @ states.flatten(0, 1)
        return None, of_weight.to(weight), None if bias is None else rows.sum(0).to(bias)


class _Settings(NamedTuple):
    """The arguments of a call behind its weights."""

    has_biases: bool
    layers: int
    dropout: float
    is_training: bool
    is_bidirectional: bool
    batch_first: bool = False


class _Weights(NamedTuple):
    """The weights of a layer in one direction."""

    of_inputs: Tensor
    of_states: Tensor
    bias: Tensor | None = None
    state_bias: Tensor | None = None
    projection: Tensor | None = None


def _cell(kind: str, inputs: Tensor, state: Any, *weights: Any) -> Any:
    """Return the next state: that of a sequence of one step."""
    _, last = _one_direction(kind, inputs[:, None], tensors(state), _Weights(*weights))
    return tuple(last) if kind == "lstm" else last[0]


def _padded(
    kind: str, inputs: Tensor, states: Any, weights: Sequence[Tensor], *settings: Any
) -> tuple[Tensor, ...]:
    own = _Settings(*settings)
    given = inputs if own.batch_first else inputs.transpose(0, 1)
    outputs, last = _all_layers(kind, given.contiguous(), tensors(states), weights, own)
    return outputs if own.batch_first else outputs.transpose(0, 1), *last


def _packed(
    kind: str,
    order: Tensor | None,
    inputs: Tensor,
    sizes: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    *settings: Any,
) -> tuple[Tensor, ...]:
    """Pad the sequences, and bring the records into their own order meanwhile."""
    packing = _Packing(sizes, order)
    begin = [_in_order(state, packing.places, 1) for state in tensors(states)]
    own = _Settings(*settings)
    outputs, last = _all_layers(kind, packing.pad(inputs), begin, weights, own, packing)
    return packing.pack(outputs), *[_in_order(state, order, 1) for state in last]


class _Packing:
    """How sequences of different lengths are packed.

    Args:
        sizes: the number of sequences that have each step.
        order: of the records in what is packed, None if they are in place.
    """

    def __init__(self, sizes: Tensor, order: Tensor | None) -> None:
        self.sizes, self.order = sizes, order
        self.places = None if order is None else order.argsort()
        steps = torch.arange(int(sizes[0]))[:, None] < sizes
        self.lengths = steps.sum(1)
        self.active = steps if self.places is None else steps[self.places.cpu()]

    def pad(self, inputs: Tensor) -> Tensor:
        """Return records × steps × width."""
        padded = _VF._pad_packed_sequence(inputs, self.sizes, True, 0.0, len(self.sizes))[0]
        return _in_order(padded, self.places)

    def pack(self, outputs: Tensor) -> Tensor:
        """Return the rows of the steps that there are."""
        ordered = _in_order(outputs, self.order)
        packed: Tensor = _VF._pack_padded_sequence(ordered, self.lengths, True)[0]
        return packed


def _in_order(tensor: Tensor, order: Tensor | None, dim: int = 0) -> Tensor:
    return tensor if order is None else tensor.index_select(dim, order)


def _all_layers(
    kind: str,
    inputs: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    settings: _Settings,
    packing: _Packing | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs of the last layer, and the last states of all layers."""
    directions = 2 if settings.is_bidirectional else 1
    size = len(weights) // (settings.layers * directions)
    active = None if packing is None else packing.active[:, :, None].to(inputs.device)
    last: list[list[Tensor]] = []
    for place in range(settings.layers):
        if place and settings.dropout and settings.is_training:
            inputs = _dropout(inputs, settings.dropout, packing)
        found: list[Tensor] = []
        for k in range(place * directions, (place + 1) * directions):
            own = _weights(weights[k * size : (k + 1) * size], settings)
            begin = [state[k] for state in states]
            outputs, end = _one_direction(kind, inputs, begin, own, active, bool(found))
            found.append(outputs)
            last.append(end)
        inputs = found[0] if directions == 1 else torch.cat(found, 2)
    return inputs, [torch.stack(each) for each in zip(*last, strict=True)]


def _weights(given: Sequence[Tensor], settings: _Settings) -> _Weights:
    """Return the weights of a layer, which may have no biases."""
    of_inputs, of_states, *rest = given
    biases = rest[:2] if settings.has_biases else [None, None]
    return _Weights(of_inputs, of_states, *biases, *rest[2 * settings.has_biases :])


def _dropout(inputs: Tensor, share: float, packing: _Packing | None) -> Tensor:
    """Draw what PyTorch draws, which has the steps first in memory."""
    if packing is not None:
        return packing.pad(functional.dropout(packing.pack(inputs), share))
    return functional.dropout(inputs.transpose(0, 1).contiguous(), share).transpose(0, 1)


def _one_direction(
    kind: str,
    inputs: Tensor,
    states: Sequence[Tensor],
    weights: _Weights,
    active: Tensor | None = None,
    is_reverse: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Return the outputs and the last states of a layer in one direction."""
    of_inputs, of_states, bias, state_bias, projection = weights
    sums = functional.linear(inputs, of_inputs, bias)
    dtype, wide = sums.dtype, accumulation_dtype(sums.dtype)
    shift, project = (None if w is None else w.detach().to(wide) for w in (state_bias, projection))
    layer = Layer(kind, of_states.detach().to(wide), shift, project, active, is_reverse)
    products = [sums.to(wide), *(state.to(wide) for state in states)]
    # The sums are overwritten, which changes nothing for autograd.
    before, *found = _run(layer, products[0].data, *[state.detach() for state in products[1:]])
    products.insert(1, state_product(before.to(dtype), of_states, state_bias).to(wide))
    if projection is not None:
        products.append(state_product(found[-1].to(dtype), projection, None).to(wide))
    origins = inputs, of_inputs, bias, of_states, state_bias, projection
    outputs, *last = _recurrence(Saved(layer, found, origins), *products)
    return outputs.to(dtype), [state.to(dtype) for state in last]


def _run(layer: Layer, sums: Tensor, hidden: Tensor, *cell: Tensor) -> tuple[Tensor, ...]:
    """Run the steps of a layer; first of what is returned are the states before every step."""
    given = sums, hidden, *cell
    if has_torch_function(given):
        found: tuple[Tensor, ...] = handle_torch_function(_run, given, layer, *given)
        return found
    states, *others = run(layer, sums, hidden, *cell)
    return layer.around(states)[0], states, *others


def _recurrence(saved: Saved, *products: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs and the last states of a layer that was run."""
    if has_torch_function(products):
        made: tuple[Tensor, ...] = handle_torch_function(_recurrence, products, saved, *products)
        return made
    outputs: tuple[Tensor, ...] = Recurrence.apply(saved, *products)  # type: ignore[no-untyped-call] # torch's
    return outputs
