"""A search over settings whose ε covers all of it: only the winner is released."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from rich.console import Console
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.model_selection import ParameterGrid
from sklearn.utils import get_tags
from sklearn.utils._param_validation import Interval
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from dither.accounting.selection import TrialCount
from dither.estimators.base import PrivateEstimator, public_sizes, seed_of
from dither.estimators.leaks import Leaks
from dither.estimators.scaling import check_scaling
from dither.estimators.trials import TrialBudget, budget_of, drawn_count, noisy_score
from dither.randomness import Source
from dither.sampling import Poisson
from dither.types import FloatArray, PrivacyBound
from dither.validate import InvalidTypeError, InvalidValueError

_OWN = (
    "classes", "dataset_size", "delta", "epsilon", "feature_bounds", "feature_norm", "ledger",
    "random_state", "target_bounds", "verbose",
)  # fmt: skip
"""Parameters of the trials that a search does not search over."""


def _if_estimator_has(name: str) -> Any:
    return available_if(lambda search: hasattr(search.estimator, name))


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):
    """Settings chosen on the private data itself, with one ε for the whole search.

    Every record goes independently, with probability ``test_share``, to the part that trials are
    scored on, or else to the part that they train on. A trial takes settings from the grid at
    random, trains with them, and gets a noisy score. The number of trials is random, too: truncated
    negative binomial (Papernot and Steinke). Only the trial with the best score is released, and
    nothing is kept of the others, not even how many there were.

    Guarantees: winner, settings and score together are (``epsilon``, ``delta``)-differentially
    private with respect to adding or removing a record, by Rényi accounting, if the estimator has
    public ``classes`` and bounds. How long a search takes shows how many trials there were: do
    not publish that.

    Args:
        estimator: a private estimator, not a pipeline around one. Its budget, dataset_size,
            random_state and verbose are the search's.
        param_grid: parameter → values to try, or a list of such; not the budget's parameters, nor
            what is public knowledge.
        epsilon: ε of the whole search.
        delta: δ; None is 1/(10·n).
        dataset_size: n; None is ``len(X)``, which is then public.
        trials: expected number of trials; None is as many as the grid has points.
        shape: of the distribution of their number: 0 is logarithmic, 1 geometric.
        test_share: the expected share of the records that trials are scored on.
        random_state: as for the estimators.
        verbose: 1 shows that the search is under way. It cannot show how far.

    Attributes:
        best_estimator_: the winner, trained on its part of the records. Its ``privacy_`` is that of
            the search; its ``plan_`` is that of its own training.
        best_params_: what was chosen from the grid.
        best_score_: its score with the noise: the share of right predictions, or for regressions
            one minus the mean squared error in units of the target's range.
        privacy_: the `PrivacyBound` of the search.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from dither.estimators import PrivateLogisticRegression
        >>> X, y = load_digits(return_X_y=True)
        >>> model = PrivateLogisticRegression(feature_bounds=(0, 16), classes=range(10))
        >>> search = PrivateSearchCV(model, {"clip_norm": [0.1, 1.0]}, epsilon=3.0, random_state=0)
        >>> search.fit(X, y).privacy_.epsilon <= 3.0
        True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "delta": [Interval(Real, 0, 1, closed="neither"), None],
        "dataset_size": [Interval(Integral, 2, None, closed="left"), None],
        "trials": [Interval(Real, 1, None, closed="left"), None],
        "shape": [Interval(Real, 0, 10, closed="both")],
        "test_share": [Interval(Real, 0, 1, closed="neither")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        dataset_size: int | None = None,
        trials: float | None = None,
        shape: float = 1.0,
        test_share: float = 0.2,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.epsilon = epsilon
        self.delta = delta
        self.dataset_size = dataset_size
        self.trials = trials
        self.shape = shape
        self.test_share = test_share
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Any:
        """Search, within the budget, and keep the winner."""
        self._validate_params()
        settings, leaks = self._settings(), Leaks()
        X, y = self._checked(X, y)
        check_scaling(X, leaks)
        n, delta = public_sizes(X.shape[0], self.dataset_size, self.delta)
        tested = min(max(1, round(self.test_share * n)), n - 1)
        names = getattr(self, "feature_names_in_", None)
        known = self.estimator._public_parameters(X, y, names, leaks)
        leaks.warn(stacklevel=2)
        known.update(dataset_size=n - tested, delta=delta, verbose=0)
        candidates = [clone(self.estimator).set_params(**{**known, **each}) for each in settings]
        count = float(len(settings) if self.trials is None else self.trials)
        trials = TrialCount(count, float(self.shape))
        outputs = len(known["classes"]) if "classes" in known else 1

        def plans(epsilon: float) -> list[Any]:
            each = [candidate.set_params(epsilon=epsilon) for candidate in candidates]
            features = math.prod(X.shape[1:])
            return [one._planned(n, features, one._outputs_for(outputs))[0] for one in each]

        budget = budget_of(plans, epsilon=float(self.epsilon), delta=delta, trials=trials)
        winner, index, score = self._best(X, y, candidates, budget, trials, tested, n)
        self._keep(winner, settings[index], score, budget, delta, leaks)
        return self

    def _settings(self) -> list[dict[str, Any]]:
        """Return the points of the grid, if the estimator can be searched."""
        if not isinstance(self.estimator, PrivateEstimator):
            raise InvalidTypeError(
                "estimator must be a private estimator of dither.estimators, got "
                f"{type(self.estimator).__name__}"
            )
        if self.estimator.ledger is not None:
            raise InvalidValueError(
                "estimator.ledger must be None: a ledger counts runs one by one, and a search "
                f"costs less, got {self.estimator.ledger!r}"
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

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        numeric = not is_classifier(self.estimator)
        checked: tuple[Any, Any] = validate_data(
            self, X, y, y_numeric=numeric, ensure_min_samples=4, **self.estimator._accepted
        )
        return checked

    def _best(
        self,
        X: Any,
        y: Any,
        candidates: list[Any],
        budget: TrialBudget,
        trials: TrialCount,
        tested: int,
        n: int,
    ) -> tuple[Any, int, float]:
        """Run the trials; return the best, the number of its settings, and its noisy score."""
        source = Source(seed_of(self.random_state))
        is_tested = np.zeros(X.shape[0], bool)
        is_tested[Poisson(tested / n).draw(X.shape[0], source.stream("split", 0))] = True
        if int((~is_tested).sum()) < 2:
            raise InvalidValueError(
                f"X must have more records for test_share = {self.test_share:g}: too few are left "
                "to train on"
            )
        best: tuple[Any, int, float] = (None, 0, -math.inf)
        with _shown(bool(self.verbose)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one per trial would show how many there are
            for trial in range(drawn_count(trials, source.stream("trials", 0))):
                index = int(source.stream("settings", trial).below(len(candidates), 1)[0])
                seed = int(source.stream("seed", trial).below(2**31, 1)[0])
                model = clone(candidates[index]).set_params(
                    epsilon=budget.epsilon, random_state=None if source.seed is None else seed
                )
                model.fit(X[~is_tested], y[~is_tested])
                if model.plan_ != budget.plans[index]:
                    raise InvalidValueError(
                        "stepsizes and noise must be the same whenever they are asked for, got a "
                        "plan that is not the one that was accounted"
                    )
                scores = np.zeros(0)
                if is_tested.any():
                    # A copy: a module may keep what it was given.
                    scores = deepcopy(model)._record_scores(X[is_tested], y[is_tested])
                stream = source.stream("score", trial)
                score = noisy_score(scores, budget.score_noise, tested, stream)
                if score > best[2]:
                    best = (model, index, score)
        return best

    def _keep(
        self,
        winner: Any,
        settings: dict[str, Any],
        score: float,
        budget: TrialBudget,
        delta: float,
        leaks: Leaks,
    ) -> None:
        leaks.found += [leak for leak in winner._leaks if leak not in leaks.found]
        one: PrivacyBound = winner.plan_.bound
        bound = PrivacyBound(budget.total, delta, "rdp", one.sampling, one.adjacency)
        self.privacy_ = winner.privacy_ = leaks.honest(bound)
        winner._result = replace(winner._result, bound=self.privacy_)
        winner._leaks = tuple(leaks.found)
        self.best_estimator_, self.best_params_, self.best_score_ = winner, settings, score
        if is_classifier(winner):
            self.classes_ = winner.classes_

    def predict(self, X: Any) -> Any:
        """Return what the winner predicts."""
        return self._by_winner("predict", X)

    @_if_estimator_has("predict_proba")
    def predict_proba(self, X: Any) -> FloatArray:
        """Return the winner's probabilities."""
        return np.asarray(self._by_winner("predict_proba", X))

    @_if_estimator_has("predict_log_proba")
    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return the winner's logarithms of probabilities."""
        return np.asarray(self._by_winner("predict_log_proba", X))

    @_if_estimator_has("decision_function")
    def decision_function(self, X: Any) -> FloatArray:
        """Return the winner's scores of classes."""
        return np.asarray(self._by_winner("decision_function", X))

    def score(self, X: Any, y: Any) -> float:
        """Return the winner's score on data that should be public."""
        return float(self._by_winner("score", X, y))

    def privacy_statement(self) -> str:
        """Return what the search claims and what the claim rests on, in paragraphs for people."""
        check_is_fitted(self, "privacy_")
        return (
            "The best of a random number of trials was released: its model, its settings and its "
            f"noisy score. Together they are {self.privacy_}, if nobody learns how many trials "
            "there were.\nOf the winner's own training:\n"
            f"{self.best_estimator_.privacy_statement()}"
        )

    def _by_winner(self, method: str, X: Any, *more: Any) -> Any:
        check_is_fitted(self, "privacy_")
        X = validate_data(self, X, reset=False, **self.estimator._accepted)
        return getattr(self.best_estimator_, method)(X, *more)

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.target_tags = inner.estimator_type, inner.target_tags
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.input_tags.sparse = inner.input_tags.sparse
        return tags


@contextmanager
def _shown(wanted: bool) -> Iterator[None]:
    """Show a terminal that something is under way, and not how far: that would show K."""
    console = Console(stderr=True)
    if wanted and console.is_terminal:
        with console.status("searching; how far is not shown, since it would cost privacy"):
            yield
    else:
        yield
