"""From a model and private records to one noisy release, and what it says."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dither import validate
from dither.clipping import ClippedSum
from dither.evaluation.evaluation import Evaluation
from dither.evaluation.many_classes import ManyClasses
from dither.evaluation.numbers import Numbers
from dither.evaluation.split import owners_of, source_of
from dither.evaluation.two_classes import TwoClasses
from dither.ledger import Ledger
from dither.ledger.ledger import account_for
from dither.planning import Plan, plan
from dither.randomness import Source
from dither.release import release
from dither.types import FloatArray


def evaluate(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    epsilon: float,
    delta: float | None = None,
    dataset_size: int | None = None,
    classes: Sequence[Any] | None = None,
    target_bounds: tuple[float, float] | None = None,
    bins: int = 20,
    loss_bound: float | None = None,
    users: Any = None,
    missing: str = "drop",
    ledger: Ledger | str | Path | None = None,
    random_state: int | None = None,
) -> Evaluation:
    """Measure a model on private records, with noise and for a price.

    Guarantees: the result is a function of one Gaussian release, which is (ε, δ)-differentially
    private for adding or removing one of these records, or with ``users`` one user with all of the
    user's rows; nothing else of them is used. What a record adds to the release, and why its norm
    is bounded, is proven in `TwoClasses`, `ManyClasses` and `Numbers`; a user adds the mean over
    the user's rows, so that in all metrics every user weighs the same. The cost is in the ledger
    before the noise is drawn.

    The model's score of a record must depend on that record and on the model only: not on the other
    records, nor on its place among them, beyond a rounding that moves no score over the edge of a
    bin. Scores of dither's linear models and GAMs are the same to the last bit. The costs of
    training and of evaluation add up if a record can be in both; for the parts of a random split
    the larger counts: see `train_holdout_split` and `dither.ledger.Ledger.part`.

    Args:
        model: a fitted classifier with ``predict_proba`` and ``classes_``, such as a scikit-learn
            pipeline, or a regressor with ``predict``.
        X: one record per row, or a table if the model has a schema.
        y: one class or number per record; None takes the target of the table, by the model's
            schema.
        epsilon: ε.
        delta: δ; None is 1/(10·n).
        dataset_size: n, public; None takes the number of these records, or users, as public.
        classes: the classes, public, the positive one last if there are two; None takes the
            model's.
        target_bounds: the least and the largest target, public, of a regressor; None takes the
            model's, or those of its schema, if there are any.
        bins: how many bins the predicted probabilities have; even. More are finer and noisier.
        loss_bound: log losses above it count as much as it, by default 5 for two classes and
            5 + log(K/2) for K; for regressors the largest absolute error, by default half of the
            targets' range.
        users: one id per record, as `dither.train` takes them; None takes the column that the
            model's schema names, if it names one.
        missing: "drop" leaves out rows without a user, "own" makes each a user of its own.
        ledger: a `dither.ledger.Ledger`, one of its parts or its path, where the cost is recorded.
        random_state: a seed, for tests only: whoever knows it can subtract the noise.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(4000, 2))
        >>> y = X[:, 0] + rng.normal(size=4000) > 0.0
        >>> model = LogisticRegression().fit(X[:2000], y[:2000])
        >>> found = evaluate(model, X[2000:], y[2000:], epsilon=1.0, random_state=1)
        >>> f"{found.auc.value:.2f} [{found.auc.low:.2f}, {found.auc.high:.2f}]"
        '0.86 [0.83, 0.89]'
    """
    counted = validate.count(bins=bins)
    if counted < 4 or counted % 2:
        raise validate.InvalidValueError(f"bins must be even and at least 4, got {bins!r}")
    source = source_of(random_state)
    y = _target(model, X) if y is None else y
    layout: TwoClasses | ManyClasses | Numbers
    names: tuple[Any, ...] = ()
    targets: NDArray[Any]
    if hasattr(model, "predict_proba"):
        names, columns = _classes(model, classes)
        layout = _classifier(len(names), counted, loss_bound)
        scores = _scores(model.predict_proba(X), len(columns))[:, columns]
        targets = _class_numbers(y, names)
    else:
        layout = _regressor(model, target_bounds, loss_bound)
        scores, targets = _scores(model.predict(X), None), _vector(_floats(y=y), "number")
    if len(scores) != len(targets):
        raise validate.InvalidValueError(
            f"y must have one entry per record, {len(scores)} in all, got {len(targets)}"
        )
    owners, count = None, len(targets)
    users = _user_ids(model, X) if users is None else users
    if users is not None:
        owners, count = owners_of(users, count, missing=missing)
        has_user = owners >= 0
        scores, targets, owners = scores[has_user], targets[has_user], owners[has_user]
    n = max(count, 1) if dataset_size is None else validate.count(dataset_size=dataset_size)
    made = plan(
        epsilon=epsilon, delta=0.1 / n if delta is None else delta, dataset_size=n, batch_size=n,
        steps=1, clip_norm=layout.norm, noise="uniform",
    )  # fmt: skip
    # What a user adds, the mean of the rows, counts as one row of a step.
    made = made if owners is None else made.for_users(1)
    released, noise, run = add_noise(layout.sums(scores, targets, owners), made, source, ledger)
    return Evaluation(
        **vars(layout.metrics(released, noise)), privacy=made.bound, noise=noise,
        classes=tuple(map(_plain, names)), is_seeded=source.seed is not None,
        run=run,
    )  # fmt: skip


def add_noise(
    sums: FloatArray, made: Plan, source: Source, ledger: Ledger | str | Path | None
) -> tuple[FloatArray, float, str | None]:
    """Charge the ledger, then add noise; return noisy sums, the noise's deviation and the run."""
    z = float(made.noise_multipliers[0])
    account = account_for(ledger, name=None, is_seeded=source.seed is not None)
    run = account.register(made)
    account.finish(0, z)
    # The sums are exact and nothing is divided: for the margin of rounding they are of one record.
    noisy = release(
        ClippedSum({"sums": torch.from_numpy(sums)}, torch.empty(0)),
        clip_norm=made.clip_norm,
        noise_multiplier=z,
        batch_size=1,
        stream=source.stream("evaluation", 0),
    )
    account.end()
    return noisy.gradients["sums"].numpy(), noisy.noise, run


def _classes(model: Any, classes: Sequence[Any] | None) -> tuple[tuple[Any, ...], list[int]]:
    """Return the classes, and the column of the model's probabilities that each has."""
    own = getattr(model, "classes_", None)
    if own is None and classes is None:
        raise validate.InvalidValueError("classes must be given for a model without classes_")
    known = list(classes if own is None else own)  # type: ignore[arg-type]
    names = tuple(known if classes is None else classes)
    if len(names) < 2 or len(set(names)) != len(names):
        raise validate.InvalidValueError(f"classes must be two or more, all different, got {names}")
    if sorted(map(str, names)) != sorted(map(str, known)) or any(c not in known for c in names):
        raise validate.InvalidValueError(
            f"classes must be those of the model, {known}, in any order, got {[*names]}"
        )
    return names, [known.index(each) for each in names]


def _classifier(classes: int, bins: int, loss_bound: float | None) -> TwoClasses | ManyClasses:
    default = 5.0 + math.log(classes / 2)
    bound = default if loss_bound is None else validate.positive(loss_bound=loss_bound)
    return TwoClasses(bins, bound) if classes == 2 else ManyClasses(classes, bins, bound)


def _regressor(model: Any, target_bounds: Any, loss_bound: float | None) -> Numbers:
    if not hasattr(model, "predict") or hasattr(model, "classes_"):
        raise validate.InvalidTypeError(
            "model must have predict_proba, or be a regressor with predict, got "
            f"{type(model).__name__}"
        )
    bounds = target_bounds
    if bounds is None:
        bounds = getattr(model, "target_bounds", None)
    if bounds is None:
        bounds = getattr(getattr(model, "schema_", None), "target_bounds", None)
    if bounds is None or len(bounds) != 2 or not bounds[0] < bounds[1]:
        raise validate.InvalidValueError(
            f"target_bounds must be (least, largest), public, for a regressor, got {bounds!r}"
        )
    low, high = (validate.finite(target_bounds=each) for each in bounds)
    half = 0.5 * (high - low)
    if max(abs(low), abs(high)) > validate.LARGEST or half < validate.SMALLEST:
        raise validate.InvalidValueError(
            f"target_bounds must be at most 1e50 in size and 2e-50 or more apart, got {bounds!r}"
        )
    bound = half if loss_bound is None else validate.positive(loss_bound=loss_bound)
    return Numbers(low, high, bound)


def _target(model: Any, table: Any) -> NDArray[Any]:
    """Return the target of a table, by the schema of the model."""
    schema = getattr(model, "schema_", None)
    if getattr(schema, "target", None) is None:
        raise validate.InvalidTypeError(
            "y must be given for a model without a schema that has a target, got None"
        )
    targets: NDArray[Any] = schema.encode_target(table)  # type: ignore[union-attr]
    return targets


def _user_ids(model: Any, table: Any) -> NDArray[Any] | None:
    """Return the ids in a table, if the schema of the model says whose each row is."""
    schema: Any = getattr(model, "schema_", None)
    return None if getattr(schema, "users", None) is None else schema.user_ids(table)


def _scores(found: Any, columns: int | None) -> FloatArray:
    """Return a model's probabilities, records × columns, or predictions, one per record."""
    scores = _floats(predictions=found)
    if columns is None and scores.ndim == 2 and scores.shape[1] == 1:
        return scores[:, 0]
    shape = scores.shape[1:]
    if shape != (() if columns is None else (columns,)):
        wanted = "one prediction" if columns is None else f"{columns} probabilities"
        raise validate.InvalidValueError(
            f"model must give {wanted} per record, got an array of shape {scores.shape}"
        )
    return scores


def _class_numbers(y: Any, classes: tuple[Any, ...]) -> NDArray[Any]:
    """Return 0 … K−1 for each label, −1 for one that is not a class."""
    numbers = {_plain(each): k for k, each in enumerate(classes)}

    def number(label: Any) -> int:
        try:
            return numbers.get(_plain(label), -1)
        except TypeError:  # it cannot be hashed, so it is no class
            return -1

    return np.array([number(label) for label in _labels(y)], np.int64)


def _labels(y: Any) -> list[Any]:
    """Return every label by itself: an array of all would give them one dtype."""
    if len(getattr(y, "columns", ())) == 1:
        y = y[y.columns[0]]
    if isinstance(y, torch.Tensor):
        y = np.asarray(y)
    if hasattr(y, "astype"):  # of NumPy or pandas
        y = _vector(np.asarray(y.astype(object)), "class")
    if isinstance(y, str) or not hasattr(y, "__iter__"):
        raise validate.InvalidTypeError(f"y must be one class per record, got {type(y).__name__}")
    return [each[0] if isinstance(each, list | tuple) and len(each) == 1 else each for each in y]


def _vector(targets: NDArray[Any], what: str) -> NDArray[Any]:
    if targets.ndim == 2 and targets.shape[1] == 1:
        return targets[:, 0]
    if targets.ndim != 1:
        raise validate.InvalidValueError(
            f"y must be one {what} per record, got an array of shape {targets.shape}"
        )
    return targets


def _floats(**argument: Any) -> FloatArray:
    ((name, values),) = argument.items()
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):  # NumPy's message would show a record's value
        raise validate.InvalidTypeError(f"{name} must be numbers, got others") from None


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy or PyTorch as the Python value that it stands for."""
    return value.item() if getattr(value, "shape", None) in ((), (1,)) else value
