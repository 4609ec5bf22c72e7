"""Where batches come from."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.tracing import traced_lines
from tests.training.loops import RECORDS, data, losses, noisy_plan, private, take_steps
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from dither.training.records import InMemory, records_of


class OneByOne(Dataset[Any]):
    def __init__(self) -> None:
        self.inputs, self.targets = data()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index], int(self.targets[index])


@pytest.mark.parametrize(
    "dataset",
    [
        tuple(each.numpy() for each in data()),
        TensorDataset(*data()),
        Subset(TensorDataset(*data()), range(RECORDS)),
        OneByOne(),
        list(zip(data()[0], data()[1].tolist(), strict=True)),
    ],
)
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_every_kind_of_dataset_gives_the_same_run(dataset: Any, sampling: str) -> None:
    plan = noisy_plan(sampling=sampling)
    assert torch.equal(take_steps(private(plan, dataset)), take_steps(private(plan)))


def test_worker_processes_give_the_same_run() -> None:
    found = take_steps(private(noisy_plan(), OneByOne(), workers=1))
    assert torch.equal(found, take_steps(private(noisy_plan())))


def test_dicts_of_tensors() -> None:
    inputs, targets = data()
    run = private(noisy_plan(), {"x": inputs, "y": targets})
    for batch in run.batches():
        run.backward(losses(run, batch["x"], batch["y"]))
        run.optimizer.step()
    expected = take_steps(private(noisy_plan()))
    found = torch.cat([p.detach().flatten() for p in run.model.parameters()])
    assert torch.equal(found, expected)


def test_memory_is_not_copied() -> None:
    array = np.zeros((10, 3), np.float32)
    found = records_of((array, torch.zeros(10)))
    assert isinstance(found, InMemory)
    array[4] = 7.0
    (batch,) = found.batches([np.array([4])])
    assert batch[0].tolist() == [[7.0, 7.0, 7.0]]
    array.flags.writeable = False
    assert records_of(array).length == 10
    assert records_of(array[::-1]).length == 10
    assert records_of(array.astype(">f4")).length == 10


def test_a_subset_has_its_own_records() -> None:
    inputs, targets = data()
    places = [3, 50, 7]
    (batch,) = records_of(Subset(TensorDataset(inputs, targets), places)).batches([np.arange(3)])
    assert torch.equal(batch[0], inputs[places])


def test_a_step_does_no_python_work_for_each_record() -> None:
    small, large = (torch.zeros(size, 2) for size in (1_000, 100_000))
    first, lines, more = (
        traced_lines(lambda rows=rows: list(records_of(rows).batches([np.arange(500)])))  # type: ignore[misc]
        for rows in (small, small, large)
    )
    assert lines == more <= first
