"""Datasets for training: public sets from their original files, and files of one's own.

:func:`load` reads a set into memory and checks it; nothing is downloaded, and nothing in a file is
executed.

>>> from dither.data import load
>>> digits = load("digits")
>>> digits.train.inputs.shape, len(digits.test)
(torch.Size([1438, 1, 8, 8]), 359)
"""

from dither.data.arrays import load_inputs
from dither.data.examples import Examples, Split, align_with, with_classes
from dither.data.files import directory
from dither.data.loading import load, load_ids

__all__ = [
    "Examples",
    "Split",
    "align_with",
    "directory",
    "load",
    "load_ids",
    "load_inputs",
    "with_classes",
]
