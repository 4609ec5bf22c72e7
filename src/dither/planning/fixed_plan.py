"""A plan: step sizes and noise for every step, and the ε that they are proven to cost."""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dither import accounting, validate
from dither.accounting.cyclic import cycle_minima, cycle_rate
from dither.accounting.group import group_epsilon, group_unit
from dither.noise.correlated import check_coefficients, column_norms
from dither.planning.fixed_state import FixedPlanState, prefix_costs
from dither.planning.serialization import (
    fingerprint_of,
    from_json_value,
    parse_json,
    sizes_text,
    to_json_value,
)
from dither.schedules import Constant
from dither.schedules.fixed import stepsizes_of
from dither.types import FloatArray, PrivacyBound, Schedule, Search, adjacency_of, unit_of

_FORMAT = "dither-plan-1"


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides a run's privacy, frozen: what was accounted is what runs.

    Make one with `plan`, `Plan.from_noise_multipliers`, `Plan.from_json` or, for comparisons
    without privacy, `Plan.unsafe_without_noise`. Plans are equal if their fingerprints are.

    A plan computes its own ``bound`` when it is made, and ``dataclasses.replace`` makes a new plan:
    a plan with other noise never carries the old plan's ε.

    Attributes:
        stepsizes: η_0 … η_{T−1}.
        noise_multipliers: z_0 … z_{T−1}; all 0 for a plan without noise.
        clip_norm: C_G.
        dataset_size: n, public.
        batch_size: m, public, expected.
        sampling: "poisson", "fixed", or for correlated noise "cyclic".
        delta: δ.
        accountant: which accountant proves the bound.
        clipping: "flat" or "automatic"; see `dither.plan`.
        search: None, or how the first steps choose a factor of the step sizes of the rest.
        correlation: None, or the coefficients θ_0 = 1 … θ_{b−1} of correlated noise; see
            `dither.noise.Correlated`.
        rows_per_user: None where records are protected; where users are, whose number is then
            ``dataset_size``, the most rows of a user in a step.
        bound: the certified (ε, δ) of all steps.

    Example:
        >>> plan = Plan.from_noise_multipliers(
        ...     [1.0] * 100, delta=1e-5, dataset_size=60_000, batch_size=256)
        >>> plan.steps, round(plan.bound.epsilon, 2)
        (100, 0.29)
    """

    stepsizes: FloatArray
    noise_multipliers: FloatArray
    clip_norm: float
    dataset_size: int
    batch_size: int
    sampling: str
    delta: float
    accountant: str
    clipping: str = "flat"
    search: Search | None = None
    correlation: tuple[float, ...] | None = None
    rows_per_user: int | None = None
    bound: PrivacyBound = field(init=False)

    def __post_init__(self) -> None:
        """Freeze the arrays for good, and account for them."""
        validate.clipping(clip_norm=self.clip_norm, clipping=self.clipping)
        for name in ("stepsizes", "noise_multipliers"):
            frozen = np.frombuffer(np.asarray(getattr(self, name), np.float64).tobytes())
            object.__setattr__(self, name, frozen)
        validate.same_length(self.stepsizes.size, noise_multipliers=self.noise_multipliers)
        if (self.sampling == "cyclic") != (self.correlation is not None):
            raise validate.InvalidValueError(
                'sampling must be "cyclic" for correlated noise and for no other, got '
                f"{self.sampling!r}"
            )
        if self.correlation is not None:
            theta = check_coefficients(self.correlation, self.steps)
            object.__setattr__(self, "correlation", theta)
        if self.rows_per_user is not None:
            validate.count(rows_per_user=self.rows_per_user)
        object.__setattr__(self, "bound", replace(self._account(), unit=self.unit))

    def _account(self) -> PrivacyBound:
        if self.noise_multipliers.any():
            return accounting.epsilon(
                self.noise_multipliers,
                sample_rate=self.sample_rate,
                delta=self.delta,
                sampling=self.sampling,
                accountant=self.accountant,
                bands=self.bands,
            )
        return PrivacyBound(
            math.inf, 0.0, "none", self.sampling, adjacency_of(self.sampling), is_upper_bound=False
        )

    @property
    def steps(self) -> int:
        """T."""
        return int(self.stepsizes.size)

    @property
    def sample_rate(self) -> float:
        """The sampling rate, q = m/n."""
        return self.batch_size / self.dataset_size

    @property
    def unit(self) -> str:
        """What is sampled, clipped and protected: "record" or "user"."""
        return unit_of(self.rows_per_user)

    def for_users(self, rows_per_user: int) -> "Plan":
        """Return the plan for users instead of records: ``dataset_size`` is how many there are.

        Noise and ε are the same: a user's rows are sampled together and clipped as one.

        Example:
            >>> plan = Plan.from_noise_multipliers(
            ...     [1.0] * 100, delta=1e-5, dataset_size=60_000, batch_size=256)
            >>> print(plan.for_users(8).bound.adjacency_text)
            adjacency: add or remove one user
        """
        return replace(self, rows_per_user=rows_per_user)

    @property
    def bands(self) -> int:
        """The number of steps in a cycle: b for correlated noise, otherwise 1."""
        return 1 if self.correlation is None else len(self.correlation)

    @property
    def charges(self) -> FloatArray:
        """The noise multipliers that are accounted: one per step, or the smallest per cycle."""
        return cycle_minima(self.noise_multipliers, self.bands)

    def charge_of(self, step: int, noise_multiplier: float) -> tuple[int, float]:
        """Return the number and the noise of the charge that covers a step with this noise."""
        number = step // self.bands
        return number, noise_multiplier if self.bands == 1 else float(self.charges[number])

    @property
    def charge_rate(self) -> float:
        """The sampling rate at which they are accounted: q, or b·q for correlated noise."""
        return cycle_rate(self.sample_rate, self.bands)

    @property
    def charge_sampling(self) -> str:
        """The sampling as which they are accounted: "poisson" or "fixed"."""
        return "fixed" if self.sampling == "fixed" else "poisson"

    @cached_property
    def column_norms(self) -> FloatArray:
        """ν_t of every step of correlated noise; see `dither.noise.correlated`."""
        return column_norms(self.correlation or (1.0,), self.steps)

    @classmethod
    def from_noise_multipliers(
        cls,
        noise_multipliers: ArrayLike,
        *,
        delta: float,
        dataset_size: int,
        batch_size: int,
        clip_norm: float = 1.0,
        clipping: str = "flat",
        stepsizes: Schedule | ArrayLike | None = None,
        sampling: str = "poisson",
        accountant: str | None = None,
        correlation: ArrayLike | None = None,
    ) -> "Plan":
        """Return a plan with the given noise multipliers, and account for them.

        ``correlation`` correlates the noise; then the records are sampled cyclically.

        Example:
            >>> plan = Plan.from_noise_multipliers(
            ...     [1.0] * 100, delta=1e-5, dataset_size=60_000, batch_size=256)
            >>> round(plan.bound.epsilon, 2)
            0.29
        """
        z = validate.positives(noise_multipliers=noise_multipliers)
        m, n = validate.batch_within(batch_size=batch_size, dataset_size=dataset_size)
        eta = stepsizes_of(Constant(1.0) if stepsizes is None else stepsizes, z.size)
        norm = validate.positive(clip_norm=clip_norm)
        delta = validate.probability(delta=delta)
        proved_by = "pld" if accountant is None else accountant
        theta = None if correlation is None else check_coefficients(correlation, z.size)
        if theta is not None and sampling == "poisson":
            sampling = "cyclic"
        return cls(eta, z, norm, n, m, sampling, delta, proved_by, clipping, correlation=theta)

    @classmethod
    def unsafe_without_noise(
        cls,
        *,
        steps: int,
        dataset_size: int,
        batch_size: int,
        clip_norm: float = math.inf,
        clipping: str = "flat",
        stepsizes: Schedule | ArrayLike | None = None,
        sampling: str = "poisson",
    ) -> "Plan":
        """Return a plan without noise, for comparisons and tests: it claims ε = ∞.

        Automatic clipping needs a finite ``clip_norm``.

        Example:
            >>> plain = Plan.unsafe_without_noise(steps=10, dataset_size=100, batch_size=10)
            >>> plain.bound.epsilon
            inf
        """
        m, n = validate.batch_within(batch_size=batch_size, dataset_size=dataset_size)
        T = validate.step_count(steps=steps)
        norm, clipping = validate.clipping(clip_norm=clip_norm, clipping=clipping)
        validate.choice(accounting.SAMPLINGS, sampling=sampling)
        eta = stepsizes_of(Constant(1.0) if stepsizes is None else stepsizes, T)
        return cls(eta, np.zeros(T), norm, n, m, sampling, 0.0, "none", clipping)

    def new_state(self) -> FixedPlanState:
        """Return the state of a new run along this plan."""
        return FixedPlanState(self)

    def spent(self, step: int) -> float:
        """Return an upper bound on ε after that many steps, for curves and progress bars.

        The first call accounts some thirty prefixes of the plan; between two of them the later
        one's ε is returned. It holds for a number of steps that was fixed in advance: stopping at a
        step that was chosen by looking at the data requires an odometer or the full plan's ε.

        Example:
            >>> plan = Plan.from_noise_multipliers(
            ...     [1.0] * 100, delta=1e-5, dataset_size=60_000, batch_size=256)
            >>> plan.spent(0), plan.spent(100) == plan.bound.epsilon
            (0.0, True)
        """
        if isinstance(step, bool) or step not in range(self.steps + 1):
            raise validate.InvalidValueError(
                f"step must be an integer from 0 to {self.steps}, got {step!r}"
            )
        t = int(step)
        if not math.isfinite(self.bound.epsilon):
            return 0.0 if t == 0 else math.inf
        knots, epsilons = self.spending()
        return float(epsilons[np.searchsorted(knots, t)])

    def spending(self) -> tuple[np.ndarray, FloatArray]:
        """Return the accounted prefixes behind `spent`: numbers of steps, and ε after each."""
        return np.array([*self._prefixes]), np.array([*self._prefixes.values()])

    @cached_property
    def _prefixes(self) -> dict[int, float]:
        return prefix_costs(self)

    def costs(self) -> dict[str, PrivacyBound]:
        """Return ε of the plan by every accountant, for comparison."""
        return accounting.costs(
            self.noise_multipliers,
            sample_rate=self.sample_rate,
            delta=self.delta,
            sampling=self.sampling,
            bands=self.bands,
            known={self.accountant: self.bound},
        )

    def for_group(self, size: int, *, delta: float | None = None) -> PrivacyBound:
        """Return ε of a group of records, such as all those of one person, at δ or the plan's own.

        The accountant is ``pld``, whichever made the plan; see `dither.accounting.group`.

        Example:
            >>> plan = Plan.from_noise_multipliers(
            ...     [1.0] * 100, delta=1e-5, dataset_size=60_000, batch_size=256)
            >>> print(f"{plan.for_group(1).epsilon:.2f} {plan.for_group(5).epsilon:.2f}")
            0.29 1.72
        """
        unit = group_unit(validate.count(size=size), self.unit)
        if not self.noise_multipliers.any():
            return replace(self.bound, unit=unit)
        at, q = self.delta if delta is None else delta, self.charge_rate
        found = group_epsilon(
            self.charges, sample_rate=q, delta=at, sampling=self.sampling, size=size
        )
        return replace(found, unit=unit)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that matters; the same for equal plans on every machine."""
        return fingerprint_of(self._fields())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def _fields(self) -> dict[str, Any]:
        # Left out if it is flat: plans that were saved before there was a choice stay the same.
        clipping = {} if self.clipping == "flat" else {"clipping": self.clipping}
        search = {} if self.search is None else {"search": asdict(self.search)}
        bands = {} if self.correlation is None else {"correlation": [*self.correlation]}
        users = {} if self.rows_per_user is None else {"rows_per_user": self.rows_per_user}
        return {
            **clipping,
            **search,
            **bands,
            **users,
            "format": _FORMAT,
            "stepsizes": self.stepsizes.tolist(),
            "noise_multipliers": self.noise_multipliers.tolist(),
            "clip_norm": to_json_value(self.clip_norm),
            "dataset_size": self.dataset_size,
            "batch_size": self.batch_size,
            "sampling": self.sampling,
            "bound": {key: to_json_value(value) for key, value in asdict(self.bound).items()},
        }

    def to_json(self) -> str:
        """Return the plan as JSON; `from_json` gives back the same plan to the last bit."""
        return json.dumps({**self._fields(), "fingerprint": self.fingerprint}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan and account for it again.

        Raises:
            ValueError: the text is not a plan, was damaged, or claims less than its noise costs.
        """
        fields = parse_json(text)
        known = {*cls.unsafe_without_noise(steps=1, dataset_size=1, batch_size=1)._fields()}
        extra = {"clipping", "search", "correlation", "rows_per_user"}
        if not isinstance(fields, dict) or {*fields} - extra != {*known, "fingerprint"}:
            raise validate.InvalidValueError(
                f"plan must have the fields {', '.join(sorted(known))} and fingerprint"
            )
        if fields.pop("fingerprint") != fingerprint_of(fields):
            raise validate.InvalidValueError(
                "plan must be unchanged since it was saved: its fingerprint does not match"
            )
        validate.choice((_FORMAT,), format=fields["format"])
        claimed = PrivacyBound(
            **{key: from_json_value(value) for key, value in fields["bound"].items()}
        )
        setting = {name: fields[name] for name in ("dataset_size", "batch_size", "sampling")}
        setting |= {
            "clip_norm": from_json_value(fields["clip_norm"]),
            "clipping": fields.get("clipping", "flat"),
            "stepsizes": fields["stepsizes"],
        }
        z = validate.nonnegatives(noise_multipliers=fields["noise_multipliers"])
        if z.any():
            setting |= {"delta": claimed.delta, "accountant": claimed.accountant}
            setting |= {"correlation": fields.get("correlation")}
            plan = cls.from_noise_multipliers(z, **setting)
        else:
            plan = cls.unsafe_without_noise(steps=z.size, **setting)
        if "search" in fields:
            factors = tuple(fields["search"].pop("factors"))
            plan = replace(plan, search=Search(factors, **fields["search"]))
        if "rows_per_user" in fields:
            plan = plan.for_users(fields["rows_per_user"])
        computed = replace(plan.bound, epsilon=claimed.epsilon, lower=claimed.lower)
        # Another machine may round differently.
        if claimed != computed or not claimed.epsilon >= plan.bound.epsilon * (1.0 - 1e-6):
            raise validate.InvalidValueError(
                f"plan must not claim less than it costs: it claims {claimed}, and costs "
                f"{plan.bound}"
            )
        object.__setattr__(plan, "bound", claimed)
        return plan

    def __str__(self) -> str:
        z, eta = self.noise_multipliers, self.stepsizes
        correlated = "" if self.bands == 1 else f"; correlated within {self.bands} steps"
        head = (
            f"{self.steps:,} steps, {sizes_text(self)}\n"
            f"step size   {eta[0]:.6g} first, {eta[-1]:.6g} last\n"
        ) + ("" if self.search is None else f"search      {self.search}\n")
        if math.isinf(self.bound.epsilon):
            return f"{head}UNSAFE: no noise is added and nothing is claimed, ε = ∞"
        return (
            f"{head}noise z     {z[0]:.6g} first, {z[-1]:.6g} last, {z.min():.6g} least, "
            f"{z.max():.6g} most{correlated}\n"
            f"privacy     {self.bound}\n"
            f"fingerprint {self.fingerprint[:16]}"
        )
