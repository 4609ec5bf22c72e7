"""Any torch module as a classifier or a regressor, and multi-layer perceptrons."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import softmax
from torch import Tensor, nn

from dither.estimators.base import ClassifierBase, PrivateEstimator, RegressorBase, seed_of
from dither.estimators.bounds import FeatureScaling, feature_scaling
from dither.estimators.leaks import Leaks, check_scaling
from dither.estimators.records import TrainingRecords, public_sizes
from dither.planning import Plan, ReactivePlan
from dither.schedules import Linear
from dither.training import Run, train
from dither.training.losses import find_loss
from dither.training.recipe import Recipe, recipe
from dither.training.synthetic import gradient_norm
from dither.types import FloatArray
from dither.validate import MOST_STEPS, InvalidTypeError, InvalidValueError, count

_CHUNK = 1024


class _ModuleEstimator(PrivateEstimator):
    """Training of a torch module by `dither.train`, and its outputs."""

    _loss = "cross_entropy"
    _needs_bounds = False
    _microbatch_size = 1024

    module: Any
    compute: float | str | None
    tune: float | None = None
    module_: nn.Module
    recipe_: Recipe | None

    @property
    def _validation_options(self) -> dict[str, Any]:
        return {**super()._validation_options, "allow_nd": not self._needs_bounds}

    def _train(self, records: TrainingRecords, outputs: int, leaks: Leaks) -> None:
        X, targets, weights = records.X, records.y, records.weights
        scaling = self._feature_scaling(X, leaks)
        if self.schema is None:
            check_scaling(X, leaks)
        leaks.warn(stacklevel=3)
        leaks.check_ledger(self.ledger)
        seed = seed_of(self.random_state)
        fresh = self._new_module(X.shape[1:], outputs, seed)
        dtype = _check_module(fresh, X.shape[1:], outputs)
        inputs = torch.from_numpy(scaling.scale(X)).to(dtype)
        result = train(
            copy.deepcopy(fresh),
            (inputs, targets if weights is None else (targets, weights)),
            **self._settings(fresh, inputs[:1], records.count),
            **_weighted_by_record(self._loss, is_weighted=weights is not None),
            seed=seed,
            run=Run(ledger=self.ledger),
            progress=bool(self.verbose),
            every=MOST_STEPS,  # the cost on the way is not shown, and takes time to compute
            microbatch_size=self._microbatch_size,
            users=records.users,
        )
        # A module may store records outside its parameters; those are not taken over.
        fresh.load_state_dict(result.model.state_dict())
        self._store_scaling(scaling)
        self.module_ = fresh.eval()
        if self._needs_bounds:
            self.module_.double()
        self.recipe_ = result.recipe
        self._store_result(replace(result, model=self.module_), leaks)

    def _settings(self, module: nn.Module, inputs: Tensor, number: int) -> dict[str, Any]:
        """Return the settings that are given; `dither.recipe` chooses the others.

        Args:
            module: what is trained.
            inputs: of one record, of which only the shape is used.
            number: of records, or of users.
        """
        names = ("epsilon", "delta", "dataset_size", "batch_size", "steps", "epochs", "clip_norm",
                 "compute", "tune")  # fmt: skip
        given = {name: getattr(self, name) for name in names}
        given |= {"stepsizes": self._parse_stepsizes(), "noise": self.noise}
        return {name: value for name, value in given.items() if value is not None}

    def _plan(self, number: int, shape: tuple[int, ...], outputs: int) -> Plan | ReactivePlan:
        module = self._new_module(shape, outputs, None)
        inputs = torch.zeros(1, *shape, dtype=_check_module(module, shape, outputs))
        given = {"dataset_size": number, **self._settings(module, inputs, number)}
        return recipe(module, inputs=inputs, **given).plan()

    def _feature_scaling(self, X: Any, leaks: Leaks) -> FeatureScaling:
        is_given = self.feature_bounds is not None or self.feature_norm is not None
        if self.schema is not None or not (self._needs_bounds or is_given):
            return FeatureScaling.by(np.ones(X.shape[1:]))
        length = math.sqrt(math.prod(X.shape[1:]))
        names = getattr(self, "feature_names_in_", None)
        return feature_scaling(
            X, self.feature_bounds, self.feature_norm, leaks, length=length, names=names
        )

    def _new_module(self, shape: tuple[int, ...], outputs: int, seed: int | None) -> nn.Module:
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.default_generator.manual_seed(seed)
            return self._build_module(shape[0] if len(shape) == 1 else shape, outputs)

    def _build_module(self, features: Any, outputs: int) -> nn.Module:
        """Return a new module, from the ``module`` that was given."""
        is_module = isinstance(self.module, nn.Module)
        module = self.module if is_module else self.module(features, outputs)
        if not isinstance(module, nn.Module):
            raise InvalidTypeError(
                "module must be a torch.nn.Module or a function (features, outputs) -> Module, "
                f"got a function that returns {type(module).__name__}"
            )
        return copy.deepcopy(module)  # a function may return the same one again

    @torch.no_grad()
    def _outputs(self, X: Any) -> FloatArray:
        X = self._read_features(X)
        dtype, parts = next(self.module_.parameters()).dtype, []
        for start in range(0, max(len(X), 1), _CHUNK):
            inputs = torch.from_numpy(self._scaling.scale(X[start : start + _CHUNK])).to(dtype)
            outputs = self.module_(inputs)
            parts.append(outputs[:, None] if outputs.ndim == 1 else outputs)
        return torch.cat(parts).numpy().astype(np.float64)


def _weighted_by_record(loss: str, *, is_weighted: bool) -> dict[str, Any]:
    """Return arguments of `train` for targets, or for pairs of targets and weights."""
    if not is_weighted:
        return {"loss": loss}
    per_record = find_loss(loss)
    return {
        "loss": lambda outputs, targets: per_record(outputs, targets[0]),
        "record_weights": itemgetter(1),
    }


def _check_module(module: nn.Module, shape: tuple[int, ...], outputs: int) -> torch.dtype:
    """Return the dtype of a module; raise unless it maps records of a shape to the outputs."""
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    trial = copy.deepcopy(module).eval()
    try:
        with torch.no_grad():
            given = trial(torch.zeros(2, *shape, dtype=dtype))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"module must take records of shape {shape}, got an error: {str(error).splitlines()[0]}"
        ) from error
    wanted = [(2, outputs), (2,)] if outputs == 1 else [(2, outputs)]
    if not isinstance(given, Tensor) or tuple(given.shape) not in wanted:
        shown = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise InvalidValueError(
            f"module must return {outputs} numbers per record, got {shown} for two records"
        )
    return dtype


class _ModuleClassifier(ClassifierBase, _ModuleEstimator):
    """Training and predictions of classifiers."""

    def decision_function(self, X: Any) -> FloatArray:
        """Return the scores of records: one for two classes, else one per class."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probability of every class, records × classes."""
        return np.asarray(softmax(self._outputs(X)))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return the logarithms of the probabilities."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of every record."""
        best = self._outputs(X).argmax(axis=1)
        predicted: NDArray[Any] = self.classes_[best]
        return predicted


class _ModuleRegressor(RegressorBase, _ModuleEstimator):
    """Training and predictions of regressors."""

    _loss = "squared_error"

    def predict(self, X: Any) -> FloatArray:
        """Return the expected target of every record, within the bounds of the targets."""
        outputs = self._outputs(X)[:, 0]
        center, half_range = self._targets.center, self._targets.half_range
        return self._targets.clip_to_bounds(center + half_range * outputs)


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateClassifier(_ModuleClassifier):
    """A classifier from any torch module that processes every record separately.

    Guarantees: those of `dither.train`. The module is (``epsilon``, ``delta``)-differentially
    private with respect to adding or removing a record, if ``classes`` are given. Parameters and
    attributes are those of `PrivateLogisticRegression`, except for these. `dither.recipe` chooses
    what is None: batch size, steps, clipping, optimizer and learning rate.

    Args:
        module: a module, of which a copy is trained (its weights must not come from these
            records: that is not counted), or a function (features, outputs) → module,
            where features is their number, or their shape if records are not vectors. It returns
            one score per class.
        clip_norm: per-record gradients are clipped to it; None is what suits the module.
        stepsizes: factors of the learning rate: a schedule, its text, or an array.
        feature_bounds: as for `PrivateLogisticRegression`; features are clipped and mapped to
            −1 … 1. Without bounds the module gets the features as they are.
        compute: what the fit may cost: a number of record-gradients, or a time such as "2 min".
        tune: the share of ``epsilon``, at most 0.5, to spend on choosing the learning rate, as
            `dither.train` takes it; None spends nothing.

    Attributes:
        module_: the trained module.
        recipe_: the settings of the fit, with reasons.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = PrivateClassifier(nn.Linear, epsilon=3.0, feature_bounds=(0, 16),
        ...                           classes=range(10), steps=50, random_state=0)
        >>> bool(model.fit(X, y).score(X, y) > 0.7)
        True
    """

    module: Any = field(kw_only=False)
    compute: float | str | None = None
    tune: float | None = None


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateRegressor(_ModuleRegressor):
    """A regressor from any torch module that processes every record separately.

    Guarantees and parameters: those of `PrivateClassifier`, with ``target_bounds`` instead of
    ``classes`` and without ``tune``; the module returns one number per record, −1 and 1 for the
    bounds of the targets.

    Example:
        >>> X = np.random.default_rng(0).uniform(-1, 1, (1000, 3))
        >>> model = PrivateRegressor(nn.Linear, epsilon=3.0, target_bounds=(-3, 3), steps=50,
        ...                          random_state=0)
        >>> bool(model.fit(X, X.sum(axis=1)).score(X, X.sum(axis=1)) > 0.5)
        True
    """

    module: Any = field(kw_only=False)
    compute: float | str | None = None


_STEPS, _COMPUTE = 300, 2000.0
"""Of networks for tables: steps, and record-gradients per √n: a second for 20,000 records."""

_CLIP = 1.5
"""Of the norm of an untrained classifier's gradients: few are clipped, since clipped gradients of
a rare class bias its probabilities."""

_LITTLE_NOISE = 10_000.0
"""The n/σ from which a regression takes the recipe's learning rate. Below, shorter steps keep noise
in the weights from adding more to the squared error than curved effects take off."""


class _Perceptron(_ModuleEstimator):
    """Settings and modules of multi-layer perceptrons for tables."""

    hidden_layer_sizes: Sequence[int]

    _needs_bounds = True
    _microbatch_size = 8192

    def _settings(self, module: nn.Module, inputs: Tensor, number: int) -> dict[str, Any]:
        given = super()._settings(module, inputs, number)
        n, delta = public_sizes(number, self.dataset_size, self.delta)
        if self.compute is None and self.epochs is None:
            affordable = round(_COMPUTE * math.sqrt(n) / given.setdefault("steps", _STEPS))
            given.setdefault("batch_size", min(n, max(1, affordable)))
        if self._task == "regression":
            sigma = math.sqrt(2.0 * math.log(1.25 / delta)) / self.epsilon
            factor = min(1.0, n / sigma / _LITTLE_NOISE) ** 0.25
            given.setdefault("stepsizes", Linear(factor, 0.05 * factor))
        elif norm := gradient_norm(module, inputs):
            given.setdefault("clip_norm", float(f"{_CLIP * norm:.2g}"))
        return given

    def _build_module(self, features: Any, outputs: int) -> nn.Module:
        return _Network(features, outputs, self.hidden_layer_sizes)


class _Network(nn.Module):
    """A linear model plus a multi-layer perceptron, both near 0 at first."""

    def __init__(self, features: int, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [features, *(count(hidden_layer_sizes=units) for units in hidden)]
        layers: list[nn.Module] = []
        for width, next_width in pairwise(sizes):
            layers += [nn.Linear(width, next_width), nn.Tanh()]
        self.linear = nn.Linear(features, outputs)
        last = nn.Linear(sizes[-1], outputs, bias=False)
        self.hidden = nn.Sequential(*layers, last)
        for parameter in self.linear.parameters():
            nn.init.zeros_(parameter)
        # Not 0: gradients of the other layers would be nothing but rounding.
        nn.init.normal_(last.weight, std=0.1 / math.sqrt(sizes[-1]))

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.linear(features) + self.hidden(features)
        return outputs


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateMLPClassifier(_Perceptron, _ModuleClassifier):
    """A multi-layer perceptron classifier with tanh for tables, under differential privacy.

    Guarantees and parameters: those of `PrivateClassifier`, with hidden layers instead of a module.
    Features are clipped to their bounds, which must be given, and mapped to −1 … 1. A linear model
    is added to the hidden layers, and trained with them: effects that are straight are learned as
    fast as by `PrivateLogisticRegression`. The number of steps is 300 unless it, ``epochs`` or
    ``compute`` is given.

    Args:
        hidden_layer_sizes: units of each hidden layer.
        compute: as for `PrivateClassifier`.
        tune: as for `PrivateClassifier`.

    Attributes:
        module_: the trained network.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = PrivateMLPClassifier(
        ...     epsilon=3.0, feature_bounds=(0, 16), classes=range(10), steps=50, random_state=0)
        >>> bool(model.fit(X, y).score(X, y) > 0.6)
        True
    """

    hidden_layer_sizes: Sequence[int] = field(default=(64,), kw_only=False)
    compute: float | str | None = None
    tune: float | None = None


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateMLPRegressor(_Perceptron, _ModuleRegressor):
    """A multi-layer perceptron regressor with tanh for tables, under differential privacy.

    Guarantees and parameters: those of `PrivateMLPClassifier`, with ``target_bounds`` instead of
    ``classes`` and without ``tune``.

    Example:
        >>> X = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
        >>> y = X[:, 0] * X[:, 1]
        >>> model = PrivateMLPRegressor(
        ...     epsilon=10.0, feature_bounds=(-1, 1), target_bounds=(-1, 1), steps=50,
        ...     random_state=0)
        >>> model.fit(X, y).predict(X).shape
        (1000,)
    """

    hidden_layer_sizes: Sequence[int] = field(default=(64,), kw_only=False)
    compute: float | str | None = None
