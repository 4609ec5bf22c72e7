"""What the clipped sum promises beyond being right on ordinary records."""

import copy
import io
import math
import warnings
from typing import Any

import pytest
import torch
from tests.clipping import models
from tests.clipping.comparing import (
    assert_right,
    by_loop,
    cross_entropy,
    distance,
    quietly,
    refusal_of,
    squares,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dither.clipping import FallbackWarning, PerRecord, clipped_sum, register
from dither.validate import InvalidTypeError, InvalidValueError

ENGINES = ("fast", "reference")


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_batch_gives_zeros(engine: str) -> None:
    model = mlp()
    total = clipped_sum(
        model, cross_entropy, torch.zeros(0, 4), torch.zeros(0).long(), clip_norm=1.0, engine=engine
    )
    assert {n: t.shape for n, t in total.gradients.items()} == {
        n: p.shape for n, p in model.named_parameters()
    }
    assert all(not t.any() for t in total.gradients.values())
    assert total.norms.shape == (0,)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize(
    "build", [mlp, models.ResNet, models.VisionBlock], ids=lambda b: b.__name__
)
def test_a_record_without_a_finite_gradient_counts_as_zero(
    engine: str, bad: float, build: Any
) -> None:
    torch.manual_seed(1)
    model = build()
    shape = {"mlp": (4,), "ResNet": (3, 8, 8), "VisionBlock": (1, 4, 4)}[build.__name__]
    x, y = torch.randn(5, *shape), torch.randint(3, (5,))
    clipped_sum(model, cross_entropy, x, y, clip_norm=0.5, engine=engine)
    good = [0, 1, 3, 4]
    expected = clipped_sum(model, cross_entropy, x[good], y[good], clip_norm=0.5, engine=engine)
    x[2] = bad
    total = clipped_sum(model, cross_entropy, x, y, clip_norm=0.5, engine=engine)
    assert all(torch.isfinite(t).all() for t in total.gradients.values())
    if math.isinf(float(total.norms[2])):
        assert distance(total.gradients, expected.gradients) < 1e-5
    torch.testing.assert_close(total.norms[good], expected.norms, rtol=1e-5, atol=0.0)


def test_a_batch_of_nothing_but_bad_records_gives_zeros() -> None:
    x = torch.full((3, 4), math.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        total = clipped_sum(mlp(), cross_entropy, x, torch.zeros(3).long(), clip_norm=1.0)
    assert all(not t.any() for t in total.gradients.values())
    assert bool(torch.isinf(total.norms).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_record_in_the_first_batch_leaves_the_others_alone(bad: float) -> None:
    """Before anything could be compared with plain autograd, which such a record makes useless."""
    model, x, y = models.VisionBlock(), torch.randn(9, 1, 4, 4), torch.randint(3, (9,))
    good = torch.arange(9) != 2
    expected, _ = by_loop(model, cross_entropy, x[good], y[good], 0.5, 8)
    x[2] = bad
    total = clipped_sum(model, cross_entropy, x, y, clip_norm=0.5)
    assert distance(total.gradients, expected) < 1e-5
    assert math.isinf(float(total.norms[2]))


def test_bad_records_where_a_parameter_is_computed_record_by_record() -> None:
    """There a record that is not finite makes all of them NaN: an error, and no sum."""
    model, x, y = models.Opaque(), torch.randn(9, 4), torch.randint(3, (9,))
    assert refusal_of(model, cross_entropy, x, y) is None
    x[2] = math.nan
    refusal = refusal_of(model, cross_entropy, x, y)
    assert refusal is not None
    assert "finite gradients where weight is computed record by record" in refusal
    alone = quietly(model, cross_entropy, x[2:3], y[2:3], clip_norm=1.0)
    assert all(not t.any() for t in alone.gradients.values())
    assert refusal_of(model, cross_entropy, x, y, microbatch_size=1) is None


def test_a_norm_beyond_float32s_squares_is_clipped_like_any_other() -> None:
    model = nn.Linear(3, 1, bias=False)
    x = torch.tensor([[3e25, 4e25, 0.0], [0.3, 0.4, 0.0]])

    def loss(outputs: Tensor, targets: None) -> Tensor:
        return outputs[:, 0]

    clipped_sum(model, loss, torch.randn(2, 3), None, clip_norm=1.0)
    total = clipped_sum(model, loss, x, None, clip_norm=1.0)
    torch.testing.assert_close(total.gradients["weight"], torch.tensor([[0.9, 1.2, 0.0]]))
    torch.testing.assert_close(total.norms, torch.tensor([5e25, 0.5]))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_infinite_clip_norm_is_the_plain_sum(engine: str) -> None:
    model, x, y = mlp(), torch.randn(5, 4), torch.randint(3, (5,))
    total = clipped_sum(model, cross_entropy, x, y, clip_norm=math.inf, engine=engine)
    cross_entropy(model(x), y).sum().backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert distance(total.gradients, expected) < 1e-5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_microbatches_give_the_same_result(engine: str, size: int) -> None:
    model, x, y = mlp(), torch.randn(5, 4), torch.randint(3, (5,))
    settings: dict[str, Any] = {"clip_norm": 0.5, "engine": engine}
    full = clipped_sum(model, cross_entropy, x, y, **settings)
    parts = clipped_sum(model, cross_entropy, x, y, microbatch_size=size, **settings)
    assert distance(parts.gradients, full.gradients) < 1e-6
    torch.testing.assert_close(parts.norms, full.norms)


def test_inputs_may_be_a_tuple_or_a_dict() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return self.layer(first * second)

    first, second, y = torch.randn(5, 4), torch.randn(5, 4), torch.randint(3, (5,))
    assert_right(Two(), (first, second), y)
    assert_right(Two(), {"second": second, "first": first}, y)


def test_frozen_parameters_are_left_out() -> None:
    total = clipped_sum(
        models.Adapter(), cross_entropy, torch.randn(3, 4), torch.zeros(3).long(), clip_norm=1.0
    )
    assert set(total.gradients) == {"down.weight", "up.weight"}


def test_a_model_without_trainable_parameters_is_refused() -> None:
    frozen = mlp().requires_grad_(False)
    refusal = refusal_of(frozen, cross_entropy, torch.randn(3, 4), torch.zeros(3).long())
    assert refusal is not None
    assert "losses without a graph" in refusal


def test_a_parameter_that_is_not_used_gets_zeros() -> None:
    model = mlp()
    model.spare = nn.Parameter(torch.ones(2))
    total = clipped_sum(
        model, cross_entropy, torch.randn(3, 4), torch.zeros(3).long(), clip_norm=1.0
    )
    assert not total.gradients["spare"].any()


def test_half_precision_activations_have_float32_norms() -> None:
    torch.manual_seed(2)
    model, x, y = mlp(), torch.randn(6, 4), torch.randint(3, (6,))
    exact, norms = by_loop(model, cross_entropy, x, y, 0.5, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = clipped_sum(model, cross_entropy, x, y, clip_norm=0.5)
    whole = clipped_sum(
        copy.deepcopy(model).bfloat16(), cross_entropy, x.bfloat16(), y, clip_norm=0.5
    )
    for total in (mixed, whole):
        assert total.norms.dtype == torch.float32
        assert all(t.dtype == torch.float32 for t in total.gradients.values())
        assert distance(total.gradients, exact) < 0.05
        torch.testing.assert_close(total.norms.double(), norms, rtol=0.05, atol=0.0)


def test_parameters_in_the_loss_are_seen() -> None:
    model = mlp()

    def regularised(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + 0.1 * model[0].weight.square().sum()

    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    with pytest.warns(FallbackWarning, match=r"^0\.weight: it is used where"):
        total = clipped_sum(model, regularised, x, y, clip_norm=0.5)
    expected, _ = by_loop(model, regularised, x, y, 0.5, 5)
    assert distance(total.gradients, expected) < 1e-5


# --- what is refused ----------------------------------------------------------------------------


def test_records_that_mix_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="treat every record by itself"):
        clipped_sum(
            models.Mixing(), cross_entropy, torch.randn(4, 4), torch.zeros(4).long(), clip_norm=1.0
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_norm_is_refused_by_its_path(engine: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4)), nn.Linear(4, 3))
    arguments: tuple[Any, ...] = (cross_entropy, torch.randn(4, 4), torch.zeros(4).long())
    with pytest.raises(InvalidValueError, match=r"1\.0 \(BatchNorm1d\).*replace_batch_norm"):
        clipped_sum(model, *arguments, clip_norm=1.0, engine=engine)
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        clipped_sum(model, *arguments, clip_norm=1.0, engine=engine)


def test_a_functional_batch_norm_is_refused() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(F.batch_norm(x, None, None, training=True))

    with pytest.raises(InvalidValueError, match="every record by itself"):
        clipped_sum(
            Functional(), cross_entropy, torch.randn(4, 4), torch.zeros(4).long(), clip_norm=1.0
        )


def test_running_statistics_are_refused() -> None:
    model = nn.Sequential(nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    with pytest.raises(InvalidValueError, match="running statistics"):
        clipped_sum(model, squares, torch.randn(4, 4, 3), None, clip_norm=1.0)


def test_complex_parameters_are_refused() -> None:
    model = nn.Linear(4, 3, dtype=torch.complex64)
    with pytest.raises(InvalidValueError, match="complex parameters"):
        clipped_sum(model, squares, torch.randn(4, 4), None, clip_norm=1.0)


def test_embeddings_that_rewrite_their_rows_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.5), nn.Flatten(), nn.Linear(12, 3))
    table: Any = model[0]
    before = table.weight.detach().clone()
    with pytest.raises(InvalidValueError, match=r"0 \(Embedding\) has max_norm"):
        clipped_sum(model, squares, torch.randint(9, (4, 3)), None, clip_norm=1.0)
    assert torch.equal(table.weight, before)


def test_reentrant_checkpointing_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="use_reentrant=False"):
        clipped_sum(
            models.Checkpointed(reentrant=True),
            cross_entropy,
            torch.randn(3, 5, 4),
            torch.zeros(3).long(),
            clip_norm=1.0,
        )


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_compiled_models_run_as_they_were_written() -> None:
    plain = mlp()
    inner, whole = nn.Sequential(copy.deepcopy(plain)), copy.deepcopy(plain)
    inner[0].compile(backend=_no_backend)
    whole.compile(backend=_no_backend)
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    expected = clipped_sum(plain, cross_entropy, x, y, clip_norm=1.0)
    for model in (torch.compile(copy.deepcopy(plain), backend=_no_backend), inner, whole):
        made: Any = model
        found = clipped_sum(made, cross_entropy, x, y, clip_norm=1.0)
        pairs = zip(found.gradients.values(), expected.gradients.values(), strict=True)
        assert all(torch.equal(one, two) for one, two in pairs)


def _no_backend(*_: Any) -> Any:
    raise AssertionError("nothing is to be compiled")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm must be a positive, finite number, got 0.0"),
        ({"clip_norm": math.nan}, "clip_norm must be a positive, finite number, got nan"),
        ({"engine": "slow"}, "engine must be one of fast, reference, got 'slow'"),
        ({"microbatch_size": 0}, "microbatch_size must be an integer of at least 1, got 0"),
        ({"model": "no"}, "model must be a Module, got 'no' (str)"),
        ({"inputs": 3}, "inputs must be a tensor, or a tuple or dict of tensors, got int"),
        ({"inputs": torch.tensor(1.0)}, "inputs must have the records along the first dimension"),
        (
            {"targets": torch.zeros(4).long()},
            "targets must have as many records as inputs, 3, got 4",
        ),
        ({"loss": lambda o, y: cross_entropy(o, y).mean()}, "one value per record"),
        ({"loss": lambda o, y: cross_entropy(o, y).mean()}, 'use reduction="none"'),
        ({"loss": lambda o, y: o}, "one value per record"),
        ({"loss": lambda o, y: cross_entropy(o, y)[:2]}, "one value per record"),
        ({"loss": lambda o, y: 0.5}, "one value per record"),
    ],
)
def test_bad_arguments_are_named(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "model": mlp(),
        "loss": cross_entropy,
        "inputs": torch.randn(3, 4),
        "targets": torch.zeros(3).long(),
        "clip_norm": 1.0,
    } | changed
    with pytest.raises((InvalidValueError, InvalidTypeError)) as refusal:
        clipped_sum(**arguments)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


# --- the model is left alone --------------------------------------------------------------------


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return doubled(x * self.factor)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_, x):  # type: ignore[no-untyped-def]
        return 2.0 * x

    @staticmethod
    def backward(_, gradient):  # type: ignore[no-untyped-def]
        return 2.0 * gradient


doubled: Any = Doubled.apply


def test_a_rule_for_a_layer_of_ones_own() -> None:
    seen = []

    @register(Scale)
    def scale(call: Any, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
        seen.append(call)
        return [(call.function.factor, PerRecord(2.0 * gradient * call.args[0]))]

    model = nn.Sequential(Scale(), nn.Linear(4, 3))
    assert_right(model, torch.randn(5, 4), torch.randint(3, (5,)))
    assert seen
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks


def test_a_wrong_rule_is_found_out() -> None:
    class Wrong(Scale):
        pass

    @register(Wrong)
    def wrong(call: Any, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
        return [(call.function.factor, PerRecord(0.5 * gradient * call.args[0]))]

    model = nn.Sequential(Wrong(), nn.Linear(4, 3))
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    assert_right(model, x, y, fallback="0.factor: its gradient by rules is not", slow={"0.factor"})


def test_the_model_is_not_changed() -> None:
    model = models.VisionBlock()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {path: set(vars(layer)) for path, layer in model.named_modules()}
    x, y = torch.randn(4, 1, 4, 4), torch.randint(3, (4,))
    clipped_sum(model, cross_entropy, x, y, clip_norm=1.0)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {path: set(vars(layer)) for path, layer in model.named_modules()} == attributes
    assert all(p.grad is None for p in model.parameters())

    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(model), loaded, model.eval()):
        torch.testing.assert_close(other(x), model(x))
        cross_entropy(other(x), y).sum().backward()
        assert all(p.grad is not None for p in other.parameters())


def test_a_failing_forward_leaves_nothing_behind() -> None:
    @register(Fails)
    def rule(call: Any, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
        raise AssertionError

    model = Fails()
    with pytest.raises(RuntimeError, match="no"):
        clipped_sum(model, squares, torch.randn(3, 4), None, clip_norm=1.0)
    assert not model._forward_hooks
    assert not torch.overrides._get_current_function_mode_stack()


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no")


def test_a_fallback_is_warned_of_once() -> None:
    model, x, y = models.Bare(), torch.randn(3, 4), torch.randint(3, (3,))
    with pytest.warns(FallbackWarning, match="cdist with last"):
        clipped_sum(model, cross_entropy, x, y, clip_norm=1.0)
    clipped_sum(model, cross_entropy, x, y, clip_norm=1.0)


def test_the_result_does_not_show_its_values() -> None:
    total = clipped_sum(
        mlp(), cross_entropy, torch.randn(3, 4), torch.zeros(3).long(), clip_norm=1.0
    )
    assert "tensor" not in repr(total)
    assert "sensitive" in repr(total)


def test_dropout_is_the_one_that_the_forward_pass_drew() -> None:
    """With everything dropped by one pass or the other, sums of two masks would differ."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    clipped_sum(model, cross_entropy, x, y, clip_norm=math.inf)
    torch.manual_seed(7)
    total = clipped_sum(model, cross_entropy, x, y, clip_norm=math.inf)
    torch.manual_seed(7)
    cross_entropy(model(x), y).sum().backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert distance(total.gradients, expected) < 1e-5
