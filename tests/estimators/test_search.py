"""The private search: its budget against dp-accounting, its draws, and what it keeps."""

import pickle
import warnings
from typing import Any

import dp_accounting
import numpy as np
import pandas
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy import stats
from sklearn.model_selection import cross_val_score

import dither
from dither.accounting.rdp import ORDERS
from dither.accounting.selection import TrialCount
from dither.estimators import (
    PrivacyLeakWarning,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSearchCV,
)
from dither.estimators.search import _costs_the_same
from dither.estimators.trials import _divergences, draw_trial_count, noisy_score, trial_budget
from dither.randomness import Source
from dither.schedules import AdaGradNorm

Table = tuple[Any, Any]
MODEL = PrivateLogisticRegression(
    feature_bounds=(0, 16), classes=range(10), steps=20, noise="uniform"
)


def test_a_search_finds_settings_within_its_budget(digits: Table) -> None:
    grid = {"clip_norm": [1e-4, 0.2], "batch_size": [1000]}
    search = PrivateSearchCV(MODEL, grid, epsilon=3.0, trials=8, random_state=1).fit(*digits)
    assert search.best_params_["batch_size"] == 1000
    assert 2.9 < search.privacy_.epsilon <= 3.0
    assert search.privacy_.accountant == "rdp"
    assert search.best_estimator_.privacy_ == search.privacy_
    assert search.best_estimator_.plan_.bound.epsilon < 3.0
    assert search.score(*digits) > 0.6
    assert 0.0 < search.best_score_ < 1.2
    assert np.array_equal(search.classes_, range(10))
    assert search.predict_proba(digits[0]).shape == (len(digits[0]), 10)
    again = pickle.loads(pickle.dumps(search))  # noqa: S301 - our own bytes
    assert np.array_equal(again.predict(digits[0]), search.predict(digits[0]))
    assert "the number of trials stays secret" in search.privacy_statement()


def test_only_the_winner_is_kept(digits: Table) -> None:
    search = PrivateSearchCV(MODEL, {"clip_norm": [0.1, 0.2]}, random_state=0).fit(*digits)
    learned = {name for name in vars(search) if name.endswith("_")}
    assert learned == {
        "best_estimator_", "best_params_", "best_score_", "classes_", "n_features_in_", "privacy_",
    }  # fmt: skip


def plans(epsilon: float) -> list[dither.Plan]:
    """Two settings with other sample rates and numbers of steps."""
    sizes: list[dict[str, Any]] = [
        {"batch_size": 100, "steps": 50},
        {"batch_size": 1000, "steps": 10},
    ]
    return [
        dither.plan(epsilon=epsilon, delta=1e-4, dataset_size=1000, noise="uniform", **each)
        for each in sizes
    ]


@pytest.mark.parametrize(("mean", "shape"), [(3.0, 0.0), (12.0, 1.0)])
def test_the_search_costs_what_dp_accounting_computes(mean: float, shape: float) -> None:
    trials = TrialCount(mean, shape)
    budget = trial_budget(plans, epsilon=2.0, delta=1e-4, trials=trials)
    assert 1.95 < budget.total <= 2.0
    totals = []
    for plan in plans(budget.epsilon):
        gaussian = dp_accounting.GaussianDpEvent(float(plan.noise_multipliers[0]))
        event = dp_accounting.PoissonSampledDpEvent(plan.sample_rate, gaussian)
        run = dp_accounting.SelfComposedDpEvent(event, plan.steps)
        for each in (run, dp_accounting.GaussianDpEvent(budget.score_noise)):
            search = dp_accounting.dp_event.RepeatAndSelectDpEvent(each, mean, shape)
            peer = RdpAccountant(orders=ORDERS.tolist()).compose(search)
            totals.append(peer.get_epsilon(1e-4))
    assert max(totals) <= budget.total * (1.0 + 1e-6)
    assert max(totals) >= 0.9 * budget.total  # nothing much is wasted


def test_one_trial_costs_no_more_than_one_run() -> None:
    budget = trial_budget(plans, epsilon=2.0, delta=1e-4, trials=TrialCount(1.0))
    assert 1.6 < budget.epsilon <= 2.0  # Rényi accounting is looser than what made the plans


def test_a_budget_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be more than 0.01 for about 1e\\+06 trials"):
        trial_budget(plans, epsilon=0.01, delta=1e-4, trials=TrialCount(1e6))


def test_numbers_of_trials_are_drawn_as_they_are_accounted() -> None:
    trials = TrialCount(4.0, 1.0)
    drawn = [draw_trial_count(trials, Source(7).stream("trials", i)) for i in range(4000)]
    expected = 4000 * 0.25 * 0.75 ** np.arange(12)
    seen = np.bincount(drawn, minlength=13)[1:13]
    rest = 4000 - seen.sum(), 4000 - expected.sum()
    assert stats.chisquare([*seen, rest[0]], [*expected, rest[1]]).pvalue > 1e-3
    other = 4000 * 0.3 * 0.7 ** np.arange(12)
    assert stats.chisquare(seen, other * seen.sum() / other.sum()).pvalue < 1e-3


def test_scores_have_their_noise_and_one_record_moves_them_by_one() -> None:
    noises = [
        10.0 * noisy_score(np.zeros(5), np.arange(5), 3.0, 10, Source(3).stream("score", i))
        for i in range(2000)
    ]
    energy, (low, high) = np.square(noises).sum() / 9.0, stats.chi2(2000).interval(1 - 1e-4)
    assert low < energy < high
    assert not low < energy * 1.15**2 < high
    wild = noisy_score(
        np.array([1e9, -5.0, np.nan]), np.arange(3), 1e-6, 1, Source(3).stream("score", 0)
    )
    assert wild == pytest.approx(1.0, abs=1e-4)


def test_records_go_to_one_part_each_independently(
    digits: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = digits
    seen: list[tuple[int, int]] = []
    real_fit, real_scores = PrivateLogisticRegression.fit, PrivateLogisticRegression._record_scores

    def fit(self: Any, X: Any, y: Any) -> Any:
        seen.append((len(X), 0))
        return real_fit(self, X, y)

    def scores(self: Any, X: Any, y: Any) -> Any:
        seen[-1] = (seen[-1][0], len(X))
        return real_scores(self, X, y)

    monkeypatch.setattr(PrivateLogisticRegression, "fit", fit)
    monkeypatch.setattr(PrivateLogisticRegression, "_record_scores", scores)
    sizes = set()
    for seed in range(4):
        seen.clear()
        search = PrivateSearchCV(MODEL, {"clip_norm": [0.2]}, trials=3, random_state=seed)
        plan = search.fit(X, y).best_estimator_.plan_
        assert {trained + tested for trained, tested in seen} == {len(X)}
        assert len({*seen}) == 1  # the parts are the same for all trials
        assert plan.dataset_size == 1797 - 359
        sizes.add(seen[0])
    assert len(sizes) > 1  # and not cut at a fixed place


def test_regressions_are_searched_too(lengths: Table) -> None:
    model = PrivateLinearRegression(feature_bounds=(-1, 1), target_bounds=(-1, 1), steps=20)
    search = PrivateSearchCV(model, {"clip_norm": [0.1]}, epsilon=3.0, random_state=1).fit(*lengths)
    assert search.score(*lengths) > 0.5
    assert not hasattr(search, "predict_proba")
    assert 0.8 < search.best_score_ < 1.1


def test_values_derived_from_the_data_warn_once(digits: Table) -> None:
    bare = PrivateLogisticRegression(steps=5)
    with pytest.warns(PrivacyLeakWarning) as caught:
        search = PrivateSearchCV(bare, {"clip_norm": [0.2]}, trials=5, random_state=0).fit(*digits)
    assert len(caught) == 1
    assert not search.privacy_.is_upper_bound
    assert not search.best_estimator_.privacy_.is_upper_bound


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"estimator": StopIteration()}, "estimator must be a private estimator"),
        ({"param_grid": {"epsilon": [1.0]}}, "got 'epsilon'"),
        ({"param_grid": {"colour": [1.0]}}, "got 'colour'"),
        ({"param_grid": {"feature_bounds": [None]}}, "got 'feature_bounds'"),
        ({"param_grid": []}, "param_grid must have at least one point"),
        ({"shape": 11.0}, "The 'shape' parameter"),
        ({"epsilon": -1.0}, "The 'epsilon' parameter of PrivateSearchCV"),
        ({"trials": 0.5}, "The 'trials' parameter"),
        ({"test_size": 1.0}, "The 'test_size' parameter"),
        ({"param_grid": {"stepsizes": [AdaGradNorm(1.0, 1.0)], "noise": ["uniform"]}}, "reactive"),
    ],
)
def test_refusals(parameters: dict[str, Any], message: str, digits: Table) -> None:
    search = PrivateSearchCV(**{"estimator": MODEL, "param_grid": {}, **parameters})
    with pytest.raises((ValueError, TypeError), match=message):
        search.fit(*digits)


def test_a_ledger_is_refused(digits: Table) -> None:
    paying = PrivateLogisticRegression(ledger="ledger.sqlite")
    with pytest.raises(ValueError, match="ledger must be None"):
        PrivateSearchCV(paying, {"clip_norm": [0.2]}).fit(*digits)


def test_the_number_of_trials_is_not_revealed(digits: Table) -> None:
    counts = set()
    for seed in range(4):
        loud = PrivateLogisticRegression(steps=3, classes=range(10), feature_bounds=(0, 16))
        search = PrivateSearchCV(
            loud.set_params(verbose=1), {"clip_norm": [0.2]}, trials=5, dataset_size=500,
            random_state=seed,
        )  # fmt: skip
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cross_val_score(search, *digits, cv=2)
        counts.add(len(caught))
        assert search.fit(*digits).best_estimator_.verbose == 0
    assert len(counts) == 1


@pytest.mark.parametrize(("mean", "shape"), [(300.0, 10.0), (1e6, 5.0)])
def test_many_trials_are_drawn_where_few_are_rare(mean: float, shape: float) -> None:
    trials = TrialCount(mean, shape)
    drawn = [draw_trial_count(trials, Source(7).stream("trials", i)) for i in range(3)]
    assert min(drawn) > mean / 20.0


class Fickle:
    """A schedule that is another one whenever it is asked."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.asked = 0

    def __deepcopy__(self, _: object) -> "Fickle":
        return self

    def stepsizes(self, steps: int) -> Any:
        self.asked += 1
        return np.linspace(1.0, 1.0 / (1.0 + self.asked), steps)


def test_bounds_with_names_are_taken_by_name(digits: Table) -> None:
    X, y = digits
    frame = pandas.DataFrame(X[:, [20, 30]], columns=["small", "big"]) * [0.1, 100.0]
    low, high = pandas.Series({"big": 0.0, "small": 0.0}), pandas.Series({"big": 1e4, "small": 2.0})
    model = PrivateLogisticRegression(feature_bounds=(low, high), classes=range(10), steps=5)
    search = PrivateSearchCV(model, {"clip_norm": [0.2]}, random_state=0).fit(frame, y)
    assert [*search.best_estimator_._scaling.upper] == [2.0, 1e4]


def test_a_losing_trial_must_run_its_accounted_plan_too(
    digits: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[int] = []
    real = PrivateLogisticRegression.fit

    def fit(self: Any, X: Any, y: Any) -> Any:
        fits.append(0)
        return real(self if len(fits) != 2 else self.set_params(steps=1), X, y)

    monkeypatch.setattr(PrivateLogisticRegression, "fit", fit)
    search = PrivateSearchCV(MODEL, {"clip_norm": [0.2]}, epsilon=3.0, trials=9, random_state=0)
    with pytest.raises(ValueError, match="not the one that was accounted"):
        search.fit(*digits)
    assert len(fits) == 2


def test_a_plan_that_was_not_accounted_is_refused(digits: Table) -> None:
    grid = {"stepsizes": [Fickle()]}
    with pytest.raises(ValueError, match="not the one that was accounted"):
        PrivateSearchCV(MODEL, grid, epsilon=3.0, trials=2, random_state=1).fit(*digits)


def test_cycles_of_correlated_noise_are_priced_as_such() -> None:
    setting: dict[str, Any] = {"delta": 1e-5, "dataset_size": 1000, "batch_size": 10}
    theta = [1.0, 0.5, 0.3, 0.2]
    made = dither.Plan.from_noise_multipliers([2.0] * 40, correlation=theta, **setting)
    cycles = dither.Plan.from_noise_multipliers(
        [2.0] * 10, delta=1e-5, dataset_size=1000, batch_size=40
    )
    steps = dither.Plan.from_noise_multipliers([2.0] * 40, **setting)
    assert _divergences(made) == pytest.approx(_divergences(cycles), rel=1e-12)
    assert _divergences(made)[0] > 3.0 * _divergences(steps)[0]
    other = dither.Plan.from_noise_multipliers([2.0] * 40, correlation=[1.0, 0.4], **setting)
    assert _costs_the_same(made, made)
    assert not _costs_the_same(made, other)
