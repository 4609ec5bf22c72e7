"""Settings that a caller may give to a recipe, and their checks."""

from collections.abc import Mapping
from typing import Any, TypedDict

from numpy.typing import ArrayLike

from dither import validate
from dither.accounting import SAMPLINGS
from dither.noise import Correlated, Custom
from dither.planning.search import check_share
from dither.schedules import Reactive, Table
from dither.training.averaging import find_averaging
from dither.training.optimizers import OPTIMIZERS
from dither.types import CLIPPINGS, Allocation, Schedule

_LEAST_COMPUTE = 100
"""Less was meant as a time, or is a step or two."""


class Overrides(TypedDict, total=False):
    """Settings of a `Recipe` that may be given; the rest of the rule follows from them."""

    batch_size: int
    steps: int
    epochs: float
    clip_norm: float
    clipping: str
    learning_rate: float
    layer_rates: bool
    stepsizes: Schedule | Reactive | ArrayLike
    noise: Allocation | Correlated | ArrayLike | str
    sampling: str
    tune: float


class Settings(Overrides, total=False):
    """Keyword arguments of `dither.train` that make a `Recipe`; ``epsilon`` is the one it needs."""

    epsilon: float
    delta: float | None
    dataset_size: int | None
    compute: float | str | None


def check_overrides(overrides: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return the settings that are given, checked."""
    checks = {
        "steps": validate.step_count,
        "epochs": validate.positive,
        "clip_norm": validate.positive,
        "learning_rate": validate.positive,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    known = {*Overrides.__annotations__, "optimizer", "averaging"}
    for name in given:
        if name not in known:
            every = {*known, *Settings.__annotations__}
            raise validate.InvalidTypeError(
                f"settings must be of {', '.join(sorted(every))}, got {name!r}"
            )
    given |= {name: check(**{name: given[name]}) for name, check in checks.items() if name in given}
    if "batch_size" in given:
        m, _ = validate.batch_within(batch_size=given["batch_size"], dataset_size=n)
        given["batch_size"] = m
    if "tune" in given:
        given["tune"] = check_share(given["tune"])
    choices = {"optimizer": OPTIMIZERS, "clipping": CLIPPINGS, "sampling": (*SAMPLINGS, "cyclic")}
    for name, allowed in choices.items():
        if name in given:
            validate.choice(allowed, **{name: given[name]})
    if "averaging" in given:
        given["averaging"] = None if given["averaging"] == "none" else given["averaging"]
        find_averaging(given["averaging"])
    return given | frozen(given)


def frozen(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return step sizes and noise, if they are given, as frozen values instead of arrays."""
    found: dict[str, Any] = {}
    if "stepsizes" in given:
        found["stepsizes"] = _as_schedule(given["stepsizes"])
    if "noise" in given:
        noise = given["noise"]
        is_value = isinstance(noise, str | Allocation | Correlated)
        found["noise"] = noise if is_value else Custom(validate.positives(noise=noise))
    return found


def for_momentum(noise: Any, momentum: float) -> Any:
    """Return noise as it is given, but "correlated" as what suits the momentum of the optimizer.

    >>> for_momentum("correlated", 0.9), for_momentum("optimal", 0.9)
    (Correlated(bands='auto', momentum=0.9, contraction=0.03), 'optimal')
    """
    is_name = isinstance(noise, str) and noise == "correlated"
    return Correlated(momentum=momentum) if is_name else noise


def check_compute(compute: object, given: Mapping[str, Any]) -> None:
    """Raise if more settings are given than are free."""
    for names in (("epochs", "steps"), ("compute", "epochs"), ("compute", "batch_size", "steps")):
        if all(name in given or (name == "compute" and compute is not None) for name in names):
            raise validate.InvalidTypeError(
                f"at most {len(names) - 1} of {', '.join(names)} may be given, since compute is "
                "batch_size times steps and epochs is compute/n, got all"
            )
    if isinstance(compute, int | float) and 0 < compute < _LEAST_COMPUTE:
        raise validate.InvalidValueError(
            f"compute must be at least {_LEAST_COMPUTE} record-gradients, or a time such as "
            f'"2 min", got {compute!r}'
        )


def _as_schedule(stepsizes: Any) -> Schedule | Reactive:
    is_value = not isinstance(stepsizes, type)
    if is_value and isinstance(stepsizes, Reactive | Schedule):
        return stepsizes
    if isinstance(stepsizes, int | float | str) or not is_value:
        raise validate.InvalidTypeError(
            f"stepsizes must be a schedule or one step size per step, got {stepsizes!r}"
        )
    return Table(stepsizes)
