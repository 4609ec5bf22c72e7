"""Private training in one call."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.loops import (
    CLASSES,
    RECORDS,
    data,
    flat,
    model,
    noisy_plan,
    private,
    quiet_plan,
    take_steps,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import dither
from dither import Plan, Public
from dither.data import load
from dither.training import MODELS
from dither.training.averaging import Average


def train(plan: Plan | None = None, **settings: Any) -> dither.training.TrainResult:
    given = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.5), "seed": 7, **settings}
    return dither.train(model(), data(), plan or noisy_plan(), progress=False, **given)


def test_it_is_the_loop_that_one_would_write() -> None:
    expected = take_steps(private(noisy_plan()))
    result = train()
    assert torch.equal(flat(result.model), expected)
    assert result.bound == noisy_plan().bound
    assert torch.equal(flat(train(loss=dither.training.losses.cross_entropy).model), expected)
    in_microbatches = flat(train(microbatch_size=4).model)
    assert float((in_microbatches - expected).abs().max()) < 1e-6


def test_private_digits_are_learnt() -> None:
    digits = load("digits")
    plan = dither.plan(
        epsilon=8.0, delta=1e-5, dataset_size=len(digits.train), batch_size=128, epochs=6,
        stepsizes=dither.schedules.Linear(2.0, 0.1),
    )  # fmt: skip
    assert digits.test is not None
    result = dither.train(
        MODELS["mlp"]((1, 8, 8), 10), digits.train, plan, evaluate=Public(digits.test), seed=1,
        averaging="ema", progress=False,
    )  # fmt: skip
    assert result.metrics["accuracy"] > 0.85
    assert result.bound.epsilon <= 8.0


def test_history_rises_to_the_bound_and_is_written_as_it_comes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = train(noisy_plan(steps=7), every=3, run=dither.Run(folder), evaluate=Public(data()))
    assert [row.step for row in result.history] == [3, 6, 7]
    costs = [row.epsilon for row in result.history]
    assert costs == sorted(costs)
    assert costs[-1] == result.bound.epsilon
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 6, 7]
    assert json.loads(lines[-1])["metrics"] == result.metrics
    assert sorted(result.metrics) == ["accuracy", "loss"]
    assert Plan.from_json((folder / "plan.json").read_text(encoding="utf-8")) == result.plan
    summary = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert summary["bound"]["epsilon"] == result.bound.epsilon
    assert summary["seed"] == 7
    weights = load_file(folder / "model.safetensors")
    assert torch.equal(weights["0.weight"], result.model.state_dict()["0.weight"])
    assert not list(folder.glob("*.part"))
    with pytest.raises(ValueError, match="run directory must be new or empty"):
        train(run=dither.Run(folder))


def test_nothing_is_measured_on_data_that_is_not_declared_public() -> None:
    assert train().metrics == {}
    with pytest.raises(TypeError, match=r"evaluate must be dither.Public\(dataset\) or None"):
        train(evaluate=data())


def test_accuracy_and_loss_are_those_of_the_model() -> None:
    result = train(evaluate=Public(data(40)))
    inputs, targets = data(40)
    outputs = result.model(inputs).detach()
    assert result.metrics["accuracy"] == float((outputs.argmax(1) == targets).double().mean())
    expected = float(nn.functional.cross_entropy(outputs, targets))
    assert result.metrics["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("averaging", ["ema", "tail"])
def test_averages_of_the_iterates(averaging: str) -> None:
    iterates: list[Tensor] = []
    run = private(noisy_plan(steps=8))
    run.optimizer.register_step_post_hook(lambda *_: iterates.append(flat(run.model)))
    take_steps(run)
    expected = iterates[0]
    for k, iterate in enumerate(iterates, start=1):
        share = max(0.01, 9.0 / (9.0 + k)) if averaging == "ema" else 1.0 / max(1, k - 4)
        expected = iterate if k == 1 or share == 1.0 else expected + share * (iterate - expected)
    found = flat(train(noisy_plan(steps=8), averaging=averaging).model)
    assert float((found - expected).abs().max()) < 1e-5
    if averaging == "tail":
        mean = torch.stack(iterates[4:]).mean(0)
        assert float((found - mean).abs().max()) < 1e-5


def test_measuring_an_average_leaves_the_iterate_alone() -> None:
    made = model()
    average = Average(made, "ema", 10)
    average.update(1)
    before = flat(made)
    with torch.no_grad():
        made[0].weight += 1.0
    average.update(2)
    moved = flat(made)
    with average.in_place():
        assert not torch.equal(flat(made), moved)
        assert not torch.equal(flat(made), before)
    assert torch.equal(flat(made), moved)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_optimizers_by_name(name: str) -> None:
    assert flat(train(optimizer=name).model).isfinite().all()


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        ("binary_cross_entropy", (data()[1] > 0).long()),
        ("squared_error", data()[1].float()),
    ],
)
def test_losses_by_name(loss: str, targets: Tensor) -> None:
    inputs, _ = data()
    made = nn.Linear(inputs.shape[1], 1)
    public = Public((inputs[:8], targets[:8]))
    result = dither.train(
        made, (inputs, targets), quiet_plan(), loss=loss, evaluate=public, progress=False
    )
    assert result.metrics["loss"] > 0.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "hinge"}, "loss must be one of binary_cross_entropy, cross_entropy"),
        ({"loss": 3}, "loss must be a name or a function"),
        ({"optimizer": "lion"}, "optimizer must be one of adam, adamw, momentum, sgd"),
        ({"optimizer": 3}, "optimizer must be a name, an optimizer or a function"),
        ({"every": 0}, "every must be an integer of at least 1"),
        ({"microbatch_size": 0}, "size must be an integer of at least 1"),
        ({"averaging": "mean"}, "averaging must be one of ema, tail"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        train(run=dither.Run(tmp_path / "run"), **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", MODELS)
def test_models_by_name_have_a_logit_a_class(name: str, shape: tuple[int, ...]) -> None:
    made = MODELS[name](shape, 10)
    assert made(torch.zeros(2, *shape)).shape == (2, 10)
    assert dither.clipping.check(made, torch.randn(4, *shape)).findings == ()


def test_a_cnn_for_vectors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 8 × 8, got records of shape \(30,\)"):
        MODELS["cnn"]((30,), 2)


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def by_their_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    found = cross_entropies(outputs, targets)
    return found / found.detach().sum()


def by_their_number(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropies(outputs, targets) / len(targets)


def by_the_weights_of_all(outputs: Tensor, targets: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 5.0, 0.2])[targets]
    return cross_entropies(outputs, targets) * weights / weights.sum()


def by_those_that_count(outputs: Tensor, targets: Tensor) -> Tensor:
    found = functional.cross_entropy(outputs, targets, ignore_index=1, reduction="none")
    return found / (targets != 1).sum()


def balanced_by_the_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    share = torch.bincount(targets, minlength=CLASSES)[targets] / len(targets)
    return cross_entropies(outputs, targets) * (1.0 - share)


def standardised_by_the_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropies((outputs - outputs.detach().mean(0)) / outputs.detach().std(0), targets)


def smoothed_by_the_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    hot = functional.one_hot(targets, CLASSES).float()
    return functional.cross_entropy(outputs, 0.9 * hot + 0.1 * hot.mean(0), reduction="none")


def focal_by_the_hardest(outputs: Tensor, targets: Tensor) -> Tensor:
    found = cross_entropies(outputs, targets)
    return found * (found / found.max()).detach()


@pytest.mark.parametrize("loss", [
    by_their_sum, by_their_number, by_the_weights_of_all, by_those_that_count,
    balanced_by_the_batch, standardised_by_the_batch, smoothed_by_the_batch, focal_by_the_hardest,
])  # fmt: skip
def test_losses_that_depend_on_totals_of_the_batch(loss: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="loss must give every record its own value.*divide by"):
        train(loss=loss, run=dither.Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()  # nothing was spent
    with pytest.raises(ValueError, match="loss must give every record its own value"):
        train(noisy_plan(sampling="fixed"), loss=loss, microbatch_size=5)


@pytest.mark.parametrize("loss", [
    lambda o, y: functional.cross_entropy(o, y),
    lambda o, y: functional.cross_entropy(o, y, weight=torch.ones(CLASSES)),
    lambda o, y: functional.cross_entropy(o, y, ignore_index=1),
    lambda o, y: functional.cross_entropy(o, y, reduction="sum"),
], ids=["mean", "weighted mean", "mean of some", "sum"])  # fmt: skip
def test_losses_that_are_one_number(loss: Any) -> None:
    with pytest.raises(ValueError, match='loss must be one value per record.*reduction="none"'):
        train(loss=loss)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    weight = torch.tensor([1.0, 5.0, 0.2])
    return functional.cross_entropy(outputs, targets, weight=weight, reduction="none") / 2.07


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, label_smoothing=0.1, reduction="none")


def with_own_zeros(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, ignore_index=1, reduction="none")


def by_the_planned_size(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropies(outputs, targets) / 12.0


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    found = cross_entropies(outputs, targets)
    return (1.0 - (-found).exp()).square() * found


def with_noise_of_its_own(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropies(outputs, targets) + 0.0 * torch.randn(len(targets))


@pytest.mark.parametrize("loss", [
    weighted, smoothed, with_own_zeros, by_the_planned_size, focal, with_noise_of_its_own,
])  # fmt: skip
def test_losses_of_single_records_train(loss: Any) -> None:
    plan = noisy_plan(z=0.1)
    run = private(plan)
    expected = take_steps(run, lambda run, x, y: loss(run.model(x), y))
    assert torch.equal(flat(train(plan, loss=loss).model), expected)


@pytest.mark.parametrize("loss", [by_their_number, by_their_sum, standardised_by_the_batch])
@pytest.mark.parametrize("bad", [[0], [*range(60)], [0, RECORDS - 1]])
def test_records_that_are_not_numbers_hide_no_total_of_the_batch(loss: Any, bad: list[int]) -> None:
    """A total with one of them is none itself, and so are all losses that are divided by it."""
    inputs, targets = data()
    inputs[bad] = float("nan")
    plan = noisy_plan(steps=20, batch_size=100)  # there is a step without one of the last two
    given: dict[str, Any] = {"progress": False, "seed": 7}
    with pytest.raises(ValueError, match="loss must give every record its own value"):
        dither.train(model(), (inputs, targets), plan, loss=loss, **given)
    found = dither.train(model(), (inputs, targets), plan, loss=cross_entropies, **given)
    assert flat(found.model).isfinite().all()


def test_models_that_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match="model must have trainable parameters"):
        dither.train(model().requires_grad_(False), data(), noisy_plan(), progress=False)
    with pytest.raises(TypeError, match="model must be a Module, got None"):
        dither.train(None, data(), noisy_plan())  # type: ignore[arg-type]


def test_a_result_is_json_whatever_was_measured(tmp_path: Path) -> None:
    inputs, targets = data(20)
    inputs[3] = float("nan")
    train(run=dither.Run(tmp_path / "run"), evaluate=Public((inputs, targets)))
    text = (tmp_path / "run" / "result.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail)["metrics"]["loss"] is None


def test_data_that_is_public_and_private_at_once() -> None:
    x, y = torch.randn(50, 4), torch.randint(2, (50,))
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=50, batch_size=10, steps=2)
    for same in ((x, y), TensorDataset(x, y)):
        with pytest.raises(ValueError, match="private training data itself"):
            dither.train(nn.Linear(4, 2), (x, y), plan, evaluate=dither.Public(same))
    parts = (x[:40], y[:40]), dither.Public((x[40:], y[40:]))
    assert dither.train(nn.Linear(4, 2), parts[0], plan, evaluate=parts[1], progress=False).metrics


def test_datasets_without_targets() -> None:
    x = torch.randn(50, 4)
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=50, batch_size=10, steps=2)
    for given in (x, {"x": x}, (x,)):
        with pytest.raises(TypeError, match=r"the data must be of \(inputs, targets\)"):
            dither.train(nn.Linear(4, 2), given, plan)


def test_plans_for_far_more_records() -> None:
    data = torch.randn(50, 4), torch.randint(2, (50,))
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=500, batch_size=10, steps=2)
    with pytest.warns(UserWarning, match="another number of records than the plan, 500"):
        dither.train(nn.Linear(4, 2), data, plan, progress=False)
