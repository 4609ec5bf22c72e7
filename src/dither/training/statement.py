"""The privacy statement: what a run guarantees, and what the guarantee rests on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any, Protocol

from dither.clipping.clip import STABILIZER
from dither.planning import Plan, ReactivePlan
from dither.schedules import UnsafeRawAdaGradNorm
from dither.training.loop import TrainResult, steps_of
from dither.training.private import Private
from dither.training.recipe import Recipe
from dither.types import PrivacyBound, Search, SpentSoFar, rounded, unit_of
from dither.validate import InvalidTypeError

PARTITION = (
    "Every row belongs to one user: a row about several people protects its user alone. Rows "
    "without an id were left out, unless the caller made each a user of its own."
)


@dataclass(frozen=True)
class RunFacts:
    """The facts that a statement is written from.

    Attributes:
        bound: the privacy cost of the run.
        plan_epsilon: ε of the full plan.
        steps: number of steps.
        dataset_size: n.
        batch_size: m.
        sampling: "poisson", "fixed" or "cyclic".
        clip_norm: C_G.
        clipping: "flat" or "automatic".
        fingerprint: of the plan.
        has_noise: whether noise was added.
        uses_raw_gradients: whether the step sizes depend on gradients without noise.
        is_seeded: whether the noise can be reproduced from a seed.
        seed: the seed, if it is known.
        settings: what dither has chosen, as a paragraph; empty if the caller chose them.
        is_counted: whether n is the number of records in the data.
        search: the search that the plan begins with, if any.
        factor: what it has chosen, if that is known.
        is_weighted: whether records had weights.
        bands: of correlated noise; 1 if noise is not correlated.
        charges: how many cycles of correlated noise were charged.
        rows_per_user: the most rows of a user in a step; None where records are protected.
    """

    bound: PrivacyBound
    plan_epsilon: float
    steps: int
    dataset_size: int
    batch_size: int
    sampling: str
    clip_norm: float
    clipping: str
    fingerprint: str
    has_noise: bool
    uses_raw_gradients: bool
    is_seeded: bool
    seed: int | None
    settings: str = ""
    is_counted: bool = False
    search: Search | None = None
    factor: float | None = None
    is_weighted: bool = False
    bands: int = 1
    charges: int = 0
    rows_per_user: int | None = None

    @property
    def unit(self) -> str:
        """What is protected: "record" or "user"."""
        return unit_of(self.rows_per_user)


class _Stated(Protocol):
    def privacy_statement(self) -> str: ...


def statement(
    run: TrainResult | Private | _Stated, *, leaks: Sequence[str] = (), is_counted: bool = False
) -> str:
    """Return the privacy statement of a training run, to publish with the model.

    Args:
        run: the result of `train`, the `Private` of a custom training loop, or a fitted estimator
            of `dither.estimators`, whose ``privacy_statement()`` this then is.
        leaks: what else was derived from the private data, each as a clause: "the classes were
            derived from the private data".
        is_counted: whether n was counted in the data; a run with a recipe knows that.

    Example:
        >>> import dither, torch
        >>> plan = dither.Plan.unsafe_without_noise(steps=2, dataset_size=10, batch_size=5)
        >>> data = torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64)
        >>> trained = dither.train(torch.nn.Linear(3, 2), data, plan, progress=False)
        >>> print(statement(trained).splitlines()[0])
        NO privacy guarantee (ε = ∞): no noise was added.
    """
    if not isinstance(run, TrainResult | Private):
        if leaks or not hasattr(run, "privacy_statement"):
            raise InvalidTypeError(
                "run must be what train or make_private returns, or without leaks a private "
                f"estimator, got {type(run).__name__}"
            )
        return run.privacy_statement()
    if isinstance(run, Private):
        given = run.model, run.plan, run.spent(), steps_of(run), (), run.seed
        charges = -(-run.step // run.plan.bands)
        facts = replace(facts_of(TrainResult(*given, factor=run.factor)), charges=charges)
        derived = []
    else:
        facts = facts_of(run)
        derived = [derived_clause(value) for value in run.derived_from_private_data]
    facts = replace(facts, is_counted=facts.is_counted or is_counted)
    parts = paragraphs(facts, leaks=[*leaks, *derived])
    return "\n".join(fill(part, 80) for part in parts)


def paragraphs(facts: RunFacts, *, leaks: Sequence[str] = ()) -> list[str]:
    """Return the statement's paragraphs."""
    condition = f"If {'this is' if len(leaks) == 1 else 'these are'} public, " if leaks else ""
    parts = [guarantee(facts, condition), *protected(facts), *foundations(facts, leaks)]
    return [*([_leaks(leaks)] if leaks else []), *parts]


def protected(facts: RunFacts) -> list[str]:
    """Return the paragraph on whom the guarantee protects, if it protects users."""
    if facts.rows_per_user is None or not math.isfinite(facts.bound.epsilon):
        return []
    return [
        "The guarantee is for each user: all rows of one person are protected together, however "
        f"many there are. {PARTITION}"
    ]


def foundations(facts: RunFacts, leaks: Sequence[str] = ()) -> list[str]:
    """Return what the guarantee rests on: mechanism, settings, public facts and randomness."""
    settings = [facts.settings] if facts.settings else []
    weights = [weighted(facts)] if facts.is_weighted else []
    return [_mechanism(facts), *settings, _public(facts, leaks), _randomness(facts), *weights]


def weighted(facts: RunFacts) -> str:
    """Return what weights are taken to depend on; reports say it, too."""
    own = "its own record" if facts.rows_per_user is None else "the rows of its user"
    return f"Sample weights were given: each is taken to depend on {own} and public numbers alone."


def derived_clause(value: str) -> str:
    """Return that a value was derived from the private data, as a clause."""
    return f"{value} was derived from the private data"


def facts_of(result: TrainResult) -> RunFacts:
    """Return the facts of a run for its statement."""
    plan = result.plan
    return RunFacts(
        bound=result.bound,
        plan_epsilon=plan.bound.epsilon,
        steps=result.steps,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch_size,
        sampling=plan.sampling,
        clip_norm=plan.clip_norm,
        clipping=plan.clipping,
        fingerprint=plan.fingerprint,
        has_noise=not isinstance(plan, Plan) or bool(plan.noise_multipliers.any()),
        uses_raw_gradients=isinstance(plan, ReactivePlan)
        and isinstance(plan.stepsizes, UnsafeRawAdaGradNorm),
        is_seeded=result.seed is not None,
        seed=result.seed,
        **recipe_facts(result.recipe, result.factor),
        search=plan.search if isinstance(plan, Plan) else None,
        factor=result.factor,
        is_weighted=result.is_weighted,
        bands=plan.bands,
        charges=plan.charges.size,
        rows_per_user=plan.rows_per_user,
    )


def _leaks(leaks: Sequence[str]) -> str:
    return f"NOT PROVEN: {'; '.join(f'{leak} without noise' for leak in leaks)}."


def guarantee(facts: RunFacts, condition: str = "") -> str:
    """Return the paragraph with ε and δ, after the condition under which they hold."""
    bound = facts.bound
    if math.isinf(bound.epsilon):
        why = "no noise was added"
        if facts.uses_raw_gradients:
            why = "the step sizes depend on gradients without noise"
        return f"NO privacy guarantee (ε = ∞): {why}."
    if not bound.is_upper_bound:
        return f"NOT PROVEN: {bound}."
    epsilon, delta = rounded(bound.epsilon, 4), rounded(bound.delta, 3)
    the = "the" if condition else "The"
    how = f"({bound.adjacency_text}; {bound.accountant} accountant)"
    if isinstance(bound, SpentSoFar):
        return (
            f"{condition}{the} models so far are (ε = {epsilon}, δ = {delta})-differentially "
            f"private {how} if the number of steps was fixed in advance. Stopping early because of "
            "the data requires an odometer, or the full plan's "
            f"ε = {rounded(facts.plan_epsilon, 4)}, which holds wherever the run stops."
        )
    several = "It is for each record: a person with several has a larger ε."
    return (
        f"{condition}{the} model is (ε = {epsilon}, δ = {delta})-differentially private {how}. The "
        "guarantee covers the final model and every intermediate model."
        f"{' ' + several if bound.unit == 'record' else ''}"
    )


def _mechanism(facts: RunFacts) -> str:
    q, unit = facts.batch_size / facts.dataset_size, facts.unit
    sampling = {
        "poisson": f"Poisson sampling: in each step every {unit} is drawn independently with "
        f"probability q = {q:.6g}.",
        "fixed": f"Fixed-size sampling: each step draws {facts.batch_size:,} distinct {unit}s "
        "uniformly at random.",
        "cyclic": "Cyclic Poisson sampling: before the first step, and again where a run is "
        f"resumed, every {unit} is assigned to one of {facts.bands} subsets, uniformly and "
        f"independently. The subsets take turns, one per step, and a step draws every {unit} of "
        f"its subset independently with probability {facts.bands}·q = {facts.bands * q:.6g}. Each "
        f"cycle of {facts.bands} steps is accounted as one step with that probability.",
    }[facts.sampling]
    if q == 1.0:
        sampling = f"Full batch: each step uses all {unit}s."
    if facts.rows_per_user is not None:
        sampling += (
            f" Of each of them at most {facts.rows_per_user:,} rows take part, drawn at random "
            "anew every time, and the mean of their gradients is the user's gradient."
        )
    clips, C = "", facts.clip_norm
    if facts.clipping == "automatic":
        clips = (
            f"scales per-{unit} gradients g by {C:g}/(‖g‖ + {STABILIZER:g}), to an l2 norm below "
            f"{C:g} (automatic clipping), "
        )
    elif math.isfinite(C):
        clips = f"clips per-{unit} gradients to l2 norm {C:g}, "
    correlated = f", correlated within {facts.bands} consecutive steps,"
    noise = f"adds Gaussian noise{correlated if facts.bands > 1 else ''} to their sum"
    charged = f", charged as {facts.charges:,} cycles of at most {facts.bands} steps"
    steps = f"{facts.steps:,} steps{charged if facts.bands > 1 else ''}"
    sums = noise if facts.has_noise else "sums the gradients"
    return (
        f"Training: {steps}. {sampling} Each step {clips}{sums} and divides by "
        f"{facts.batch_size:,}. {_search(facts)}Plan fingerprint: {facts.fingerprint[:16]}."
    )


def _search(facts: RunFacts) -> str:
    """Return the sentence about the search that the plan begins with."""
    search = facts.search
    if search is None:
        return ""
    chose = "were to choose" if facts.factor is None else "chose"
    chosen = "" if facts.factor is None else f"; it chose {facts.factor:.3g}"
    return (
        f"{search.steps:,} steps {chose} the learning rate, and are included in ε: {search}, with "
        f"noise{chosen}. "
    )


def recipe_facts(recipe: Recipe | None, factor: float | None) -> dict[str, Any]:
    """Return the facts that come from a recipe and its search, for `RunFacts`."""
    if recipe is None:
        return {}
    text = (
        "Settings were chosen by dither's recipe from public quantities: n, ε, δ, the model before "
        "training on synthetic records of the same shape, and what was given "
        f"({', '.join(sorted(recipe.given)) or 'nothing'}). Batch size {recipe.batch_size:,}, "
        f"{recipe.steps:,} steps, {recipe.clipping} clipping, {recipe.optimizer} with learning "
        f"rate {recipe.learning_rate * (factor or 1.0):.4g}."
    )
    return {"settings": text, "is_counted": "dataset_size" not in recipe.given}


def public_size(facts: RunFacts) -> str:
    """Return that n is taken as public, and whether it was counted; reports say it, too."""
    counted = ", counted in the data" if facts.is_counted else ""
    return f"the number of {facts.unit}s, n = {facts.dataset_size:,}{counted}"


def _public(facts: RunFacts, leaks: Sequence[str]) -> str:
    classes = "" if any("classes" in leak for leak in leaks) else "the set of classes; "
    return (
        f"Taken as public: {public_size(facts)}; the shape of a record; {classes}any bounds that "
        "were given; and all settings. The statement is about this run alone: choosing settings by "
        "looking at other runs on the same data costs additional privacy."
    )


def _randomness(facts: RunFacts) -> str:
    seed = " with an unknown seed" if facts.seed is None else f" with {facts.seed}"
    if not facts.has_noise:
        return "Only the sampling is random." + (f" SEEDED{seed}." if facts.is_seeded else "")
    if not facts.is_seeded:
        return (
            "Sampling and noise use a cryptographic generator keyed by the operating system; the "
            "keys were not stored. Noise is added in double precision and rounded to a grid."
        )
    return (
        f"SEEDED{seed}: anyone who knows or guesses the seed can compute the noise and subtract "
        "it. Seeds are for tests and experiments; train without a seed to protect data."
    )
