"""A plan: step sizes and noise for every step, and the ε that they were proven to cost."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from dither import accounting, validate
from dither.accounting import pld
from dither.planning.state import Released
from dither.planning.written import checked_claim, hashed, parsed, read, written
from dither.schedules import Constant
from dither.types import FloatArray, PrivacyBound, Schedule, SpentSoFar

_FORMAT = "dither-plan-1"


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides a run's privacy, frozen: what was accounted is what runs.

    Make one with `plan`, `Plan.from_noise_multipliers`, `Plan.from_json` or, for comparisons
    without privacy, `Plan.unsafe_without_noise`. Plans are equal if their fingerprints are.

    Attributes:
        stepsizes: η_0 … η_{T−1}.
        noise_multipliers: z_0 … z_{T−1}.
        clip_norm: C_G.
        dataset_size: n, public.
        batch_size: m, public, expected.
        sampling: "poisson" or "fixed".
        bound: the certified (ε, δ) of all steps.
    """

    stepsizes: FloatArray
    noise_multipliers: FloatArray
    clip_norm: float
    dataset_size: int
    batch_size: int
    sampling: str
    bound: PrivacyBound
    _seal: str = field(default="", repr=False)
    _curve: dict[int, float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Freeze the arrays for good."""
        for name in ("stepsizes", "noise_multipliers"):
            frozen = np.frombuffer(np.asarray(getattr(self, name), np.float64).tobytes())
            object.__setattr__(self, name, frozen)
        validate.same_length(self.stepsizes.size, noise_multipliers=self.noise_multipliers)
        priced = self.noise_multipliers, self.dataset_size, self.batch_size, self.sampling
        if self._seal != _seal(*priced, self.bound):
            raise validate.InvalidValueError(
                "plan must be made by dither.plan or Plan.from_noise_multipliers, which prove what "
                "it costs; its noise, sizes, sampling or bound were changed"
            )
        object.__setattr__(self, "_curve", {})

    @property
    def steps(self) -> int:
        """T."""
        return int(self.stepsizes.size)

    @property
    def sample_rate(self) -> float:
        """The sampling rate, q = m/n."""
        return self.batch_size / self.dataset_size

    @property
    def least_noise(self) -> FloatArray:
        """The smallest noise multiplier that each step may have: here those that are planned."""
        return self.noise_multipliers

    @property
    def accountant(self) -> str:
        """Which accountant proved the bound."""
        return self.bound.accountant

    @classmethod
    def from_noise_multipliers(
        cls,
        noise_multipliers: ArrayLike,
        *,
        delta: float,
        dataset_size: int,
        batch_size: int,
        clip_norm: float = 1.0,
        stepsizes: Schedule | ArrayLike | None = None,
        sampling: str = "poisson",
        accountant: str | None = None,
    ) -> "Plan":
        """Price a given schedule of noise multipliers.

        Example:
            >>> priced = Plan.from_noise_multipliers(
            ...     [1.0] * 100, delta=1e-5, dataset_size=60_000, batch_size=256)
            >>> round(priced.bound.epsilon, 2)
            0.29
        """
        z = validate.positives(noise_multipliers=noise_multipliers)
        m, n = validate.batch_within(batch_size=batch_size, dataset_size=dataset_size)
        bound = accounting.epsilon(
            z, sample_rate=m / n, delta=delta, sampling=sampling, accountant=accountant
        )
        eta = stepsizes_of(Constant(1.0) if stepsizes is None else stepsizes, z.size)
        norm = validate.positive(clip_norm=clip_norm)
        return cls(eta, z, norm, n, m, sampling, bound, _seal(z, n, m, sampling, bound))

    @classmethod
    def unsafe_without_noise(
        cls,
        *,
        steps: int,
        dataset_size: int,
        batch_size: int,
        clip_norm: float = math.inf,
        stepsizes: Schedule | ArrayLike | None = None,
        sampling: str = "poisson",
    ) -> "Plan":
        """Return a plan without noise, for comparisons and tests: it claims ε = ∞.

        Example:
            >>> plain = Plan.unsafe_without_noise(steps=10, dataset_size=100, batch_size=10)
            >>> plain.bound.epsilon
            inf
        """
        m, n = validate.batch_within(batch_size=batch_size, dataset_size=dataset_size)
        T = validate.step_count(steps=steps)
        norm = clip_norm if clip_norm == math.inf else validate.positive(clip_norm=clip_norm)
        adjacency = "replace-one" if sampling == "fixed" else "add-remove"
        validate.choice(accounting.SAMPLINGS, sampling=sampling)
        bound = PrivacyBound(math.inf, 0.0, "none", sampling, adjacency, is_upper_bound=False)
        eta = stepsizes_of(Constant(1.0) if stepsizes is None else stepsizes, T)
        z = np.zeros(T)
        return cls(eta, z, norm, n, m, sampling, bound, _seal(z, n, m, sampling, bound))

    def new_state(self) -> "FixedPlanState":
        """Return a new run along this plan."""
        return FixedPlanState(self)

    def spent(self, step: int) -> float:
        """Return an upper bound on ε after that many steps, for curves and progress bars.

        The first call accounts some thirty prefixes of the plan; between two of them the later
        one's ε is returned. Stopping at a step that was chosen by looking at the data needs more.

        Example:
            >>> priced = Plan.from_noise_multipliers(
            ...     [1.0] * 100, delta=1e-5, dataset_size=60_000, batch_size=256)
            >>> priced.spent(0), priced.spent(100) == priced.bound.epsilon
            (0.0, True)
        """
        if isinstance(step, bool) or step not in range(self.steps + 1):
            raise validate.InvalidValueError(
                f"step must be a whole number from 0 to {self.steps}, got {step!r}"
            )
        t = int(step)
        if not math.isfinite(self.bound.epsilon):
            return 0.0 if t == 0 else math.inf
        knots, epsilons = self.spending()
        return float(epsilons[np.searchsorted(knots, t)])

    def spending(self) -> tuple[np.ndarray, FloatArray]:
        """Return the accounted prefixes behind `spent`: numbers of steps, and ε after each."""
        if not self._curve:
            self._curve.update(self._prefixes())
        return np.array([*self._curve]), np.array([*self._curve.values()])

    def _prefixes(self) -> dict[int, float]:
        T = self.steps
        linear, early = np.linspace(1, T, 21), np.geomspace(1, T, 9)
        knots = np.unique(np.concatenate([linear, early]).round().astype(int))
        curve, least = {0: 0.0, T: self.bound.epsilon}, self.bound.epsilon
        for knot in knots[-2::-1]:
            # A prefix costs no more than what it is a prefix of.
            least = min(least, self._prefix(int(knot)))
            curve[int(knot)] = least
        return dict(sorted(curve.items()))

    def _prefix(self, knot: int) -> float:
        z, q, delta = self.noise_multipliers[:knot], self.sample_rate, self.bound.delta
        if self.accountant == "pld" and knot > 1 and q < 1.0:
            return pld.rough_epsilon(z, sample_rate=q, delta=delta, sampling=self.sampling)
        return accounting.epsilon(
            z,
            sample_rate=q,
            delta=delta,
            sampling=self.sampling,
            accountant=self.accountant,
        ).epsilon

    @property
    def fingerprint(self) -> str:
        """A hash of everything that matters; the same for equal plans on every machine."""
        return hashed(self._fields())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def _fields(self) -> dict[str, Any]:
        bound = {key: written(value) for key, value in asdict(self.bound).items()}
        return {
            "format": _FORMAT,
            "stepsizes": self.stepsizes.tolist(),
            "noise_multipliers": self.noise_multipliers.tolist(),
            "clip_norm": written(self.clip_norm),
            "dataset_size": self.dataset_size,
            "batch_size": self.batch_size,
            "sampling": self.sampling,
            "bound": bound,
        }

    def to_json(self) -> str:
        """Return the plan as JSON; `from_json` gives back the same plan to the last bit."""
        return json.dumps({**self._fields(), "fingerprint": self.fingerprint}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan, and account it again: a file that claims less than it costs is refused."""
        fields = parsed(text)
        known = {*cls.unsafe_without_noise(steps=1, dataset_size=1, batch_size=1)._fields()}
        if not isinstance(fields, dict) or {*fields} != {*known, "fingerprint"}:
            raise validate.InvalidValueError(
                f"plan must have the fields {', '.join(sorted(known))} and fingerprint"
            )
        fingerprint = fields.pop("fingerprint")
        if fingerprint != hashed(fields):
            raise validate.InvalidValueError("plan must be unchanged since it was saved")
        validate.choice((_FORMAT,), format=fields["format"])
        claimed = fields["bound"]
        if not isinstance(claimed, dict) or {*claimed} != {*PrivacyBound.__dataclass_fields__}:
            raise validate.InvalidValueError(f"plan must have a whole bound, got {claimed!r}")
        made = cls._priced(fields)
        bound = checked_claim(made.bound, claimed)
        priced = made.noise_multipliers, made.dataset_size, made.batch_size, made.sampling
        return replace(made, bound=bound, _seal=_seal(*priced, bound))

    @classmethod
    def _priced(cls, fields: dict[str, Any]) -> "Plan":
        """Return the plan that these fields describe, with what it costs by our own count."""
        eta = validate.positives(stepsizes=fields["stepsizes"])
        z = validate.nonnegatives(noise_multipliers=fields["noise_multipliers"])
        sizes = {name: fields[name] for name in ("dataset_size", "batch_size", "sampling")}
        norm = read(fields["clip_norm"])
        if not z.any():
            return cls.unsafe_without_noise(steps=z.size, clip_norm=norm, stepsizes=eta, **sizes)
        claimed = fields["bound"]
        return cls.from_noise_multipliers(
            z,
            delta=claimed["delta"],
            clip_norm=norm,
            stepsizes=eta,
            accountant=validate.choice(accounting.ACCOUNTANTS, accountant=claimed["accountant"]),
            **sizes,
        )

    def __str__(self) -> str:
        z, eta = self.noise_multipliers, self.stepsizes
        head = (
            f"{self.steps:,} steps, {self.sampling} sampling of m = {self.batch_size:,} out of "
            f"n = {self.dataset_size:,} (q = {self.sample_rate:.6g}), "
            f"clip norm {self.clip_norm:g}\n"
            f"step size   {eta[0]:.6g} first, {eta[-1]:.6g} last\n"
        )
        if math.isinf(self.bound.epsilon):
            return f"{head}UNSAFE: no noise is added and nothing is claimed, ε = ∞"
        return (
            f"{head}noise z     {z[0]:.6g} first, {z[-1]:.6g} last, {z.min():.6g} least, "
            f"{z.max():.6g} most\n"
            f"privacy     {self.bound}\n"
            f"fingerprint {self.fingerprint[:16]}"
        )


def _seal(z: FloatArray, n: int, m: int, sampling: str, bound: PrivacyBound) -> str:
    """Return what tells that a bound was proven for this noise: against mistakes, not malice."""
    sizes = {"n": n, "m": m, "sampling": sampling, "bound": repr(bound)}
    return hashed({**sizes, "z": np.asarray(z, np.float64).tobytes().hex()})


@final
class FixedPlanState:
    """Along a `Plan`: all was decided beforehand."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.steps = 0

    @property
    def noise_multiplier(self) -> float | None:
        """z_t of the plan."""
        z = self._plan.noise_multipliers
        return float(z[self.steps]) if self.steps < z.size else None

    def spend(self) -> None:
        """Count the step."""
        self.steps += 1

    def stepsize(self, released: Released, raw_squared_norm: Callable[[], float]) -> float:
        """Return η_t of the plan."""
        return float(self._plan.stepsizes[self.steps - 1])

    def bound(self) -> PrivacyBound:
        """Return ε of the steps so far, as if their number had been fixed beforehand."""
        if self.steps == self._plan.steps:
            return self._plan.bound
        return so_far(self._plan.bound, self._plan.spent(self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Return the noise that was paid for."""
        return {"spent": self._plan.noise_multipliers[: self.steps].tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the steps that were paid for, which are the plan's own."""
        spent = state["spent"]
        if list(spent) != self._plan.noise_multipliers[: len(spent)].tolist():
            raise validate.InvalidValueError(
                f"state must be a later one of the same run, got one of {len(spent)} other steps"
            )
        self.steps = len(spent)


def so_far(bound: PrivacyBound, epsilon: float) -> SpentSoFar:
    """Return the bound of a part of a plan."""
    return SpentSoFar(**{**asdict(bound), "epsilon": epsilon, "lower": None})


def stepsizes_of(stepsizes: Schedule | ArrayLike, T: int) -> FloatArray:
    """Return T step sizes, from a schedule or as they are given."""
    if isinstance(stepsizes, Schedule) and not isinstance(stepsizes, type):
        return validate.same_length(
            T, stepsizes=validate.positives(stepsizes=stepsizes.stepsizes(T))
        )
    if isinstance(stepsizes, int | float):
        raise validate.InvalidTypeError(
            f"stepsizes must be a schedule or one step size a step, got {stepsizes!r}: "
            f"Constant({stepsizes!r}) is the same in every step"
        )
    return validate.same_length(T, stepsizes=validate.positives(stepsizes=stepsizes))
