"""Whole models: the fast engine and the reference against a loop over single records."""

from typing import Any

import pytest
import torch
from tests.clipping import models
from tests.clipping.comparing import (
    assert_right,
    by_losses,
    distance,
    in_a_loop,
    squares,
    watched,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from dither.clipping.clip import sum_clipped

torch.manual_seed(0)
VECTORS = torch.randn(6, 4)
SEQUENCES = torch.randn(6, 5, 4)
LENGTHS = torch.tensor([5, 3, 4, 1, 2, 5])
IMAGES = torch.randn(6, 1, 4, 4)
COLOURS = torch.randn(6, 3, 8, 8)
TOKENS = torch.randint(11, (6, 5))
CLASSES = torch.randint(3, (6,))
NEXT = torch.randint(11, (6, 5))


@pytest.mark.parametrize(
    ("model", "inputs", "targets"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), VECTORS, CLASSES),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 8)), nn.Linear(8, 3)), VECTORS, CLASSES),
        (models.ResNet(), COLOURS, CLASSES),
        (models.GPT(tied=False), TOKENS, NEXT),
        (models.GPT(tied=True), TOKENS, NEXT),
        (models.VisionBlock(), IMAGES, CLASSES),
        (models.Twice(), VECTORS, CLASSES),
        (models.Adapter(), VECTORS, CLASSES),
        (models.Checkpointed(), SEQUENCES, CLASSES),
        (models.SequenceFirst(), SEQUENCES, CLASSES),
        (models.TiedLayers(), VECTORS, CLASSES),
    ],
    ids=[
        "mlp", "nested", "resnet", "gpt", "tied gpt", "vit", "twice", "lora", "checkpoint", "seq",
        "tied layers",
    ],
)  # fmt: skip
def test_models_without_a_fallback(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> None:
    assert_right(model, inputs, targets)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda sums, norms: ({name: 1.001 * each for name, each in sums.items()}, norms),
        lambda sums, norms: (sums, norms.roll(1)),
        lambda sums, norms: (sums | {"2.bias": torch.zeros_like(sums["2.bias"])}, norms),
    ],
    ids=["scaled", "norms of others", "missing"],
)
def test_the_comparison_finds_wrong_sums(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dither.clipping.engine.sum_clipped",
        lambda *given: wrong(*sum_clipped(*given)),
    )
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(AssertionError):
        assert_right(model, VECTORS, CLASSES)


def test_the_comparison_finds_what_is_computed_record_by_record() -> None:
    with pytest.raises(AssertionError):
        assert_right(models.Opaque(), VECTORS, CLASSES, fallback="weight")
    with pytest.raises(AssertionError):
        assert_right(models.Opaque(), VECTORS, CLASSES, slow={"weight"})


def test_a_borrowed_table_with_many_rows_by_inner_products() -> None:
    """So many that no record's gradient is formed; the cross terms come from the factors."""
    ids, following = torch.randint(400, (6, 5)), torch.randint(400, (6, 5))
    assert_right(models.GPT(tokens=400), ids, following)


def test_bare_parameters_by_rules_and_the_fallback_for_one_call() -> None:
    assert_right(models.Bare(), VECTORS, CLASSES, fallback="cdist with last")


@pytest.mark.parametrize("records", [5, 10, 4])
def test_sequences_as_long_as_the_batch(records: int) -> None:
    """Shapes that look like records along another dimension mislead nobody."""
    inputs = torch.randn(records, 5, 4)
    targets = torch.randint(3, (records,))
    assert_right(models.SequenceFirst(), inputs, targets)
    assert_right(models.GPT(), torch.randint(11, (records, 5)), torch.randint(11, (records, 5)))


# --- embeddings ---------------------------------------------------------------------------------


class Bags(nn.Module):
    """Bags of different sizes, by offsets into one row of tokens."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(11, 4, mode=mode), nn.Linear(4, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        kept = torch.arange(tokens.shape[1]) < lengths[:, None]
        offsets = lengths.cumsum(0) - lengths
        return self.head(torch.tanh(self.table(tokens[kept], offsets)))


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_embedding_bags_with_offsets(mode: str) -> None:
    assert_right(Bags(mode), (TOKENS, LENGTHS), CLASSES)
    ones = torch.ones(6).long()
    assert_right(Bags(mode), (TOKENS, LENGTHS), CLASSES, before=((TOKENS, ones), CLASSES))


def test_sparse_embeddings() -> None:
    model = nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Flatten(), nn.Linear(20, 3))
    assert_right(model, TOKENS, CLASSES)


# --- weights that are computed from others ------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: weight_norm(nn.Linear(4, 4)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 4)), weight_norm(nn.Conv1d(1, 4, 4)), nn.Flatten()
        ),
        lambda: spectral_norm(nn.Linear(4, 4)).eval(),
        lambda: orthogonal(nn.Linear(4, 4)),
        lambda: NormalisedWeight(),
    ],
    ids=["weight norm", "convolution", "spectral norm", "orthogonal", "batch norm"],
)  # fmt: skip
def test_parametrised_weights_are_fast(build: Any) -> None:
    """Each record's gradient is carried back through what was computed from the parameters."""
    assert_right(nn.Sequential(build(), nn.Tanh(), nn.Linear(4, 3)), VECTORS, CLASSES)


class NormalisedWeight(nn.Module):
    """A weight that is standardised as if its rows were a batch, by a function for batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight, None, None, self.scale, training=True)
        return F.linear(x, weight)


def test_deprecated_parametrisations() -> None:
    old: Any = torch.nn.utils
    with watched():
        layers = old.weight_norm(nn.Linear(4, 4)), old.spectral_norm(nn.Linear(4, 4)).eval()
    for layer in layers:
        model, x = nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 3)), torch.randn(6, 4)
        total = in_a_loop(model, lambda: squares(model(x), None), 6, clip_norm=0.1)  # noqa: B023
        expected, _ = by_losses(model, lambda one: squares(model(x[one]), None), 0.1, 6)  # noqa: B023
        assert distance(total.gradients, expected) < 1e-5


# --- losses that are differentiated twice -------------------------------------------------------


class Forces(nn.Module):
    """Returns the gradient of its energy, as models of molecules do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def energy(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (forces,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return forces


def test_a_model_that_differentiates_itself() -> None:
    """What is used only in the first backward pass is no longer seen in the second."""
    slow = {"layer.weight", "head.weight"}
    assert_right(Forces(), VECTORS, None, squares, fallback="used where", slow=slow)


def test_a_gradient_penalty_in_the_loss() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = VECTORS.clone().requires_grad_()

    def losses(x: Tensor) -> Tensor:
        scores = model(x)
        (slopes,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        return scores[:, 0] + 10.0 * (slopes.norm(dim=1) - 1.0).square()

    with watched() as seen:
        total = in_a_loop(model, lambda: losses(x), 6, clip_norm=0.1)
    expected, _ = by_losses(
        model, lambda one: losses(x.detach()[one].clone().requires_grad_()), 0.1, 6
    )
    assert distance(total.gradients, expected) < 1e-5
    assert seen.slow == {"0.weight", "2.weight"}
