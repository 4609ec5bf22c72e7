"""The settings of a private run, chosen from public quantities by `dither.training.rule`."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Unpack

from torch import nn
from torch.optim import Optimizer

from dither import validate
from dither.noise import Correlated, Optimal
from dither.planning import Plan, ReactivePlan
from dither.planning.planner import is_correlated
from dither.planning.reuse import plan_or_reuse
from dither.planning.search import TRIAL_COMPUTE, with_search
from dither.planning.serialization import parse_json
from dither.schedules import Reactive, parse
from dither.schedules.parsing import text_of
from dither.training.optimizer_hooks import check_trainable
from dither.training.optimizers import MOMENTUM, OPTIMIZERS, layer_factors, named_optimizer
from dither.training.rule import GIVEN, Facts, choose, trial_rate
from dither.training.settings import Overrides, check_compute, check_overrides, for_momentum
from dither.training.synthetic import gradient_norm, measured_compute
from dither.types import Allocation, Schedule

_FORMAT = "dither-recipe-1"


@dataclass(frozen=True)
class Recipe:
    """The settings of a private run, each with its reason; `recipe` makes one.

    Printed, it is a table of settings, values and reasons. ``dataclasses.replace`` changes a
    setting and nothing else; to let the rule follow, give the setting to `recipe`.

    Attributes:
        epsilon: ε.
        delta: δ.
        dataset_size: n.
        batch_size: m.
        steps: T.
        clipping: "automatic" or "flat".
        clip_norm: C_G.
        optimizer: a name as `dither.train` takes it, or the class of a given optimizer.
        learning_rate: of the optimizer; at step t it is multiplied by the plan's step size.
        layer_rates: whether the rate of a layer is that times (64/inputs)^¼.
        stepsizes: relative, from 1 down to 0.05.
        noise: as `dither.plan` takes it; "correlated" is for the momentum of SGD, and what the plan
            has: where it gains nothing, `recipe` takes optimal noise and says so.
        averaging: "ema", "tail", or None for the last iterate.
        tune: the share of ε that choosing the learning rate costs; None costs nothing.
        reasons: why each setting has its value; "given" if it was given.
        sampling: "poisson", "fixed", or for correlated noise "cyclic".
        given: what the caller gave, as text.

    Example:
        >>> made = recipe(nn.Linear(20, 2), dataset_size=5000, epsilon=1.0, batch_size=500)
        >>> made.steps, made.reasons["batch_size"], made.plan().bound.epsilon <= 1.0
        (1273, 'given', True)
    """

    epsilon: float
    delta: float
    dataset_size: int
    batch_size: int
    steps: int
    clipping: str
    clip_norm: float
    optimizer: str
    learning_rate: float
    layer_rates: bool
    stepsizes: Schedule | Reactive
    noise: str | Allocation | Correlated
    averaging: str | None
    tune: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict, compare=False)
    sampling: str = "poisson"
    given: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Freeze the mappings too."""
        for name in ("reasons", "given"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy and pickle it: frozen mappings cannot be."""
        return _restore, (self._values(),)

    def _values(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**values, "reasons": dict(self.reasons), "given": dict(self.given)}

    @property
    def compute(self) -> int:
        """The expected number of record-gradients, m·T."""
        return self.batch_size * self.steps

    def plan(self) -> Plan | ReactivePlan:
        """Return the plan with these settings: the noise is searched for, its cost is proven."""
        made = self._plan_without_search()
        if self.tune is None:
            return made
        names = ("optimizer", "learning_rate", "clip_norm")
        rate = partial(trial_rate, **{name: getattr(self, name) for name in names})
        return with_search(made, share=self.tune, trial_rate=rate)

    def settled(self) -> "Recipe":
        """Return the recipe with the noise of its plan: optimal, if correlation gains nothing.

        >>> full = {"dataset_size": 500, "batch_size": 500, "steps": 9, "noise": "correlated"}
        >>> made = new_recipe(nn.Linear(3, 2), epsilon=1.0, optimizer="sgd", **full)
        >>> import warnings
        >>> with warnings.catch_warnings(action="ignore"):
        ...     made.noise, made.settled().noise
        ('correlated', 'optimal')
        """
        if not is_correlated(self.noise):
            return self
        made = self._plan_without_search()
        if made.bands > 1:
            return self
        noise, reasons = self._noise.fallback, dict(self.reasons)
        reasons["noise"] = "correlated noise gains nothing over optimal noise here"
        if self.sampling != made.sampling:
            reasons["sampling"] = "as noise is not correlated"
        text = "optimal" if noise == Optimal() else noise
        return replace(self, noise=text, sampling=made.sampling, reasons=reasons)

    def _plan_without_search(self) -> Plan | ReactivePlan:
        arguments: dict[str, Any] = {
            "epsilon": self.epsilon, "delta": self.delta, "dataset_size": self.dataset_size,
            "batch_size": self.batch_size, "steps": self.steps,
            "clipping": self.clipping, "clip_norm": self.clip_norm,
            "stepsizes": self.stepsizes, "sampling": self.sampling,
            "noise": self._noise,
        }  # fmt: skip
        return plan_or_reuse(**arguments)

    @property
    def _noise(self) -> Any:
        return for_momentum(self.noise, MOMENTUM if self.optimizer == "momentum" else 0.0)

    def build_optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer for a model, with the learning rate."""
        return named_optimizer(
            self.optimizer, model, self.learning_rate, layer_rates=self.layer_rates
        )

    def with_optimizer(self, name: str, model: nn.Module) -> "Recipe":
        """Return the recipe with another optimizer and the rule's rates and noise for it."""
        names = ["batch_size", "steps", "clipping", "clip_norm", "sampling"]
        names += ["noise"] if self.reasons.get("noise") == GIVEN else []
        given = {"optimizer": name, **{each: getattr(self, each) for each in names}}
        facts = facts_of(model, self.dataset_size, self.epsilon, self.delta)
        chosen = choose(facts, given)
        following = {each: chosen[each] for each in ("learning_rate", "layer_rates", "noise")}
        why = {each: reason for each, (_, reason) in following.items()}
        reasons = {**self.reasons, "optimizer": GIVEN, **why}
        validate.choice(OPTIMIZERS, optimizer=name)
        values = {each: value for each, (value, _) in following.items()}
        return replace(self, optimizer=name, reasons=reasons, **values)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the settings as text: name, value, reason."""
        hidden = ("reasons", "given", "tune")
        names = [each.name for each in fields(self) if each.name not in hidden]
        names.insert(names.index("batch_size"), "compute")
        names += [] if self.tune is None else ["tune"]
        return [(name, _text(getattr(self, name)), self.reasons.get(name, "")) for name in names]

    def __str__(self) -> str:
        rows = [("setting", "value", "reason"), *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(
            f"{name:<{widths[0]}}  {value:<{widths[1]}}  {reason}".rstrip()
            for name, value, reason in rows
        )

    def to_json(self) -> str:
        """Return the recipe as JSON, for a run directory."""
        values = self._values()
        values["stepsizes"] = text_of(self.stepsizes) or repr(self.stepsizes)
        values["noise"] = self.noise if isinstance(self.noise, str) else repr(self.noise)
        return json.dumps({"format": _FORMAT, **values}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """Read a recipe; step sizes and noise that were given as objects stay text.

        Raises:
            ValueError: the text is not a recipe.
        """
        found = parse_json(text)
        known = {each.name for each in fields(cls)}
        if not isinstance(found, dict) or {*found} != {*known, "format"}:
            raise validate.InvalidValueError(
                f"recipe must have the fields {', '.join(sorted(known))} and format"
            )
        validate.choice((_FORMAT,), format=found.pop("format"))
        for name in ("dataset_size", "batch_size", "steps"):
            validate.count(**{name: found[name]})
        for name in ("epsilon", "delta", "clip_norm", "learning_rate"):
            validate.positive(**{name: found[name]})
        if "stepsizes" not in found["given"]:
            found["stepsizes"] = parse(found["stepsizes"])
        return cls(**found)


def recipe(
    model: nn.Module,
    *,
    dataset_size: int,
    epsilon: float,
    delta: float | None = None,
    compute: float | str | None = None,
    inputs: Any = None,
    optimizer: str | None = None,
    averaging: str | None = None,
    rows_per_user: int = 1,
    **overrides: Unpack[Overrides],
) -> Recipe:
    """Choose the settings of a private run from public quantities and the model's structure.

    Guarantees: nothing depends on values of records. The same arguments give the same recipe,
    unless ``compute`` is a time, which is measured.

    The rule is not meant for plain CNNs with ReLU and max pooling on few record-gradients (tens of
    thousands): there ``optimizer="sgd"`` is some points ahead.

    Args:
        model: the model; the numbers of its parameters and the kinds of its layers are used.
        dataset_size: n, public.
        epsilon: ε.
        delta: δ; None is 1/(10·n).
        compute: what the run may cost: the number of record-gradients, m·T, or a time such as
            "90 s", "2 min" or "1 h", for which the speed is measured on synthetic records. None
            suits n.
        inputs: a batch as the model is called with it, whose shapes and dtypes are used: for a
            clip norm that suits the model, and if ``compute`` is a time.
        optimizer: "momentum", "sgd", "adam" or "adamw".
        averaging: "ema", "tail", or "none" for the last iterate.
        rows_per_user: where users are protected and sizes count users, the most records of each in
            a step: in a time there are so many fewer steps.
        overrides: any other setting of `Recipe`, or ``epochs`` instead of ``compute``; the other
            settings follow from it.

    Returns:
        A `Recipe`.

    Example:
        >>> made = recipe(nn.Linear(20, 2), dataset_size=5000, epsilon=1.0)
        >>> made.batch_size, made.steps, made.optimizer
        (795, 800, 'adam')
        >>> print(made)  # doctest: +ELLIPSIS
        setting        value                         reason
        epsilon        1                             given
        delta          2e-05                         1/(10·n)
        ...
    """
    return new_recipe(
        model, dataset_size=dataset_size, epsilon=epsilon, delta=delta, compute=compute,
        inputs=inputs, optimizer=optimizer, averaging=averaging, rows_per_user=rows_per_user,
        **overrides,
    ).settled()  # fmt: skip


def new_recipe(
    model: nn.Module,
    *,
    dataset_size: int,
    epsilon: float,
    delta: float | None = None,
    compute: float | str | None = None,
    inputs: Any = None,
    optimizer: str | None = None,
    averaging: str | None = None,
    rows_per_user: int = 1,
    **overrides: Unpack[Overrides],
) -> Recipe:
    """Return what `recipe` does, before it is known whether correlated noise gains anything."""
    validate.instance(nn.Module, model=model)
    n, budget = validate.count(dataset_size=dataset_size), validate.positive(epsilon=epsilon)
    chance = 0.1 / n if delta is None else validate.probability(delta=delta)
    facts = facts_of(model, n, budget, chance, inputs)
    given = check_overrides({**overrides, "optimizer": optimizer, "averaging": averaging}, n)
    check_compute(compute, given)
    reasons = {"epsilon": GIVEN, "delta": "1/(10·n)" if delta is None else GIVEN}
    reasons["dataset_size"] = GIVEN
    if isinstance(compute, str):
        for _ in range(2):  # again with the batch size that follows from the first measurement
            batch = choose(facts, given)["batch_size"][0]
            given["compute"], reasons["compute"] = measured_compute(compute, model, inputs, batch)
            given["compute"] /= 1.0 + TRIAL_COMPUTE if "tune" in given else 1.0
            given["compute"] /= validate.count(rows_per_user=rows_per_user)
    elif compute is not None:
        given["compute"] = validate.positive(compute=compute)
    chosen = choose(facts, given)
    reasons = {**{name: reason for name, (_, reason) in chosen.items()}, **reasons}
    values = {name: value for name, (value, _) in chosen.items() if name != "compute"}
    arguments = {**overrides, "optimizer": optimizer, "averaging": averaging, "compute": compute}
    arguments |= {"epsilon": epsilon, "delta": delta, "dataset_size": dataset_size}
    return Recipe(
        epsilon=budget, delta=chance, dataset_size=n, reasons=reasons, given=given_text(arguments),
        **values,
    )  # fmt: skip


def given_text(given: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as text, without those that are None; numbers as such, 3 like 3.0."""
    return {
        name: repr(float(value)).removesuffix(".0") if type(value) in (int, float) else repr(value)
        for name, value in given.items()
        if value is not None
    }


def facts_of(
    model: nn.Module, dataset_size: int, epsilon: float, delta: float, inputs: Any = None
) -> Facts:
    """Return what the rule needs to know of a model and a budget."""
    check_trainable(model)
    factors = layer_factors(model)
    d = sum(parameter.numel() for parameter in factors)
    squares = sum(parameter.numel() * factor**2 for parameter, factor in factors.items())
    return Facts(
        dataset_size,
        epsilon,
        delta,
        dimension=d,
        layers=max(1, sum(parameter.ndim > 1 for parameter in factors)),
        layer_factor=math.sqrt(squares / d),
        gradient_norm=None if inputs is None else gradient_norm(model, inputs),
    )


def _restore(values: dict[str, Any]) -> Recipe:
    return Recipe(**values)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)
