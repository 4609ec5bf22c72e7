"""Models for the tests of the clipping engine: small, and awkward in one way each."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        records, length, width = x.shape
        parts = self.qkv(self.first(x)).view(records, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(records, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    """Position embeddings by ``embedding(arange)``, and a head that borrows the token table."""

    def __init__(
        self, tokens: int = 11, width: int = 8, length: int = 5, tied: bool = True
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = None if tied else nn.Linear(width, tokens, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return F.linear(x, self.tokens.weight) if self.head is None else self.head(x)


class VisionBlock(nn.Module):
    """A class token, a position embedding, attention from ``nn.MultiheadAttention``."""

    def __init__(self, width: int = 8, patches: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, patches + 1, width))
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        y = self.norm(x)
        x = x + self.scale * self.attention(y, y, y, need_weights=False)[0]
        return self.head(x[:, 0])


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, channels) for _ in range(2)])
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        y += x
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.stages = nn.Sequential(Residual(4), Residual(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind: Any = nn.LSTM, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.rnn = kind(4, 5, num_layers=2, batch_first=batch_first)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_first:
            return self.head(self.rnn(x)[0][:, -1])
        return self.head(self.rnn(x.transpose(0, 1))[0][-1])


class Twice(nn.Module):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Bare(nn.Module):
    """A user's module that does everything with bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 6))
        self.turned = nn.Parameter(torch.randn(6, 6))
        self.shift, self.scale = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(1, 6))
        self.table = nn.Parameter(torch.randn(9, 6))
        self.gate = nn.Parameter(torch.randn(()))
        self.last = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = x @ self.matrix + self.shift
        h = h @ self.turned.t()
        h = torch.tanh(h) * self.scale.exp() - self.table[2:5].sum(0)
        h = h / (1.0 + self.gate**2)
        return torch.cdist(h[:, None], self.last)[:, 0]


class SequenceFirst(nn.Module):
    """Records along the second dimension inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.layer(x.transpose(0, 1)))).mean(0))


class Adapter(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 3).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.block, self.head = nn.Linear(4, 8), Block(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)
        return self.head(h.mean(1))


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


hidden: Any = Hidden.apply


class Opaque(nn.Module):
    """A parameter that meets the records inside a function of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(hidden(x, self.weight)))


class ChangedInPlace(nn.Module):
    """An input is overwritten after a layer has seen it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(4, 4) for _ in range(3))
        self.shift = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        shifted = h + self.shift
        h.mul_(2.0)
        return self.head(torch.sigmoid(shifted) + h)


class Mixing(nn.Module):
    """Subtracts the batch's mean: records depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - x.mean(0))


class TiedLayers(nn.Module):
    """Two layers with one weight, each with a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
