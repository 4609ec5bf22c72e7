"""What all private estimators share: parameters, the plan, and what they claim."""

from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from dither.estimators.defaults import Defaults, defaults
from dither.estimators.frame import frame_of
from dither.estimators.leaks import Leaks
from dither.estimators.targets import classes_of, target_frame_of
from dither.ledger import Ledger
from dither.noise import Custom
from dither.planning import Plan, ReactivePlan, plan
from dither.schedules import Reactive, parse
from dither.training import TrainResult
from dither.training.statement import statement
from dither.types import PrivacyBound

_POSITIVE = Interval(Real, 0, None, closed="neither")
_COUNT = Interval(Integral, 1, None, closed="left")


class PrivateEstimator(BaseEstimator):
    """Base of all estimators; see `PrivateLogisticRegression` for the parameters."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "epsilon": [_POSITIVE],
        "delta": [Interval(Real, 0, 1, closed="neither"), None],
        "dataset_size": [_COUNT, None],
        "clip_norm": [_POSITIVE, None],
        "epochs": [_POSITIVE, None],
        "steps": [_COUNT, None],
        "batch_size": [_COUNT, None],
        "feature_norm": [_POSITIVE, None],
        "random_state": ["random_state"],
        "ledger": [Ledger, str, Path, None],
        "verbose": ["verbose"],
    }
    _model = "linear"
    _task = "classification"
    _needs_bounds = True

    privacy_: PrivacyBound
    plan_: Plan | ReactivePlan

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float | None,
        dataset_size: int | None,
        clip_norm: float | None,
        epochs: float | None,
        steps: int | None,
        batch_size: int | None,
        stepsizes: Any,
        noise: Any,
        feature_bounds: Any,
        feature_norm: float | None,
        random_state: Any,
        ledger: Any,
        verbose: int,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.dataset_size = dataset_size
        self.clip_norm = clip_norm
        self.epochs = epochs
        self.steps = steps
        self.batch_size = batch_size
        self.stepsizes = stepsizes
        self.noise = noise
        self.feature_bounds = feature_bounds
        self.feature_norm = feature_norm
        self.random_state = random_state
        self.ledger = ledger
        self.verbose = verbose

    @property
    def partial_fit(self) -> Any:
        """Refused: `hasattr` says no, and who calls it learns why."""
        raise AttributeError(
            f"{type(self).__name__} has no partial_fit: its noise is planned for a whole run "
            "over all records, and more data would need more budget; call fit once"
        )

    def privacy_statement(self) -> str:
        """Return what the fit claims and what the claim rests on, in paragraphs for people."""
        check_is_fitted(self, "privacy_")
        return statement(self._result, leaks=self._leaks)

    def _planned(self, records: int, features: int, outputs: int) -> tuple[Any, Defaults]:
        """Return the plan of a fit, and the settings that were chosen for it."""
        n, delta = public_sizes(records, self.dataset_size, self.delta)
        chosen = defaults(
            dataset_size=n, features=features, outputs=outputs, epsilon=self.epsilon, delta=delta,
            model=self._model, task=self._task, batch_size=self.batch_size, steps=self.steps,
            epochs=self.epochs, clip_norm=self.clip_norm,
        )  # fmt: skip
        arguments = {
            "epsilon": float(self.epsilon),
            "delta": delta,
            "dataset_size": n,
            "batch_size": chosen.batch_size,
            "steps": chosen.steps,
            "clip_norm": chosen.clip_norm,
            "stepsizes": self._given_stepsizes(chosen),
            "noise": self.noise,
        }
        return _made(arguments), chosen

    def _given_stepsizes(self, chosen: Defaults) -> Any:
        if self.stepsizes is None:
            return chosen.stepsizes
        return parse(self.stepsizes) if isinstance(self.stepsizes, str) else self.stepsizes

    def _standardizing(self, chosen: Defaults) -> int:
        return 0 if isinstance(self.stepsizes, Reactive) else chosen.standardizing

    @property
    def _accepted(self) -> dict[str, Any]:
        """What `validate_data` lets through."""
        return {"dtype": [np.float64, np.float32]}

    def _bounds_of(self, X: Any, names: Any, leaks: Leaks) -> dict[str, Any]:
        """Return parameters that make the features' bounds public, if they must be."""
        if self.feature_norm is not None or (
            self.feature_bounds is None and not self._needs_bounds
        ):
            return {}
        frame = frame_of(X, self.feature_bounds, None, leaks, length=1.0, names=names)
        return {"feature_bounds": (frame.lower, frame.upper)}

    def _finish(self, result: TrainResult, leaks: Leaks) -> None:
        self._result, self._leaks = result, tuple(leaks.found)
        self.plan_, self.privacy_ = result.plan, leaks.honest(result.bound)


class ClassifierBase(ClassifierMixin, PrivateEstimator):
    """The parameters of classifiers."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PrivateEstimator._parameter_constraints,
        "classes": ["array-like", None],
    }

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        dataset_size: int | None = None,
        clip_norm: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        stepsizes: Any = None,
        noise: Any = "optimal",
        feature_bounds: Any = None,
        feature_norm: float | None = None,
        classes: Any = None,
        random_state: Any = None,
        ledger: Any = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            epsilon=epsilon, delta=delta, dataset_size=dataset_size, clip_norm=clip_norm,
            epochs=epochs, steps=steps, batch_size=batch_size, stepsizes=stepsizes, noise=noise,
            feature_bounds=feature_bounds, feature_norm=feature_norm, random_state=random_state,
            ledger=ledger, verbose=verbose,
        )  # fmt: skip
        self.classes = classes

    def _outputs_for(self, classes: int) -> int:
        """Return the number of scores per record."""
        return classes

    def _public_parameters(self, X: Any, y: Any, names: Any, leaks: Leaks) -> dict[str, Any]:
        """Return parameters with which a fit derives nothing from the data."""
        return {
            "classes": classes_of(y, self.classes, leaks)[0],
            **self._bounds_of(X, names, leaks),
        }

    def _record_scores(self, X: Any, y: Any) -> NDArray[Any]:
        """Return 1 for every record whose class is right, else 0."""
        return np.asarray(self.predict(X) == y)


class RegressorBase(RegressorMixin, PrivateEstimator):
    """The parameters of regressors."""

    _task = "regression"

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        dataset_size: int | None = None,
        clip_norm: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        stepsizes: Any = None,
        noise: Any = "optimal",
        feature_bounds: Any = None,
        feature_norm: float | None = None,
        target_bounds: Any = None,
        random_state: Any = None,
        ledger: Any = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            epsilon=epsilon, delta=delta, dataset_size=dataset_size, clip_norm=clip_norm,
            epochs=epochs, steps=steps, batch_size=batch_size, stepsizes=stepsizes, noise=noise,
            feature_bounds=feature_bounds, feature_norm=feature_norm, random_state=random_state,
            ledger=ledger, verbose=verbose,
        )  # fmt: skip
        self.target_bounds = target_bounds

    def _public_parameters(self, X: Any, y: Any, names: Any, leaks: Leaks) -> dict[str, Any]:
        """Return parameters with which a fit derives nothing from the data."""
        frame = target_frame_of(np.asarray(y, np.float64), self.target_bounds, leaks)
        bounds = (frame.middle - frame.reach, frame.middle + frame.reach)
        return {"target_bounds": bounds, **self._bounds_of(X, names, leaks)}

    def _record_scores(self, X: Any, y: Any) -> NDArray[Any]:
        """Return for every record 1 minus the squared error in units of the targets' range."""
        frame = target_frame_of(y, self.target_bounds, Leaks())
        errors = (self.predict(X) - frame.middle) / frame.reach - frame.scaled(y)
        return np.asarray(1.0 - (errors / 2.0) ** 2)

    def _outputs_for(self, classes: int) -> int:
        return 1


def public_sizes(records: int, dataset_size: int | None, delta: float | None) -> tuple[int, float]:
    """Return n and δ: as they are given, or the number of records and 1/(10·n)."""
    n = records if dataset_size is None else int(dataset_size)
    return n, 0.1 / n if delta is None else float(delta)


def seed_of(random_state: Any) -> int | None:
    """Return the seed that scikit-learn's ``random_state`` stands for; None stays None."""
    if random_state is None or isinstance(random_state, Integral):
        return None if random_state is None else int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def _made(arguments: dict[str, Any]) -> Plan | ReactivePlan:
    """Plan a run, or take the plan that was made for the same arguments before."""
    if all(map(_is_frozen, arguments.values())):
        return _remembered(*arguments.items())
    made: Plan | ReactivePlan = plan(**arguments)
    return made


def _is_frozen(value: object) -> bool:
    """Return whether a value can be compared with others, and never changes."""
    ours = type(value).__module__.startswith("dither.")
    return isinstance(value, str | int | float) or (ours and not isinstance(value, Custom))


@lru_cache(maxsize=64)
def _remembered(*arguments: tuple[str, Any]) -> Plan | ReactivePlan:
    made: Plan | ReactivePlan = plan(**dict(arguments))
    return made
