"""Data that training reads: public sets from their original files, and files of one's own.

:func:`load` reads a set into memory, whole and checked, or refuses it in one line; nothing is
downloaded, and nothing in a file is executed. :func:`check` tells the owner of the data what is
wrong with single records.

>>> from dither.data import check, load
>>> digits = load("digits")
>>> digits.train.inputs.shape, len(digits.test)
(torch.Size([1438, 1, 8, 8]), 359)
>>> check(digits.train).ok
True
"""

from dither.data.checking import Report, Tally, check
from dither.data.examples import Examples, Split, among, with_classes, within
from dither.data.files import directory
from dither.data.loading import load

__all__ = [
    "Examples",
    "Report",
    "Split",
    "Tally",
    "among",
    "check",
    "directory",
    "load",
    "with_classes",
    "within",
]
