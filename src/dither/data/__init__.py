"""Datasets for training: public sets from their original files, and files of one's own.

:func:`load` reads a set into memory and checks it; nothing is downloaded, and nothing in a file is
executed. :func:`check` reports faults of single records to the owner of the data.

>>> from dither.data import check, load
>>> digits = load("digits")
>>> digits.train.inputs.shape, len(digits.test)
(torch.Size([1438, 1, 8, 8]), 359)
>>> check(digits.train).ok
True
"""

from dither.data.checking import Counts, Report, check
from dither.data.examples import Examples, Split, align_with, clip_to_bounds, with_classes
from dither.data.files import directory
from dither.data.loading import load

__all__ = [
    "Counts",
    "Examples",
    "Report",
    "Split",
    "align_with",
    "check",
    "clip_to_bounds",
    "directory",
    "load",
    "with_classes",
]
