import time
from collections.abc import Callable

import numpy as np
import pytest
from tests.explorer.fields import texts

import dither
from dither.explorer import settings
from dither.explorer.preview import preview, previews
from dither.planning.planner import NOISES as ALL

NOISES = tuple(name for name in ALL if name != "correlated")

# ε, δ, n, m, T, schedule and sampling: usual runs, strong steps, a full batch.
RUNS = [
    (1.0, 1e-5, 60_000, 256, 5_000, "linear:start=1,end=0.001", "poisson"),
    (8.0, 1e-5, 50_000, 8_192, 120, "linear:start=1,end=0.01", "poisson"),
    (3.0, 1e-6, 60_000, 1_024, 300, "step:start=1,factor=0.5,every=100", "fixed"),
    (10.0, 1e-5, 1_000, 16, 63, "exponential:start=1,rate=0.97", "poisson"),
    (1.0, 1e-5, 1_000, 1_000, 100, "cosine:start=1,end=0.1", "poisson"),
]


@pytest.mark.parametrize("run", RUNS)
def test_a_preview_looks_like_the_exact_plan(
    run: tuple[float, float, int, int, int, str, str],
) -> None:
    epsilon, delta, n, m, T, schedule, sampling = run
    eta = dither.schedules.parse(schedule).stepsizes(T)
    found = previews(eta, dither.noise.Budget(epsilon, delta, m / n, None, sampling))
    assert (*found,) == NOISES
    for name, quick in found.items():
        exact = dither.plan(
            epsilon=epsilon,
            delta=delta,
            dataset_size=n,
            batch_size=m,
            steps=T,
            stepsizes=eta,
            noise=name,
            sampling=sampling,
        )
        ratio = quick.expanded(T) / exact.noise_multipliers
        assert np.quantile(np.abs(np.log(ratio)), 0.9) < 0.06
        assert np.sum((eta * quick.expanded(T)) ** 2) == pytest.approx(
            np.sum((eta * exact.noise_multipliers) ** 2), rel=0.12
        )
        assert quick.numbers[-1] == T
        assert quick.spent[-1] == pytest.approx(epsilon, rel=0.02)


def test_a_preview_is_many_times_faster_than_an_exact_plan() -> None:
    given = settings.read(
        texts(batch_size="256", epochs="20", schedule="inverse-sqrt", noise="optimal")
    )
    preview(given)  # what is loaded on first use

    def seconds(of: Callable[[], object]) -> float:
        start = time.process_time()
        of()
        return time.process_time() - start

    quick = min(seconds(lambda: preview(given)) for _ in range(3))
    # All three in the preview against one of them.
    assert seconds(lambda: dither.plan(**given.arguments())) > 5.0 * quick


@pytest.mark.parametrize("schedule", settings.form()["parameters"])
def test_every_schedule_has_a_preview(schedule: str) -> None:
    found = preview(settings.read(texts(schedule=schedule)))
    assert (*found["curves"],) == NOISES
    for name in NOISES:
        curve = found["curves"][name]
        assert curve["spent"][0] == [0, 0.0]
        assert curve["spent"][-1][0] == found["steps"] == curve["noise"][-1][0]
        assert all(value > 0.0 for _, value in curve["noise"] + curve["iterate_noise"])
        epsilons = [value for _, value in curve["spent"]]
        assert epsilons == sorted(epsilons)
    assert found["curves"]["uniform"]["comparison"]["relative_to_uniform"] == 1.0


def test_correlated_noise_has_no_preview_and_it_says_so() -> None:
    found = preview(settings.read(texts(noise="correlated")))
    assert (*found["curves"],) == NOISES
    assert "exact plan" in found["note"]
    assert "noise='correlated'" in found["python"]
    assert "note" not in preview(settings.read(texts(noise="optimal")))


@pytest.mark.parametrize("epochs", ["0.01", "0.07"])
def test_runs_of_very_few_steps(epochs: str) -> None:
    found = preview(settings.read(texts(epochs=epochs)))
    assert found["steps"] <= 3
    assert (*found["curves"],) == NOISES
