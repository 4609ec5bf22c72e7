"""The encoding of a schema as a scikit-learn transformer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from dither.schema.schema import Schema
from dither.validate import InvalidTypeError


class SchemaEncoder(TransformerMixin, BaseEstimator):
    """Encodes tables by a public schema; nothing is learned from data, and no fit is needed.

    Args:
        schema: a `Schema`, a dict as `Schema.from_dict` takes it, or the path of a .toml or .json
            file.
        numbers: "linear", or "spline"; see `Number`.
        bins: number of bins of the splines of columns that have no knots of their own.

    Example:
        >>> import pandas as pd
        >>> columns = {"age": {"kind": "number", "bounds": [0, 100]}, "smoker": {"kind": "yes/no"}}
        >>> encoder = SchemaEncoder({"columns": columns}).set_output(transform="pandas")
        >>> encoder.transform(pd.DataFrame({"age": [75, 20], "smoker": ["yes", "no"]}))
           age  smoker
        0  0.5     1.0
        1 -0.6    -1.0
    """

    def __init__(
        self,
        schema: Schema | Mapping[str, Any] | str | Path,
        numbers: str = "linear",
        bins: int = 16,
    ) -> None:
        self.schema = schema
        self.numbers = numbers
        self.bins = bins

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Check the parameters; X and y are not used."""
        self.get_feature_names_out()
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the features of a table, as `Schema.encode` does."""
        features: NDArray[np.float32] = as_schema(self.schema).encode(
            X, numbers=self.numbers, bins=self.bins
        )
        return features

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the features; ``input_features`` is not used."""
        names = as_schema(self.schema).feature_names(numbers=self.numbers, bins=self.bins)
        return np.array(names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.no_validation = True
        tags.input_tags.two_d_array = False  # columns are found by their names
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def as_schema(schema: Any) -> Schema:
    """Return a schema that is given as one, as a dict or by the path of its file.

    Example:
        >>> as_schema({"columns": {"smoker": {"kind": "yes/no"}}}).feature_names()
        ['smoker']
    """
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return Schema.from_dict(schema)
    if isinstance(schema, str | Path):
        return Schema.load(schema)
    raise InvalidTypeError(
        f"schema must be a Schema, a dict or the path of a file, got {type(schema).__name__}"
    )
