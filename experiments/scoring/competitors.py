"""What competes on a task, and one training of it: all by the same engine, at the same compute."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

import dither
from dither.planning import Plan
from dither.schedules import Linear
from dither.types import FloatArray
from experiments.reproduction.features import cache
from experiments.scoring.tasks import TASKS, Task

COMPETITORS = ("recipe", "grid", "defaults", "opacus")
TUNED, TUNE_SHARE = "tuned", 0.1
TRIAL_SEED = 0
FIXED = ("defaults", "opacus")
_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "momentum": partial(SGD, momentum=0.9),
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
}


@dataclass(frozen=True)
class Setting:
    """What a training needs beside the task and ε.

    Attributes:
        batch_size: m.
        steps: T.
        clip_norm: C; 1.0 with automatic clipping.
        clipping: "flat" or "automatic".
        optimizer: a name of the optimizers above.
        learning_rate: at the first step.
        end: the last learning rate over the first one; between them it falls linearly.
        noise: "uniform" or "optimal".
        averaging: as `dither.train` takes it.
    """

    batch_size: int
    steps: int
    clip_norm: float
    clipping: str
    optimizer: str
    learning_rate: float
    end: float
    noise: str
    averaging: str | None


@dataclass(frozen=True)
class Run:
    """One training; `setting` is for the grid only, the others have their own.

    Seed 0 is for the trials of a grid, which are scored on other training records.
    """

    task: str
    epsilon: float
    competitor: str
    seed: int
    setting: Setting | None = None


@dataclass(frozen=True)
class Result:
    """What a training gave.

    Attributes:
        score: in points: of a grid's trial on other training records, else on test records.
        epsilon: the certified ε that was spent.
        settings: what was trained with.
        seconds: the time of the training, with its plan.
    """

    score: float
    epsilon: float
    settings: dict[str, Any]
    seconds: float


def defaults(task: Task) -> Setting:
    """Return the fixed numbers of ``dither train`` in version 0.1; steps from the compute."""
    return Setting(128, _steps(task, 128), 1.0, "flat", "sgd", 2.0, 0.05, "optimal", "ema")


# Batch size, clip norm, optimizer and learning rate in pytorch/opacus, all without decay:
# mnist: examples/mnist.py; cifar: tutorials/building_image_classifier.ipynb (a ResNet);
# lstm: examples/char-lstm-classification.py (a GRU, too, with --mode gru);
# bert: tutorials/building_text_classifier.ipynb (a transformer, fine-tuned);
# adult: examples/adult_income.py of the first versions, the only table among the examples.
OPACUS: dict[str, tuple[int, float, str, float]] = {
    "mnist": (64, 1.0, "sgd", 0.1),
    "cifar": (512, 1.2, "rmsprop", 1e-3),
    "lstm": (800, 1.5, "sgd", 2.0),
    "bert": (32, 0.1, "adamw", 5e-4),
    "adult": (256, 1.0, "sgd", 0.15),
}


def opacus(task: Task) -> Setting:
    """Return the settings of the nearest example of Opacus; steps from the compute."""
    m, clip_norm, optimizer, rate = OPACUS[task.opacus]
    return Setting(m, _steps(task, m), clip_norm, "flat", optimizer, rate, 1.0, "uniform", None)


def _steps(task: Task, batch_size: int) -> int:
    return max(1, round(task.compute / batch_size))


def make_recipe(task: Task, epsilon: float, model: nn.Module, *, tune: float | None = None) -> Any:
    """Return dither's recipe for a task: all that it is given is public."""
    record = task.parts().train[0][:1]
    more: dict[str, Any] = {} if tune is None else {"tune": tune}
    return dither.recipe(
        model, dataset_size=task.records, epsilon=epsilon, compute=task.compute,
        inputs=torch.zeros_like(record), **more,
    )  # fmt: skip


def recipe_of(run: Run) -> Any:
    """Return the recipe of a run again: its clip norm depends on the initial parameters."""
    torch.manual_seed(run.seed)
    return make_recipe(TASKS[run.task], run.epsilon, TASKS[run.task].build())


def describe(recipe: Any) -> dict[str, Any]:
    """Return a recipe's settings as JSON knows them, without their reasons."""
    names = [each.name for each in fields(recipe) if each.name not in ("reasons", "given")]
    return {name: _plain(getattr(recipe, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")  # what differs less is the same rule on another machine
    return value if value is None or isinstance(value, str | int) else repr(value)


def train(run: Run) -> Result:
    """Train once, and score the model."""
    torch.set_num_threads(1)
    task, begin = TASKS[run.task], time.perf_counter()
    parts = task.parts()
    torch.manual_seed(run.seed)
    model = task.build()
    # ε on the way is not needed, and takes longer than some of the trainings.
    common: dict[str, Any] = {"loss": task.loss, "seed": run.seed, "progress": False,
                              "every": 10**9, "microbatch_size": 512}  # fmt: skip
    if run.competitor in ("recipe", TUNED):
        share = TUNE_SHARE if run.competitor == TUNED else None
        recipe = make_recipe(task, run.epsilon, model, tune=share)
        settings = describe(recipe)
        result = dither.train(model, parts.train, recipe, **common)
    else:
        setting = run.setting or {"defaults": defaults, "opacus": opacus}[run.competitor](task)
        settings = {each.name: getattr(setting, each.name) for each in fields(setting)}
        result = dither.train(
            model, parts.train, make_plan(setting, task.records, run.epsilon),
            optimizer=partial(_make_optimizer, setting), averaging=setting.averaging,
            **common,
        )  # fmt: skip
    model.eval()
    score = task.score(model, parts.validation if run.seed == TRIAL_SEED else parts.test)
    return Result(score, result.bound.epsilon, settings, time.perf_counter() - begin)


def _make_optimizer(setting: Setting, parameters: Iterable[Tensor]) -> Optimizer:
    return _OPTIMIZERS[setting.optimizer](parameters, lr=setting.learning_rate)


def make_plan(setting: Setting, records: int, epsilon: float) -> Plan:
    """Return the plan of a setting at δ = 1/(10·n); the search for its noise is cached on disk."""
    plan = Plan.from_noise_multipliers(
        noise_multipliers(setting, records, epsilon), delta=0.1 / records, dataset_size=records,
        batch_size=setting.batch_size, clip_norm=setting.clip_norm,
        stepsizes=Linear(1.0, setting.end),
    )  # fmt: skip
    clipping: dict[str, Any] = {"clipping": setting.clipping}
    return plan if setting.clipping == "flat" else replace(plan, **clipping)


def noise_multipliers(setting: Setting, records: int, epsilon: float) -> FloatArray:
    """Return z_0 … z_{T−1} of a setting, from the cache or by a search."""
    schedule = Linear(1.0, setting.end)
    given: dict[str, Any] = {
        "epsilon": epsilon, "delta": 0.1 / records, "dataset_size": records,
        "batch_size": setting.batch_size, "steps": setting.steps,
    }  # fmt: skip
    shape = "uniform" if setting.noise == "uniform" else [setting.noise, repr(schedule)]
    key = json.dumps([dither.__version__, given, shape])
    path = cache() / "recipe" / f"plan-{hashlib.sha256(key.encode()).hexdigest()[:24]}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        plan = dither.plan(**given, noise=setting.noise, stepsizes=schedule)
        written = path.with_suffix(f".{time.monotonic_ns()}.npy")
        np.save(written, plan.noise_multipliers)
        written.replace(path)
    found: FloatArray = np.load(path)
    return found


def start_rate(
    base: Setting, optimizer: str, clip_norm: float, *, task: Task, epsilon: float
) -> float:
    """Return where the search for a learning rate begins, by the size of the noise.

    The search goes on from there until scores fall on both sides, so the start decides how many
    trials there are rather than what is found.
    """
    m, T, z = base.batch_size, base.steps, float(noise_multipliers(base, task.records, epsilon)[0])
    parameters = sum(each.numel() for each in task.build().parameters())
    if optimizer == "adam":
        return 0.4 / math.sqrt(T)
    rate: float = 0.4 * (1e4 / parameters) ** 0.25 * m / (z * math.sqrt(T))
    return min(16.0, rate) / clip_norm * (0.1 if optimizer == "momentum" else 1.0)
