"""The five models of the clipping benchmark, each with a batch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


@dataclass(frozen=True)
class Case:
    """A model, its inputs and targets."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor


def mnist_cnn() -> nn.Module:
    """Two convolutions, 16 of 8×8 and 32 of 4×4, and 32 hidden units: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def cifar_cnn() -> nn.Module:
    """Two 5×5 convolutions with 64 channels, and 384 hidden units."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 384),
        nn.ReLU(),
        nn.Linear(384, 10),
    )


def mlp() -> nn.Module:
    """784-1024-512-10."""
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)
    )


class Block(nn.Module):
    """Attention with four heads, and a hidden layer four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the terms, then the features."""
        records, length, width = x.shape
        parts = self.qkv(self.first(x)).view(records, length, 3, 4, width // 4)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(records, length, width))
        result: Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return result


class Transformer(nn.Module):
    """A language model, by default of two blocks of width 128."""

    def __init__(self, vocabulary: int = 1000, width: int = 128, blocks: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token."""
        result: Tensor = self.head(self.norm(self.blocks(self.tokens(ids))))
        return result


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy, one value per record; that of a sequence is the mean over its tokens."""
    if outputs.dim() == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    flat = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape).mean(1)


def images(model: Callable[[], nn.Module], *shape: int) -> Callable[[], Case]:
    """Return a case of 256 records with ten classes."""
    return lambda: Case(model(), torch.randn(256, *shape), torch.randint(10, (256,)))


def sequences() -> Case:
    """Return a case of 64 sequences of 64 tokens."""
    return Case(Transformer(), torch.randint(1000, (64, 64)), torch.randint(1000, (64, 64)))


CASES: dict[str, Callable[[], Case]] = {
    "MNIST CNN": images(mnist_cnn, 1, 28, 28),
    "CIFAR CNN": images(cifar_cnn, 3, 32, 32),
    "MLP": images(mlp, 784),
    "linear": images(lambda: nn.Linear(4096, 10), 4096),
    "transformer": sequences,
}


def case(name: str, *, dropout: bool = True) -> Case:  # noqa: ARG001 (here is none)
    """Return a case, the same one every time."""
    torch.manual_seed(0)
    return CASES[name]()
