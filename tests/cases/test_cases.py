"""The acceptance cases of loops and models, which know nothing of the library's insides.

They are a suite of their own, which imports its helpers from its directory. Every case is a test
here, in this process: what a case needs is imported once, and workers share the cases.
"""

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

CASES = os.environ.get("DITHER_CASES", "")


def load(name: str) -> ModuleType:
    directory = str(Path(CASES).resolve())
    sys.path.insert(0, directory)
    try:
        return import_module(name)
    finally:
        sys.path.remove(directory)


def all_cases() -> list[Any]:
    if not CASES:
        skip = pytest.mark.skip(reason="DITHER_CASES names no directory")
        return [pytest.param("", None, None, marks=skip)]
    train = load("training").train
    return [
        pytest.param(module, case, then, id=f"{module}-{case}")
        for module, then in (("test_loops", None), ("test_models", train))
        for case in load("helpers").cases(vars(load(module)))
    ]


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("module", "case", "then"), all_cases())
def test_every_case_ends_as_it_should(
    module: str, case: Any, then: Any, record_property: Callable[[str, object], None]
) -> None:
    load("helpers").judge(case, record_property, module, then)
