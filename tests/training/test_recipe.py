"""The recipe: what is given wins, the rest follows from public quantities alone."""

import copy
import pickle
import sys
import time
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dither
from dither import Recipe, Run, recipe, train
from dither.reports import run_report
from dither.reports.text import headline, odds
from dither.schedules import Cosine, Linear, Table, Warmup
from dither.training import Shard, TrainResult
from dither.training.rule import Facts, choose
from dither.training.run_directory import RunDirectory
from dither.training.statement import statement
from dither.training.synthetic import gradient_norm, record_gradients_per_second, seconds_in

RULE = sys.modules["dither.training.rule"]
SYNTHETIC = sys.modules["dither.training.synthetic"]
TUNING = sys.modules["dither.training.tuning"]
RECORDS, COLUMNS = 80, 4


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(COLUMNS, 6), nn.Tanh(), nn.Linear(6, 2))


def records(seed: int, rows: int = RECORDS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 100.0 * torch.randn(rows, COLUMNS, generator=generator)
    return x, torch.randint(2, (rows,), generator=generator)


def made(**overrides: Any) -> Recipe:
    return recipe(model(), **{"dataset_size": 20_000, "epsilon": 2.0, **overrides})


def made_for(module: nn.Module) -> Recipe:
    width = next(module.parameters()).shape[1]
    return recipe(module, dataset_size=20_000, epsilon=2.0, inputs=torch.zeros(1, width))


def trained(data: Any = None, plan: Any = None, **settings: Any) -> TrainResult:
    settings = {"progress": False, **settings}
    if plan is None:
        settings = {"compute": 200, **settings}
    torch.manual_seed(0)
    return train(model(), records(0) if data is None else data, plan, **settings)


def test_the_budget_is_the_only_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RULE, "_COMPUTE", 100.0)
    result = train(model(), records(0), epsilon=3.0, progress=False)
    assert isinstance(result.recipe, Recipe)
    assert result.recipe.dataset_size == RECORDS
    assert result.recipe.delta == pytest.approx(0.1 / RECORDS)
    assert 0.99 * 3.0 <= result.bound.epsilon <= 3.0


def test_nothing_depends_on_values_of_records() -> None:
    """Other records, other classes, NaN and infinite numbers: the same recipe."""
    x, y = records(1)
    x[0], x[1] = torch.nan, torch.inf
    assert trained(epsilon=2.0).recipe == trained((x, 1 - y), epsilon=2.0).recipe


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 77),
        ("steps", 55),
        ("clip_norm", 0.3),
        ("clipping", "flat"),
        ("optimizer", "adam"),
        ("learning_rate", 0.123),
        ("stepsizes", Cosine(1.0, 0.5)),
        ("noise", "uniform"),
        ("averaging", "tail"),
        ("sampling", "fixed"),
        ("delta", 1e-7),
    ],
)
def test_what_is_given_wins(name: str, value: Any) -> None:
    found = made(**{name: value})
    assert getattr(found, name) == value
    assert found.reasons[name] == "given"
    assert name in found.given
    assert made().reasons[name] != "given"


def test_the_rest_follows_from_what_is_given() -> None:
    free = made()
    assert made(batch_size=500).compute == pytest.approx(free.compute, rel=0.01)
    assert made(steps=100).compute == pytest.approx(free.compute, rel=0.01)
    assert made(compute=1e5).compute == pytest.approx(1e5, rel=0.01)
    assert made(epochs=7).compute == pytest.approx(7 * 20_000, rel=0.01)
    assert made(epochs=7, batch_size=100).steps == 1400
    sgd = made(optimizer="sgd").learning_rate
    assert free.learning_rate < 0.1 * sgd
    assert made(optimizer="momentum").learning_rate == pytest.approx(0.1 * sgd)
    assert made(clip_norm=0.5).clipping == "flat"
    assert made(clip_norm=0.5, clipping="automatic").clipping == "automatic"
    # Half the clip norm halves the gradients, so that SGD takes twice the rate; Adam does not.
    assert made(optimizer="sgd", clip_norm=0.5).learning_rate == pytest.approx(2.0 * sgd)
    assert made(clip_norm=0.5).learning_rate == free.learning_rate


@pytest.mark.parametrize("n", [1, 2, 50, 1000, 10**6, 10**9])
@pytest.mark.parametrize("compute", [100, 1000, None, 1e6])
def test_every_size_gives_a_batch_within_the_data(n: int, compute: float | None) -> None:
    found = recipe(model(), dataset_size=n, epsilon=1.0, compute=compute, delta=1e-6)
    assert 1 <= found.batch_size <= n
    assert found.steps >= 1
    assert found.learning_rate > 0.0


def test_more_noise_takes_shorter_steps() -> None:
    rates = [made(epsilon=epsilon).learning_rate for epsilon in (0.1, 1.0, 8.0)]
    assert rates == sorted(rates)


def test_the_clip_norm_follows_the_gradients_of_the_model() -> None:
    """Ten times the inputs of a linear layer are ten times the gradients, at the same rate."""

    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(10.0 * x)

    layers = [layer(COLUMNS, 2, bias=False) for layer in (nn.Linear, Scaled)]
    plain, scaled = (made_for(layer) for layer in layers)
    assert plain.clipping == scaled.clipping == "flat"
    assert scaled.clip_norm == pytest.approx(10.0 * plain.clip_norm, rel=0.05)
    assert scaled.learning_rate == plain.learning_rate


def test_without_inputs_gradients_are_clipped_automatically() -> None:
    assert (made().clipping, made().clip_norm) == ("automatic", 1.0)
    assert made(clip_norm=0.3).clipping == "flat"


def test_models_that_take_no_synthetic_records_are_clipped_automatically() -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if bool((x != 7.0).any()):
                raise ValueError("only sevens")
            return super().forward(x)

    assert made_for(Picky(COLUMNS, 2)).clipping == "automatic"


def test_norms_are_those_of_a_loop_over_records() -> None:
    """Errors of norm 1 at the outputs: a linear layer's gradient is as long as its input."""
    norm = gradient_norm(nn.Linear(COLUMNS, 2), torch.zeros(1, COLUMNS))
    torch.manual_seed(0)
    rows = 2.0 * torch.rand(32, COLUMNS) - 1.0
    # With a bias, whose input is 1.
    assert norm == pytest.approx(float((1.0 + rows.square().sum(1)).sqrt().median()), rel=1e-5)


def test_texts_of_the_first_record_change_nothing() -> None:
    """What is no tensor would keep the value that a record has, so that no norm is measured."""

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(COLUMNS, 2)

        def forward(self, x: Tensor, text: list[str]) -> Any:
            return self.layer(x + len(text[0]))

    x, y = records(0)
    found = {
        first: train(
            Reads(),
            [(row, text, label) for row, label, text in zip(x, y, [first, *79 * "b"], strict=True)],
            epsilon=2.0, compute=200, progress=False,
        ).recipe
        for first in ("a", 40 * "a")
    }  # fmt: skip
    assert found["a"] == found[40 * "a"]
    assert found["a"] is not None
    assert found["a"].clipping == "automatic"


def rates_of(found: Recipe, module: nn.Module) -> dict[int, float]:
    """The learning rate of every parameter, by its identity."""
    groups = found.build_optimizer(module).param_groups
    return {id(each): group["lr"] for group in groups for each in group["params"]}


def test_layers_with_more_inputs_take_shorter_steps() -> None:
    """The noise of a layer adds up over its inputs, for all layers alike."""
    net = nn.Sequential(
        nn.Embedding(9, 64),
        nn.Linear(64, 256),
        nn.LayerNorm(256),
        nn.Linear(256, 4),
        nn.Linear(4, 2),
    )
    found = recipe(net, dataset_size=20_000, epsilon=2.0)
    rates = rates_of(found, net)
    factors = {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.5**0.5, 4: 2**0.25}  # of fewer than 32 inputs as of 32
    for index, factor in factors.items():
        for parameter in net[index].parameters():
            assert rates[id(parameter)] == pytest.approx(factor * found.learning_rate)
    assert len(rates) == len([*net.parameters()])


def test_a_rate_that_is_given_is_that_of_all_layers() -> None:
    net = nn.Sequential(nn.Linear(256, 4), nn.Linear(4, 2))
    found = recipe(net, dataset_size=20_000, epsilon=2.0, learning_rate=0.1)
    assert not found.layer_rates
    assert {*rates_of(found, net).values()} == {0.1}


def test_a_parameter_of_two_layers_is_in_one_group() -> None:
    net = nn.Sequential(nn.Embedding(9, 128), nn.Linear(128, 9))
    net[1].weight = net[0].weight
    found = recipe(net, dataset_size=20_000, epsilon=2.0)
    assert len(rates_of(found, net)) == 2


def test_optimizers_with_one_rate_take_the_mean_of_the_layers() -> None:
    wide, narrow = nn.Linear(256, 2, bias=False), nn.Linear(64, 8, bias=False)
    rates = [
        recipe(each, dataset_size=20_000, epsilon=2.0, optimizer="sgd").learning_rate
        for each in (wide, narrow)
    ]
    assert rates[1] == pytest.approx(2.0**0.5 * rates[0])


def test_deeper_models_take_shorter_steps() -> None:
    one = nn.Sequential(nn.Linear(64, 130))
    two = nn.Sequential(nn.Linear(64, 65), nn.Linear(64, 65))
    rates = [recipe(each, dataset_size=1000, epsilon=1.0).learning_rate for each in (one, two)]
    assert rates[0] == pytest.approx(2.0**0.5 * rates[1])


@pytest.mark.parametrize(("optimizer", "noise"), [(None, "uniform"), ("sgd", "optimal")])
def test_noise_follows_the_optimizer_unless_it_is_given(optimizer: str | None, noise: str) -> None:
    assert made(optimizer=optimizer).noise == noise
    assert made().with_optimizer(optimizer or "adamw", model()).noise == noise
    assert made(noise="matched").with_optimizer(optimizer or "adamw", model()).noise == "matched"


def test_frozen_layers_do_not_count() -> None:
    free, frozen = model(), model()
    frozen[0].requires_grad_(False)
    rates = [recipe(each, dataset_size=1000, epsilon=1.0).learning_rate for each in (free, frozen)]
    assert rates[1] > rates[0]


def test_the_rule_takes_numbers_and_gives_numbers_with_reasons() -> None:
    chosen = choose(Facts(60_000, 3.0, 1e-6, 10_000), {})
    value, reason = chosen["learning_rate"]
    assert value > 0.0
    assert reason
    assert all(why for _, why in chosen.values())


def test_a_recipe_is_frozen_and_can_be_copied() -> None:
    found = made(stepsizes=Linear(1.0, 0.5))
    with pytest.raises(FrozenInstanceError):
        found.steps = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        vars(found)["reasons"]["steps"] = "other"
    for same in (
        copy.deepcopy(found),
        pickle.loads(pickle.dumps(found)),  # noqa: S301
        made(stepsizes=Linear(1.0, 0.5)),
    ):
        assert same == found
        assert hash(same) == hash(found)
        assert dict(same.reasons) == dict(found.reasons)
    assert replace(found, steps=3) != found


def test_a_recipe_is_printed_as_a_table() -> None:
    lines = str(made(batch_size=77)).splitlines()
    assert lines[0].split() == ["setting", "value", "reason"]
    assert max(map(len, lines)) < 160
    (row,) = (line for line in lines if line.startswith("batch_size"))
    assert row.split() == ["batch_size", "77", "given"]


def test_a_saved_recipe_is_the_same() -> None:
    for found in (made(), made(epochs=3, optimizer="adamw", averaging="ema")):
        again = Recipe.from_json(found.to_json())
        assert again == found
        assert (dict(again.reasons), dict(again.given)) == (dict(found.reasons), dict(found.given))
    for text in ("{}", "[]", '{"format": "other"}', "no JSON"):
        with pytest.raises(ValueError, match="must"):
            Recipe.from_json(text)


def test_the_plan_is_within_the_budget() -> None:
    found = made(compute=20_000, noise="uniform")
    plan = found.plan()
    assert (plan.steps, plan.batch_size, plan.dataset_size) == (
        found.steps, found.batch_size, 20_000,
    )  # fmt: skip
    assert plan.bound.epsilon <= 2.0
    assert plan.bound.delta == found.delta


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"delta": 2.0}, "delta must be"),
        ({"dataset_size": 0}, "dataset_size must be"),
        ({"batch_size": 20_001}, "batch_size must be at most"),
        ({"steps": 1.5}, "steps must be"),
        ({"steps": 3, "epochs": 3}, "at most 1 of epochs, steps"),
        ({"compute": 3, "epochs": 3}, "at most 1 of compute, epochs"),
        ({"compute": 3, "batch_size": 3, "steps": 3}, "at most 2 of compute, batch_size, steps"),
        ({"compute": "3 parsecs"}, "compute must be"),
        ({"compute": "2 min"}, "inputs must be"),
        ({"compute": -1}, "compute must be"),
        ({"compute": 1e30}, "steps must be at most"),
        ({"compute": 2}, 'at least 100 record-gradients, or a time such as "2 min", got 2'),
        ({"optimizer": "lbfgs"}, "optimizer must be one of"),
        ({"clipping": "none"}, "clipping must be one of"),
        ({"sampling": "shuffled"}, "sampling must be one of"),
        ({"averaging": "median"}, "averaging must be one of"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"stepsizes": 0.5}, "stepsizes must be"),
        ({"momentum": 0.5}, "settings must be of"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as problem:
        made(**settings)
    assert "\n" not in str(problem.value)


def test_step_sizes_and_noise_as_arrays() -> None:
    found = made(stepsizes=np.array([1.0, 0.5]), noise=[1.0, 2.0], steps=2)
    assert found.stepsizes == Table([1.0, 0.5])
    assert found.plan().noise_multipliers[1] == pytest.approx(
        2.0 * found.plan().noise_multipliers[0]
    )


# Time instead of a number of record-gradients.


def test_times_are_read() -> None:
    texts = ("90 s", "2 min", "1 h", "1.5 hours", "3 minutes", "10s")
    assert [seconds_in(text) for text in texts] == [90, 120, 3600, 5400, 180, 10]
    for text in ("", "s", "-1 s", "0 s", "3", "3 days", "1e3 s"):
        with pytest.raises(ValueError, match="compute must be"):
            seconds_in(text)


def test_speed_is_measured_on_synthetic_records() -> None:
    """The model sees numbers of dither's own, whatever the inputs are, and is not changed."""
    seen: list[Tensor] = []

    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach())
            return super().forward(x)

    spy = Spy(COLUMNS, 2)
    before = copy.deepcopy(spy.state_dict())
    speed = record_gradients_per_second(spy, torch.full((3, COLUMNS), torch.nan), 16)
    assert speed > 0.0
    assert all(bool((each.abs() <= 1.0).all()) for each in seen)
    assert {len(each) for each in seen} >= {16}
    assert all(torch.equal(before[name], each) for name, each in spy.state_dict().items())


def test_a_time_becomes_record_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SYNTHETIC, "record_gradients_per_second", lambda *_: 1000.0)
    found = made(compute="100 s", inputs=torch.zeros(1, COLUMNS))
    assert found.compute == pytest.approx(90_000, rel=0.01)
    assert "100 s" in found.reasons["compute"]


# In train.


def test_a_recipe_instead_of_a_plan() -> None:
    found = recipe(model(), dataset_size=RECORDS, epsilon=2.0, compute=200, averaging="tail")
    result = trained(plan=found)
    assert result.recipe == found
    assert result.plan == found.plan()
    assert trained(plan=found, averaging="none").recipe == replace(found, averaging=None)


def test_an_optimizer_by_name_has_its_own_rate() -> None:
    found = recipe(model(), dataset_size=RECORDS, epsilon=2.0, compute=200)
    sgd = trained(plan=found, optimizer="sgd").recipe
    assert sgd == recipe(model(), dataset_size=RECORDS, epsilon=2.0, compute=200, optimizer="sgd")
    direct = trained(epsilon=2.0, optimizer="sgd").recipe
    assert direct is not None
    assert direct.optimizer == "sgd"
    assert direct.learning_rate > found.learning_rate


def test_an_optimizer_of_ones_own_keeps_its_rate() -> None:
    rates: list[float] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    result = trained(epsilon=2.0, optimizer=lambda p: Spy(p, lr=0.25))
    assert rates[0] == pytest.approx(0.25)
    assert rates[-1] == pytest.approx(0.25 * 0.05)
    assert result.recipe is not None
    assert (result.recipe.optimizer, result.recipe.learning_rate) == ("Spy", 0.25)


def test_the_recipes_rate_is_the_optimizers() -> None:
    found = recipe(model(), dataset_size=RECORDS, epsilon=2.0, optimizer="momentum")
    optimizer = found.build_optimizer(model())
    assert optimizer.param_groups[0]["lr"] == found.learning_rate
    assert optimizer.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize(
    ("plan", "settings", "words"),
    [
        ("plan", {"epsilon": 3.0}, "plan must be left out"),
        ("recipe", {"batch_size": 3}, "plan must be left out"),
        (None, {}, "epsilon=3.0"),
        (None, {"batch_size": 3}, "epsilon=3.0"),
        (None, {"epsilon": -1}, "epsilon must be"),
        (None, {"epsilon": 1.0, "batches": 3}, "settings must be of"),
        ("text", {}, "plan must be"),
    ],
)
def test_train_takes_a_plan_or_a_budget(
    plan: str | None, settings: dict[str, Any], words: str
) -> None:
    found = recipe(model(), dataset_size=RECORDS, epsilon=2.0, compute=200)
    plans: dict[Any, Any] = {"plan": found.plan(), "recipe": found, None: None}
    with pytest.raises((TypeError, ValueError), match=words) as problem:
        train(model(), records(0), plans.get(plan, plan), progress=False, **settings)
    assert "\n" not in str(problem.value)


def test_the_statement_says_what_was_chosen_and_from_what() -> None:
    counted = " ".join(statement(trained(epsilon=2.0)).split())
    assert "Settings were chosen by dither's recipe from public quantities" in counted
    assert f"n = {RECORDS}, counted in the data; the shape" in counted
    given = " ".join(statement(trained(epsilon=2.0, dataset_size=RECORDS)).split())
    assert f"n = {RECORDS}; the shape" in given
    plan = dither.plan(epsilon=2.0, delta=1e-3, dataset_size=RECORDS, batch_size=20, steps=3)
    assert "recipe" not in statement(trained(plan=plan))


def test_a_shard_counts_its_records() -> None:
    assert trained(Shard(records(0)), epsilon=2.0).plan.dataset_size == RECORDS


# Resuming.


class StopError(Exception):
    pass


def interrupted(directory: Path, **settings: Any) -> None:
    calls = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 5:  # the first step calls it three times
            time.sleep(0.5)  # a killed process writes nothing later: so does this one
            raise StopError
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(StopError):
        trained(loss=loss, run=Run(directory, checkpoint_every=1), **{"compute": 800, **settings})


def resumed(directory: Path, **settings: Any) -> TrainResult:
    return trained(run=Run(directory, resume=True), **{"compute": 800, **settings})


LOST = pytest.mark.filterwarnings("ignore:1 steps were spent and lost")


@LOST
def test_a_resumed_run_does_not_choose_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a slower machine nor another rule changes what the run began with."""
    monkeypatch.setattr(SYNTHETIC, "record_gradients_per_second", lambda *_: 1000.0)
    interrupted(tmp_path / "run", epsilon=2.0, compute="1 s")
    monkeypatch.setattr(SYNTHETIC, "record_gradients_per_second", lambda *_: 1.0)
    monkeypatch.setattr(RULE, "_END", 0.5)
    result = resumed(tmp_path / "run", epsilon=2.0, compute="1 s")
    assert result.recipe is not None
    assert result.recipe.compute == pytest.approx(900, rel=0.1)
    assert result.recipe.stepsizes == Linear(1.0, 0.05)
    assert result.bound.epsilon <= 2.0
    assert result.steps == result.recipe.steps + 1  # one was lost


@pytest.mark.parametrize(
    "settings",
    [{"epsilon": 3.0}, {"epsilon": 2.0, "compute": 300}, {"epsilon": 2.0, "delta": 1e-4}],
)
def test_a_resumed_run_keeps_its_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    interrupted(tmp_path / "run", epsilon=2.0)
    with pytest.raises(ValueError, match="must be what the run began with"):
        resumed(tmp_path / "run", **settings)


@LOST
def test_equal_numbers_resume(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", epsilon=2)
    assert resumed(tmp_path / "run", epsilon=2.0).bound.epsilon <= 2.0


@LOST
def test_step_sizes_that_were_given_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epsilon": 2.0, "stepsizes": np.linspace(1, 0.5, 12), "steps": 12}
    interrupted(tmp_path / "run", **settings, compute=None)
    with pytest.raises(ValueError, match="stepsizes must be what the run began with"):
        resumed(tmp_path / "run", epsilon=2.0, steps=12, compute=None)
    assert resumed(tmp_path / "run", **settings, compute=None).steps == 13  # one was lost


def test_a_run_that_was_never_registered_begins_with_the_plan_of_the_next_session(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    first, second = (
        dither.plan(epsilon=epsilon, delta=1e-3, dataset_size=RECORDS, batch_size=20, steps=3)
        for epsilon in (1.0, 2.0)
    )
    RunDirectory(Run(path), path).begin(first.to_json(), made(dataset_size=RECORDS)).close()
    result = trained(plan=second, run=Run(path, resume=True))
    assert result.bound.epsilon <= second.bound.epsilon
    report = run_report(path)
    assert report.claim.verdict == "proven"
    assert report.claim.bound == result.bound
    assert report.settings == ()  # a plan, no recipe


@dataclass
class Falling:
    last: float

    def stepsizes(self, steps: int) -> np.ndarray:
        return np.linspace(1.0, self.last, steps)


def test_step_sizes_of_ones_own_are_asked_again() -> None:
    """Also inside of dither's, where nothing says that they are the same as before."""
    inner = Falling(0.1)
    found = made(stepsizes=Warmup(inner, 2), steps=4, batch_size=4)
    before = found.plan().stepsizes
    inner.last = 0.5
    after = found.plan().stepsizes
    assert (before[-1], after[-1]) == (0.1, 0.5)


def test_a_second_process_does_not_take_over_a_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plan = dither.plan(epsilon=1.0, delta=1e-3, dataset_size=RECORDS, batch_size=20, steps=3)
    first, second = RunDirectory(Run(path), path), RunDirectory(Run(path), path)
    first.begin(plan.to_json(), None).close()
    before = (path / "run.json").read_bytes()
    with pytest.raises(ValueError, match="another process has begun a run"):
        second.begin(plan.to_json(), None)
    assert (path / "run.json").read_bytes() == before


@pytest.mark.parametrize("given", [{}, {"dataset_size": RECORDS}])
def test_a_report_says_that_a_counted_number_of_records_is_taken_as_public(
    given: dict[str, Any], tmp_path: Path
) -> None:
    trained(epsilon=2.0, run=Run(tmp_path / "run"), **given)
    report = run_report(tmp_path / "run")
    assert headline(report)[0].startswith("At most ε = ")
    counted = "" if given else ", counted in the data"
    public = dict(odds(report))["Taken as public"]
    assert public == f"the number of records, n = {RECORDS}{counted}."


@pytest.mark.parametrize(
    ("outputs", "dtype", "words"),
    [
        (1, torch.int64, "one output"),
        (1, torch.float32, "one output"),
        (2, torch.float32, "classes"),
    ],
)
def test_numbers_are_not_trained_as_classes(outputs: int, dtype: torch.dtype, words: str) -> None:
    x, y = records(0)
    with pytest.raises(ValueError, match=f"loss must be squared_error.* {words}"):
        train(nn.Linear(COLUMNS, outputs), (x, y.to(dtype)), epsilon=2.0, progress=False)


def test_numbers_are_not_searched_for(tmp_path: Path) -> None:
    x, y = records(0)
    settings: dict[str, Any] = {"loss": "squared_error", "tune": 0.1, "compute": 200}
    with pytest.raises(ValueError, match="tune must be left out where targets are numbers"):
        train(
            nn.Linear(COLUMNS, 1), (x, y.float()), epsilon=2.0, progress=False,
            run=Run(tmp_path / "run"), **settings,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()  # nothing was spent


def test_the_statement_has_the_rate_that_the_search_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TUNING, "best_factor", lambda *_: 4.0)
    result = trained(epsilon=2.0, tune=0.3)
    assert result.recipe is not None
    rate = f"learning rate {4.0 * result.recipe.learning_rate:.4g}."
    assert rate in " ".join(statement(result).split())


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, "the most of 800, 600, 400 whose noise z is at least 1"),
        ({"compute": 1e9}, "compute/batch size"),
        ({"compute": 1e4}, "compute/batch size"),
        ({"epsilon": 50.0}, "400 or about: noise z is below 1 with more as well"),
        ({"batch_size": 9}, "compute/batch size"),
        ({"steps": 9}, "given"),
    ],
)
def test_reasons_are_true_of_the_values(given: dict[str, Any], steps: str) -> None:
    found = made(**given)
    assert found.reasons["steps"] == steps
    assert ("all records" in found.reasons["sampling"]) == (found.batch_size == 20_000)
