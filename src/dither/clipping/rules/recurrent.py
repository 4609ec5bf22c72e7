"""Recurrent layers (LSTM, GRU, RNN): repeated for every record by itself."""

from collections.abc import Sequence

import torch
from torch import _VF, Tensor

from dither.clipping.batch import tensors
from dither.clipping.recorder import Recorder, Use
from dither.clipping.registry import UnseenUseError
from dither.clipping.rules.explicit import Pairs, pairs, stacked

_FUNCTIONS = (_VF.lstm, _VF.gru, _VF.rnn_tanh, _VF.rnn_relu)


def is_recurrent(use: Use) -> bool:
    """Return whether this is a call of one of PyTorch's recurrent networks."""
    return use.function in _FUNCTIONS


def recurrent(use: Use, gradients: Sequence[Tensor | None], recorder: Recorder) -> Pairs:
    """Return one gradient a record for the weights of a recurrent network.

    Its arguments are (inputs, states, weights, …, batch_first). The records are along the first
    or second dimension of the inputs, and along the second of the states.
    """
    inputs, states, weights, *settings = use.args
    if not isinstance(weights, list | tuple) or inputs.dim() != 3:
        raise UnseenUseError(
            f"{use.name} gets packed sequences, which have no rule (padded ones are faster)"
        )
    _, _, dropout, is_training, _, batch_first = settings
    if dropout and is_training:
        raise UnseenUseError(f"{use.name} has dropout, which would be drawn again")
    axis = 0 if batch_first else 1
    held = [tensor for tensor in weights if recorder.stands_for_parameters(tensor)]

    def part(tensor: Tensor, record: int, along: int) -> Tensor:
        return tensor.detach().narrow(along, record, 1)

    def pull(record: int) -> Sequence[Tensor]:
        fresh = [weight.detach().requires_grad_(weight.requires_grad) for weight in weights]
        hidden = [part(state, record, 1) for state in tensors(states)]
        start = tuple(hidden) if isinstance(states, tuple | list) else hidden[0]
        with torch.enable_grad():
            outputs = use.function(part(inputs, record, axis), start, fresh, *settings)
        used = [
            (output, part(gradient, record, axis if k == 0 else 1))
            for k, (output, gradient) in enumerate(zip(outputs, gradients, strict=True))
            if gradient is not None
        ]
        wanted = [
            new
            for new, old in zip(fresh, weights, strict=True)
            if recorder.stands_for_parameters(old)
        ]
        outs, given = zip(*used, strict=True)
        return torch.autograd.grad(outs, wanted, given)

    return pairs(held, stacked(pull, recorder.records))
