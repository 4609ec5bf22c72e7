"""The steps of recurrent layers, forwards and backwards, for all records at once.

A layer in one direction is a product of its inputs with a weight, here computed for all steps
together, and a recurrence, in which every step multiplies the state before it with another weight.
The recurrence is one function for autograd. Its inputs are the products, not the weights: the
gradient with respect to a product, records × steps × gates, is what rules need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True)
class Layer:
    """A recurrent layer in one direction.

    Attributes:
        kind: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        weight: what states are multiplied with, gates × state.
        bias: what is added to that.
        projection: of the outputs of an LSTM, if there is one.
        active: records × steps × 1, which steps each record has; None for all.
        is_reverse: whether the last step comes first.
    """

    kind: str
    weight: Tensor
    bias: Tensor | None
    projection: Tensor | None
    active: Tensor | None
    is_reverse: bool

    def steps(self, count: int) -> list[tuple[int, int, int]]:
        """Return the steps in their order, with the places of the states before and after."""
        if self.is_reverse:
            return [(step, step + 1, step) for step in reversed(range(count))]
        return [(step, step, step + 1) for step in range(count)]

    def around(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states before and after every step, of one more state than steps."""
        early, late = states[:, :-1], states[:, 1:]
        return (late, early) if self.is_reverse else (early, late)

    def end(self, states: Tensor) -> Tensor:
        """Return the last state."""
        return states[:, 0 if self.is_reverse else -1]

    def begin(self, state: Tensor, count: int) -> Tensor:
        """Return memory for the states around so many steps, with the first one in its place."""
        states = state.new_empty(len(state), count + 1, state.shape[1])
        states[:, -1 if self.is_reverse else 0] = state
        return states


_ORIGINS = 6


@dataclass(frozen=True)
class Saved:
    """What the way back through a layer needs.

    Attributes:
        layer: the layer.
        found: what running it has returned.
        origins: inputs, their weight and bias, and the layer's weight, bias and projection; needed
            where gradients are differentiated again.
    """

    layer: Layer
    found: Sequence[Tensor]
    origins: tuple[Tensor | None, ...]


def run(
    layer: Layer, sums: Tensor, hidden: Tensor, cell: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Run the steps of a layer.

    Args:
        layer: the layer.
        sums: records × steps × gates, inputs times weight; overwritten.
        hidden: the first state.
        cell: the first cell of an LSTM.

    Returns:
        The states around the steps, and what the way back needs.
    """
    if cell is not None:
        return _lstm(layer, sums, hidden, cell)
    return _gru(layer, sums, hidden) if layer.kind == "gru" else _rnn(layer, sums, hidden)


class Recurrence(torch.autograd.Function):
    """The outputs and last states of a layer that was run, and the way back through its steps."""

    @staticmethod
    def forward(ctx: Any, saved: Saved, *terms: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs and the last states.

        Args:
            ctx: torch's.
            saved: what the way back needs.
            terms: what gets gradients: the products with inputs and with states, the first state,
                and for an LSTM the first cell, and the projected outputs if there is a projection.
        """
        layer, (states, *others) = saved.layer, saved.found
        ctx.layer, ctx.count = layer, len(saved.found)
        ctx.save_for_backward(*saved.found, *saved.origins, *terms[2:4])
        last = [layer.end(states).clone()]
        if layer.kind == "lstm":
            last.append(layer.end(others[0]).clone())
        # A copy: the model may write to its outputs.
        return layer.around(states)[1].clone(memory_format=torch.contiguous_format), *last

    @staticmethod
    def backward(ctx: Any, outputs: Tensor, *last: Tensor) -> Any:
        """Return the gradients of the terms."""
        found, rest = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if torch.is_grad_enabled():
            states, gradients = rest[_ORIGINS : _ORIGINS + len(last)], (outputs, *last)
            made = _differentiable_backward(ctx.layer, rest[:_ORIGINS], states, gradients)
        elif ctx.layer.kind == "lstm":
            made = _lstm_backward(ctx.layer, found, outputs, *last)
        else:
            back = _gru_backward if ctx.layer.kind == "gru" else _rnn_backward
            made = back(ctx.layer, found, outputs, *last)
        return None, *made[: len(ctx.needs_input_grad) - 1]


def _lstm(layer: Layer, sums: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    size, count = cell.shape[1], sums.shape[1]
    times, projected = _product(layer.weight.t(), layer.bias), layer.projection is not None
    states, cells = layer.begin(hidden, count), layer.begin(cell, count)
    bounded = sums.new_empty(len(sums), count, size)
    made = torch.empty_like(bounded) if projected else layer.around(states)[1]
    project = _product(layer.projection.t()) if layer.projection is not None else None
    every, (i, f, g, o) = sums.unbind(1), _gates(sums, size)
    both = sums[:, :, : 2 * size].unbind(1)
    h, c, tanh, m = (each.unbind(1) for each in (states, cells, bounded, made))
    for t, before, after in layer.steps(count):
        every[t].add_(times(h[before]))
        both[t].sigmoid_()
        g[t].tanh_()
        o[t].sigmoid_()
        torch.mul(f[t], c[before], out=c[after]).addcmul_(i[t], g[t])
        torch.mul(torch.tanh(c[after], out=tanh[t]), o[t], out=m[t])
        if project is not None:
            h[after].copy_(project(m[t]))
        _keep_idle(layer, t, before, after, h, c)
    return (states, cells, sums, bounded, *([made] if projected else []))


def _lstm_backward(
    layer: Layer, saved: Sequence[Tensor], outputs: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, ...]:
    _, cells, gates, bounded, *_ = saved
    size, count = bounded.shape[2], bounded.shape[1]
    times = _product(layer.weight)
    project = _product(layer.projection) if layer.projection is not None else None
    gradients = torch.empty_like(gates)
    projected = torch.empty_like(outputs) if project else outputs
    (i, f, g, o), (di, df, dg, do) = _gates(gates, size), _gates(gradients, size)
    c, tanh, whole, given = (x.unbind(1) for x in (cells, bounded, gradients, outputs))
    dh, dc, space = hidden, cell.clone(), torch.empty_like(cell)
    for t, before, _ in reversed(layer.steps(count)):
        dh = dh + given[t]
        dh, dc, idle = _split_idle(layer, t, dh, dc)
        dm = dh
        if project is not None:
            projected[:, t] = dh
            dm = project(dh)
        torch.mul(dm, o[t], out=space)
        dc += _tanh_backward(space, tanh[t], grad_input=space)
        _sigmoid_backward(torch.mul(dm, tanh[t], out=space), o[t], grad_input=do[t])
        _tanh_backward(torch.mul(dc, i[t], out=space), g[t], grad_input=dg[t])
        _sigmoid_backward(torch.mul(dc, g[t], out=space), i[t], grad_input=di[t])
        _sigmoid_backward(torch.mul(dc, c[before], out=space), f[t], grad_input=df[t])
        dh = times(whole[t])
        dc *= f[t]
        if idle is not None:
            dh, dc = dh + idle[0], dc + idle[1]
    return gradients, gradients, dh, dc, projected


def _gru(layer: Layer, sums: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    size, count = hidden.shape[1], sums.shape[1]
    times, states = _product(layer.weight.t(), layer.bias), layer.begin(hidden, count)
    fresh = sums.new_empty(len(sums), count, size)
    both, (r, z, n) = sums[:, :, : 2 * size].unbind(1), _gates(sums, size)
    h, q = states.unbind(1), fresh.unbind(1)
    for t, before, after in layer.steps(count):
        product = times(h[before])
        both[t].add_(product[:, : 2 * size]).sigmoid_()
        q[t].copy_(product[:, 2 * size :])
        n[t].addcmul_(r[t], q[t]).tanh_()
        torch.lerp(n[t], h[before], z[t], out=h[after])
        _keep_idle(layer, t, before, after, h)
    return states, sums, fresh


def _gru_backward(
    layer: Layer, saved: Sequence[Tensor], outputs: Tensor, hidden: Tensor
) -> tuple[Tensor, ...]:
    states, gates, fresh = saved
    size, count = fresh.shape[2], fresh.shape[1]
    times = _product(layer.weight)
    of_inputs, of_states = torch.empty_like(gates), torch.empty_like(gates)
    (r, z, n), (dr, dz, dn) = _gates(gates, size), _gates(of_inputs, size)
    h, q, given, whole = (x.unbind(1) for x in (states, fresh, outputs, of_states))
    both = [x[:, :, : 2 * size].unbind(1) for x in (of_states, of_inputs)]
    dq, dh, space = of_states[:, :, 2 * size :].unbind(1), hidden, torch.empty_like(hidden)
    for t, before, _ in reversed(layer.steps(count)):
        dh = dh + given[t]
        dh, _, idle = _split_idle(layer, t, dh)
        torch.sub(h[before], n[t], out=space).mul_(dh)
        _sigmoid_backward(space, z[t], grad_input=dz[t])
        kept = dh * z[t]
        _tanh_backward(torch.sub(dh, kept, out=space), n[t], grad_input=dn[t])
        _sigmoid_backward(torch.mul(dn[t], q[t], out=space), r[t], grad_input=dr[t])
        both[0][t].copy_(both[1][t])
        torch.mul(dn[t], r[t], out=dq[t])
        dh = kept.add_(times(whole[t]))
        if idle is not None:
            dh += idle[0]
    return of_inputs, of_states, dh


def _rnn(layer: Layer, sums: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    count = sums.shape[1]
    times, states = _product(layer.weight.t(), layer.bias), layer.begin(hidden, count)
    function: Callable[..., Tensor] = torch.tanh if layer.kind == "rnn_tanh" else torch.relu
    every, h = sums.unbind(1), states.unbind(1)
    for t, before, after in layer.steps(count):
        h[after].copy_(function(every[t].add_(times(h[before]))))
        _keep_idle(layer, t, before, after, h)
    return (states,)


def _rnn_backward(
    layer: Layer, saved: Sequence[Tensor], outputs: Tensor, hidden: Tensor
) -> tuple[Tensor, ...]:
    (states,) = saved
    times, gradients = _product(layer.weight), torch.empty_like(outputs)
    h, given, found = (each.unbind(1) for each in (states, outputs, gradients))
    dh = hidden
    for t, _, after in reversed(layer.steps(outputs.shape[1])):
        dh = dh + given[t]
        dh, _, idle = _split_idle(layer, t, dh)
        if layer.kind == "rnn_tanh":
            _tanh_backward(dh, h[after], grad_input=found[t])
        else:
            torch.mul(dh, h[after] > 0, out=found[t])
        dh = times(found[t])
        if idle is not None:
            dh += idle[0]
    return gradients, gradients, dh


def _differentiable_backward(
    layer: Layer,
    origins: Sequence[Tensor | None],
    states: Sequence[Tensor],
    gradients: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Return the gradients of the terms in a form that can be differentiated again."""
    inputs, of_inputs, bias, *own = origins
    assert inputs is not None and of_inputs is not None  # noqa: S101, PT018 (for the type checker)
    weight, state_bias, projection = (None if w is None else w.to(states[0]) for w in own)
    assert weight is not None  # noqa: S101 (for the type checker)
    layer = replace(layer, weight=weight, bias=state_bias, projection=projection)
    sums = functional.linear(inputs, of_inputs, bias).to(states[0])
    added = [torch.zeros_like(each) for each in (sums, sums, *states, gradients[0])]
    added = [each.requires_grad_() for each in added]
    begin = [state + more for state, more in zip(states, added[2:], strict=False)]
    made = _spelled_out(layer, sums + added[0], added[1], begin, added[-1])
    return torch.autograd.grad(made, added, gradients, create_graph=True, materialize_grads=True)


def _spelled_out(
    layer: Layer, sums: Tensor, products: Tensor, states: Sequence[Tensor], projected: Tensor
) -> tuple[Tensor, ...]:
    """Return the outputs and last states by functions that autograd knows."""
    outputs = [states[0]] * sums.shape[1]
    for t, _, _ in layer.steps(sums.shape[1]):
        product = functional.linear(states[0], layer.weight, layer.bias) + products[:, t]
        made = _step(layer, sums[:, t], product, states)
        if layer.projection is not None:
            made[0] = functional.linear(made[0], layer.projection) + projected[:, t]
        if layer.active is not None:
            pairs = zip(made, states, strict=True)
            made = [torch.where(layer.active[:, t], new, old) for new, old in pairs]
        outputs[t], states = made[0], made
    return torch.stack(outputs, 1), *states


def _step(layer: Layer, sums: Tensor, products: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
    """Return the next states from the products with inputs and with states."""
    if layer.kind == "lstm":
        i, f, g, o = (sums + products).chunk(4, 1)
        cell = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * cell.tanh(), cell]
    if layer.kind == "gru":
        (a, b, c), (d, e, f) = sums.chunk(3, 1), products.chunk(3, 1)
        return [torch.lerp((c + (a + d).sigmoid() * f).tanh(), states[0], (b + e).sigmoid())]
    both = sums + products
    return [both.tanh() if layer.kind == "rnn_tanh" else both.relu()]


def _gates(tensor: Tensor, size: int) -> list[tuple[Tensor, ...]]:
    """Return the gates of every step, records × size each."""
    return [gate.unbind(1) for gate in tensor.split(size, 2)]


def _keep_idle(layer: Layer, step: int, before: int, after: int, *states: Sequence[Tensor]) -> None:
    """Let the states of records that do not have this step be what they were."""
    if layer.active is not None:
        for each in states:
            each[after].copy_(torch.where(layer.active[:, step], each[after], each[before]))


def _split_idle(
    layer: Layer, step: int, *gradients: Tensor
) -> tuple[Tensor, Tensor, list[Tensor] | None]:
    """Return the gradients of records that have this step, zeros for others, and the rest."""
    if layer.active is None:
        return gradients[0], gradients[-1], None
    active = layer.active[:, step]
    split = [torch.where(active, each, 0.0) for each in gradients]
    return split[0], split[-1], [torch.where(active, 0.0, each) for each in gradients]


def _product(weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """Return the product of a few rows with a weight, and a bias that is added.

    On CPUs by oneDNN, as in PyTorch's own layers: where a product is as small as that of a step, it
    needs down to half of the time.
    """
    turned = weight.t().contiguous()
    is_on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    if not (is_on_cpu and torch.backends.mkldnn.is_available() and weight.numel()):
        return partial(functional.linear, weight=turned, bias=bias)
    packed, shift = turned.to_mkldnn(), None if bias is None else bias.to_mkldnn()
    return lambda rows: functional.linear(rows.to_mkldnn(), packed, shift).to_dense()
