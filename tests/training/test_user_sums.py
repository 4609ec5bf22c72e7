"""Sums of clipped gradients of users: against a loop over users, and their sensitivity."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clipping import models
from tests.clipping.comparing import TOLERANCES, cast, squares
from tests.planted.user_bugs import rows_clipped_one_by_one
from tests.training.loops import released_sum
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import dither
from dither import Plan
from dither.clipping import FallbackWarning
from dither.types import CLIPPINGS

SIZES = [1, 20, 3, 1, 7, 12, 2]
ROWS = sum(SIZES)
OWNERS = np.random.default_rng(3).permutation(np.repeat(np.arange(len(SIZES)), SIZES))
BOTH = pytest.mark.parametrize("clipping", CLIPPINGS)

pytestmark = pytest.mark.filterwarnings("ignore::dither.clipping.FallbackWarning")


def flat_sum(sums: list[Tensor]) -> Tensor:
    return torch.cat([each.flatten().double() for each in sums])


def by_hand(
    model: nn.Module,
    loss: Callable[[nn.Module, Tensor], Tensor],
    inputs: Tensor,
    owners: Any,
    *,
    clip_norm: float,
    clipping: str = "flat",
    weights: Tensor | None = None,
) -> Tensor:
    """Return the sum over users of the clipped gradient of the mean of their losses."""
    model = copy.deepcopy(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for owner in dict.fromkeys(owners):
        rows = [row for row, each in enumerate(owners) if each == owner]
        mean = torch.stack([loss(model, inputs[row : row + 1]).sum() for row in rows]).mean()
        found: Any = torch.autograd.grad(
            mean, parameters, allow_unused=True, materialize_grads=True
        )
        gradient = flat_sum([each.to_dense() for each in found])
        if gradient.isfinite().all():
            norm = float(gradient.norm())
            factor = min(1.0, clip_norm / norm) if clipping == "flat" else clip_norm / (norm + 0.01)
            own = 1.0 if weights is None else float(weights[rows].mean())
            total += own * factor * gradient
    return total


def by_training(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    inputs: Any,
    owners: Any,
    *,
    clip_norm: float,
    microbatch: int = 0,
    weigh: Callable[[Tensor], Tensor] | None = None,
    rows_per_user: int = 20,
    clipping: str = "flat",
    **settings: Any,
) -> Tensor:
    """Return what a step without noise releases, in which all users take part."""
    model, users = copy.deepcopy(model), len({*owners})
    plan = Plan.unsafe_without_noise(
        steps=1, dataset_size=users, batch_size=users, clip_norm=clip_norm, clipping=clipping
    )
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-30)
    run = dither.make_private(
        model,
        optimizer,
        plan,
        inputs,
        users=owners,
        rows_per_user=rows_per_user,
        seed=1,
        **settings,
    )
    for batch in run.batches():
        for part in run.microbatches(batch, microbatch) if microbatch else [batch]:
            run.backward(loss(run.model, part), None if weigh is None else weigh(part))
        found = released_sum(run)
    run.close()
    return found


def plain(model: nn.Module, x: Tensor) -> Tensor:
    return squares(model(x), None)


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def middle_norm(model: nn.Module, inputs: Tensor) -> float:
    """Return a clip norm that some of the users exceed."""
    norms = []
    for owner in range(len(SIZES)):
        chosen = inputs[torch.from_numpy(owner == OWNERS)]
        norms.append(float(by_hand(model, plain, chosen, [0] * len(chosen), clip_norm=1e9).norm()))
    return float(np.median(norms))


def vectors(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(4))


def tokens() -> Tensor:
    return torch.randint(11, (ROWS, 5), generator=torch.Generator().manual_seed(4))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x, x, x)[0])


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), vectors(4)),
    "linear, sequences": (lambda: nn.Linear(4, 3), vectors(5, 4)),
    "linear, long": (lambda: nn.Linear(3, 3), vectors(130, 3)),
    "linear, wide": (lambda: nn.Linear(40, 40), vectors(2, 40)),
    "conv1d": (lambda: nn.Conv1d(4, 2, 3, groups=2), vectors(4, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), vectors(2, 6, 6)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2), vectors(2, 3, 3, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(11, 4), nn.Tanh()), tokens()),
    "sparse embedding": (lambda: nn.Embedding(11, 4, sparse=True), tokens()),
    "embedding bag": (lambda: nn.EmbeddingBag(11, 4), tokens()),
    "layer norm": (lambda: nn.LayerNorm(4), vectors(5, 4)),
    "RMS norm": (lambda: nn.RMSNorm(4, eps=1e-5), vectors(5, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), vectors(4, 3)),
    "instance norm": (lambda: nn.InstanceNorm1d(4, affine=True), vectors(4, 3)),
    "attention": (Attention, vectors(5, 4)),
    "LSTM": (lambda: models.Recurrent(nn.LSTM), vectors(5, 4)),
    "GRU, sequence first": (lambda: models.Recurrent(nn.GRU, batch_first=False), vectors(5, 4)),
    "resnet": (models.ResNet, vectors(3, 8, 8)),
    "gpt": (models.GPT, tokens()),
    "vit": (models.VisionBlock, vectors(1, 4, 4)),
    "twice": (models.Twice, vectors(4)),
    "tied layers": (models.TiedLayers, vectors(4)),
    "lora": (models.Adapter, vectors(4)),
    "checkpoint": (models.Checkpointed, vectors(5, 4)),
    "sequence first": (models.SequenceFirst, vectors(5, 4)),
    "bare": (models.Bare, vectors(4)),
    "opaque": (models.Opaque, vectors(4)),
    "weight norm": (lambda: weight_norm(nn.Linear(4, 4)), vectors(4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_a_loop_over_users(name: str) -> None:
    """For all kinds of layers, in both types, clipped in both ways, in any microbatches."""
    build, inputs = MODELS[name]
    model = build().double()
    exact = cast(inputs, torch.float64)
    clip_norm = middle_norm(model, exact)
    for clipping in CLIPPINGS:
        how: Any = {"clip_norm": clip_norm, "clipping": clipping}
        expected = by_hand(model, plain, exact, OWNERS, **how)
        for microbatch in (0, 9):
            found = by_training(model, plain, exact, OWNERS, microbatch=microbatch, **how)
            assert distance(found, expected) < TOLERANCES[torch.float64], (clipping, microbatch)
        single = copy.deepcopy(model).float()
        found = by_training(single, plain, cast(inputs, torch.float32), OWNERS, **how)
        assert distance(found, expected) < TOLERANCES[torch.float32], clipping


def mlp() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


INPUTS = vectors(4).double()


def check(
    loss: Callable[[nn.Module, Tensor], Tensor] = plain,
    *,
    owners: Any = OWNERS,
    weights: Tensor | None = None,
    **how: Any,
) -> None:
    """Compare the sum with that of a loop over users."""
    model = mlp()
    expected = by_hand(model, loss, INPUTS, owners, clip_norm=0.3, weights=weights)
    found = by_training(model, loss, INPUTS, owners, clip_norm=0.3, **how)
    assert distance(found, expected) < 1e-6


@pytest.mark.parametrize("owners", [sorted(OWNERS), sorted(OWNERS)[::-1], [0] * ROWS, range(ROWS)])
def test_rows_in_any_order_and_of_any_number(owners: Any) -> None:
    check(owners=list(owners), rows_per_user=ROWS)


@pytest.mark.parametrize("size", [1, 2, 5, 19, 20, 21, 45, 46, 1000])
def test_microbatches_keep_the_rows_of_a_user_together(size: int) -> None:
    check(microbatch=size)


@pytest.mark.parametrize("microbatch", [0, 9])
def test_augmented_copies_of_all_rows_are_averaged(microbatch: int) -> None:
    def views(x: Tensor) -> Tensor:
        return torch.stack([x, -x, 0.5 * x], 1)

    def of_views(model: nn.Module, x: Tensor) -> Tensor:
        return plain(model, views(x).flatten(0, 1)).mean(0, keepdim=True)

    found = by_training(
        mlp(), lambda model, part: plain(model, part[0]), (INPUTS, torch.zeros(ROWS)), OWNERS,
        clip_norm=0.3, augment=views, microbatch=microbatch,
    )  # fmt: skip
    assert distance(found, by_hand(mlp(), of_views, INPUTS, OWNERS, clip_norm=0.3)) < 1e-6


@pytest.mark.parametrize("microbatch", [0, 9])
def test_the_mean_weight_of_a_users_rows_multiplies_the_clipped_gradient(microbatch: int) -> None:
    def weigh(x: Tensor) -> Tensor:
        return torch.sigmoid(3.0 * x[:, 0])

    check(weights=weigh(INPUTS), weigh=weigh, microbatch=microbatch)


@pytest.mark.parametrize("microbatch", [0, 9])
def test_parameters_that_are_computed_user_by_user(microbatch: int) -> None:
    """A weight that the loop itself uses."""

    def loss(model: Any, x: Tensor) -> Tensor:
        return plain(model, x) + (x @ model[0].weight.T).square().sum(1)

    with pytest.warns(FallbackWarning, match="it is used where the engine cannot see it"):
        check(loss, microbatch=microbatch)


def test_the_comparison_finds_other_sums() -> None:
    """The sum over rows, the sum with other users, and the mean over fewer rows."""
    model = mlp()
    expected = by_hand(model, plain, INPUTS, OWNERS, clip_norm=0.3)
    for owners in (range(ROWS), np.roll(OWNERS, 1)):
        assert distance(by_hand(model, plain, INPUTS, owners, clip_norm=0.3), expected) > 0.1
    fewer = by_training(model, plain, INPUTS, OWNERS, clip_norm=0.3, rows_per_user=3)
    assert distance(fewer, expected) > 0.1


def test_rows_without_a_user_are_left_out_or_on_their_own() -> None:
    model, owners = mlp(), [None if each == 2 else int(each) for each in OWNERS]
    kept = torch.from_numpy(OWNERS != 2)
    dropped = by_training(model, plain, INPUTS, owners, clip_norm=0.3)
    expected = by_hand(model, plain, INPUTS[kept], OWNERS[kept.numpy()], clip_norm=0.3)
    assert distance(dropped, expected) < 1e-6
    single = [100 + row if each is None else each for row, each in enumerate(owners)]
    own = by_training(model, plain, INPUTS, owners, clip_norm=0.3, missing="own")
    assert distance(own, by_hand(model, plain, INPUTS, single, clip_norm=0.3)) < 1e-6


def test_an_empty_draw_releases_noise_and_nothing_else() -> None:
    plan = Plan.unsafe_without_noise(steps=20, dataset_size=1000, batch_size=1, clip_norm=0.3)
    model = mlp()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the dataset has another number of users")
        run = dither.make_private(
            model, torch.optim.SGD(model.parameters(), lr=1e-30), plan, INPUTS, users=OWNERS, seed=1
        )
    sums = []
    for batch in run.batches():
        run.backward(plain(run.model, batch))
        sums.append((len(batch), float(released_sum(run).norm())))
    assert sums[0] == (1, 0.0)
    assert len(sums) == 20


# --- one user more or less ----------------------------------------------------------------------

ROW = torch.tensor([1.0, -2.0, 0.5, 3.0])
KINDS: dict[str, Callable[[int], Tensor]] = {
    "aligned": lambda k: ROW.repeat(k, 1),
    "huge": lambda k: 1e20 * ROW.repeat(k, 1),
    "overflowing": lambda k: 1e38 * ROW.repeat(k, 1),
    "not a number": lambda k: torch.cat([ROW.repeat(k, 1)[1:], torch.full((1, 4), torch.nan)]),
    "cancelling": lambda k: 1e3 * ROW * (-1.0) ** torch.arange(k)[:, None],
    "huge and cancelling": lambda k: 1e15 * ROW * (-1.0) ** torch.arange(k)[:, None],
    "of all sizes": lambda k: ROW * torch.logspace(-6, 6, k)[:, None],
}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([*KINDS]),
    st.integers(1, 25),
    st.sampled_from([1, 4, 30]),
    st.sampled_from([0, 1, 7]),
    st.sampled_from(CLIPPINGS),
    st.randoms(use_true_random=False),
)
def test_a_user_moves_the_sum_by_the_clip_norm_at_most(
    kind: str, k: int, rows_per_user: int, microbatch: int, clipping: str, random: Any
) -> None:
    """However many rows the user has; those of others are the same in both."""
    others, owners = INPUTS.float(), [int(each) for each in np.minimum(OWNERS, 3)]
    kept = [row for row, owner in enumerate(owners) if owners[:row].count(owner) < rows_per_user]
    others, owners = others[kept], [owners[row] for row in kept]
    order = random.sample(range(len(owners) + k), len(owners) + k)
    inputs = torch.cat([others, KINDS[kind](k)])[order]
    users = [[*owners, *["other"] * k][row] for row in order]
    how: Any = {"clip_norm": 0.1, "rows_per_user": rows_per_user, "clipping": clipping}
    model = mlp().float()
    with_user = by_training(model, plain, inputs, users, microbatch=microbatch, **how)
    without = by_training(model, plain, others, owners, microbatch=microbatch, **how)
    assert float((with_user - without).norm()) <= 0.1 * (1.0 + 1e-5)


def test_rows_clipped_one_by_one_would_move_it_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_clipped_one_by_one(monkeypatch)
    inputs, users = torch.cat([INPUTS.float(), KINDS["aligned"](6)]), [*OWNERS, *[9] * 6]
    with_user = by_training(mlp().float(), plain, inputs, users, clip_norm=0.1)
    without = by_training(mlp().float(), plain, INPUTS.float(), OWNERS, clip_norm=0.1)
    assert float((with_user - without).norm()) > 0.5
