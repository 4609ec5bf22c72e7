"""Released gradients: the noise against the normal law, the grid against exact arithmetic."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.normals import standard_normals
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dither.clipping import ClippedSum, clipped_sum
from dither.philox import DeviceNormals
from dither.randomness import Source
from dither.release import ReleasedGradient, margin, release
from dither.types import CLIPPINGS, FloatArray

LEVEL = 1e-6
BEYOND = float(stats.norm.isf(LEVEL / 2.0))
CLIP, Z, SIZE = 0.7, 1.3, 256
PLANNED = CLIP * Z * (1.0 + margin(SIZE))
MANY = 600_000  # a scale 3 % off is twice what Kolmogorov and Smirnov let pass


def noisy(
    sums: dict[str, Tensor],
    *,
    clip_norm: float = CLIP,
    noise_multiplier: float = Z,
    batch_size: int = SIZE,
    records: int = 3,
    seed: int | None = 1,
    step: int = 0,
) -> ReleasedGradient:
    return release(
        ClippedSum(sums, torch.ones(records)),
        clip_norm=clip_norm,
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        stream=Source(seed).stream("noise", step),
    )


def noise_of(count: int, *, step: int = 0, dtype: torch.dtype = torch.float64) -> FloatArray:
    """What was added to a sum of many coordinates, in units of what was planned."""
    total = torch.linspace(-50.0, 50.0, count, dtype=dtype)
    found = noisy({"weight": total}, step=step).gradients["weight"]
    assert found.dtype == dtype
    return np.asarray((found.double() * SIZE - total.double()) / PLANNED)


@pytest.fixture(scope="module")
def noise() -> FloatArray:
    return noise_of(MANY)


def law_p_values(values: FloatArray) -> tuple[float, float, float]:
    """Of the shape (Kolmogorov and Smirnov), the variance and the mean of standard normals."""
    shape = stats.kstest(values, "norm", method="asymp").pvalue
    squares = float((values**2).sum())
    both = 2.0 * min(stats.chi2.sf(squares, values.size), stats.chi2.cdf(squares, values.size))
    mean = 2.0 * stats.norm.sf(abs(values.mean()) * math.sqrt(values.size))
    return float(shape), float(both), float(mean)


def test_the_noise_is_normal_and_as_wide_as_planned(noise: FloatArray) -> None:
    assert min(law_p_values(noise)) > LEVEL


# In float32 the rounding of a release is at most 2^-24 of 100, a hundred-thousandth of the noise.
def test_the_noise_on_float32_is_the_same() -> None:
    assert min(law_p_values(noise_of(MANY, dtype=torch.float32))) > LEVEL


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_noise_three_percent_off_is_noticed(noise: FloatArray, factor: float) -> None:
    shape, variance, _ = law_p_values(factor * noise)
    assert shape < LEVEL
    assert variance < LEVEL
    assert law_p_values(noise + 0.01)[2] < LEVEL


def test_the_scale_is_exact() -> None:
    """Standard normals from the same stream, times the planned scale, rounded to a grid step."""
    for count in (1, 2, 7, 1001, 200_003):
        plain = standard_normals(count, Source(1).stream("noise", 0))
        assert np.abs(noise_of(count) - plain).max() <= 2.0**-21 * (1.0 + 1e-6)


def test_coordinates_are_numbered_through_tensors_of_all_sizes_types_and_strides() -> None:
    sizes = (3, 0, 70_000, 1, 2**15, 2**16, 5)
    types = (torch.float32, torch.float64, torch.bfloat16)
    torch.manual_seed(4)
    sums = {str(i): torch.randn(size, 2, dtype=types[i % 3]).t() for i, size in enumerate(sizes)}
    found = noisy(sums).gradients
    total = torch.cat([each.double().flatten() for each in sums.values()]).numpy()
    steps = total + PLANNED * standard_normals(total.size, Source(1).stream("noise", 0))
    expected = torch.from_numpy(np.rint(steps / grid_of(PLANNED)) * grid_of(PLANNED) / SIZE)
    parts = expected.split([each.numel() for each in sums.values()])
    for each, part in zip(found.values(), parts, strict=True):
        torch.testing.assert_close(each.flatten(), part.to(each.dtype), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("seed", [None, 1])
def test_an_accelerator_draws_noise_that_is_not_seeded(
    seed: int | None, noise: FloatArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of the processor stand for those of an accelerator."""
    total = torch.linspace(-50.0, 50.0, MANY, dtype=torch.float64)
    calls = []

    def draw(self: DeviceNormals, count: int, device: torch.device) -> Tensor:
        calls.append(count)
        return right(self, count, device)

    right = DeviceNormals.draw
    monkeypatch.setattr(DeviceNormals, "draw", draw)
    monkeypatch.setattr("dither.release.has_generator", lambda sums: True)
    monkeypatch.setattr("dither.release._AT_ONCE", 2**17)
    found = noisy({"w": total}, seed=seed).gradients["w"] * SIZE
    assert on_grid(found, grid_of(PLANNED))
    drawn = ((found - total) / PLANNED).numpy()
    assert min(law_p_values(drawn)) > LEVEL
    assert calls == ([] if seed else [2**17] * 4 + [MANY - 2**19])
    assert np.array_equal(drawn, noise) == bool(seed)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_the_noise(noise: FloatArray, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        np.testing.assert_array_equal(noise_of(MANY), noise)
    finally:
        torch.set_num_threads(before)


def tail_p_value(values: FloatArray, beyond: float) -> float:
    count = int((np.abs(values) > beyond).sum())
    return float(stats.binomtest(count, values.size, 2.0 * float(stats.norm.sf(beyond))).pvalue)


def test_the_tails_are_those_of_the_normal_law() -> None:
    values = np.concatenate([noise_of(MANY, step=step) for step in range(10, 13)])
    for beyond in (3.0, 4.0, 4.5, 5.0):
        assert tail_p_value(values, beyond) > LEVEL
    assert tail_p_value(1.03 * values, 4.0) < LEVEL
    assert tail_p_value(np.clip(values, -4.0, 4.0), 4.0) < LEVEL
    assert (
        tail_p_value(
            stats.norm.ppf(np.random.default_rng(1).integers(1, 2**12, 10**6) / 2**12), 4.0
        )
        < LEVEL
    )


def score(first: FloatArray, second: FloatArray) -> float:
    """Their correlation, in standard deviations of that of independent ones."""
    return float(np.corrcoef(first, second)[0, 1]) * math.sqrt(first.size)


def dependence(first: FloatArray, second: FloatArray) -> float:
    """The largest score of values, of their sizes and of one's values with the other's sizes."""
    pairs = ((first, second), (first**2, second**2), (first, second**2), (first**2, second))
    return max(abs(score(*pair)) for pair in pairs)


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**17])
def test_coordinates_are_independent(noise: FloatArray, lag: int) -> None:
    assert dependence(noise[lag:], noise[:-lag]) < BEYOND
    leaking = noise[lag:] + 0.02 * noise[:-lag]
    assert dependence(leaking, noise[:-lag]) > BEYOND


def test_steps_are_independent(noise: FloatArray) -> None:
    other = noise_of(MANY, step=1)
    assert dependence(noise, other) < BEYOND
    assert dependence(noise[:100_000], noise_of(100_000, step=1)) < BEYOND
    assert dependence(noise_of(100_000, step=1), noise_of(100_000, step=1)) > BEYOND


def test_parameters_of_all_types_have_noise_of_their_own() -> None:
    types = (torch.float32, torch.float64, torch.float32, torch.float64)
    sums = {str(i): torch.zeros(20_000, dtype=dtype) for i, dtype in enumerate(types)}
    found = [np.asarray(g.double()) for g in noisy(sums).gradients.values()]
    for i, first in enumerate(found):
        for second in found[:i]:
            assert dependence(first, second) < BEYOND


def grid_of(scale: float) -> float:
    """The largest power of two that is at most scale/2^20, by the exponent of a double."""
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - 20)


def on_grid(values: Tensor, grid: float) -> bool:
    steps = values.double() / grid
    return bool((steps == steps.round()).all())


@given(st.floats(1e-6, 1e6), st.floats(0.02, 1e3), st.sampled_from([torch.float32, torch.float64]))
def test_what_is_released_lies_on_a_grid(clip: float, z: float, dtype: torch.dtype) -> None:
    scale = clip * z * (1.0 + margin(SIZE))
    grid = grid_of(scale)
    assert 2.0**-21 < grid / scale <= 2.0**-20
    total = torch.linspace(-10.0 * clip, 10.0 * clip, 501, dtype=dtype)
    found = noisy({"w": total}, clip_norm=clip, noise_multiplier=z).gradients["w"]
    assert on_grid(found * SIZE, grid)
    if dtype == torch.float64:
        assert not on_grid(found * SIZE, 2.0 * grid)
        unrounded = total + scale * torch.randn(501, dtype=dtype)
        assert not on_grid(unrounded, grid)


def test_the_grid_hides_the_fraction_of_the_sum() -> None:
    grid = grid_of(PLANNED)
    base = torch.linspace(-3.0, 3.0, 40_001, dtype=torch.float64)
    shifted = base + 0.5 * grid
    assert not on_grid(base, grid)
    first, second = (noisy({"w": w}).gradients["w"] * SIZE for w in (base, shifted))
    assert on_grid(first, grid)
    assert on_grid(second, grid)
    steps = (second - first) / grid
    assert set(steps.tolist()) == {0.0, 1.0}
    # Half a step moves the rounded sum in half of the cases, as noise that is fine enough does.
    moved = int(steps.sum())
    assert stats.binomtest(moved, steps.numel()).pvalue > LEVEL
    odd = (first / grid).remainder(2.0)
    assert stats.binomtest(int(odd.sum()), odd.numel()).pvalue > LEVEL


def test_without_noise_the_sum_is_divided_and_nothing_else() -> None:
    sums = {"a": torch.randn(7, 3), "b": torch.randn(5, dtype=torch.float64)}
    found = noisy(sums, clip_norm=math.inf, noise_multiplier=0.0, batch_size=3)
    for name, total in sums.items():
        assert torch.equal(found.gradients[name], total / 3)
    assert found.noise == 0.0
    assert found.dimension == 26


def test_the_divisor_is_the_planned_batch_size_whatever_was_drawn() -> None:
    sums = {"w": torch.randn(50, dtype=torch.float64)}
    few, many, none = (noisy(sums, records=records).gradients["w"] for records in (1, 999, 0))
    assert torch.equal(few, many)
    assert torch.equal(few, none)
    halved = noisy(sums, batch_size=2 * SIZE).gradients["w"]
    assert float((2.0 * halved - few).abs().max()) <= 6.0 * PLANNED * margin(SIZE) / SIZE


def test_an_empty_draw_is_released_with_as_much_noise() -> None:
    values = noisy({"w": torch.zeros(MANY // 4)}, records=0).gradients["w"].double() * SIZE
    assert min(law_p_values(np.asarray(values) / PLANNED)) > LEVEL


def sums_of_all_kinds() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "matrix": torch.randn(3, 4),
        "wide": torch.randn(2, 3, 5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "turned": torch.randn(4, 6).t(),
        "last": torch.randn(1, dtype=torch.float64),
    }


@pytest.mark.parametrize("z", [0.0, Z])
def test_names_shapes_and_types_are_kept_and_sums_are_not_changed(z: float) -> None:
    sums = sums_of_all_kinds()
    before = {name: total.clone() for name, total in sums.items()}
    found = noisy(sums, noise_multiplier=z)
    assert list(found.gradients) == list(sums)
    for name, total in sums.items():
        gradient = found.gradients[name]
        assert (gradient.shape, gradient.dtype) == (total.shape, total.dtype)
        assert torch.equal(total, before[name])
        gradient.add_(1.0)
        assert torch.equal(total, before[name])
    assert found.dimension == 12 + 30 + 0 + 1 + 24 + 1


def test_every_coordinate_is_noised_where_it_belongs() -> None:
    sums = sums_of_all_kinds()
    found = noisy(sums, clip_norm=1e-3, noise_multiplier=1.0, batch_size=1)
    for name, total in sums.items():
        difference = (found.gradients[name] - total).abs()
        assert bool((difference < 1e-3 * 9.5).all())
        assert bool((difference > 0.0).all())


@pytest.mark.parametrize("sums", [{}, {"empty": torch.zeros(0)}])
def test_nothing_is_released_of_nothing(sums: dict[str, Tensor]) -> None:
    found = noisy(sums)
    assert found.dimension == 0
    assert list(found.gradients) == list(sums)
    assert found.squared_norm() == 0.0


@given(st.floats(1e-6, 1e6), st.floats(0.02, 1e6), st.integers(1, 10**6))
def test_the_noise_is_told_and_never_below_the_plan(clip: float, z: float, m: int) -> None:
    found = noisy({"w": torch.zeros(3)}, clip_norm=clip, noise_multiplier=z, batch_size=m)
    assert found.noise * m >= clip * z
    assert found.noise == pytest.approx(clip * z * (1.0 + margin(m)) / m, rel=1e-14)
    assert found.dimension == 3


def test_the_squared_norm_is_over_all_parameters() -> None:
    found = noisy(sums_of_all_kinds())
    numbers = [x for g in found.gradients.values() for x in g.double().flatten().tolist()]
    assert found.squared_norm() == pytest.approx(math.fsum(x * x for x in numbers), rel=1e-12)
    assert isinstance(found.squared_norm(), float)


def test_the_squared_norm_of_pure_noise_is_the_noise_that_is_told() -> None:
    found = noisy({"a": torch.zeros(60_000), "b": torch.zeros(40_000, dtype=torch.float64)})
    told = found.noise**2
    for factor, right in ((1.0, True), (0.97, False), (1.03, False)):
        squares = found.squared_norm() / (factor**2 * told)
        tail = min(stats.chi2.sf(squares, 100_000), stats.chi2.cdf(squares, 100_000))
        assert (2.0 * tail > LEVEL) == right


def test_seeded_releases_repeat_and_others_do_not() -> None:
    sums = {"w": torch.zeros(8)}
    first, again, other = (noisy(sums, seed=seed).gradients["w"] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(AttributeError):
        noisy(sums).noise = 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"noise_multiplier": -1.0},
            ValueError,
            "noise_multiplier must be .* at least 0, got -1.0",
        ),
        ({"noise_multiplier": math.nan}, ValueError, "noise_multiplier must be .*, got nan"),
        ({"noise_multiplier": math.inf}, ValueError, "noise_multiplier must be .*, got inf"),
        ({"noise_multiplier": "1"}, TypeError, "noise_multiplier must be .*, got '1'"),
        ({"noise_multiplier": None}, TypeError, "noise_multiplier must be .*, got None"),
        (
            {"clip_norm": math.inf},
            ValueError,
            "clip_norm must be a positive, finite number, got inf",
        ),
        ({"clip_norm": 0.0}, ValueError, "clip_norm must be a positive, finite number, got 0.0"),
        ({"clip_norm": -1.0}, ValueError, "clip_norm must be a positive, finite number, got -1.0"),
        ({"clip_norm": math.nan}, ValueError, "clip_norm must be .*, got nan"),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": 2.5}, ValueError, "batch_size must be an integer of .*, got 2.5"),
        ({"batch_size": True}, TypeError, "batch_size must be an integer of .*, got True"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        noisy({"w": torch.zeros(2)}, **change)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient.double().flatten() for gradient in gradients.values()])


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_the_margin_covers_sums_in_single_precision(clipping: str) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    x, y = torch.randn(256, 1, 14, 14), torch.randint(10, (256,))
    clip_norm = 1.0
    how: dict[str, Any] = {"clip_norm": clip_norm, "clipping": clipping}
    single = flat(clipped_sum(model, losses, x, y, **how).gradients)
    model.double()
    exact = flat(clipped_sum(model, losses, x.double(), y, **how).gradients)
    assert float(exact.norm()) > clip_norm
    allowed = 0.5 * margin(256) * clip_norm
    assert float((single - exact).norm()) < 0.1 * allowed
    # Half precision would not have been covered.
    assert float((exact.bfloat16().double() - exact).norm()) > allowed


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("records", [256, 2_048])
def test_one_of_many_aligned_records_moves_a_float32_sum_by_no_more_than_the_margin(
    records: int, clipping: str
) -> None:
    how: dict[str, Any] = {"clip_norm": 1.0, "clipping": clipping}
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 10))
    x = torch.randn(1, 200) + 0.01 * torch.randn(records, 200)
    y = torch.zeros(records, dtype=torch.int64)
    whole = flat(clipped_sum(model, losses, x, y, **how).gradients)
    assert float(whole.norm()) > 0.9 * records
    for left_out in (0, records // 2, records - 1):
        kept = torch.arange(records) != left_out
        rest = flat(clipped_sum(model, losses, x[kept], y[kept], **how).gradients)
        assert float((whole - rest).norm()) < 1.0 + 0.5 * margin(records)
