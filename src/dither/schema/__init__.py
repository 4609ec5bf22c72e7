"""A public schema of a table: what is known about its columns without looking at its rows.

A `Schema` says for every column what kind it is, which bounds or values it has, and how missing
cells are encoded. It encodes data frames and files and learns nothing from them.

>>> from dither.schema import Category, Number, Schema
>>> schema = Schema({"age": Number(bounds=(0, 100)), "sex": Category(values=("f", "m"))})
>>> schema.encode({"age": [50, 100], "sex": ["m", "f"]}).tolist()
[[0.0, 0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0, 0.0]]
"""

from dither.schema.checking import Fit
from dither.schema.columns import Category, Column, Ignored, Number, Text, YesNo
from dither.schema.drafting import Draft, draft
from dither.schema.encoder import SchemaEncoder
from dither.schema.schema import Schema
from dither.schema.target import Target

__all__ = [
    "Category",
    "Column",
    "Draft",
    "Fit",
    "Ignored",
    "Number",
    "Schema",
    "SchemaEncoder",
    "Target",
    "Text",
    "YesNo",
    "draft",
]
