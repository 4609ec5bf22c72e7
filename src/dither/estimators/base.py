"""What all private estimators share: parameters, the plan, and what they claim.

The parameters are fields of dataclasses, so that ``__init__`` only stores them and subclasses add
their own without repeating the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import nn

from dither.estimators.bounds import (
    FeatureScaling,
    TargetScaling,
    encode_classes,
    find_bounds,
    target_scaling,
)
from dither.estimators.leaks import Leaks
from dither.estimators.records import (
    TrainingRecords,
    find_users,
    public_sizes,
    validate_records,
    warn_of_delta,
)
from dither.estimators.weights import class_factors, sample_factors
from dither.ledger import Ledger
from dither.planning import Plan, ReactivePlan
from dither.planning.search import MOST_SHARE
from dither.schedules import parse
from dither.schema import Schema
from dither.schema.encoder import as_schema
from dither.training import TrainResult
from dither.training.run_directory import is_taken
from dither.training.statement import statement
from dither.training.users import MISSING, Users
from dither.types import FloatArray, PrivacyBound
from dither.validate import InvalidTypeError, InvalidValueError

_POSITIVE = Interval(Real, 0, None, closed="neither")
COUNT = Interval(Integral, 1, None, closed="left")


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateEstimator(BaseEstimator, ABC):
    """Base of all estimators; see `PrivateLogisticRegression` for the parameters."""

    epsilon: float = 1.0
    delta: float | None = None
    dataset_size: int | None = None
    clip_norm: float | None = None
    epochs: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    stepsizes: Any = None
    noise: Any = None
    schema: Any = None
    feature_bounds: Any = None
    feature_norm: float | None = None
    max_weight: float = 1.0
    rows_per_user: int | None = None
    missing: str = "drop"
    random_state: Any = None
    ledger: Any = None
    verbose: int = 0

    privacy_: PrivacyBound = field(init=False)
    plan_: Plan | ReactivePlan = field(init=False)

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "epsilon": [_POSITIVE],
        "delta": [Interval(Real, 0, 1, closed="neither"), None],
        "dataset_size": [COUNT, None],
        "clip_norm": [_POSITIVE, None],
        "epochs": [_POSITIVE, None],
        "steps": [COUNT, None],
        "batch_size": [COUNT, None],
        "schema": [Schema, Mapping, str, Path, None],
        "feature_norm": [_POSITIVE, None],
        "max_weight": [_POSITIVE],
        "rows_per_user": [COUNT, None],
        "missing": [StrOptions({*MISSING})],
        "random_state": ["random_state"],
        "ledger": [Ledger, str, Path, None],
        "verbose": ["verbose"],
        # Of some estimators only:
        "classes": ["array-like", None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "class_shares": [dict, "array-like", None],
        "hidden_layer_sizes": ["array-like"],
        "module": [nn.Module, callable],
        "compute": [_POSITIVE, str, None],
        "tune": [Interval(Real, 0, MOST_SHARE, closed="right"), None],
    }
    _task = "classification"
    _needs_bounds = True

    @property
    def privacy(self) -> PrivacyBound:
        """The `PrivacyBound` of the fit, as ``privacy_``."""
        check_is_fitted(self, "privacy_")
        return self.privacy_

    def save(
        self,
        directory: str | Path,
        *,
        data: str = "",
        purpose: str = "",
        part: tuple[str, str] | None = None,
        metrics: Mapping[str, float] = MappingProxyType({}),
    ) -> Path:
        """Write the fitted model to a new run directory, for `dither.load` and ``dither report``.

        The directory has the weights (safetensors), the model's facts, the schema, the plan, the
        result and a ledger, all without code. If the fit had no ledger, its cost is written to the
        one in the directory first.

        Args:
            directory: a new or empty directory.
            data: name of the data, such as its file name; the report says it.
            purpose: what the model is for; the report says it.
            part: (split, part) if the records were one part of a random split, as
                `dither.ledger.Ledger.part` takes it, and the fit had no ledger.
            metrics: what was measured on public records; the report says it.
        """
        from dither.estimators.saving import save

        check_is_fitted(self, "privacy_")
        if is_taken(Path(directory)):
            raise InvalidValueError(f"run directory must be new or empty, got {str(directory)!r}")
        save(self, directory, data=data, purpose=purpose, part=part, metrics=metrics)
        return Path(directory)

    def privacy_statement(self) -> str:
        """Return the claim of the fit and its assumptions as text."""
        check_is_fitted(self, "privacy_")
        is_counted = self.dataset_size is None
        return statement(self._result, leaks=self._leaks, is_counted=is_counted)

    @abstractmethod
    def _plan(self, number: int, shape: tuple[int, ...], outputs: int) -> Plan | ReactivePlan:
        """Return the plan of a fit on so many records or users, with records of a shape."""

    def _parse_stepsizes(self) -> Any:
        return parse(self.stepsizes) if isinstance(self.stepsizes, str) else self.stepsizes

    @abstractmethod
    def _train(self, records: TrainingRecords, outputs: int, leaks: Leaks) -> None:
        """Train on classes 0 … k−1, or on targets from −1 to 1."""

    @property
    def _validation_options(self) -> dict[str, Any]:
        """Options of scikit-learn's `validate_data`."""
        return {"dtype": [np.float64, np.float32]}

    def _validate_records(
        self, X: Any, y: Any, sample_weight: Any, users: Any, leaks: Leaks
    ) -> TrainingRecords:
        """Return the records, checked as scikit-learn does.

        Numeric targets are in double precision. Estimators that encode features add the leaks of
        that.
        """
        if self.schema is None:
            X, y = validate_records(
                self,
                X,
                y,
                y_numeric=self._task == "regression",
                ensure_min_samples=2,
                **self._validation_options,
            )
            records = TrainingRecords(X, y, None, self._find_users(users, len(y)))
        else:
            records = self._encode_records(X, y, users)
        weights = sample_factors(records.X, sample_weight, self.max_weight)
        self._is_weighted = weights is not None
        return replace(records, weights=weights)

    def _find_users(self, users: Any, records: int) -> Users | None:
        return find_users(users, records, self.rows_per_user, self.missing)

    def _encode_records(self, X: Any, y: Any, users: Any) -> TrainingRecords:
        """Return the features, targets and users of a table, as the schema says."""
        for name in ("feature_bounds", "feature_norm", "classes", "target_bounds"):
            if getattr(self, name, None) is not None:
                shown = " ".join(str(getattr(self, name)).split())[:80]
                raise InvalidTypeError(
                    f"{name} must be None with a schema, which has it, got {name}={shown}"
                )
        schema = as_schema(self.schema)
        known = schema.classes if self._task == "classification" else schema.target_bounds
        if known is None:
            wanted = "classes" if self._task == "classification" else "bounds"
            raise InvalidValueError(f"schema must have a target with {wanted}, got {schema.target}")
        self.schema_, X = schema, _read_table(schema, X)
        targets = schema.encode_target(X if y is None else y)
        if users is None and schema.users is not None:
            users = schema.user_ids(X)
        records = TrainingRecords(X, targets, None, self._find_users(users, len(targets)))
        self._choose_features(records.count)
        features = self._encode(X)
        if len(features) != len(targets):
            raise InvalidValueError(
                f"y must have one entry per record, {len(features)} in all, got {len(targets)}"
            )
        if len(features) < 2:
            raise InvalidValueError(f"X must have at least 2 records, got {len(features)}")
        self.feature_names_in_ = np.array([*schema.encoded_columns], object)
        self.n_features_in_ = len(self.feature_names_in_)
        return replace(records, X=features)

    def _choose_features(self, number: int) -> None:
        """Choose which features there are, if that depends on the number of records or users."""

    def _encode(self, X: Any) -> FloatArray:
        """Return the features of a table that is no file."""
        return np.asarray(self.schema_.encode(X))

    def _encoded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a record's features, from that of a record without a schema."""
        return shape

    def _encoded_norm(self) -> float:
        """Return the largest norm of encoded features."""
        return self.schema_.feature_norm()

    def _read_features(self, X: Any) -> Any:
        """Return the features of records to predict."""
        check_is_fitted(self, "privacy_")
        if self.schema is None:
            return validate_records(self, X, reset=False, **self._validation_options)
        return self._encode(_read_table(self.schema_, X))

    def _public_bounds(self, X: Any, names: Any, leaks: Leaks) -> dict[str, Any]:
        """Return parameters that make the features' bounds public, if they must be."""
        if self.feature_norm is not None or (
            self.feature_bounds is None and not self._needs_bounds
        ):
            return {}
        return {"feature_bounds": find_bounds(X, self.feature_bounds, leaks, names=names)}

    def _store_result(self, result: TrainResult, leaks: Leaks) -> None:
        # Weights of classes alone are public.
        self._result = replace(result, is_weighted=self._is_weighted)
        self._leaks = tuple(leaks.descriptions)
        self.plan_, self.privacy_ = result.plan, leaks.qualify(result.bound)

    def _store_scaling(self, scaling: FeatureScaling) -> None:
        self._scaling, self._shape = scaling, scaling.factor.shape


@dataclass(kw_only=True, repr=False, eq=False)
class ClassifierBase(ClassifierMixin, PrivateEstimator):
    """The parameters of classifiers."""

    classes: Any = None
    class_weight: Any = None
    class_shares: Any = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, users: Any = None) -> Any:
        """Train on private records, within the budget.

        Args:
            X: one record per row; with a schema a table as `Schema.encode` takes it.
            y: one class per record; with a schema None takes the table's own column.
            sample_weight: one number per record, which must depend on that record and public
                numbers alone; clipped to 0 … ``max_weight``.
            users: one id per record, whose it is; None protects records, or with a schema that
                names the column of users takes that. ε is then for adding or removing a user with
                all records, and sizes are numbers of users.
        """
        self._validate_params()
        leaks = Leaks()
        records = self._validate_records(X, y, sample_weight, users, leaks)
        sizes = public_sizes(records.count, self.dataset_size, self.delta)
        warn_of_delta(*sizes, records.unit, stacklevel=3)
        known, shares = self.classes, self.class_shares
        if self.schema is not None:
            known = self.schema_.classes
            shares = self.schema_.shares if shares is None else shares
        classes, numbers = encode_classes(records.y, known, leaks)
        factors, weights = class_factors(self.class_weight, shares, known, classes), records.weights
        if factors is not None:
            weights = factors[numbers] * (1.0 if weights is None else weights)
        records = replace(records, y=numbers, weights=weights)
        self._train(records, self._outputs_per_record(classes.size), leaks)
        self.classes_ = classes
        return self

    def _outputs_per_record(self, classes: int) -> int:
        """Return the number of scores per record."""
        return classes

    def _public_parameters(self, X: Any, y: Any, names: Any, leaks: Leaks) -> dict[str, Any]:
        """Return parameters with which a fit derives nothing from the private data."""
        return {
            "classes": encode_classes(y, self.classes, leaks)[0],
            **self._public_bounds(X, names, leaks),
        }

    def _record_scores(self, X: Any, y: Any) -> NDArray[Any]:
        """Return per record 1 if its class is predicted correctly, else 0."""
        return np.asarray(self.predict(X) == y)


@dataclass(kw_only=True, repr=False, eq=False)
class RegressorBase(RegressorMixin, PrivateEstimator):
    """The parameters of regressors."""

    target_bounds: Any = None

    _task = "regression"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, users: Any = None) -> Any:
        """Train on private records, within the budget.

        Args:
            X: one record per row; with a schema a table as `Schema.encode` takes it.
            y: one number per record; with a schema None takes the table's own column.
            sample_weight: one number per record, which must depend on that record and public
                numbers alone; clipped to 0 … ``max_weight``.
            users: one id per record, whose it is; None protects records, or with a schema that
                names the column of users takes that. ε is then for adding or removing a user with
                all records, and sizes are numbers of users.
        """
        self._validate_params()
        leaks = Leaks()
        records = self._validate_records(X, y, sample_weight, users, leaks)
        sizes = public_sizes(records.count, self.dataset_size, self.delta)
        warn_of_delta(*sizes, records.unit, stacklevel=3)
        bounds = self.target_bounds if self.schema is None else self.schema_.target_bounds
        targets = target_scaling(records.y, bounds, leaks)
        self._train(replace(records, y=targets.scale(records.y)), 1, leaks)
        self._store_targets(targets)
        return self

    def _store_targets(self, targets: TargetScaling) -> None:
        self._targets = targets

    def _public_parameters(self, X: Any, y: Any, names: Any, leaks: Leaks) -> dict[str, Any]:
        """Return parameters with which a fit derives nothing from the private data."""
        scaling = target_scaling(np.asarray(y, np.float64), self.target_bounds, leaks)
        bounds = (scaling.center - scaling.half_range, scaling.center + scaling.half_range)
        return {"target_bounds": bounds, **self._public_bounds(X, names, leaks)}

    def _record_scores(self, X: Any, y: Any) -> NDArray[Any]:
        """Return 1 minus the squared error per record, in units of the targets' range."""
        scaling = target_scaling(y, self.target_bounds, Leaks())
        errors = (self.predict(X) - scaling.center) / scaling.half_range - scaling.scale(y)
        return np.asarray(1.0 - (errors / 2.0) ** 2)

    def _outputs_per_record(self, classes: int) -> int:
        return 1


def _read_table(schema: Schema, X: Any) -> Any:
    """Return the table of a file; other tables stay as they are."""
    return schema.read(X) if isinstance(X, str | Path) else X


def seed_of(random_state: Any) -> int | None:
    """Return the seed of scikit-learn's ``random_state``; None stays None."""
    if random_state is None or isinstance(random_state, Integral):
        return None if random_state is None else int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
