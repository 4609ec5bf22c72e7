"""The values that travel between packages: frozen dataclasses and Protocols."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

CLIPPINGS = ("flat", "automatic")
"""Ways to clip a gradient: shorten it if it is too long, or scale it to the clip norm anyway."""


@runtime_checkable
class Schedule(Protocol):
    """Step sizes that are known before training starts.

    Example:
        >>> class Halving:
        ...     def stepsizes(self, steps):
        ...         return 0.5 ** np.arange(steps)
        >>> isinstance(Halving(), Schedule)
        True
    """

    def stepsizes(self, steps: int) -> FloatArray:
        """Return η_0 … η_{T−1}, all positive and finite."""
        ...


@dataclass(frozen=True)
class Budget:
    """What a run may spend, for allocations whose noise depends on it.

    Args:
        epsilon: the target ε, positive.
        delta: the target δ, in (0, 1).
        sample_rate: q, the probability that a record takes part in a step.
        accountant: name of the accountant; None is the default one.
        sampling: "poisson" or "fixed".

    Example:
        >>> Budget(epsilon=2.0, delta=1e-5, sample_rate=0.01).sampling
        'poisson'
    """

    epsilon: float
    delta: float
    sample_rate: float
    accountant: str | None = None
    sampling: str = "poisson"


@dataclass(frozen=True)
class Search:
    """The first steps of a plan, which choose a factor of the learning rate of the rest.

    Attributes:
        factors: the candidates, one trial each.
        trial_steps: steps of each trial.
        score_steps: steps after the trials, which release their scores.

    Example:
        >>> search = Search(factors=(0.25, 1.0, 4.0), trial_steps=20, score_steps=10)
        >>> search.steps
        70
        >>> print(search)
        20 steps with each of the factors 0.25, 1, 4 of the learning rate, 10 steps for their scores
    """

    factors: tuple[float, ...]
    trial_steps: int
    score_steps: int

    @property
    def steps(self) -> int:
        """The number of all steps of the search."""
        return len(self.factors) * self.trial_steps + self.score_steps

    def __str__(self) -> str:
        factors = ", ".join(f"{factor:.3g}" for factor in self.factors)
        return (
            f"{self.trial_steps:,} steps with each of the factors {factors} of the learning rate, "
            f"{self.score_steps:,} steps for their scores"
        )


@runtime_checkable
class Allocation(Protocol):
    """How the noise is spread over the steps.

    Example:
        >>> class Rising:
        ...     def alphas(self, stepsizes, *, budget=None):
        ...         return np.linspace(1.0, 2.0, len(stepsizes))
        >>> isinstance(Rising(), Allocation)
        True
    """

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return the relative noise α_1 … α_T, all positive and finite, on any common scale."""
        ...


def adjacency_of(sampling: str) -> str:
    """Return how neighbouring datasets differ under "poisson" or "fixed" sampling."""
    return "replace-one" if sampling == "fixed" else "add-remove"


def unit_of(rows_per_user: int | None) -> str:
    """Return what is sampled, clipped and protected: "record", or "user" with several rows."""
    return "record" if rows_per_user is None else "user"


_ADJACENCIES = {"add-remove": "add or remove one", "replace-one": "replace one"}


@dataclass(frozen=True)
class PrivacyBound:
    """An (ε, δ) guarantee and everything needed to interpret it.

    Attributes:
        epsilon: ε; infinite if nothing is claimed.
        delta: δ.
        lower: a certified lower bound on the ε of the mechanism's dominating pair, if known.
        accountant: which method gave it.
        sampling: "poisson", "fixed", "full" or "cyclic"; of several runs also "cyclic and poisson".
        adjacency: "add-remove" or "replace-one": how neighbouring datasets differ.
        unit: what is added, removed or replaced: "record" or "user".
        is_upper_bound: whether ``epsilon`` is proven; if not, it is an estimate.

    Example:
        >>> print(PrivacyBound(1.0, 1e-5, "pld", "poisson", "add-remove"))
        (ε = 1, δ = 1e-05)-differentially private (pld accountant, poisson sampling;
        adjacency: add or remove one record)
    """

    epsilon: float
    delta: float
    accountant: str
    sampling: str
    adjacency: str
    lower: float | None = None
    unit: str = "record"
    is_upper_bound: bool = True

    @property
    def adjacency_text(self) -> str:
        """How neighbouring datasets differ, in words."""
        return f"adjacency: {_ADJACENCIES[self.adjacency]} {self.unit}"

    def __str__(self) -> str:
        how = f"({self.accountant} accountant, {self.sampling} sampling; {self.adjacency_text})"
        if not self.is_upper_bound:
            return f"about ε = {self.epsilon:.4g} at δ = {self.delta:.3g}: no proof {how}"
        claim = f"(ε = {rounded(self.epsilon, 4)}, δ = {rounded(self.delta, 3)})"
        return f"{claim}-differentially private {how}"


@dataclass(frozen=True)
class SpentSoFar(PrivacyBound):
    """The cost of the first steps of a plan, for a number of steps that was fixed in advance.

    Stopping early because of the data requires an odometer instead. The full plan's bound holds
    wherever a run stops.
    """

    @classmethod
    def of(cls, bound: PrivacyBound, epsilon: float) -> Self:
        """Return the plan's bound with ε of its first steps."""
        return cls(**{**asdict(bound), "epsilon": epsilon, "lower": None})

    def __str__(self) -> str:
        return (
            f"so far {super().__str__()}; valid if the number of steps was fixed in advance, "
            "otherwise report the full plan's ε"
        )


def rounded(value: float, digits: int, direction: str = ROUND_CEILING) -> str:
    """Return the number with that many digits, rounded up: what is printed is claimed.

    >>> rounded(1.23441, 4), rounded(2.0, 4), rounded(1.01e-5, 2)
    ('1.235', '2', '1.1e-05')
    """
    exact = Context(prec=digits, rounding=direction).create_decimal(repr(float(value)))
    return f"{float(exact):.{digits}g}"


class Released(Protocol):
    """What the state of a plan may know of a release."""

    @property
    def noise(self) -> float:
        """Standard deviation of the noise per coordinate."""
        ...

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        ...

    def squared_norm(self) -> float:
        """Return ‖g‖²."""
        ...


class PlanState(Protocol):
    """Where a run is on its plan. In a step: `noise_multiplier`, then `spend`, then `stepsize`.

    Example:
        >>> from dither.planning import Plan
        >>> plan = Plan.from_noise_multipliers(
        ...     [1.0, 2.0], delta=1e-5, dataset_size=1000, batch_size=10)
        >>> state = plan.new_state()
        >>> state.spend()
        >>> state.steps, state.noise_multiplier
        (1, 2.0)
    """

    @property
    def steps(self) -> int:
        """How many steps were spent."""
        ...

    @property
    def noise_multiplier(self) -> float | None:
        """Z of the next step, known before its batch is drawn; None if there is no next step."""
        ...

    def spend(self) -> None:
        """Charge the next step, before its release can be seen."""
        ...

    def stepsize(self, released: Released, raw_squared_norm: Callable[[], float]) -> float:
        """Return the step size of the step that was just released."""
        ...

    def bound(self) -> PrivacyBound:
        """Return what the releases so far cost."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that has changed since the start, as JSON can hold it.

        ``spent`` has the noise multipliers that were charged, of steps or of cycles.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; steps in its ``spent`` that the model has not taken are lost."""
        ...


class EpsilonDelta(NamedTuple):
    """An (ε, δ) pair, as the paper's lemmas take and return them."""

    epsilon: float
    delta: float


@dataclass(frozen=True, eq=False, repr=False)
class Vector:
    """Base of final classes that hold one read-only array and compare by its contents."""

    values: FloatArray

    def __post_init__(self) -> None:
        frozen = np.frombuffer(self.values.tobytes(), dtype=np.float64)
        object.__setattr__(self, "values", frozen)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(np.array_equal(self.values, other.values))

    def __hash__(self) -> int:
        return hash((type(self), self.values.tobytes()))

    def __repr__(self) -> str:
        head = ", ".join(f"{value:.6g}" for value in self.values[:4])
        more = f", … {self.values.size} values" if self.values.size > 4 else ""
        return f"{type(self).__name__}([{head}{more}])"
