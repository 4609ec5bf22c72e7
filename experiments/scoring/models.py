"""The models of the tasks, as their users would write them; none mixes records."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


def linear(inputs: int, outputs: int) -> nn.Module:
    """Return a linear model of the flattened record."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    """Return an MLP of the flattened record; the widths are those of input, hidden and output."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def digits_cnn() -> nn.Module:
    """Return a small CNN with ReLU for images of 8 × 8."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def cnn(activation: Callable[[], nn.Module]) -> nn.Module:
    """Return the CNN of the Opacus tutorial for MNIST, for images of 28 × 28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), activation(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), activation(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), activation(), nn.Linear(32, 10),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """Two convolutions with GroupNorm, added to the input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.GroupNorm(4, after),
            nn.ReLU(), nn.Conv2d(after, after, 3, padding=1, bias=False), nn.GroupNorm(4, after),
        )  # fmt: skip
        is_same = before == after and stride == 1
        self.short = nn.Identity() if is_same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum of both ways."""
        added: Tensor = self.body(inputs) + self.short(inputs)
        return added.relu()


def resnet() -> nn.Module:
    """Return a ResNet with GroupNorm for 3 × 16 × 16: a stem of stride 2 and two blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, padding=1, bias=False), nn.GroupNorm(4, 16), nn.ReLU(),
        ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def small_resnet() -> nn.Module:
    """Return a ResNet with GroupNorm for 1 × 28 × 28: a stem of stride 4 and one block."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, 4, padding=2), ResidualBlock(16, 32, 2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


class Encoder(nn.Module):
    """A transformer: tokens or patches, positions, blocks with layer norm first, their mean.

    Args:
        embedding: from a record to its sequence of vectors.
        length: of the sequence.
        width: of the vectors.
        blocks: how many.
        outputs: of the linear layer on the mean.
    """

    def __init__(
        self, embedding: nn.Module, length: int, width: int, blocks: int, outputs: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(blocks)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        tokens = self.embedding(inputs)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        tokens = tokens + self.positions(places.expand(tokens.shape[0], -1))
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens).mean(1))
        return logits


class Patches(nn.Module):
    """Images of 1 × 28 × 28 to 16 patches of 7 × 7, each a vector by a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(49, width)

    def forward(self, images: Tensor) -> Tensor:
        """Return vectors, records × 16 × width."""
        patches = images.reshape(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, 16, 49)
        vectors: Tensor = self.layer(patches)
        return vectors


def vit() -> nn.Module:
    """Return a ViT for images of 28 × 28: patches of 7 × 7, width 32, two blocks."""
    return Encoder(Patches(32), 16, 32, 2, 10)


def token_transformer(tokens: int, length: int, outputs: int) -> nn.Module:
    """Return a transformer for sequences of tokens, width 32, two blocks."""
    return Encoder(nn.Embedding(tokens, 32), length, 32, 2, outputs)


class Recurrent(nn.Module):
    """The last state of a GRU or an LSTM written with linear layers, and a linear layer.

    Args:
        kind: "gru" or "lstm".
        embedding: from a record to its sequence of vectors.
        inputs: the number of numbers in such a vector.
        hidden: the number of hidden units.
        outputs: of the linear layer.
    """

    def __init__(
        self, kind: str, embedding: nn.Module, inputs: int, hidden: int, outputs: int
    ) -> None:
        super().__init__()
        gates = {"gru": 3, "lstm": 4}[kind]
        self.step = {"gru": _gru, "lstm": _lstm}[kind]
        self.embedding = embedding
        self.of_input, self.of_state = (
            nn.Linear(width, gates * hidden) for width in (inputs, hidden)
        )
        self.head = nn.Linear(hidden, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        of_input = self.of_input(self.embedding(inputs))
        # Zeros that depend on the records: a tensor of zeros would be no row of a record.
        state = cell = 0.0 * of_input[:, 0, : self.head.in_features]
        for t in range(of_input.shape[1]):
            state, cell = self.step(of_input[:, t], self.of_state(state), state, cell)
        logits: Tensor = self.head(state)
        return logits


def _gru(inputs: Tensor, states: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    reset, update, new = inputs.chunk(3, 1)
    of_reset, of_update, of_new = states.chunk(3, 1)
    kept = (update + of_update).sigmoid()
    proposed = (new + (reset + of_reset).sigmoid() * of_new).tanh()
    return kept * state + (1.0 - kept) * proposed, cell


def _lstm(inputs: Tensor, states: Tensor, _: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    gate, forget, new, output = (inputs + states).chunk(4, 1)
    cell = forget.sigmoid() * cell + gate.sigmoid() * new.tanh()
    return output.sigmoid() * cell.tanh(), cell


def rows(kind: str, length: int, width: int) -> nn.Module:
    """Return a GRU, an LSTM or a transformer on the rows of an image, some at a time."""
    vectors = nn.Unflatten(1, (length, width))
    if kind == "transformer":
        embedding = nn.Sequential(nn.Flatten(), vectors, nn.Linear(width, 32))
        return Encoder(embedding, length, 32, 2, 10)
    return Recurrent(kind, nn.Sequential(nn.Flatten(), vectors), width, 32, 10)


def token_gru(tokens: int, outputs: int) -> nn.Module:
    """Return a GRU for sequences of tokens, 32 hidden units."""
    return Recurrent("gru", nn.Embedding(tokens, 16), 16, 32, outputs)
