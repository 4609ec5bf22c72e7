"""Calls repeated with other records: mixers are refused, all else passes and is put back."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.clipping.comparing import (
    assert_right,
    by_autograd,
    by_loop,
    by_losses,
    cross_entropy,
    distance,
    in_a_loop,
    quietly,
    refusal_of,
    squares,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import spectral_norm

from dither.clipping import clipped_sum
from dither.clipping.recording import CheckCache

RECORDS = 8
MIXES = "every record by itself"


class Model(nn.Module):
    """Two layers, and a function of the model and its arguments that uses them."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.layer, self.head, self.function = nn.Linear(4, 4), nn.Linear(4, 3), function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def records_of(count: int = RECORDS, *shape: int) -> Tensor:
    return torch.randn(count, *(shape or (4,)))


# --- records that are kept apart: random models -------------------------------------------------


class Experts(nn.Module):
    """Each record goes through the experts that its gate prefers."""

    def __init__(self, chosen: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.chosen, self.dropout = chosen, dropout
        self.gate, self.head = nn.Linear(4, 3), nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        shares, places = self.gate(x).softmax(-1).topk(self.chosen, -1)
        total = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, column = (places == number).nonzero(as_tuple=True)
            found = F.dropout(torch.tanh(expert(x[rows])), self.dropout, self.training)
            total = total.index_add(0, rows, found * shares[rows, column, None])
        return self.head(total)


class DeepLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(2, 5, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.view(len(x), 2, 2))[0].sum(1))


def dropped_out(model: Any, x: Tensor) -> Tensor:
    return model.head(F.dropout(torch.tanh(model.layer(x)), 0.5))


def skipped_per_record(model: Any, x: Tensor) -> Tensor:
    return model.head(x + model.layer(x) * (torch.rand(len(x), 1) < 0.5) / 0.5)


def skipped_per_batch(model: Any, x: Tensor) -> Tensor:
    return model.head(x + model.layer(x) if torch.rand(()) < 0.5 else x)


def skipped_by_python(model: Any, x: Tensor) -> Tensor:
    return model.head(x + model.layer(x) if random.random() < 0.5 else x)  # noqa: S311


def skipped_by_numpy(model: Any, x: Tensor) -> Tensor:
    return model.head(x + model.layer(x) if np.random.rand() < 0.5 else x)  # noqa: NPY002


def noisy(model: Any, x: Tensor) -> Tensor:
    return model.head(model.layer(x) + 0.1 * torch.randn_like(x) + torch.empty_like(x).uniform_())


def chosen_by_gumbel(model: Any, x: Tensor) -> Tensor:
    return model.head(F.gumbel_softmax(model.layer(x), hard=True))


def drawn_from_bernoulli(model: Any, x: Tensor) -> Tensor:
    shares = torch.sigmoid(model.layer(x))
    return model.head(shares + (torch.bernoulli(shares) - shares).detach())


def counted(model: Any, x: Tensor) -> Tensor:
    """Large rates take more random numbers than small ones, so that later draws are others."""
    return model.head(model.layer(x) + torch.poisson(20.0 * x.abs()))


def drawn_from_gamma(model: Any, x: Tensor) -> Tensor:
    return model.head(torch.distributions.Gamma(F.softplus(model.layer(x)), 1.0).rsample())


def masked_at_random(model: Any, x: Tensor) -> Tensor:
    """A share of the entries is hidden, other ones for every record, as in masked autoencoders."""
    order = torch.rand(x.shape).argsort(1)
    return model.head(model.layer(x.gather(1, order[:, :2]).repeat(1, 2)))


RANDOM: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: Model(dropped_out),
    "stochastic depth per record": lambda: Model(skipped_per_record),
    "stochastic depth per batch": lambda: Model(skipped_per_batch),
    "python's generator": lambda: Model(skipped_by_python),
    "numpy's generator": lambda: Model(skipped_by_numpy),
    "noise": lambda: Model(noisy),
    "gumbel": lambda: Model(chosen_by_gumbel),
    "bernoulli": lambda: Model(drawn_from_bernoulli),
    "masked": lambda: Model(masked_at_random),
    "experts": lambda: Experts(1, dropout=0.5),
    "lstm": DeepLSTM,
    "poisson": lambda: Model(counted),
    "gamma": lambda: Model(drawn_from_gamma),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)),
        nn.TransformerEncoderLayer(2, 1, 4, dropout=0.5, batch_first=True),
        nn.Flatten(),
        nn.Linear(4, 3),
    ),
}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


@pytest.mark.parametrize("name", RANDOM)
def test_random_models_pass_and_draw_as_if_nothing_had_been_repeated(name: str) -> None:
    """On the batch on which the call is repeated, and on the next one."""
    model, x = RANDOM[name](), records_of()
    for seed in (7, 8, 9):
        seed_all(seed)
        total = quietly(model, squares, x, None, clip_norm=float("inf"))
        after = torch.rand(()), random.random(), np.random.rand()  # noqa: S311, NPY002
        seed_all(seed)
        expected = by_autograd(model, squares(model(x), None))
        assert distance(total.gradients, expected) < 1e-5
        assert after == (torch.rand(()), random.random(), np.random.rand())  # noqa: S311, NPY002


def test_the_comparison_of_random_models_finds_other_draws() -> None:
    model, x = Model(dropped_out), records_of()
    torch.manual_seed(7)
    total = quietly(model, squares, x, None, clip_norm=float("inf"))
    torch.manual_seed(8)
    assert distance(total.gradients, by_autograd(model, squares(model(x), None))) > 0.1


# --- records that are kept apart: other models --------------------------------------------------


@pytest.mark.parametrize("chosen", [1, 2])
def test_mixtures_of_experts_are_right_though_sizes_depend_on_records(chosen: int) -> None:
    model, x, y = Experts(chosen), records_of(), torch.randint(3, (RECORDS,))
    assert_right(model, x, y)
    for count in (5, 3, 11):
        later, targets = records_of(count), torch.randint(3, (count,))
        quietly(model, cross_entropy, x, y, clip_norm=1.0)
        total = quietly(model, cross_entropy, later, targets, clip_norm=0.1)
        expected, _ = by_loop(model, cross_entropy, later, targets, 0.1, count)
        assert distance(total.gradients, expected) < 1e-5


def test_a_number_per_record_is_an_input_like_any_other() -> None:
    model = Model(lambda m, x, hint: m.head(torch.tanh(m.layer(x)) * hint.cos()[:, None]))
    assert_right(model, (records_of(), torch.randn(RECORDS)), torch.arange(RECORDS) % 3)


CONSTANTS: dict[str, tuple[Callable[..., Any], tuple[int, ...], Tensor]] = {
    "position ids": (
        lambda m, x, ids: m.head((m.layer(x) + m.table(ids)).tanh().mean(1)),
        (RECORDS, RECORDS, 4),
        torch.arange(RECORDS),
    ),
    "scales of features": (
        lambda m, x, scales: m.head(m.layer((x * scales).unflatten(1, (2, 4)).sum(1))),
        (RECORDS, RECORDS),
        torch.rand(RECORDS) + 0.5,
    ),
    "causal mask": (
        lambda m, x, mask: m.head(
            F.scaled_dot_product_attention(m.layer(x), x, x, attn_mask=mask).mean(1)
        ),
        (RECORDS, RECORDS, 4),
        torch.ones(RECORDS, RECORDS).tril().bool(),
    ),
    "adjacency": (
        lambda m, x, graph: m.head(torch.tanh(graph @ m.layer(x)).mean(1)),
        (RECORDS, RECORDS, 4),
        torch.rand(RECORDS, RECORDS),
    ),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_with_as_many_entries_as_records(name: str) -> None:
    function, shape, constant = CONSTANTS[name]
    model = Model(function, table=nn.Embedding(RECORDS, 4)).double()
    constant = constant.double() if constant.is_floating_point() else constant
    cache = CheckCache()
    for _ in range(6):
        x = records_of(*shape).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = in_a_loop(
                model,
                lambda x=x: squares(model(x, constant), None),  # type: ignore[misc]
                RECORDS,
                clip_norm=0.1,
                cache=cache,
            )
        expected, _ = by_losses(
            model,
            lambda one, x=x: squares(model(x[one], constant), None),  # type: ignore[misc]
            0.1,
            RECORDS,
        )
        assert distance(total.gradients, expected) < 1e-10


def stacked(x: Tensor) -> Tensor:
    return torch.cat([x, -0.5 * x])


def interleaved(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 0) * torch.tensor([1.0, -0.5]).repeat(len(x))[:, None]


@pytest.mark.parametrize("views", [interleaved, stacked], ids=["neighbours", "apart"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("count", [RECORDS, 3])
def test_several_rows_per_record(
    views: Callable[[Tensor], Tensor], inside: bool, count: int
) -> None:
    """As many rows as there are views of the records: in the model, or in what it is given."""
    shape = (-1, 2, 3) if views is interleaved else (2, -1, 3)
    model = Model(lambda m, x: m.head(torch.tanh(m.layer(views(x) if inside else x))))

    def losses(x: Tensor) -> Tensor:
        rows = model(x if inside else views(x)).view(shape)
        one, two = rows.unbind(1 if views is interleaved else 0)
        return one.square().sum(1) + (one - two).square().sum(1)

    cache = CheckCache()
    for _ in range(3):
        x = records_of(count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = in_a_loop(model, lambda x=x: losses(x), count, clip_norm=0.1, cache=cache)  # type: ignore[misc]
        expected, _ = by_losses(model, lambda one, x=x: losses(x[one]), 0.1, count)  # type: ignore[misc]
        assert distance(total.gradients, expected) < 1e-5


@pytest.mark.parametrize("length", [5, RECORDS])
def test_arguments_with_the_records_second(length: int) -> None:
    model = Model(lambda m, x: m.head(torch.tanh(m.layer(x)).mean(0)))
    x = records_of(RECORDS, length, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        total = in_a_loop(
            model, lambda: squares(model(x.transpose(0, 1)), None), RECORDS, clip_norm=0.1
        )
    expected, _ = by_losses(
        model, lambda one: squares(model(x[one].transpose(0, 1)), None), 0.1, RECORDS
    )
    assert distance(total.gradients, expected) < 1e-5


def test_statistics_beside_the_outputs_pass_unless_losses_use_them() -> None:
    """Some models return a mean loss, or a figure to print, beside their logits."""

    def with_mean(model: Any, x: Tensor) -> dict[str, Tensor]:
        logits = model.head(model.layer(x))
        return {"loss": logits.square().mean(), "logits": logits, "used": logits.detach().std(0)}

    x = records_of()
    assert refusal_of(Model(with_mean), lambda o, y: o["logits"].square().sum(1), x, None) is None
    mixing = refusal_of(
        Model(with_mean), lambda o, y: o["logits"].square().sum(1) + o["loss"], x, None
    )
    assert mixing is not None
    assert MIXES in mixing


def test_a_model_that_fails_with_other_records_passes_with_a_warning() -> None:
    """Some models have demands on a batch as a whole, such as indices that are all different."""

    def looked_up(model: Any, x: Tensor, numbers: Tensor) -> Tensor:
        assert len(numbers.unique()) == len(numbers)
        return model.head(model.layer(x))

    inputs = records_of(), torch.randperm(RECORDS)
    with pytest.warns(UserWarning, match="fails with other records"):
        clipped_sum(Model(looked_up), squares, inputs, None, clip_norm=1.0)


def test_a_single_record_and_records_that_are_all_alike_pass() -> None:
    assert refusal_of(Model(dropped_out), squares, records_of(1), None) is None
    assert refusal_of(Model(dropped_out), squares, torch.ones(5, 4), None) is None


def test_a_model_that_never_gives_the_same_twice_passes_with_a_warning() -> None:
    generator = torch.Generator().manual_seed(0)
    own = Model(lambda m, x: m.head(m.layer(x) + torch.randn(x.shape, generator=generator)))
    with pytest.warns(UserWarning, match="does not return the same twice"):
        clipped_sum(own, squares, records_of(), None, clip_norm=1.0)
    clipped_sum(own, squares, records_of(), None, clip_norm=1.0)


# --- mixers -------------------------------------------------------------------------------------


def over_records(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[None], x[None], x[None])[0]


MIXERS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x - x.mean(0),
    "mean of a part": lambda x: torch.cat([x[:3], x[3:] - x[3:].mean(0)]),
    "attention": over_records,
    "layer norm over all": lambda x: F.layer_norm(x, x.shape),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "deviation channel": lambda x: x + x.std(0).mean(),
    "largest": lambda x: x / x.abs().max(),
    "softmax over records": lambda x: x.softmax(0),
    "cumulative": lambda x: x.cumsum(0),
    "first record": lambda x: x - x[:1],
    "neighbour": lambda x: x + 0.1 * x.roll(1, 0),
    "detached": lambda x: x / x.detach().abs().amax(0),
    "median": lambda x: x - x.median(0).values,
    "largest only": lambda x: torch.minimum(x, 0.9 * x.max()),
    "nearest records": lambda x: x[torch.cdist(x, x).topk(2, largest=False).indices].mean(1),
    "mixup": lambda x: 0.7 * x + 0.3 * x[torch.randperm(len(x))],
}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", MIXERS)
def test_models_that_mix_records_are_refused(name: str, dropout: float) -> None:
    mix = MIXERS[name]
    model = Model(lambda m, x: m.head(F.dropout(m.layer(mix(x)), dropout)))
    refusal = refusal_of(model, squares, records_of(), None)
    assert refusal is not None
    assert MIXES in refusal


@pytest.mark.parametrize("records", [2, 3, 4, 5, 8, 9, 16, 33])
@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x.flip(0),
        lambda x: x.roll(1, 0),
        lambda x: x[torch.arange(len(x)).bitwise_xor(1).clamp(max=len(x) - 1)],
        lambda x: torch.cat([x[len(x) // 2 :], x[: len(x) // 2]]),
    ],
    ids=["flip", "roll", "neighbours", "halves"],
)
def test_records_that_are_only_exchanged_are_found(
    mix: Callable[[Tensor], Tensor], records: int
) -> None:
    """Within a few batches: with few records, pairs may stay together by chance."""
    model = Model(lambda m, x: m.head(m.layer(x) + 0.5 * mix(x)))
    refusals = [refusal_of(model, squares, records_of(records), None) for _ in range(4)]
    assert any(each is not None and MIXES in each for each in refusals)


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_mixing_by_chance_is_found_in_a_batch_that_is_mixed(share: float) -> None:
    def mixup(model: Any, x: Tensor) -> Tensor:
        if torch.rand(()) < share:
            x = 0.7 * x + 0.3 * x[torch.randperm(len(x))]
        return model.head(F.dropout(model.layer(x), 0.1))

    for seed in range(20):
        torch.manual_seed(seed)
        is_mixed = bool(torch.rand(()) < share)
        x, model = records_of(16), Model(mixup)
        torch.manual_seed(seed)
        assert (refusal_of(model, squares, x, None) is not None) == is_mixed


def test_half_precision_does_not_hide_a_permutation() -> None:
    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h, n = self.first(x), len(x) // 4
            return self.second(torch.cat([h[:n].flip(0), h[n:]]))

    x, y = torch.randn(64, 8).bfloat16(), torch.arange(64) % 3
    refusal = refusal_of(Swapped().bfloat16(), cross_entropy, x, y)
    assert refusal is not None
    assert MIXES in refusal
    plain = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16()
    assert refusal_of(plain, cross_entropy, x, y) is None


def test_mixing_behind_weights_that_begin_at_zero_is_found_once_they_have_moved() -> None:
    model = Model(lambda m, x: m.head(x - x.mean(0)))
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    quietly(model, squares, records_of(), None, clip_norm=1.0)
    nn.init.normal_(model.head.weight)
    refusal = refusal_of(model, squares, records_of(), None)
    assert refusal is not None
    assert MIXES in refusal


def test_mixing_of_views_in_the_model_is_found() -> None:
    """Contrast between views of one record is fine, that between records is not."""

    def contrast(model: Any, x: Tensor) -> Tensor:
        one, two = model.layer(x).chunk(2)
        return (one @ two.t()).log_softmax(1)

    model = Model(contrast)
    x = records_of()
    with pytest.raises(Exception, match=MIXES):
        in_a_loop(model, lambda: squares(model(stacked(x)), None), RECORDS, clip_norm=1.0)


# --- buffers ------------------------------------------------------------------------------------


class Keeps(nn.Module):
    """Writes something to a buffer, from the batch that it gets."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.kept: Tensor = nn.Buffer(torch.zeros(8, 4))
        self.layer = nn.Linear(4, 3)
        self.write, self.is_writing = write, True

    def forward(self, x: Tensor) -> Tensor:
        if self.is_writing:
            self.kept = self.write(self.kept, x.detach())
        return self.layer(x)


WRITERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "running mean": lambda kept, x: kept.mul_(0.5).add_(0.5 * x.mean(0)),
    "queue": lambda kept, x: torch.cat([x, kept])[:8],
    "first record": lambda kept, x: kept.copy_(x[0].expand_as(kept)),
    "largest": lambda kept, x: torch.maximum(kept, x.abs().max()),
    "sums per code": lambda kept, x: kept.index_add(0, x.argmax(1), x),
}


@pytest.mark.parametrize("name", WRITERS)
def test_buffers_that_are_computed_from_records_are_refused(name: str) -> None:
    refusal = refusal_of(Keeps(WRITERS[name]), squares, records_of(), None)
    assert refusal is not None
    assert "its buffer kept is computed from them" in refusal


@pytest.mark.parametrize("name", sorted(WRITERS.keys() - {"largest"}))
def test_buffers_that_begin_to_be_written_later_are_refused(name: str) -> None:
    model = Keeps(WRITERS[name])
    model.is_writing = False
    assert refusal_of(model, squares, records_of(), None) is None
    model.is_writing = True
    refusal = refusal_of(model, squares, records_of(), None)
    assert refusal is not None
    assert "its buffer kept is computed from them" in refusal


def test_buffers_that_do_not_depend_on_records_are_written_once() -> None:
    counting = Keeps(lambda kept, x: kept.add_(1.0))
    for step in (1.0, 2.0, 3.0):
        quietly(counting, squares, records_of(), None, clip_norm=1.0)
        assert bool((counting.kept == step).all())


def test_spectral_norm_advances_by_one_iteration_per_call() -> None:
    models = [spectral_norm(nn.Linear(4, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for _ in range(3):
        x = records_of()
        total = clipped_sum(models[0], squares, x, None, clip_norm=float("inf"))
        expected = by_autograd(models[1], squares(models[1](x), None))
        assert distance(total.gradients, expected) < 1e-5
        for name, value in models[0].state_dict().items():
            assert torch.equal(value, models[1].state_dict()[name])


def test_a_forward_pass_that_writes_to_a_parameter_is_refused() -> None:
    def clamped(model: Any, x: Tensor) -> Tensor:
        model.head.weight.data.clamp_(-0.1, 0.1)
        model.layer.weight.detach().mul_(0.5)
        return model.head(model.layer(x))

    refusal = refusal_of(Model(clamped), squares, records_of(), None)
    assert refusal is not None
    assert "leave its parameters to the optimizer" in refusal


# --- what is put back ---------------------------------------------------------------------------


class Counts(nn.Module):
    """Notes all that happens to it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls, self.last = inner, 0, torch.zeros(())
        self.inputs: list[Tensor] = []
        self.by_name: dict[str, Tensor] = {}
        self.counted = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.counted.add_(1.0)
        self.last = self.inner(x)
        self.inputs.append(x)
        self.by_name["x"] = x
        return self.last


def test_attributes_are_those_of_the_call_itself() -> None:
    model, x = Counts(nn.Linear(4, 3)), records_of()

    def loss(outputs: Tensor, targets: None) -> Tensor:
        assert model.last is outputs
        assert [each is x for each in model.inputs] == [True]
        assert model.by_name["x"] is x
        return squares(outputs, None)

    clipped_sum(model, loss, x, None, clip_norm=1.0)
    assert (model.calls, float(model.counted)) == (1, 1.0)


def test_what_hooks_keep_is_of_the_call_itself() -> None:
    """Losses of hidden layers, whose outputs a hook puts into a dict or a list."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    by_name: dict[str, Tensor] = {}
    in_a_list: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Tensor) -> None:
        by_name["hidden"] = output
        in_a_list.append(output)

    def loss(outputs: Tensor, targets: None) -> Tensor:
        return squares(outputs, None) + by_name["hidden"].square().sum(1) + in_a_list[-1].sum(1)

    model[1].register_forward_hook(keep)
    x = records_of()
    total = clipped_sum(model, loss, x, None, clip_norm=0.1)
    expected, _ = by_losses(model, lambda one: loss(model(x[one]), None), 0.1, RECORDS)
    assert distance(total.gradients, expected) < 1e-5


def test_inputs_and_the_mode_are_left_alone_and_few_calls_are_made() -> None:
    calls: list[int] = []

    def counted(model: Any, x: Tensor) -> Tensor:
        calls.append(1)
        return dropped_out(model, x)

    model, extra = Model(counted), []
    for _ in range(40):
        x = records_of(32)
        before = x.clone()
        calls.clear()
        clipped_sum(model, squares, x, None, clip_norm=1.0)
        extra.append(len(calls) - 1)
        assert torch.equal(x, before)
        assert model.training
        assert all(p.grad is None for p in model.parameters())
    assert max(extra) <= 5
    assert [k for k, count in enumerate(extra) if count] == [0, 1, 31]  # when parameters have moved


def test_warnings_of_the_model_are_given_once_per_call() -> None:
    def warning(model: Any, x: Tensor) -> Tensor:
        warnings.warn("of the model", stacklevel=1)
        return model.head(model.layer(x))

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        clipped_sum(Model(warning), squares, records_of(), None, clip_norm=1.0)
    assert [str(each.message) for each in given] == ["of the model"]


def test_a_model_that_changes_its_inputs_gets_copies_for_repetitions() -> None:
    model = Model(lambda m, x: m.head(m.layer(x.sub_(0.5))))
    x = records_of()
    expected, _ = by_losses(model, lambda one: squares(model(x[one].clone()), None), 0.1, RECORDS)
    given = x.clone()
    total = quietly(model, squares, given, None, clip_norm=0.1)
    assert distance(total.gradients, expected) < 1e-5
    assert torch.equal(given, x - 0.5)


def test_a_failing_model_fails_with_its_own_error() -> None:
    def fails(model: Any, x: Tensor) -> Tensor:
        raise RuntimeError(f"of {len(model.layer(x))} rows")

    with pytest.raises(RuntimeError, match="of 8 rows"):
        clipped_sum(Model(fails), squares, records_of(), None, clip_norm=1.0)
    assert not torch.overrides._get_current_function_mode_stack()
