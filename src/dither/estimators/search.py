"""A hyperparameter search with one ε for all trials: only the best model is released."""

import math
import warnings
from copy import deepcopy
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.model_selection import ParameterGrid
from sklearn.utils import get_tags
from sklearn.utils._param_validation import Interval
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dither.accounting.selection import TrialCount
from dither.estimators.base import PrivateEstimator, seed_of
from dither.estimators.leaks import Leaks, check_scaling
from dither.estimators.records import (
    TrainingRecords,
    find_users,
    public_sizes,
    validate_records,
    warn_of_delta,
)
from dither.estimators.trials import TrialBudget, draw_trial_count, noisy_score, trial_budget
from dither.planning import Plan
from dither.randomness import Source
from dither.sampling import Poisson
from dither.types import FloatArray, PrivacyBound
from dither.validate import InvalidTypeError, InvalidValueError

_OWN = (
    "class_shares", "classes", "dataset_size", "delta", "epsilon", "feature_bounds",
    "feature_norm", "ledger", "max_weight", "missing", "random_state", "schema", "target_bounds",
    "verbose",
)  # fmt: skip
"""Parameters of the trials that a search does not search over."""


def _if_estimator_has(name: str) -> Any:
    return available_if(lambda search: hasattr(search.estimator, name))


def _costs_the_same(one: Any, other: Any) -> bool:
    """Return whether plans are equal but for the clip norm: it may follow from random weights."""
    if not (isinstance(one, Plan) and isinstance(other, Plan)):
        return bool(one == other)
    names = ("dataset_size", "batch_size", "sampling", "delta", "accountant", "search",
             "correlation")  # fmt: skip
    arrays = ("stepsizes", "noise_multipliers")
    return all(getattr(one, name) == getattr(other, name) for name in names) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):
    """Hyperparameter search on the private data itself, with one ε for the complete search.

    Every record is in the test part independently with probability ``test_size``, else in the
    training part. A trial draws settings from the grid at random, trains with them, and gets a
    noisy score. The number of trials is random, too: truncated negative binomial (Papernot and
    Steinke). Only the trial with the best score is released. Nothing is kept of the others, not
    even their number.

    Guarantees: model, settings and score together are (``epsilon``, ``delta``)-differentially
    private with respect to adding or removing a record, by Rényi accounting, if the estimator has
    public ``classes`` and bounds. Where ``fit`` is given ``users``, they are what is protected: a
    user's records are all in one part, and the score of a user is the mean of theirs. The duration
    of a search reveals the number of trials: do not publish it.

    Args:
        estimator: a private estimator, not a pipeline around one. The search sets its budget,
            dataset_size, random_state and verbose.
        param_grid: parameter → values to try, or a list of such; neither parameters of the budget
            nor public knowledge (bounds, classes).
        epsilon: ε of the complete search.
        delta: δ; None is 1/(10·n).
        dataset_size: n; None is ``len(X)``, or the number of users, which is then public.
        trials: expected number of trials; None is the number of grid points.
        shape: of the distribution of the number of trials: 0 is logarithmic, 1 geometric.
        test_size: probability that a record, or a user, is in the test part.
        random_state: as for the estimators.

    Attributes:
        best_estimator_: the best estimator, trained on the training part. Its ``privacy_`` is that
            of the search; its ``plan_`` is that of its own training.
        best_params_: its settings from the grid.
        best_score_: its noisy score: accuracy, or for regressions one minus the mean squared error
            in units of the targets' range.
        privacy_: the `PrivacyBound` of the search.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from dither.estimators import PrivateLogisticRegression
        >>> X, y = load_digits(return_X_y=True)
        >>> model = PrivateLogisticRegression(
        ...     feature_bounds=(0, 16), classes=range(10), steps=50)
        >>> search = PrivateSearchCV(model, {"clip_norm": [0.1, 1.0]}, epsilon=3.0, random_state=0)
        >>> search.fit(X, y).privacy_.epsilon <= 3.0
        True
    """

    estimator: Any = field(kw_only=False)
    param_grid: Any = field(kw_only=False)
    epsilon: float = 1.0
    delta: float | None = None
    dataset_size: int | None = None
    trials: float | None = None
    shape: float = 1.0
    test_size: float = 0.2
    random_state: Any = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "delta": [Interval(Real, 0, 1, closed="neither"), None],
        "dataset_size": [Interval(Integral, 2, None, closed="left"), None],
        "trials": [Interval(Real, 1, None, closed="left"), None],
        "shape": [Interval(Real, 0, 10, closed="both")],
        "test_size": [Interval(Real, 0, 1, closed="neither")],
        "random_state": ["random_state"],
    }

    def fit(self, X: Any, y: Any, users: Any = None) -> Any:
        """Search, within the budget, and keep the best estimator.

        Args:
            X: one record per row.
            y: one target per record.
            users: one id per record, whose it is; None protects records. How many records of a
                user take part in a step, and what becomes of those without a user, are parameters
                of the estimator.
        """
        self._validate_params()
        settings, leaks = self._grid_points(), Leaks()
        X, y = validate_records(
            self, X, y, y_numeric=not is_classifier(self.estimator), ensure_min_samples=4,
            **self.estimator._validation_options,
        )  # fmt: skip
        own = find_users(users, len(y), self.estimator.rows_per_user, self.estimator.missing)
        records = TrainingRecords(X, y, users=own)
        check_scaling(X, leaks)
        n, delta = public_sizes(records.count, self.dataset_size, self.delta)
        warn_of_delta(n, delta, records.unit, stacklevel=3)
        expected_tests = min(max(1, round(self.test_size * n)), n - 1)
        names = getattr(self, "feature_names_in_", None)
        known = self.estimator._public_parameters(X, y, names, leaks)
        leaks.warn(stacklevel=2)
        known.update(dataset_size=n - expected_tests, delta=delta, verbose=0)
        candidates = [clone(self.estimator).set_params(**{**known, **each}) for each in settings]
        count = float(len(settings) if self.trials is None else self.trials)
        trials = TrialCount(count, float(self.shape))
        outputs = len(known["classes"]) if "classes" in known else 1

        def plans(epsilon: float) -> list[Any]:
            each = [candidate.set_params(epsilon=epsilon) for candidate in candidates]
            return [
                one._plan(n, one._encoded_shape(X.shape[1:]), one._outputs_per_record(outputs))
                for one in each
            ]

        budget = trial_budget(plans, epsilon=float(self.epsilon), delta=delta, trials=trials)
        best, index, score = self._run_trials(
            records, candidates, budget, trials, expected_tests, n
        )
        self._store_best(best, settings[index], score, budget, delta, leaks)
        return self

    def _grid_points(self) -> list[dict[str, Any]]:
        """Return the points of the grid; raise if the estimator or a parameter is unsuitable."""
        if not isinstance(self.estimator, PrivateEstimator):
            raise InvalidTypeError(
                "estimator must be a private estimator of dither.estimators, got "
                f"{type(self.estimator).__name__}"
            )
        if self.estimator.schema is not None:
            raise InvalidValueError(
                "estimator.schema must be None, got a schema: search with the features of "
                "SchemaEncoder, which a pipeline around the search may begin with"
            )
        if self.estimator.ledger is not None:
            raise InvalidValueError(
                f"estimator.ledger must be None, got {self.estimator.ledger!r}: a ledger adds up "
                "single runs, and a search costs less than its trials together"
            )
        settings = list(ParameterGrid(self.param_grid))
        if not settings:
            raise InvalidValueError("param_grid must have at least one point, got none")
        allowed = sorted({*self.estimator.get_params(deep=False)} - {*_OWN})
        for name in sorted({name for chosen in settings for name in chosen}):
            if name not in allowed:
                raise InvalidValueError(
                    f"param_grid must have parameters among {', '.join(allowed)}, got {name!r}"
                )
        return settings

    def _run_trials(
        self,
        records: TrainingRecords,
        candidates: list[Any],
        budget: TrialBudget,
        trials: TrialCount,
        expected_tests: int,
        n: int,
    ) -> tuple[Any, int, float]:
        """Run the trials; return the best, the index of its settings, and its noisy score."""
        source, X, y = Source(seed_of(self.random_state)), records.X, records.y
        owners, number = records.owners, records.count
        tested = Poisson(expected_tests / n).draw(number, source.stream("split", 0))
        is_tested = np.isin(owners, tested)
        is_trained = ~is_tested & (owners >= 0)
        whose = {} if records.users is None else {"users": owners[is_trained]}
        if int(is_trained.sum()) < 2:
            raise InvalidValueError(
                f"X must have more records for test_size = {self.test_size:g}: too few are left "
                "to train on"
            )
        best: tuple[Any, int, float] = (None, 0, -math.inf)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one per trial would reveal their number
            for trial in range(draw_trial_count(trials, source.stream("trials", 0))):
                index = int(source.stream("settings", trial).below(len(candidates), 1)[0])
                seed = int(source.stream("seed", trial).below(2**31, 1)[0])
                model = clone(candidates[index]).set_params(
                    epsilon=budget.epsilon, random_state=None if source.seed is None else seed
                )
                model.fit(X[is_trained], y[is_trained], **whose)
                if not _costs_the_same(model.plan_, budget.plans[index]):
                    raise InvalidValueError(
                        "stepsizes and noise must be the same in every call, got a plan that is "
                        "not the one that was accounted"
                    )
                scores = np.zeros(0)
                if is_tested.any():
                    # A copy: a module may store its inputs.
                    scores = deepcopy(model)._record_scores(X[is_tested], y[is_tested])
                stream = source.stream("score", trial)
                score = noisy_score(
                    scores, owners[is_tested], budget.score_noise, expected_tests, stream
                )
                if score > best[2]:
                    best = (model, index, score)
        return best

    def _store_best(
        self,
        best: Any,
        settings: dict[str, Any],
        score: float,
        budget: TrialBudget,
        delta: float,
        leaks: Leaks,
    ) -> None:
        leaks.descriptions += [leak for leak in best._leaks if leak not in leaks.descriptions]
        one: PrivacyBound = best.plan_.bound
        bound = PrivacyBound(budget.total, delta, "rdp", one.sampling, one.adjacency, unit=one.unit)
        self.privacy_ = best.privacy_ = leaks.qualify(bound)
        best._result = replace(best._result, bound=self.privacy_)
        best._leaks = tuple(leaks.descriptions)
        self.best_estimator_, self.best_params_, self.best_score_ = best, settings, score
        if is_classifier(best):
            self.classes_ = best.classes_

    def predict(self, X: Any) -> Any:
        """Return the predictions of the best estimator."""
        return self._call_best("predict", X)

    @_if_estimator_has("predict_proba")
    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probability of every class, records × classes."""
        return np.asarray(self._call_best("predict_proba", X))

    @_if_estimator_has("predict_log_proba")
    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return the logarithms of the probabilities."""
        return np.asarray(self._call_best("predict_log_proba", X))

    @_if_estimator_has("decision_function")
    def decision_function(self, X: Any) -> FloatArray:
        """Return the scores of records."""
        return np.asarray(self._call_best("decision_function", X))

    def score(self, X: Any, y: Any) -> float:
        """Return the score of the best estimator on public data."""
        return float(self._call_best("score", X, y))

    def privacy_statement(self) -> str:
        """Return the claim of the search and its assumptions as text."""
        check_is_fitted(self, "privacy_")
        return (
            "The best of a random number of trials was released: its model, its settings and its "
            f"noisy score. Together they are {self.privacy_}, if the number of trials stays "
            "secret.\nTraining of the best estimator:\n"
            f"{self.best_estimator_.privacy_statement()}"
        )

    def _call_best(self, method: str, X: Any, *more: Any) -> Any:
        check_is_fitted(self, "privacy_")
        X = validate_records(self, X, reset=False, **self.estimator._validation_options)
        return getattr(self.best_estimator_, method)(X, *more)

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.target_tags = inner.estimator_type, inner.target_tags
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags.sparse = inner.input_tags.sparse
        return tags
