"""The audit of a correct library refutes nothing, and comes close; that of a wrong one does."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import dither
from dither import Plan
from dither.audit import AuditResult, audit, independent_bound, one_run
from dither.audit.attacks import attack_plan, draw_included
from dither.audit.guesses import (
    Thresholds,
    choose_thresholds,
    guess_by_thresholds,
    simulate,
)
from dither.noise import Correlated
from dither.planning import ReactivePlan
from dither.release import add_noise
from dither.schedules import AdaGradNorm, Linear
from dither.types import CLIPPINGS, PrivacyBound

# Privacy is tested, where independent noise would be better.
pytestmark = pytest.mark.filterwarnings("ignore:correlated noise of 4 bands")

SMALL: dict[str, Any] = {
    "epsilon": 1.0, "delta": 1e-5, "dataset_size": 100, "batch_size": 20, "steps": 10,
}  # fmt: skip
RULE = AdaGradNorm(1e-3, 1e-5)  # moved by every release: noise and step sizes follow
KINDS: dict[str, Callable[[], Plan | ReactivePlan]] = {
    **{
        noise: partial(dither.plan, stepsizes=Linear(2.0, 0.1), noise=noise, **SMALL)
        for noise in ("uniform", "matched", "optimal")
    },
    "correlated": partial(dither.plan, noise=Correlated(bands=4), **SMALL),
    "reactive": partial(dither.plan, stepsizes=RULE, noise="uniform", **SMALL),
    "filtered": partial(dither.plan, stepsizes=RULE, noise="filter", **SMALL),
}
KIND = pytest.mark.parametrize("kind", KINDS)


def none_is_refuted(kind: str, repetitions: int, trials: int) -> None:
    plan = KINDS[kind]()
    for seed in range(repetitions):
        found = audit(plan, trials=trials, confidence=1.0 - 5e-4, seed=seed)
        assert found.lower <= plan.bound.epsilon, found
        assert not found.is_violated, found


@KIND
def test_a_correct_library_is_not_refuted(kind: str) -> None:
    none_is_refuted(kind, 2, 400)


@pytest.mark.evidence
@KIND
def test_a_hundred_audits_of_a_correct_library(kind: str) -> None:
    none_is_refuted(kind, 100, 500 if kind == "filtered" else 4_000)


def test_noise_that_follows_does_follow() -> None:
    """Else the audit of filtered noise would be one of fixed noise."""
    plan = KINDS["filtered"]()
    assert isinstance(plan, ReactivePlan)
    state, seen = plan.new_state(), []
    for value in (0.0, 1.0, 0.0):
        z = state.noise_multiplier
        assert z is not None
        seen.append(z)
        state.spend()
        noisy = type(
            "Seen", (), {"noise": 0.0, "dimension": 1, "squared_norm": lambda _, v=value: v}
        )
        state.stepsize(noisy(), lambda: 0.0)
    assert seen[2] > 2.0 * seen[1]


def test_a_tight_claim_is_refuted_no_oftener_than_promised() -> None:
    """A Gaussian so weak that accuracies tell nearly all of its ε: here a bound errs first.

    By the law of the scores, without training. Thresholds that overlap, so that a canary between
    them is guessed both ways, would be wrong nearly twice as often as they may be.
    """
    trials, mu, delta, repetitions = 50_000, 0.020145, 0.002896, 600
    plan = Plan.from_noise_multipliers([1.0 / mu], delta=delta, dataset_size=9, batch_size=9)
    thresholds = choose_thresholds(
        *simulate(plan, "white-box", trials), trials=trials, confidence=0.96
    )
    assert thresholds.guess_out < thresholds.guess_in
    random, refuted, overlapping = np.random.default_rng(1), 0, 0
    for _ in range(repetitions):
        included = random.random(trials) < 0.5
        score = mu * (random.standard_normal(trials) + mu * included) - 0.5 * mu * mu
        honest = guess_by_thresholds(score, included, thresholds, delta=delta, confidence=0.96)
        refuted += honest.lower > plan.bound.epsilon
        high, low = score >= -0.5 * mu * mu, score <= 0.5 * mu * mu
        right, made = (
            int((high & included).sum() + (low & ~included).sum()),
            int((high | low).sum()),
        )
        wrong = independent_bound(right, made, trials=trials, delta=delta, confidence=0.96)
        overlapping += wrong > plan.bound.epsilon
    assert refuted <= 0.05 * repetitions
    assert overlapping > 0.065 * repetitions


def test_no_canary_is_guessed_both_ways() -> None:
    """Overlapping thresholds would be right about a canary whether it is in or not."""
    score, included = np.arange(1000.0), np.random.default_rng(2).random(1000) < 0.5
    overlapping = Thresholds(200.0, 800.0, np.zeros(1))
    right = [
        guess_by_thresholds(score, each, overlapping, delta=0.0, confidence=0.9).right
        for each in (included, ~included)
    ]
    assert sum(right) == 1000


def test_tiny_noise_makes_the_white_box_attacker_no_weaker() -> None:
    """Canaries that were never drawn all have the same score."""
    plan = dither.plan(epsilon=1000.0, delta=1e-5, dataset_size=1438, batch_size=128, steps=3)
    white_box, final = (
        audit(plan, attack=attack, trials=4_000, seed=2).lower
        for attack in ("white-box", "final-model")
    )
    assert white_box > 0.9 * final > 2.0


@pytest.mark.parametrize("noise", ["uniform", "filter"])
def test_plans_that_react_are_attacked_in_training_too(
    noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise that training alone makes smaller; a filter's own trials have no part in training."""
    from dither.release import release

    def quieter(clipped: Any, *, noise_multiplier: float, **others: Any) -> Any:
        return release(clipped, noise_multiplier=0.02 * noise_multiplier, **others)

    plan = dither.plan(stepsizes=RULE, noise=noise, **SMALL)
    attack = "white-box" if noise == "uniform" else "one-run"
    assert not audit(plan, attack=attack, trials=1_000, seed=4).is_violated
    monkeypatch.setattr("dither.training.private.release", quieter)
    assert audit(plan, attack=attack, trials=1_000, seed=4).is_violated


@pytest.mark.parametrize(
    ("epsilon", "sizes"),
    [
        (1.0, {"dataset_size": 100, "batch_size": 100, "steps": 20}),
        (3.0, {"dataset_size": 100, "batch_size": 100, "steps": 20}),
        (3.0, {"dataset_size": 2000, "batch_size": 200, "steps": 50}),
        pytest.param(
            1.0,
            {"dataset_size": 2000, "batch_size": 200, "steps": 100},
            marks=pytest.mark.evidence,
        ),
    ],
    ids=["full batch, 1", "full batch, 3", "sampled, 3", "sampled, 1"],
)
def test_the_white_box_attack_proves_half_of_epsilon(epsilon: float, sizes: dict[str, Any]) -> None:
    plan = dither.plan(epsilon=epsilon, delta=1e-5, **sizes)
    found = audit(plan, trials=50_000, seed=1)
    assert 0.5 * epsilon <= found.lower <= epsilon
    assert not found.is_violated
    if plan.sample_rate == 1.0:
        assert found.gaussian is not None
        assert 0.75 * epsilon <= found.gaussian <= epsilon
    else:
        assert found.gaussian is None


@pytest.mark.parametrize(
    ("kind", "attack"),
    [
        ("optimal", "white-box"),
        ("optimal", "final-model"),
        ("correlated", "white-box"),
        ("correlated", "final-model"),
        ("reactive", "white-box"),
    ],
)
def test_noise_that_is_too_small_is_refuted(
    kind: str, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule: dict[str, dict[str, Any]] = {
        "optimal": {"noise": "optimal"},
        "correlated": {"noise": Correlated(bands=2)},
        "reactive": {"noise": "uniform", "stepsizes": RULE},
    }
    plan = dither.plan(**{**SMALL, "epsilon": 3.0, **rule[kind]})

    def quieter(sums: Any, scale: float, *others: Any) -> Any:
        return add_noise(sums, 0.7 * scale, *others)

    monkeypatch.setattr("dither.release.add_noise", quieter)
    found = audit(plan, attack=attack, trials=20_000, confidence=0.999, seed=3)
    assert found.is_violated
    assert found.breach is not None
    assert found.breach.true_positives > found.breach.allowed
    assert str(found).startswith("VIOLATED: at a false positive rate of")


def test_an_attacker_who_sees_less_does_no_better() -> None:
    """Of final models the attacker knows one number; of the releases their likelihood ratio."""
    plan = dither.plan(noise="matched", stepsizes=Linear(2.0, 0.1), **{**SMALL, "epsilon": 4.0})

    def best(attack: str) -> float:
        score, included = simulate(plan, attack, 20_000)
        order = included[np.argsort(score)]
        return float(np.mean(order[score.size // 2 :]) + np.mean(~order[: score.size // 2])) / 2.0

    white_box, final = best("white-box"), best("final-model")
    assert 0.5 < final < white_box


def test_real_scores_are_distributed_as_the_simulation_says() -> None:
    """Training and a simulation by NumPy that shares no code with it agree on the law."""
    from scipy.stats import ks_2samp

    kinds = (("poisson", "matched"), ("fixed", "matched"), ("poisson", Correlated(bands=2)))
    for sampling, noise in kinds:
        plan = dither.plan(
            **{**SMALL, "epsilon": 3.0, "dataset_size": 20_000, "batch_size": 4_000},
            stepsizes=Linear(2.0, 0.1), noise=noise, sampling=sampling,
        )  # fmt: skip
        scores = attack_plan(plan, draw_included(20_000, 1), seed=1)
        for attack, found in (("white-box", scores.white_box), ("final-model", scores.final)):
            expected, included = simulate(plan, attack, 20_000)
            for is_in in (True, False):
                real = found[scores.included == is_in]
                assert ks_2samp(real, expected[included == is_in]).pvalue > 1e-4
            assert ks_2samp(real * 1.25, expected[~included]).pvalue < 1e-4


@pytest.mark.parametrize("clip_norm", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_a_canary_moves_the_release_by_the_clip_norm(clip_norm: float, clipping: str) -> None:
    """Whatever the clip norm: automatic clipping shortens gradients that are not much above γ."""
    plan = Plan.from_noise_multipliers(
        [0.5], delta=1e-5, dataset_size=2_000, batch_size=2_000, clip_norm=clip_norm,
        clipping=clipping,
    )  # fmt: skip
    scores = attack_plan(plan, np.arange(2_000) % 2 == 0, seed=1)
    assert abs(scores.final[::2].mean() - 1.0) < 0.1  # 6 standard deviations
    assert abs(scores.final[1::2].mean()) < 0.1


def test_fixed_sampling_is_audited_as_replacement() -> None:
    plan = dither.plan(**{**SMALL, "epsilon": 3.0, "dataset_size": 300}, sampling="fixed")
    found = audit(plan, trials=3_000, seed=2)  # ten runs of 300 canaries
    assert 0.1 < found.lower < 3.0
    assert found.breach is None
    assert not found.is_violated


def test_one_run_with_random_directions() -> None:
    plan = dither.plan(**{**SMALL, "epsilon": 8.0})
    found = audit(plan, attack="one-run", trials=500, seed=2)
    assert 0.5 < found.lower < 8.0


def test_one_run_finds_noise_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = dither.plan(**SMALL)

    def no_noise(sums: Any, scale: float, divisor: int, *_: Any) -> Any:
        return [each / divisor for each in sums]

    monkeypatch.setattr("dither.release.add_noise", no_noise)
    assert audit(plan, attack="one-run", trials=400, seed=2).lower > 2.0


def test_a_seed_repeats_an_audit_and_others_do_not() -> None:
    plan = KINDS["uniform"]()

    def seen(seed: int | None) -> tuple[float, int, int]:
        found = audit(plan, trials=1_000, seed=seed)
        return found.lower, found.guesses, found.right

    assert seen(1) == seen(1)
    assert len({seen(1), seen(2), seen(None), seen(None)}) > 1


def test_what_claims_nothing_is_not_refuted() -> None:
    included = np.arange(100) < 50
    claimed = PrivacyBound(float("inf"), 0.0, "none", "poisson", "add-remove", is_upper_bound=False)
    found = one_run(included * 1.0, included, claimed=claimed)
    assert found.lower > 2.0
    assert not found.is_violated
    assert str(found).startswith("Nothing is claimed, and an attacker who sees one run proves")


def test_guessing_at_random_proves_nothing() -> None:
    random = np.random.default_rng(3)
    claimed = PrivacyBound(1.0, 1e-5, "pld", "poisson", "add-remove")
    above = 0
    for _ in range(200):
        included = random.random(400) < 0.5
        above += one_run(random.random(400), included, claimed=claimed).lower > 0.0
    assert above <= 24  # 200 tries at 5 %: more than 24 with probability 1e-4


def test_the_roc_goes_from_nothing_to_everything() -> None:
    found: AuditResult = audit(KINDS["uniform"](), trials=2_000, seed=4)
    assert found.roc[:, 0].tolist() == [0.0, 0.0]
    assert found.roc[:, -1].tolist() == [1.0, 1.0]
    assert np.all(np.diff(found.roc, axis=1) >= 0.0)


PLAN = Plan.from_noise_multipliers([1.0], delta=1e-5, dataset_size=10, batch_size=5)


@pytest.mark.parametrize(
    ("plan", "settings", "words"),
    [
        (PLAN, {"attack": "guess"}, "attack must be one of"),
        (PLAN, {"confidence": 1.5}, "confidence must be"),
        (PLAN, {"trials": 20}, "trials must be at least 100, got 20"),
        (PLAN, {"trials": 0}, "trials must be"),
        (
            dither.plan(**{**SMALL, "dataset_size": 150}, sampling="fixed"),
            {"attack": "one-run", "trials": 200},
            "trials must be at most the plan's dataset_size, 150",
        ),
        (
            Plan.unsafe_without_noise(steps=1, dataset_size=10, batch_size=5),
            {},
            "plan must add noise",
        ),
    ],
)
def test_bad_settings(plan: Plan, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        audit(plan, **settings)


def test_bad_scores() -> None:
    claimed = PLAN.bound
    for scores, included, words in (
        ([1.0, 2.0], [2, 0], "included must be true or false"),
        ([1.0, 2.0], [True], "scores must have the shape of included"),
        ([1.0, float("nan")], [True, False], "scores must be numbers, got"),
        ([1.0], [True], "and at least two values, got shape"),
        ([], [], "and at least two values, got shape"),
        (["a", "b"], [True, False], "scores must be numbers, got"),
        ([[1.0], [1.0, 2.0]], [True, False], "scores must be numbers, got"),
        ([1j, 2.0], [True, False], "scores must be numbers, got"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            one_run(scores, included, claimed=claimed)
    with pytest.raises(TypeError, match="claimed must be a PrivacyBound, got 1.0"):
        one_run([1.0, 2.0], [True, False], claimed=1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="plan must be a Plan or ReactivePlan, got str"):
        audit("plan.json")  # type: ignore[arg-type]


def test_scores_and_included_of_other_kinds() -> None:
    claimed, included = PLAN.bound, np.arange(200) % 3 == 0
    expected = one_run(included * 1.0, included, claimed=claimed).lower
    tensor = torch.tensor(included * 1.0, dtype=torch.bfloat16, requires_grad=True)
    assert one_run(tensor, included.astype(int), claimed=claimed).lower == expected
    infinite = np.where(included, np.inf, -np.inf)
    assert one_run(infinite, included.tolist(), claimed=claimed).lower == expected


def test_equal_scores_prove_nothing_in_whatever_order() -> None:
    for included in (np.arange(1000) < 500, np.arange(1000) >= 500):
        assert one_run(np.zeros(1000), included, claimed=PLAN.bound).lower < 0.3


def test_seeds_are_whole_numbers() -> None:
    with pytest.raises(TypeError, match="seed must be an integer"):
        audit(PLAN, seed=1.5)  # type: ignore[arg-type]


def test_the_library_is_left_as_it_was() -> None:
    state = torch.random.get_rng_state()
    audit(PLAN, trials=200)
    assert torch.equal(state, torch.random.get_rng_state())
