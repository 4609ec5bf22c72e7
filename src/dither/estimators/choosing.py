"""Which estimator suits a table, by a rule of public quantities."""

from typing import Any

from dither import validate
from dither.estimators.base import PrivateEstimator
from dither.estimators.gam import PrivateGAMClassifier, PrivateGAMRegressor
from dither.estimators.linear import PrivateLinearRegression, PrivateLogisticRegression
from dither.estimators.modules import PrivateMLPClassifier, PrivateMLPRegressor
from dither.schema import Number, Schema
from dither.validate import InvalidTypeError, InvalidValueError

TABLE_MODELS: dict[str, tuple[type[PrivateEstimator], type[PrivateEstimator]]] = {
    "linear": (PrivateLogisticRegression, PrivateLinearRegression),
    "gam": (PrivateGAMClassifier, PrivateGAMRegressor),
    "mlp": (PrivateMLPClassifier, PrivateMLPRegressor),
}
"""The models of tables: the estimator for classes, and the one for numbers."""

_LEAST_FOR_CURVES = 1_000.0
"""n·ε from which on splines are worth their noise."""


def default_estimator(
    schema: Schema,
    records: int,
    *,
    epsilon: float = 1.0,
    delta: float | None = None,
    model: str = "auto",
    **parameters: Any,
) -> PrivateEstimator:
    """Return the estimator for a table, not fitted: a regressor if the target has bounds.

    Args:
        schema: the public schema of the table, with its target.
        records: n, public: their number, or that of users if they are to be protected.
        epsilon: ε.
        delta: δ; None is 1/(10·n).
        model: "auto", or "linear", "gam" or "mlp". Auto is a function of the other arguments,
            which are public: a GAM if the schema has numbers and n·ε is at least 1,000, else a
            linear model.
        **parameters: other parameters of the estimator.

    Example:
        >>> schema = Schema.from_dict({
        ...     "target": {"column": "ill", "classes": ["no", "yes"]},
        ...     "columns": {"age": {"kind": "number", "bounds": [0, 120]}},
        ... })
        >>> type(default_estimator(schema, 1000)).__name__
        'PrivateGAMClassifier'
    """
    validate.count(records=records)
    name = validate.choice(("auto", *TABLE_MODELS), model=model)
    if schema.target is None:
        raise InvalidValueError("schema must have a target, got none")
    if name == "auto":
        has_numbers = any(isinstance(column, Number) for column in schema.columns.values())
        name = "gam" if has_numbers and records * epsilon >= _LEAST_FOR_CURVES else "linear"
    kind = TABLE_MODELS[name][schema.classes is None]
    known = kind._get_param_names()
    for parameter, value in parameters.items():
        if parameter not in known:
            raise InvalidTypeError(
                f"{parameter} must not be given for the model {name!r}, got {value!r}"
            )
    return kind(epsilon=epsilon, delta=delta, schema=schema, **parameters)
