from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from dither.data import Counts, Examples, Report, check
from dither.validate import InvalidTypeError, InvalidValueError

NAN, INF = float("nan"), float("inf")
INPUTS = torch.tensor([[1.0, 2.0], [NAN, INF], [1.0, 2.0], [1.0, 2.0], [-INF, 0.0]])
TARGETS = torch.tensor([0, 1, 0, 3, -1])


class Pairs(Dataset[tuple[Any, Any]]):
    def __init__(self, records: list[tuple[Any, Any]]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.records[index]


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield torch.zeros(1), 0


@pytest.mark.parametrize(
    "dataset",
    [
        Examples(INPUTS, TARGETS, ("a", "b", "c")),
        TensorDataset(INPUTS, TARGETS),
        (INPUTS, TARGETS),
        (INPUTS.numpy().astype(">f8"), TARGETS.numpy()),
        (INPUTS.bfloat16().requires_grad_(), TARGETS.int()),
        Pairs(list(zip(INPUTS, TARGETS, strict=True))),
        list(zip(INPUTS.tolist(), TARGETS.tolist(), strict=True)),
    ],
)
def test_every_fault_is_found_in_every_kind_of_dataset(dataset: object) -> None:
    assert check(dataset, classes=3) == Report(
        records=5,
        nans=Counts(1, (1,)),
        infinities=Counts(2, (1, 4)),
        bad_labels=Counts(2, (3, 4)),
        duplicates=Counts(1, (2,)),
    )


def test_the_number_of_classes_is_the_examples_own_or_unlimited() -> None:
    assert check(Examples(INPUTS, TARGETS, ("a", "b", "c"))).bad_labels.first == (3, 4)
    assert check(Examples(INPUTS, TARGETS, ("a",) * 4)).bad_labels.first == (4,)
    assert check((INPUTS, TARGETS)).bad_labels.first == (4,)
    with pytest.raises(InvalidValueError, match="classes must be"):
        check((INPUTS, TARGETS), classes=0)


def test_labels_that_are_not_integers() -> None:
    inputs = np.arange(4)
    assert check((inputs, np.array([0.0, 0.5, NAN, INF]))).bad_labels.first == (1, 2, 3)
    assert check((inputs, np.array(["a", "b", "c", "d"]))).bad_labels.count == 4
    assert check([(1, True), (2, None), (3, "x"), (4, np.uint8(3))]).bad_labels.first == (1, 2)


def test_a_sound_dataset_is_ok() -> None:
    report = check((torch.arange(10_000.0).reshape(5_000, 2), torch.zeros(5_000).long()))
    assert report.ok
    assert report.records == 5_000
    assert str(report).splitlines()[1:] == [
        "records:             5,000",
        "with NaN:            none",
        "with infinities:     none",
        "labels out of range: none",
        "duplicates:          none",
    ]


def test_any_fault_is_not_ok_and_only_the_first_are_shown() -> None:
    report = check((torch.zeros(9_000, 2), torch.zeros(9_000).long()))
    assert not report.ok
    assert report.duplicates == Counts(8_999, (1, 2, 3, 4, 5))
    lines = str(report).splitlines()
    assert lines[0] == "SENSITIVE: about private data, for its owner only"
    assert lines[-1] == "duplicates:          8,999 (at 1, 2, 3, 4, 5, …)"
    for column, value in ((0, NAN), (1, INF)):
        inputs = torch.arange(4.0).reshape(2, 2)
        inputs[0, column] = value
        assert not check((inputs, torch.tensor([0, 1]))).ok


def test_the_same_inputs_with_another_label_are_no_duplicate() -> None:
    assert check((torch.zeros(2, 2), torch.tensor([0, 1]))).ok
    assert check([([1.0, 2.0], 0), ([[1.0], [2.0]], 0)]).ok
    assert check([(1, "a"), (1, "b"), (1, "b")]).duplicates.first == (2,)


def test_other_blocks_are_remembered() -> None:
    inputs = torch.arange(10_000.0)
    inputs[9_999] = inputs[1]
    assert check((inputs, torch.zeros(10_000).long())).duplicates == Counts(1, (9_999,))


@pytest.mark.parametrize(
    "dataset",
    [(torch.zeros(0, 2), torch.zeros(0).long()), TensorDataset(INPUTS[:0], TARGETS[:0]), []],
)
def test_an_empty_dataset_is_refused(dataset: object) -> None:
    with pytest.raises(
        InvalidValueError, match="^dataset must have at least one record, got none$"
    ):
        check(dataset)


@pytest.mark.parametrize(
    "dataset", [Stream(), iter([]), 3, None, {0: (1, 2)}, torch.zeros(3, 2), np.zeros((3, 2))]
)
def test_datasets_without_an_order_are_refused(dataset: object) -> None:
    with pytest.raises(InvalidTypeError, match="dataset must have a length and give"):
        check(dataset)


def test_other_refusals() -> None:
    for pair in ((INPUTS,), (INPUTS, [0]), TensorDataset(INPUTS)):
        with pytest.raises(
            InvalidTypeError, match="dataset must be .inputs, targets., two tensors"
        ):
            check(pair)
    for targets in (TARGETS[:3], TARGETS[:, None], torch.tensor(1)):
        with pytest.raises(InvalidValueError, match="dataset must have one label per record, got"):
            check((INPUTS, targets))
    with pytest.raises(InvalidTypeError, match=r"dataset\[0\] must be an .input, target. pair"):
        check([1, 2])
    with pytest.raises(InvalidValueError, match=r"dataset\[1\] must have one label, got one of"):
        check([([0.0], 1), ([1.0], [1, 0])])
    with pytest.raises(InvalidTypeError, match=r"dataset\[0\] must be numbers, got str"):
        check([("text", 1)])
    with pytest.raises(InvalidTypeError, match=r"dataset\[0\] must be an array of numbers"):
        check([([[1], [1, 2]], 1)])
