"""Recurrent layers and cells: against PyTorch's own, and against a loop over single records."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clipping import models
from tests.clipping.comparing import (
    assert_right,
    cross_entropy,
    distance,
    in_a_loop,
    squares,
    watched,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import rnn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from dither.clipping import clipped_sum
from dither.clipping.recurrent import is_recurrent, recurrent

SEQUENCES = torch.randn(6, 5, 4)
LENGTHS = torch.tensor([3, 5, 1, 4, 2, 5])
CLASSES = torch.randint(3, (6,))
KINDS = {
    "LSTM": nn.LSTM,
    "projected LSTM": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN with rectifiers": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}


class Everything(nn.Module):
    """Uses all outputs of a recurrent layer, or some of them.

    Args:
        kind: of the layer.
        packed: None, or how sequences are packed: "sorted" or "unsorted".
        states: whether the first states are given, computed from the records.
        used: which outputs lead to the loss: "all", "outputs", "hidden" or "last".
        options: of the layer.
    """

    def __init__(
        self,
        kind: str,
        packed: str | None = None,
        states: bool = False,
        used: str = "all",
        **options: Any,
    ) -> None:
        super().__init__()
        self.packed, self.states, self.used = packed, states, used
        self.layer: nn.RNNBase = KINDS[kind](4, 3, **options)
        self.widths = [self.layer.proj_size or 3, 3][: 1 + isinstance(self.layer, nn.LSTM)]
        self.begin = nn.Linear(4, sum(self.widths))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        first = self.layer.batch_first
        given: Any = x if first else x.transpose(0, 1)
        if self.packed is not None:
            in_order = self.packed == "sorted"
            given = rnn.pack_padded_sequence(given, lengths, first, enforce_sorted=in_order)
        outputs, states = self.layer(given, self.first_states(x) if self.states else None)
        if self.packed is not None:
            outputs, _ = rnn.pad_packed_sequence(outputs, first, total_length=x.shape[1])
        found = [outputs if first else outputs.transpose(0, 1)]
        found += [s.transpose(0, 1) for s in (states if isinstance(states, tuple) else (states,))]
        chosen = {"all": found, "outputs": found[:1], "hidden": found[1:2], "last": found[-1:]}
        more = self.begin(x[:, 0])  # without it, rectifiers may leave no gradient at all
        return torch.cat([more, *(each.flatten(1) for each in chosen[self.used])], 1)

    def first_states(self, x: Tensor) -> Any:
        count = self.layer.num_layers * (1 + self.layer.bidirectional)
        states = self.begin(x[:, :count]).transpose(0, 1).contiguous().split(self.widths, 2)
        return tuple(s.contiguous() for s in states) if len(states) > 1 else states[0]


def everything(data: st.DataObject, **fixed: Any) -> tuple[Everything, tuple[Tensor, Tensor]]:
    """Some model and its inputs."""

    def draw(*values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    packed = draw(None, "sorted", "unsorted")
    options = {
        "num_layers": draw(1, 2),
        "bidirectional": draw(False, True),
        "bias": draw(True, False),
        "batch_first": draw(True, False),
    }
    own = {"states": draw(False, True), "used": draw("all", "outputs", "hidden", "last")}
    model = Everything(draw(*KINDS), packed, **own, **(options | fixed))
    order = LENGTHS.argsort(descending=True) if packed == "sorted" else torch.arange(6)
    return model, (SEQUENCES[order], LENGTHS[order])


@pytest.fixture(scope="module", autouse=True)
def _warned_of_projections() -> None:
    """Let PyTorch give the warning that it gives once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.LSTM(2, 2, proj_size=1)(torch.ones(1, 1, 2))


@settings(max_examples=25)
@given(st.data())
def test_layers_of_all_kinds(data: st.DataObject) -> None:
    model, inputs = everything(data)
    assert_right(model, inputs, None, squares)


class Replacing(TorchFunctionMode):
    """Calls what replaces recurrent layers."""

    def __init__(self, order: Tensor | None) -> None:
        super().__init__()
        self.order = order

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_recurrent(func):
            return recurrent(func, args, self.order)
        return func(*args, **kwargs or {})


@settings(max_examples=40)
@given(st.data())
def test_outputs_and_gradients_are_those_of_pytorch(data: st.DataObject) -> None:
    """So are second derivatives, and what dropout draws."""
    model, inputs = everything(data, num_layers=2, dropout=data.draw(st.sampled_from([0.0, 0.5])))
    model, inputs = model.double(), (inputs[0].double(), inputs[1])

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        x = inputs[0].clone().requires_grad_()
        made = model(x, inputs[1])
        (slopes,) = torch.autograd.grad(made.sin().sum(), x, create_graph=True)
        total = squares(made, None).sum() + slopes.square().sum()
        found = torch.autograd.grad(
            total, [x, *model.parameters()], allow_unused=True, materialize_grads=True
        )
        return [made, slopes, *found]

    expected = run()
    with Replacing(LENGTHS.sort(descending=True)[1] if model.packed == "unsorted" else None):
        found = run()
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_dropout_between_layers() -> None:
    """The records' gradients are those of the run that was seen."""
    model = models.Recurrent(nn.LSTM).double()
    model.rnn.dropout = 0.5
    gradients: list[tuple[Tensor, ...]] = []

    def losses() -> Tensor:
        found = squares(model(SEQUENCES.double()), None)
        for each in found:
            gradients.append(torch.autograd.grad(each, [*model.parameters()], retain_graph=True))
        return found

    with watched() as seen:
        total = in_a_loop(model, losses, 6, clip_norm=0.1)
    assert not seen.slow
    assert not seen.fallbacks
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for rows in gradients:
        norm = torch.stack([row.norm() for row in rows]).norm()
        sums = [s + r * min(1.0, 0.1 / float(norm)) for s, r in zip(sums, rows, strict=True)]
    names = [name for name, _ in model.named_parameters()]
    assert distance(total.gradients, dict(zip(names, sums, strict=True))) < 1e-10


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_sequences_as_long_as_the_batch(kind: type[nn.RNNBase], batch_first: bool) -> None:
    model = models.Recurrent(kind, batch_first)
    before = torch.randn(7, 5, 4), torch.randint(3, (7,))
    assert_right(model, SEQUENCES[:5], CLASSES[:5])
    assert_right(model, SEQUENCES[:5], CLASSES[:5], before=before)


class Cells(nn.Module):
    """A cell in a loop of the user's own."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 5, **options), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind: Any, bias: bool) -> None:
    assert_right(Cells(kind, bias=bias), SEQUENCES, CLASSES)


class Reader(nn.Module):
    """A loop of one's own with an embedding, a linear layer, a scale and a borrowed table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(11, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.table(tokens[:, 0])
        for word in tokens.unbind(1):
            state = torch.tanh(self.layer(state) + self.scale * self.table(word))
        return F.linear(state, self.table.weight)


def test_parameters_that_are_used_at_every_step() -> None:
    assert_right(Reader(), torch.randint(11, (6, 5)), torch.randint(11, (6,)))


class Repeated(nn.Module):
    """A layer that is run again in the backward pass, where the calls are not seen."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 3)

    def run(self, x: Tensor) -> Tensor:
        is_attention = isinstance(self.layer, nn.MultiheadAttention)
        outputs: Tensor = self.layer(*[x] * (3 if is_attention else 1))[0]
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.run, x, use_reentrant=False)[:, -1])


def test_checkpoints_repeat_the_functions_of_pytorch() -> None:
    for layer in (
        nn.GRU(4, 4, batch_first=True),
        nn.LSTM(4, 4, batch_first=True),
        nn.MultiheadAttention(4, 2, batch_first=True),
    ):
        model = Repeated(layer)
        slow = {name for name, _ in model.named_parameters() if name.startswith("layer")}
        assert_right(model, SEQUENCES, CLASSES, fallback="first dimension", slow=slow)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_half_precision(kind: type[nn.RNNBase]) -> None:
    model = models.Recurrent(kind).bfloat16()
    given = model, cross_entropy, SEQUENCES.bfloat16(), CLASSES
    with watched() as seen:
        found, expected = (
            clipped_sum(*given, clip_norm=0.1, engine=engine).gradients
            for engine in ("fast", "reference")
        )
    assert distance(found, expected) < 0.03
    assert not seen.fallbacks
    assert not seen.others


def test_first_states_that_are_parameters_or_depend_on_the_records() -> None:
    class FirstStates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.begin = nn.LSTM(4, 5, batch_first=True), nn.Linear(4, 5)
            self.cell, self.head = nn.Parameter(torch.randn(1, 1, 5)), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.begin(x[:, 0])[None]
            cell = self.cell.expand(1, len(x), 5).contiguous()
            return self.head(self.rnn(x, (hidden, cell))[0].sum(1))

    assert_right(FirstStates(), SEQUENCES, CLASSES, fallback="cell", slow={"cell"})


@pytest.mark.parametrize("records", [1, 6])
def test_outputs_that_are_changed_in_place(records: int) -> None:
    class Rectified(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.layer(x)[0], inplace=True).mean(1)

    assert_right(Rectified(), SEQUENCES[:records], CLASSES[:records])


@pytest.mark.parametrize("records", [1, 6])
def test_a_layer_that_reads_no_records(records: int) -> None:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.head = nn.Parameter(torch.randn(1, 5, 4)), nn.Linear(4, 3)
            self.layer = nn.LSTM(4, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x * self.layer(self.prompt)[0]).mean(1))

    names = {"prompt", *(f"layer.{name}" for name, _ in nn.LSTM(4, 4).named_parameters())}
    given = Prompted(), SEQUENCES[:records], CLASSES[:records]
    assert_right(*given, fallback="computed record by record", slow=names)
