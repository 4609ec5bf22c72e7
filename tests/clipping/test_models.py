"""Whole models: the fast engine and the oracle against a loop over single records."""

import pytest
import torch
from tests.clipping import models
from tests.clipping.comparing import assert_right, squares
from torch import nn

torch.manual_seed(0)
VECTORS = torch.randn(6, 4)
SEQUENCES = torch.randn(6, 5, 4)
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
    ],
    ids=["mlp", "nested", "resnet", "gpt", "tied gpt", "vit", "twice", "lora", "checkpoint", "seq"],
)  # fmt: skip
def test_models_without_a_fallback(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> None:
    assert_right(model, inputs, targets)


def test_a_borrowed_table_with_many_rows_by_inner_products() -> None:
    """So many that no record's gradient is formed; the cross terms come from the factors."""
    ids, following = torch.randint(400, (6, 5)), torch.randint(400, (6, 5))
    assert_right(models.GPT(tokens=400), ids, following)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_by_the_fallback(kind: type[nn.RNNBase], batch_first: bool) -> None:
    model = models.Recurrent(kind, batch_first)
    assert_right(model, SEQUENCES, CLASSES, fallback="rnn.weight_ih_l0")


def test_bare_parameters_by_rules_and_the_fallback_for_one_call() -> None:
    assert_right(models.Bare(), VECTORS, CLASSES, fallback="einsum with last")


def test_what_no_rule_sees_goes_to_the_oracle() -> None:
    assert_right(models.Opaque(), VECTORS, CLASSES, fallback="weight is used where")


def test_an_input_changed_in_place_goes_to_the_oracle() -> None:
    assert_right(models.ChangedInPlace(), VECTORS, None, squares, fallback="changed in place")


@pytest.mark.parametrize("records", [5, 10, 4])
def test_sequences_as_long_as_the_batch(records: int) -> None:
    """Shapes that look like records along another dimension mislead nobody."""
    inputs = torch.randn(records, 5, 4)
    targets = torch.randint(3, (records,))
    model = models.SequenceFirst()
    fallback = "records along the first dimension" if records == 5 else None
    assert_right(model, inputs, targets, fallback=fallback)
    assert_right(models.GPT(), torch.randint(11, (records, 5)), torch.randint(11, (records, 5)))
