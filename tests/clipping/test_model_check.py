"""What :func:`check` finds, and the converter that it recommends."""

import pytest
import torch
from tests.clipping import models
from tests.clipping.comparing import assert_right, cross_entropy
from torch import nn

from dither.clipping import check, clipped_sum, replace_batch_norm
from dither.validate import InvalidValueError


def verdicts(model: nn.Module, example: object = None) -> list[tuple[str, str]]:
    return [(f.verdict, f.where) for f in check(model, example).findings]


def test_nothing_is_found_in_a_plain_model() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert check(model).ok
    assert verdicts(model, torch.randn(5, 4)) == []
    assert str(check(model, torch.randn(5, 4))) == "no problems found"


def test_layers_are_found_by_their_paths() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)),
        nn.InstanceNorm1d(4, track_running_stats=True),
    )
    assert verdicts(model) == [
        ("refused", "0.1 (BatchNorm1d)"),
        ("refused", "1 (InstanceNorm1d)"),
    ]
    assert not check(model).ok
    assert "replace_batch_norm" in str(check(model))


def test_an_example_shows_what_cannot_be_seen_otherwise() -> None:
    x = torch.randn(5, 4)
    opaque = check(models.Opaque(), x)
    assert [(f.verdict, f.where) for f in opaque.findings] == [("slow", "weight")]
    assert "used where the engine cannot see it" in str(opaque)
    assert verdicts(models.Bare(), x) == [("slow", "cdist with last")]
    refused = check(models.Mixing(), x)
    assert [f.verdict for f in refused.findings] == ["refused"]
    assert "every record by itself" in str(refused)
    assert verdicts(models.SequenceFirst(), torch.randn(5, 5, 4)) == []
    assert verdicts(models.GPT(), torch.randint(11, (5, 5))) == []


def test_dropout_is_no_obstacle_and_the_model_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 3))
    assert verdicts(model, torch.randn(5, 4)) == []
    assert model.training


def test_a_model_without_trainable_parameters() -> None:
    model = nn.Linear(4, 3).requires_grad_(False)
    assert verdicts(model, torch.randn(5, 4)) == [("refused", "the model")]


def test_an_example_of_one_record_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="example must have at least two records, got 1"):
        check(nn.Linear(4, 3), torch.randn(1, 4))


def test_batch_norm_is_replaced() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    )
    with torch.no_grad():
        model[1].weight.uniform_()
    converted = replace_batch_norm(model, groups=8)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert isinstance(converted[1], nn.GroupNorm)
    assert converted[1].num_groups == 3
    torch.testing.assert_close(converted[1].weight, model[1].weight)
    assert converted[1].weight is not model[1].weight
    x, y = torch.randn(4, 1, 4, 4), torch.randint(3, (4,))
    assert check(converted, x).ok
    assert_right(converted, x, y)
    clipped_sum(converted, cross_entropy, x, y, clip_norm=1.0)
    assert isinstance(replace_batch_norm(nn.BatchNorm1d(4)), nn.GroupNorm)
    shared = nn.BatchNorm1d(32)
    both = replace_batch_norm(nn.Sequential(nn.Linear(4, 32), shared, shared))
    assert both[1] is both[2]
    assert float(both(torch.randn(8, 4)).detach().std(0).min()) > 0.1
    with pytest.raises(InvalidValueError, match="still lazy"):
        replace_batch_norm(nn.Sequential(nn.LazyLinear(3)))


class BatchNormAct(nn.BatchNorm2d):
    """Normalises and applies an activation, as a layer of timm does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_subclasses_of_batch_norm_are_replaced_by_hand() -> None:
    by_hand = r"by hand with nn.GroupNorm followed by its activation"
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(nn.BatchNorm2d(4), BatchNormAct(4)))
    with pytest.raises(InvalidValueError, match=rf"got 1\.1 \(BatchNormAct\), .*{by_hand}"):
        replace_batch_norm(model)
    with pytest.raises(InvalidValueError, match=r"got the model \(BatchNormAct\)"):
        replace_batch_norm(BatchNormAct(4))
    plain, subclass = check(model).findings
    assert "replace_batch_norm" in plain.remedy
    assert subclass.where == "1.1 (BatchNormAct)"
    assert "replace_batch_norm" not in subclass.remedy
    assert "nn.GroupNorm followed by its activation" in subclass.remedy
    assert verdicts(model.eval()) == []
    assert "replace_batch_norm" in str(check(nn.Sequential(nn.LazyBatchNorm2d())))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_every_batch_norm_of_torch_is_replaced(kind: type[nn.Module]) -> None:
    replaced = replace_batch_norm(nn.Sequential(kind(8)))
    assert type(replaced[0]) is nn.GroupNorm
