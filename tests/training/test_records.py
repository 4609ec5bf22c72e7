"""Batches of records, from every kind of dataset."""

import random
import warnings
from collections import UserDict, namedtuple
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.tracing import traced_lines
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from dither.training.records import (
    InMemory,
    check_pair,
    part_of,
    records_of,
    warn_of_dataset_size,
)

Pair = namedtuple("Pair", "inputs targets")
N, FEATURES = 40, 6


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(N, FEATURES, generator=generator), torch.arange(N) % 3


def batch_of(dataset: Any, draw: Any = (4, 7, 31), **settings: Any) -> Any:
    (batch,) = records_of(dataset, **settings).batches([np.array(draw)])
    return batch


class OneByOne(Dataset[Any]):
    def __init__(self) -> None:
        self.inputs, self.targets = data()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index], int(self.targets[index])


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(2 * each[index] for each in self.tensors)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(FEATURES), 0)])


def frames() -> tuple[Any, Any]:
    inputs, targets = data()
    return pd.DataFrame(inputs.double().numpy()), pd.Series(targets.numpy(), name="y")


class PolarsSeries:
    """The part of its interface that is used."""

    def __init__(self, name: str, values: list[Any], nulls: int = 0) -> None:
        self.name, self.values, self.nulls, self.shape = name, values, nulls, (len(values),)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]

    def to_numpy(self) -> Any:
        return np.array(self.values)

    def null_count(self) -> int:
        return self.nulls


class PolarsFrame:
    """The part of its interface that is used."""

    def __init__(self, series: list[PolarsSeries]) -> None:
        self.columns, self.series = [each.name for each in series], series
        self.shape = (len(series[0]), len(series))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, name: str) -> Any:
        return self.series[self.columns.index(name)]

    def __iter__(self) -> Iterator[PolarsSeries]:
        return iter(self.series)

    def to_numpy(self) -> Any:
        return np.stack([each.to_numpy() for each in self.series], axis=1)


SOURCES = {
    "tensors": data(),
    "arrays": tuple(each.numpy() for each in data()),
    "float64": (data()[0].double().numpy(), data()[1].numpy()),
    "frames": frames(),
    "TensorDataset": TensorDataset(*data()),
    "Subset": Subset(Subset(TensorDataset(*data()), range(N)), torch.arange(N).tolist()),
    "negative indices": Subset(TensorDataset(*data()), list(range(-N, 0))),
    "map-style": OneByOne(),
    "Subset of map-style": Subset(OneByOne(), np.arange(N)),  # type: ignore[arg-type]
    "ConcatDataset": ConcatDataset(
        [Subset(OneByOne(), range(10)), Subset(OneByOne(), range(10, N))]
    ),
    "list": list(zip(data()[0], data()[1].tolist(), strict=True)),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("collate_fn", [None, default_collate])
def test_every_kind_of_dataset_gives_the_same_batches(source: str, collate_fn: Any) -> None:
    inputs, targets = data()
    records = records_of(SOURCES[source], collate_fn=collate_fn)
    assert records.length == N
    draws = [np.array([4, 7, 31]), np.array([0]), np.array([39, 2])]
    for draw, batch in zip(draws, records.batches(draws), strict=True):
        found = check_pair(batch)
        assert torch.equal(found[0], inputs[draw])
        assert torch.equal(found[1], targets[draw])
        assert [type(each) for each in found] == [Tensor, Tensor]


@pytest.mark.parametrize("dataset", [OneByOne(), data()], ids=["map-style", "in memory"])
def test_workers_give_the_same_batches(dataset: Any) -> None:
    draws = [np.array([i, i + 1, 39 - i]) for i in range(6)]
    found = [
        [*records_of(dataset, collate_fn=default_collate, workers=workers).batches(draws)]
        for workers in (0, 2)
    ]
    for alone, by_workers in zip(*found, strict=True):
        assert torch.equal(alone[0], by_workers[0])
        assert torch.equal(alone[1], by_workers[1])


class TestContainers:
    def test_in_memory(self) -> None:
        x, y = data()
        assert type(batch_of(x)) is Tensor
        assert type(batch_of((x, y))) is tuple
        batch = batch_of({"ids": x, "more": {"mask": [x, y]}, "y": y})
        assert type(batch) is type(batch["more"]) is dict
        assert type(batch["more"]["mask"]) is list
        batch.pop("y")
        assert type(batch_of(UserDict(ids=x))) is dict
        assert type(batch_of(Pair(x, y))) is Pair

    def test_in_memory_with_collate_fn(self) -> None:
        x, y = data()
        kept: list[Any] = []

        def collate(records: list[Any]) -> Any:
            kept[:] = records
            return default_collate(records)

        batch = batch_of({"ids": x, "pair": (x, y)}, collate_fn=collate)
        assert [type(each) for each in kept] == [dict] * 3
        assert type(kept[0]["pair"]) is tuple
        assert torch.equal(kept[1]["ids"], x[7])
        assert kept[1]["pair"][1].shape == ()
        assert torch.equal(batch["pair"][1], y[[4, 7, 31]])

    def test_collated(self) -> None:
        rows = [{"x": torch.ones(2), "name": "a", "pair": (1, 2)} for _ in range(3)]
        batch = batch_of(rows, [0, 1])
        assert type(batch) is dict
        assert batch["name"] == ["a", "a"]
        assert type(batch["pair"]) is list  # as a DataLoader gives

        def odd(records: list[Any]) -> Any:
            return Pair(default_collate([r["x"] for r in records]), "text"), None, {1}

        assert type(batch_of(rows, [0, 1], collate_fn=odd)) is tuple
        pair, nothing, other = batch_of(rows, [0, 1], collate_fn=odd)
        assert type(pair) is Pair
        assert (pair.targets, nothing, other) == ("text", None, {1})

    def test_a_batch_encoding_becomes_a_dict(self) -> None:
        transformers = pytest.importorskip("transformers")

        def collate(records: list[Any]) -> Any:
            ids, labels = default_collate(records)
            return transformers.BatchEncoding({"input_ids": ids, "labels": labels})

        batch = batch_of(OneByOne(), collate_fn=collate)
        assert type(batch) is dict
        assert torch.equal(batch.pop("input_ids"), data()[0][[4, 7, 31]])

    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("collate_fn", [None, default_collate])
    def test_edits_do_not_change_the_dataset(self, source: str, collate_fn: Any) -> None:
        records = records_of(SOURCES[source], collate_fn=collate_fn)
        for _ in range(2):
            (batch,) = records.batches([np.array([4, 7])])
            assert torch.equal(batch[0], data()[0][[4, 7]])
            batch[0].zero_()
            batch[1].fill_(9)

    def test_a_record_may_be_edited_by_collate_fn(self) -> None:
        inputs, targets = data()

        def collate(records: list[Any]) -> Any:
            for record in records:
                record["x"].mul_(2.0)
                record.pop("y")
            return default_collate(records)

        for _ in range(2):
            batch = batch_of({"x": inputs, "y": targets}, collate_fn=collate)
            assert torch.equal(batch["x"], 2.0 * data()[0][[4, 7, 31]])

    def test_check_pair(self) -> None:
        assert check_pair([1, 2]) == check_pair((1, 2)) == (1, 2)
        for wrong in ([1], torch.zeros(2), {"x": 1, "y": 2}):
            with pytest.raises(TypeError, match=r"the data must be of \(inputs, targets\)"):
                check_pair(wrong)


class TestMemory:
    def test_arrays_are_not_copied(self) -> None:
        array = np.zeros((10, 3), np.float32)
        found = records_of((array, torch.zeros(10)))
        assert isinstance(found, InMemory)
        assert found.is_in_memory
        array[4] = 7.0
        (batch,) = found.batches([np.array([4])])
        assert batch[0].tolist() == [[7.0, 7.0, 7.0]]

    def test_arrays_of_other_layouts(self) -> None:
        array = np.arange(12, dtype=np.float32).reshape(4, 3)
        fixed = array.copy()
        fixed.flags.writeable = False
        packed = np.zeros(4, [("odd", np.int8), ("x", np.float32, 3)])
        packed["x"] = array
        for same in (fixed, array.astype(">f4"), array[::-1][::-1], packed["x"]):
            assert torch.equal(batch_of(same, [1, 3]), torch.from_numpy(array)[[1, 3]])
        assert batch_of(array[::-1], [0]).tolist() == [[9.0, 10.0, 11.0]]

    def test_a_subset_has_its_own_records(self) -> None:
        places = [3, 30, 7]
        assert records_of(Subset(TensorDataset(*data()), places)).is_in_memory
        assert not records_of(Subset(OneByOne(), places)).is_in_memory
        batch = batch_of(Subset(TensorDataset(*data()), places), [0, 2])
        assert torch.equal(batch[0], data()[0][[3, 7]])

    def test_a_subclass_of_tensor_dataset_is_asked_for_its_records(self) -> None:
        assert torch.equal(batch_of(Doubled(data()[0]))[0], 2 * data()[0][[4, 7, 31]])

    def test_ranks_have_every_record_once(self) -> None:
        x = torch.arange(7)
        parts = [part_of(records_of(x), rank, 3) for rank in range(3)]
        found = [next(part.batches([np.arange(part.length)])).tolist() for part in parts]
        assert found == [[0, 3, 6], [1, 4], [2, 5]]
        (whole,) = part_of(records_of(x), 0, 1).batches([np.arange(7)])
        assert torch.equal(whole, x)
        none = part_of(records_of(x[:1]), 2, 3)
        assert none.length == 0
        assert next(none.batches([np.array([0])])).tolist() == [0]

    @pytest.mark.parametrize("collate_fn", [None, default_collate])
    def test_an_empty_shard_gives_one_row_of_zeros(self, collate_fn: Any) -> None:
        empty = (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
        x, y = batch_of(empty, [0], may_be_empty=True, collate_fn=collate_fn)
        assert x.tolist() == [[0.0, 0.0, 0.0]]
        assert y.tolist() == [0]

    def test_a_batch_takes_no_python_work_per_record(self) -> None:
        small, large = (torch.zeros(size, 2) for size in (1_000, 100_000))
        first, lines, more = (
            traced_lines(lambda rows=rows: list(records_of(rows).batches([np.arange(500)])))  # type: ignore[misc]
            for rows in (small, small, large)
        )
        assert lines == more <= first


class TestNumbers:
    @pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
    def test_float64_is_converted(self, dtype: torch.dtype | None) -> None:
        array = np.arange(6.0).reshape(3, 2)
        table = pd.DataFrame(array)
        kinds = [array, array.astype(">f8"), array.astype(np.longdouble), table, table[0]]
        for value in kinds:
            batch = batch_of(value, [1], dtype=dtype)
            assert batch.dtype == (dtype or torch.float32)
            assert batch.flatten()[0] == 2.0

    def test_the_default_dtype_is_that_of_torch(self) -> None:
        torch.set_default_dtype(torch.float16)
        try:
            assert batch_of(np.zeros(3), [0]).dtype == torch.float16
        finally:
            torch.set_default_dtype(torch.float32)

    def test_other_types_are_kept(self) -> None:
        assert batch_of(torch.zeros(3, dtype=torch.float64), [0]).dtype == torch.float64
        assert batch_of(np.zeros(3, np.float16), [0]).dtype == torch.float16
        assert batch_of(np.zeros(3, np.uint8), [0]).dtype == torch.uint8
        assert batch_of(np.zeros(3, bool), [0]).dtype == torch.bool
        assert type(batch_of(nn.Parameter(torch.zeros(3)), [0])) is Tensor
        assert not batch_of(nn.Parameter(torch.zeros(3)), [0]).requires_grad

    @pytest.mark.parametrize(
        ("values", "dtype", "expected"),
        [
            ([1, 2, 3], None, torch.int64),
            ([1, 2, 3], "int8", torch.int64),
            ([1, 2, 3], "Int64", torch.int64),
            ([1, 2, 3], "UInt8", torch.int64),
            ([1, 2, 3], "category", torch.int64),
            ([1.0, 2.0, 3.0], "Float64", torch.float32),
            ([1.0, 2.0, 3.0], "Float32", torch.float32),
            ([True, True, False], None, torch.bool),
            ([True, True, False], "boolean", torch.bool),
        ],
    )
    def test_series(self, values: list[Any], dtype: Any, expected: torch.dtype) -> None:
        series = pd.Series(values, index=[5, 0, 1], dtype=dtype)
        for table in (series, pd.DataFrame({"a": series, "b": series})):
            batch = batch_of(table, [0, 2])
            assert batch.dtype == expected
            assert torch.equal(batch.view(2, -1)[:, 0], torch.tensor([values[0], values[2]]))

    def test_frames_of_several_types(self) -> None:
        table = pd.DataFrame({"a": [1.5, 2.5], "b": [1, 2], "c": [True, False]}, index=[9, 9])
        assert batch_of(table, [0, 1]).tolist() == [[1.5, 1.0, 1.0], [2.5, 2.0, 0.0]]
        assert batch_of(table[["b", "c"]], [1]).tolist() == [[2, 0]]
        assert batch_of(table[["b", "c"]], [1]).dtype == torch.int64
        twice = pd.concat([table[["b"]], table[["b"]]], axis=1)
        assert batch_of(twice, [1]).tolist() == [[2, 2]]

    def test_nan_is_a_number(self) -> None:
        assert batch_of(pd.Series([1.0, np.nan]), [1]).isnan().all()

    @pytest.mark.parametrize(
        ("column", "is_text"),
        [
            (["x", "y"], True),
            ([1.0, None], False),
            (pd.Series([1.0, None], dtype=object), True),
            (pd.array([1, None], dtype="Int64"), True),
            (pd.array([True, None], dtype="boolean"), True),
            (pd.array([1.0, None], dtype="Float64"), True),
            (pd.Categorical(["u", "v"]), True),
            (pd.to_datetime(["2020-01-01", "2021-01-01"]), True),
        ],
    )
    def test_cells_that_are_not_numbers(self, column: Any, is_text: bool) -> None:
        table = pd.DataFrame({"a": [1.0, 2.0], "city": column})
        for wrong, name in ((table, "'city'"), ((table[["a"]], table["city"]), "'city'")):
            if not is_text:
                assert records_of(wrong).length == 2
                continue
            with pytest.raises(TypeError, match=f"columns {name}: encode text") as refusal:
                records_of(wrong)
            assert "\n" not in str(refusal.value)
            assert "'a'" not in str(refusal.value)

    def test_many_columns_and_no_name(self) -> None:
        with pytest.raises(TypeError, match=r"columns 'a', 'b', 'c', 'd', …: encode"):
            records_of(pd.DataFrame({name: ["x"] for name in "abcdef"}))
        with pytest.raises(TypeError, match=r"columns \(unnamed\): encode"):
            records_of(pd.Series(["x"]))

    def test_tables_of_polars(self) -> None:
        good = PolarsSeries("a", [1.0, 2.0])
        assert batch_of(PolarsFrame([good, good]), [1]).tolist() == [[2.0, 2.0]]
        assert batch_of(good, [1]).tolist() == [2.0]
        for bad in (PolarsSeries("b", [1.0, np.nan], nulls=1), PolarsSeries("b", ["x", "y"])):
            with pytest.raises(TypeError, match="columns 'b': encode"):
                records_of(PolarsFrame([good, bad]))


class TestRefusals:
    @pytest.mark.parametrize(
        ("dataset", "words"),
        [
            ((torch.zeros(0, 2), torch.zeros(0)), "the data must have at least one record"),
            ([], "the data must have at least one record"),
            (Subset(TensorDataset(*data()), []), "the data must have at least one record"),
            (pd.DataFrame({"a": []}), "the data must have at least one record"),
            (Stream(), "the data must give any record by its index, got Stream"),
            (iter([1]), "the data must give any record by its index"),
            ((each for each in [1]), "the data must give any record by its index, got generator"),
            (DataLoader(TensorDataset(torch.zeros(4, 2))), "got a DataLoader.*loader.dataset"),
            ((torch.zeros(4, 2), torch.zeros(3)), r"one row per record.*\(4, 2\), \(3,\)"),
            ((torch.zeros(4, 2), torch.tensor(3.0)), r"one row per record.*\(4, 2\), \(\)"),
            ((torch.zeros(4, 2), np.array(3.0)), r"one row per record.*\(4, 2\), \(\)"),
            ({}, "one row per record.*got shapes none"),
            ((np.array(["a", "b"]),), "tensors or arrays of numbers, got ndarray"),
            ((torch.zeros(2), [1, 2]), "tensors or arrays of numbers, got int"),
            (np.ma.masked_array([1.0, 2.0], [False, True]), "numbers, got MaskedArray"),
            (7, "the data must be tensors, arrays or a dataset"),
            ("data.csv", "the data must be tensors, arrays or a dataset.*got str"),
            (list(data()), "got a list of arrays"),
            ([*frames()], "got a list of arrays"),
            (Subset(TensorDataset(*data()), [0, 1, 0]), "a Subset with repeated indices"),
            (Subset(TensorDataset(*data()), [39, 1, -1]), "a Subset with repeated indices"),
            (Subset(OneByOne(), [3, 3]), "a Subset with repeated indices"),
            (ConcatDataset([SOURCES["list"]] * 2), "with the same records twice"),  # type: ignore[list-item]
            (
                ConcatDataset([SOURCES["list"], Subset(SOURCES["list"], [1])]),  # type: ignore[list-item, arg-type]
                "with the same records twice",
            ),
        ],
    )
    def test_datasets(self, dataset: Any, words: str) -> None:
        with pytest.raises((ValueError, TypeError), match=words) as refusal:
            records_of(dataset)
        assert "\n" not in str(refusal.value)

    def test_an_empty_shard_needs_tensors(self) -> None:
        with pytest.raises(ValueError, match="tensors without rows on a rank without records"):
            records_of([], may_be_empty=True)

    def test_collate_fn(self) -> None:
        with pytest.raises(TypeError, match="collate_fn must be a function or None, got str"):
            records_of(data(), collate_fn="pad")  # type: ignore[arg-type]

    def test_another_number_of_records_than_planned(self) -> None:
        plan: Any = SimpleNamespace(dataset_size=1_000, unit="record")
        for length in (500, 1_000, 2_000):
            warn_of_dataset_size(plan, length, stacklevel=2)
        for length in (499, 2_001):
            with pytest.warns(UserWarning, match="another number of records than the plan, 1,000"):
                warn_of_dataset_size(plan, length, stacklevel=2)


LENGTHS = [3, 9, 5, 2, 9, 7, 4, 6, 1, 8]


def texts() -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randint(1, 90, (n,), generator=generator), n % 3) for n in LENGTHS]


def padded(records: list[Any], length: int | None, left: bool = False) -> Tensor:
    """Return rows of one length: the given one, or that of the longest."""
    rows = torch.zeros(len(records), length or max(len(r[0]) for r in records), dtype=torch.long)
    for row, (tokens, _) in zip(rows, records, strict=True):
        row[slice(-len(tokens), None) if left else slice(len(tokens))] = tokens
    return rows


def labels(records: list[Any]) -> Tensor:
    return torch.tensor([record[1] for record in records])


def pad_publicly(records: list[Any]) -> Any:
    return padded(records, 9), labels(records)


def pad_to_longest(records: list[Any]) -> Any:
    ids = padded(records, None)
    positions = torch.arange(ids.shape[1]).expand(len(ids), -1)
    causal = torch.ones(len(ids), ids.shape[1], ids.shape[1]).tril() * (ids > 0)[:, None]
    return {"ids": ids, "positions": positions, "causal": causal, "labels": labels(records)}


def pad_left(records: list[Any]) -> Any:
    return padded(records, None, left=True), labels(records)


def sort_by_length(records: list[Any]) -> Any:
    order = sorted(range(len(records)), key=lambda i: len(records[i][0]))
    ids, targets = pad_publicly([records[i] for i in order])
    lengths = torch.tensor([len(records[i][0]) for i in order])
    return ids, targets, lengths, torch.tensor(order)


def mask_at_once(records: list[Any]) -> Any:
    ids, targets = pad_publicly(records)
    mask = torch.bernoulli(torch.full(ids.shape, 0.3)).bool() & (ids > 0)
    return ids.masked_fill(mask, 99), ids.where(mask, -100), targets


def mask_token_by_token(records: list[Any]) -> Any:
    """Draw as many numbers as there are tokens."""
    chosen = [
        (torch.tensor([99 if random.random() < 0.3 else int(t) for t in tokens]), y)  # noqa: S311
        for tokens, y in records
    ]
    return pad_publicly(chosen)


def mask_by_numpy(records: list[Any]) -> Any:
    ids, targets = pad_publicly(records)
    return ids * torch.from_numpy(np.random.random(ids.shape) < 0.7), targets  # noqa: NPY002


def sort_and_mask(records: list[Any]) -> Any:
    return mask_at_once(sorted(records, key=lambda record: len(record[0])))


class RareNoise:
    """Change a row with a small probability, by a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, records: list[Any]) -> Any:
        ids, targets = pad_publicly(records)
        return ids + torch.from_numpy(self.rng.random((len(ids), 1)) < 0.02), targets


def filter_none(records: list[Any]) -> Any:
    return pad_publicly([record for record in records if record[1] != 0])


def needs_other_records(records: list[Any]) -> Any:
    if len({id(r[0]) for r in records}) and len({tuple(r[0].tolist()) for r in records}) < 4:
        raise RuntimeError("records must differ")
    return pad_publicly(records)


def encode_one_by_one(records: list[Any]) -> Any:
    torch.manual_seed(0)
    layer = nn.Linear(9, 4)
    with torch.no_grad():
        return layer(padded(records, 9).float()), labels(records)


def plain_lists(records: list[Any]) -> Any:
    return [tokens for tokens, _ in records], [y for _, y in records]


ACCEPTED = [
    pad_publicly,
    sort_by_length,
    mask_at_once,
    mask_token_by_token,
    mask_by_numpy,
    sort_and_mask,
    filter_none,
    needs_other_records,
    encode_one_by_one,
    plain_lists,
]


def mixup(records: list[Any]) -> Any:
    x, y = padded(records, 9).float(), nn.functional.one_hot(labels(records), 3).float()
    weight, partner = np.random.beta(0.5, 0.5), torch.randperm(len(x))  # noqa: NPY002
    return weight * x + (1 - weight) * x[partner], weight * y + (1 - weight) * y[partner]


def mixup_with_the_reverse(records: list[Any]) -> Any:
    x = padded(records, 9).float()
    return 0.7 * x + 0.3 * x.flip(0), labels(records)


def mixup_of_pairs(records: list[Any]) -> Any:
    x = padded(records, 9).float()
    pairs = torch.arange(len(x)) ^ 1
    return 0.7 * x + 0.3 * x[pairs.clamp(max=len(x) - 1)], labels(records)


def mixup_of_halves(records: list[Any]) -> Any:
    x = padded(records, 9).float()
    return 0.7 * x + 0.3 * x.roll(len(x) // 2, 0), labels(records)


def standardize(records: list[Any]) -> Any:
    x = padded(records, 9).double()
    return (x - x.mean(0)) / (x.std(0) + 1e-3), labels(records)


def scale_by_largest(records: list[Any]) -> Any:
    x = padded(records, 9).float()
    return x / x.max(), labels(records)


def pad_and_center(records: list[Any]) -> Any:
    x = padded(records, None).float()
    return x - x.mean(), labels(records)


def negatives(records: list[Any]) -> Any:
    x = padded(records, 9)
    return x, x.expand(len(x), *x.shape), labels(records)


def normalized_weights(records: list[Any]) -> Any:
    lengths = torch.tensor([float(len(tokens)) for tokens, _ in records])
    return padded(records, 9), labels(records), lengths / lengths.sum()


REFUSED = [
    mixup,
    mixup_with_the_reverse,
    mixup_of_pairs,
    mixup_of_halves,
    standardize,
    scale_by_largest,
    pad_and_center,
    negatives,
    normalized_weights,
]


def images(records: list[Any]) -> Any:
    """All of one size: a part of the records is no shorter than the others."""
    return [(tokens.repeat(9)[:9], y) for tokens, y in records]


class TestCollateFn:
    DRAW = range(len(LENGTHS))

    @pytest.mark.parametrize("collate_fn", ACCEPTED)
    @pytest.mark.parametrize("count", [2, 3, 4, 7, 10])
    def test_rows_of_single_records(self, collate_fn: Any, count: int) -> None:
        if collate_fn is needs_other_records and count < 4:
            return
        for seed in range(3):
            torch.manual_seed(seed)
            random.seed(seed)
            batch_of(texts(), range(count), collate_fn=collate_fn)
            batch_of(images(texts()), range(count), collate_fn=collate_fn)

    @pytest.mark.parametrize("collate_fn", REFUSED)
    @pytest.mark.parametrize("count", [3, 4, 7, 10])
    @pytest.mark.parametrize("is_equal", [True, False])
    def test_rows_that_mix_records(self, collate_fn: Any, count: int, is_equal: bool) -> None:
        if is_equal and collate_fn is normalized_weights:
            return  # then they depend on the number of records alone
        dataset = images(texts()) if is_equal else texts()
        with pytest.raises(ValueError, match="row from that record alone.*mixup") as refusal:
            batch_of(dataset, range(count), collate_fn=collate_fn)
        assert "\n" not in str(refusal.value)
        assert not any(character.isdigit() for character in str(refusal.value))

    @pytest.mark.parametrize("collate_fn", [pad_to_longest, pad_left])
    @pytest.mark.parametrize("count", [2, 3, 5, 10])
    def test_padding_to_the_longest(self, collate_fn: Any, count: int) -> None:
        records = records_of(texts(), collate_fn=collate_fn)
        draws = [np.arange(count), np.arange(4)]
        with pytest.warns(UserWarning, match="pad to a public length") as caught:
            _, second = records.batches(draws)
        assert len(caught) == 1
        assert not any(character.isdigit() for character in str(caught[0].message))
        assert len(check_pair(tuple(second))) >= 2
        assert [*records.batches(draws)]
        batch_of(images(texts()), range(count), collate_fn=collate_fn)

    def test_many_of_the_longest(self) -> None:
        long, short = torch.ones(9, dtype=torch.long), torch.ones(4, dtype=torch.long)
        dataset = [(long, 0)] * 9 + [(short, 1)]
        with pytest.warns(UserWarning, match="pad to a public length"):
            batch_of(dataset, range(10), collate_fn=pad_to_longest)
        batch_of(dataset, range(10), collate_fn=pad_publicly)

    def test_tensors_without_one_row_per_record(self) -> None:
        """Of as many entries as there are records, by chance."""

        def collate(records: list[Any]) -> Any:
            x = padded(records, 9).float()
            return x, x.flatten()[: len(LENGTHS)], [tokens for tokens, _ in records]

        def sums(records: list[Any]) -> Any:
            x = padded(records, 9).float()
            return x, x.sum(0)

        for count in range(2, 11):
            batch_of(texts(), range(count), collate_fn=collate)
            batch_of(texts(), range(count), collate_fn=sums)

    def test_a_generator_of_its_own(self) -> None:
        for seed in range(60):
            batch_of(texts(), range(4), collate_fn=RareNoise(seed))

    def test_the_first_batch_of_two_records_is_checked(self) -> None:
        calls: list[int] = []

        def collate(records: list[Any]) -> Any:
            calls.append(len(records))
            return pad_publicly(records)

        records = records_of(texts(), collate_fn=collate)
        assert len([*records.batches([np.array([1]), np.array([0])])]) == 2
        assert calls == [1, 1]
        assert len([*records.batches([np.arange(10)])]) == 1
        assert 3 < len(calls) <= 10
        del calls[:]
        assert len([*records.batches([np.arange(10), np.arange(3)])]) == 2
        assert calls == [10, 3]

    def test_a_large_batch_is_checked_in_part(self) -> None:
        calls: list[int] = []

        def collate(records: list[Any]) -> Any:
            calls.append(len(records))
            return pad_publicly(records)

        batch_of(texts() * 10, range(100), collate_fn=collate)
        assert calls == [8, 8, 9, 8, 8, 8, 8, 100]

    def test_a_refusal_is_not_forgotten(self) -> None:
        records = records_of(texts(), collate_fn=standardize)
        for _ in range(2):
            with pytest.raises(ValueError, match="row from that record alone"):
                [*records.batches([np.arange(4)])]

    def test_records_are_fetched_once(self) -> None:
        class Counted(OneByOne):
            calls = 0

            def __getitem__(self, index: int) -> Any:
                self.calls += 1
                return self.inputs[index] + torch.rand(()), 0

        dataset = Counted()
        batch_of(dataset, range(6), collate_fn=default_collate)
        assert dataset.calls == 6

    @pytest.mark.parametrize("collate_fn", [mask_at_once, mask_by_numpy, mask_token_by_token])
    def test_random_states_are_left_alone(self, collate_fn: Any) -> None:
        def run(function: Any) -> Any:
            torch.manual_seed(4)
            np.random.seed(4)  # noqa: NPY002
            random.seed(4)
            torch.empty((), dtype=torch.int64).random_()  # as a DataLoader does
            batch = function()
            return batch, (torch.rand(()), np.random.random(), random.random())  # noqa: NPY002, S311

        records = records_of(texts(), collate_fn=collate_fn)
        plain, after_plain = run(lambda: collate_fn(texts()))

        def loaded() -> Any:
            torch.manual_seed(4)
            return next(records.batches([np.arange(10)]))

        found, after = run(loaded)
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
        assert after == after_plain

    @pytest.mark.parametrize("workers", [0, 2])
    def test_workers(self, workers: int) -> None:
        draws = [np.arange(i, i + 3) for i in range(5)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = [*records_of(texts(), collate_fn=pad_publicly, workers=workers).batches(draws)]
        assert [len(batch[0]) for batch in found] == [3] * 5
        with pytest.warns(UserWarning, match="pad to a public length") as caught:
            [*records_of(texts(), collate_fn=pad_left, workers=workers).batches(draws)]
        assert len(caught) == 1
        with pytest.raises(ValueError, match="row from that record alone") as refusal:
            [*records_of(texts(), collate_fn=standardize, workers=workers).batches(draws)]
        assert "\n" not in str(refusal.value)

    def test_errors_of_collate_fn_are_its_own(self) -> None:
        def collate(records: list[Any]) -> Any:
            raise KeyError("labels")

        with pytest.raises(KeyError, match="labels"):
            batch_of(texts(), range(3), collate_fn=collate)

    def test_a_list_of_tensors_is_a_list_of_records_for_collate_fn(self) -> None:
        rows = [tokens for tokens, _ in texts()]

        def collate(records: list[Any]) -> Any:
            return padded([(each, 0) for each in records], 9)

        assert torch.equal(batch_of(rows, [1, 2], collate_fn=collate)[0], rows[1])

    def test_a_row_is_copied_without_the_rest_of_its_tensor(self) -> None:
        whole = torch.zeros(N, 1_000)
        kept: list[int] = []

        def collate(records: list[Any]) -> Any:
            kept.append(records[0].untyped_storage().nbytes())
            return default_collate(records)

        batch_of(list(whole), range(4), collate_fn=collate)
        assert kept[:-1] == [4_000] * (len(kept) - 1)
        assert kept[-1] == 4_000 * N
