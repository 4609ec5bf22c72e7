"""Linear models: logistic regression, a support vector classifier and least squares.

Their gradients take two matrix products per step and no autograd (`dither.training.linear`).
"""

import math
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.extmath import safe_sparse_dot, softmax

from dither.estimators.base import ClassifierBase, PrivateEstimator, RegressorBase, seed_of
from dither.estimators.bounds import FeatureScaling, TargetScaling, feature_scaling
from dither.estimators.defaults import Defaults, defaults
from dither.estimators.leaks import Leaks, check_scaling
from dither.estimators.records import TrainingRecords, public_sizes
from dither.planning import Plan, ReactivePlan
from dither.planning.reuse import plan_or_reuse
from dither.schedules import Reactive
from dither.training.linear import train_linear
from dither.training.linear_losses import (
    LinearLoss,
    hinge_loss,
    logistic_loss,
    softmax_loss,
    squared_loss,
)
from dither.training.optimizers import MOMENTUM
from dither.training.settings import for_momentum
from dither.types import FloatArray

_LENGTH = 2.0
"""Norm of a record at all its bounds in the units of training; most have a norm of about 1."""

_CACHED = 2**15
"""Products that stay in the cache until they are summed."""


class Linear(PrivateEstimator):
    """Training by `train_linear`, and scores of records."""

    coef_: FloatArray
    intercept_: Any

    @property
    def _validation_options(self) -> dict[str, Any]:
        return {**super()._validation_options, "accept_sparse": "csr"}

    def _scores(self, X: Any) -> FloatArray:
        X = self._read_features(X)
        inside = self._scaling.clip_to_bounds(X)
        products = _products(inside, self.coef_.reshape(-1, X.shape[1]))
        return np.asarray(products + self.intercept_)

    def _train(self, records: TrainingRecords, outputs: int, leaks: Leaks) -> None:
        X, weights = records.X, records.weights
        scaling = self._find_scaling(X, leaks)
        leaks.warn(stacklevel=3)
        leaks.check_ledger(self.ledger)
        chosen = self._defaults(records.count, X.shape[1], outputs)
        plan = self._plan(records.count, X.shape[1:], outputs)
        features = scaling.scale(X)
        standardizing = 0 if isinstance(self.stepsizes, Reactive) else chosen.standardizing_steps
        result = train_linear(
            torch.from_numpy(features) if isinstance(X, np.ndarray) else features,
            self._linear_loss(records.y, outputs),
            plan,
            outputs=outputs,
            standardizing=standardizing,
            momentum=MOMENTUM,
            seed=seed_of(self.random_state),
            ledger=self.ledger,
            progress=bool(self.verbose),
            record_weights=None if weights is None else torch.from_numpy(weights),
            users=records.users,
        )
        self._store_scaling(scaling)
        noise = result.weight_noise  # unknown for step sizes that react to releases
        self._weight_noise = math.nan if noise is None else noise
        weight, bias = (p.detach().numpy().astype(np.float64) for p in result.model.parameters())
        self.coef_ = weight * scaling.factor
        self.intercept_ = bias - self.coef_ @ scaling.offset
        self._store_result(result, leaks)

    def _find_scaling(self, X: Any, leaks: Leaks) -> FeatureScaling:
        """Return the scaling to records of norm at most `_LENGTH`."""
        if self.schema is not None:
            return self._scaling_of_encoded(X)
        check_scaling(X, leaks)
        names = getattr(self, "feature_names_in_", None)
        return feature_scaling(
            X, self.feature_bounds, self.feature_norm, leaks, length=_LENGTH, names=names
        )

    def _scaling_of_encoded(self, X: FloatArray) -> FeatureScaling:
        return FeatureScaling.by(np.full(X.shape[1:], _LENGTH / self._encoded_norm()))

    def _defaults(self, number: int, features: int, outputs: int) -> Defaults:
        """Return the settings of a fit, given or chosen."""
        n, delta = public_sizes(number, self.dataset_size, self.delta)
        return defaults(
            dataset_size=n, features=features, outputs=outputs, epsilon=self.epsilon, delta=delta,
            task=self._task, batch_size=self.batch_size, steps=self.steps, epochs=self.epochs,
            clip_norm=self.clip_norm,
        )  # fmt: skip

    def _plan(self, number: int, shape: tuple[int, ...], outputs: int) -> Plan | ReactivePlan:
        n, delta = public_sizes(number, self.dataset_size, self.delta)
        chosen = self._defaults(number, shape[0], outputs)
        return plan_or_reuse(
            epsilon=float(self.epsilon),
            delta=delta,
            dataset_size=n,
            batch_size=chosen.batch_size,
            steps=chosen.steps,
            clip_norm=chosen.clip_norm,
            stepsizes=chosen.stepsizes if self.stepsizes is None else self._parse_stepsizes(),
            noise="optimal" if self.noise is None else for_momentum(self.noise, MOMENTUM),
        )

    @abstractmethod
    def _linear_loss(self, targets: NDArray[Any], outputs: int) -> LinearLoss:
        """Return what is minimised."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _products(X: Any, coefficients: FloatArray) -> FloatArray:
    """Return X·Wᵀ, every row to the last bit as if it were alone.

    A matrix product of BLAS sums a row in an order that depends on its place, and a rounding may
    move a record from one bin of an evaluation to another.
    """
    if sparse.issparse(X):
        return np.asarray(safe_sparse_dot(X, coefficients.T))
    products = np.empty((len(X), len(coefficients)))
    size = max(1, _CACHED // X.shape[1])
    for start in range(0, len(X), size):
        part = slice(start, start + size)
        rows = np.asarray(X[part], np.float64, order="C")
        for k, row in enumerate(coefficients):
            products[part, k] = np.add.reduce(rows * row, axis=1)
    return products


class _LinearClassifier(ClassifierBase, Linear):
    """Training and predictions of linear classifiers."""

    def decision_function(self, X: Any) -> FloatArray:
        """Return the scores of records: one for two classes, else one per class."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of every record."""
        scores = self._scores(X)
        best = (scores[:, 0] > 0.0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        predicted: NDArray[Any] = self.classes_[best]
        return predicted

    def _outputs_per_record(self, classes: int) -> int:
        return 1 if classes == 2 else classes


class PrivateLogisticRegression(_LinearClassifier):
    """Logistic regression under differential privacy.

    Guarantees: the fitted model is (``epsilon``, ``delta``)-differentially private with respect to
    adding or removing a record, if a ``schema`` is given, or ``classes`` and the bounds of the
    features; the number of records counts as public. ``privacy_`` is the proven bound, or an
    estimate (``is_upper_bound=False``) if something was derived from the data. Where ``fit`` is
    given ``users``, they are what is protected, with all of their records, and what is counted.

    Args:
        epsilon: ε.
        delta: δ; None is 1/(10·n).
        dataset_size: n; None is ``len(X)``, or the number of users, which is then public.
        clip_norm: C_G, to which per-record gradients are clipped. For None, here and below, see
            `defaults`: it chooses from n, the numbers of features and classes, ε and δ.
        epochs: expected number of passes over the records; or
        steps: T.
        batch_size: m, the expected batch size.
        stepsizes: a schedule, its text ("linear:start=9,end=1"), or an array of T step sizes, in
            the units of training.
        noise: as `dither.plan` takes it; None is "optimal" for linear models, and the choice of
            `dither.recipe` for others. "correlated" is for the momentum of the training.
        schema: what is public about a table with numbers, categories, text and missing cells: a
            `dither.Schema`, a dict as `Schema.from_dict` takes it, or the path of a file. Then X is
            a data frame of pandas or polars, a mapping of columns or the path of a table, y may be
            None for the table's own column, and bounds and classes are the schema's, shares of the
            classes too if ``class_shares`` is None. Cells are not checked for scaled values.
        feature_bounds: bounds of the features, from public knowledge: a dict
            ``{column: (lower, upper)}`` if X has column names, or a pair (lower, upper) of numbers,
            of arrays, or of Series, which are matched by name. It is never a list of one pair per
            feature: for two features ``[(0, 120), (1000, 200000)]`` is read as lower bounds 0 and
            120. Features are clipped to the bounds. Features whose bounds include 0 are not
            shifted, the middle of the bounds of others becomes 0, and a record at all its bounds
            has norm 2 in the units of training.
        feature_norm: instead of bounds, the largest norm of a record; records are clipped to it.
            With neither, bounds are derived from the data, with a `PrivacyLeakWarning`.
        max_weight: the public bound w_max of ``sample_weight``; weights are clipped to it.
        rows_per_user: the most records of a user in a step, chosen at random every time; None is
            8. The mean of their gradients is clipped as one. Only where there are users.
        missing: what becomes of records whose user is None, NaN or empty: "drop" leaves them out,
            "own" makes each a user of its own. Only where there are users.
        classes: all possible labels; None takes them from y with a `PrivacyLeakWarning`.
        class_weight: label → public positive number, 1 for labels that are missing; or "balanced",
            1/share of the class, for which ``class_shares`` must be given. The clipped gradient of
            a record is multiplied by its weight, that of its class times its sample weight, over
            the largest possible one, so that weights cost no ε but a signal that is weaker by the
            mean of that factor. Probabilities are then those of the weighted population: with
            "balanced", of one in which all classes are equally frequent.
        class_shares: public shares of the classes, label → share or in the order of ``classes``,
            which add up to 1 within 1 %; None is those of the schema.
        random_state: None for randomness from the operating system. A seed is for tests: who knows
            it can remove the noise.
        ledger: a `dither.ledger.Ledger` or its path, where the cost is recorded.
        verbose: 1 shows a progress bar.

    Attributes:
        coef_: weights, outputs × features, for features clipped to their bounds.
        intercept_: one per output.
        classes_: the labels, ascending.
        n_features_in_: number of features, or of the columns of a schema that are not ignored.
        feature_names_in_: their names, if X is a data frame or there is a schema.
        schema_: the `Schema`, if one was given.
        privacy_: the `PrivacyBound` of the fit.
        plan_: its plan.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = PrivateLogisticRegression(
        ...     epsilon=1.0, feature_bounds=(0, 16), classes=range(10), random_state=0)
        >>> bool(model.fit(X, y).score(X, y) > 0.7)
        True
        >>> model.privacy_.epsilon <= 1.0, model.privacy_.is_upper_bound
        (True, True)
    """

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probability of every class, records × classes."""
        scores = self._scores(X)
        if scores.shape[1] == 1:
            scores = np.hstack([np.zeros_like(scores), scores])
        return np.asarray(softmax(scores))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return the logarithms of the probabilities."""
        return np.log(self.predict_proba(X))

    def _linear_loss(self, targets: NDArray[Any], outputs: int) -> LinearLoss:
        if outputs == 1:
            return logistic_loss(targets)
        return softmax_loss(targets, outputs)


class PrivateSVC(_LinearClassifier):
    """A linear support vector classifier with a smoothed hinge, one class against the rest.

    Guarantees and parameters: those of `PrivateLogisticRegression`. The loss of a margin u is 0
    above 3⁄2, 1 − u below ½, and (3⁄2 − u)²/2 between.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = PrivateSVC(
        ...     epsilon=1.0, feature_bounds=(0, 16), classes=range(10), random_state=0)
        >>> bool(model.fit(X, y).score(X, y) > 0.7)
        True
    """

    def _linear_loss(self, targets: NDArray[Any], outputs: int) -> LinearLoss:
        if outputs == 1:
            return hinge_loss(np.where(targets == 1, 1.0, -1.0)[:, None])
        return hinge_loss(np.where(np.eye(outputs)[targets] == 1.0, 1.0, -1.0))


class PrivateLinearRegression(RegressorBase, Linear):
    """Least squares under differential privacy.

    Guarantees and parameters: those of `PrivateLogisticRegression`, with ``target_bounds`` in the
    place of ``classes``.

    Args:
        target_bounds: (lower, upper) of the targets, from public knowledge: targets are clipped to
            them. None takes them from y with a `PrivacyLeakWarning`.

    Attributes:
        coef_: weights, one per feature.
        intercept_: a number.

    Example:
        >>> X = np.random.default_rng(0).uniform(-1, 1, (2000, 3))
        >>> y = X @ [1.0, -2.0, 0.5] + 0.3
        >>> model = PrivateLinearRegression(
        ...     epsilon=1.0, feature_bounds=(-1, 1), target_bounds=(-4, 4), random_state=0)
        >>> bool(model.fit(X, y).score(X, y) > 0.8)
        True
    """

    def _store_targets(self, targets: TargetScaling) -> None:
        super()._store_targets(targets)
        self.coef_ = self.coef_[0] * targets.half_range
        self._weight_noise *= targets.half_range
        self.intercept_ = float(targets.center + targets.half_range * self.intercept_[0])

    def _linear_loss(self, targets: NDArray[Any], outputs: int) -> LinearLoss:
        return squared_loss(targets)

    def predict(self, X: Any) -> FloatArray:
        """Return the expected target of every record, within the bounds of the targets."""
        scores = self._scores(X)[:, 0]
        return self._targets.clip_to_bounds(scores)
