"""What is known of a run, frozen: the one source of the HTML, the markdown and the JSON."""

import math
from dataclasses import dataclass
from typing import Any, final

from dither.training.statement import Stated, paragraphs
from dither.types import PrivacyBound

VERDICTS = {
    "proven": "Proven",
    "conditional": "NOT PROVEN unless what was read off the private data is public",
    "nothing": "NO privacy is claimed",
    "seeded": "SEEDED: no protection against those who know or guess the seed",
    "refuted": "REFUTED by an audit",
    "not proven": "NOT PROVEN",
    "not confirmed": "NOT CONFIRMED",
}
ACCOUNTANTS = {
    "pld": "the privacy losses of all steps are composed numerically, and rounded up",
    "rdp": "the Rényi divergences of all steps are added up, which gives an upper bound",
    "filter": "a Rényi filter: noise chosen on the way is paid for as adaptive",
    "odometer": "a Rényi odometer: it holds wherever one stops, also because of results",
    "gdp": "the central limit theorem, an estimate and no bound",
    "theorem": "the paper's theorem",
    "advanced": "advanced composition",
    "none": "nothing was counted",
}


@final
@dataclass(frozen=True)
class Claim:
    """What may be said of a run's privacy.

    Attributes:
        verdict: one of `VERDICTS`.
        bound: what is reported; None if nothing can be said.
        recorded: what result.json says, if it says something.
        counted: what the ledger counts for this run alone, if it can be read.
        is_whole_plan: whether ``bound`` is of the whole plan of a run that is not over.
    """

    verdict: str
    bound: PrivacyBound | None
    recorded: PrivacyBound | None
    counted: PrivacyBound | None
    is_whole_plan: bool = False

    @property
    def has_odds(self) -> bool:
        """Whether it is finite and holds, so that it can be spoken of in odds."""
        known = self.bound is not None and math.isfinite(self.bound.epsilon)
        return known and self.verdict in ("proven", "conditional")


@final
@dataclass(frozen=True)
class Point:
    """The run after a number of steps, as history.jsonl has it; None is what it does not have."""

    step: int
    epsilon: float | None
    stepsize: float | None
    noise_multiplier: float | None
    metrics: dict[str, float]
    iterate_metrics: dict[str, float]


@final
@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@final
@dataclass(frozen=True)
class Chart:
    """A chart as data: what is drawn is also in its table and in its words.

    Attributes:
        key: its name in the document.
        title: its title.
        x_name: name and unit of the horizontal axis.
        y_name: name and unit of the vertical axis.
        series: its lines.
        words: what is to be seen, for who does not see it.
        is_log: whether the vertical axis is logarithmic.
        limit: a level to keep below, with its name.
        is_square: whether both axes go from 0 to 100.
        is_privacy: whether the vertical axis is ε, which is rounded up.
    """

    key: str
    title: str
    x_name: str
    y_name: str
    series: tuple[Series, ...]
    words: str
    is_log: bool = False
    limit: tuple[str, float] | None = None
    is_square: bool = False
    is_privacy: bool = False


@final
@dataclass(frozen=True)
class RunReport:
    """All that is reported of a run; made by `run_report`.

    Attributes:
        name: of the folder.
        run: what the run is called in its ledger, or None if that is not known.
        state: "ended", "open", or "unknown" without a ledger that can be read.
        alarms: what does not fit together, is damaged or is missing, loudest first.
        claim: the claim.
        stated: what the statement speaks of, or None if too little is known.
        planned_steps: T of the plan, if it is known.
        paid_steps: how many steps the ledger has, if it can be read.
        recorded_steps: how many steps result.json has, lost ones included, if the run is over.
        plan_text: the plan in words.
        plan_fingerprint: of the plan that the run began with.
        last_fingerprint: of the plan that it ended with.
        replanned: how often it went on with another plan.
        seed: its seed, if it has one and that is known.
        averaging: "ema", "tail", "none", or None if that was not recorded.
        history: the points that were recorded.
        metrics: measured last on public data.
        iterate_metrics: the same without averaging.
        derived_from_private_data: what was read off the private data and is taken as public;
            None if not recorded.
        canaries: how many artificial records were offered, and how many were in, if known.
        audits: what audits have found, the oldest first.
        has_all_audits: whether every audit that was kept could be read.
        ledger: its summary, as ``dither ledger show --json`` prints it.
        sessions: when the run began and went on, with versions; empty if not recorded.
        registered: when it was registered.
        ended: when it ended.
        model_hash: SHA-256 of model.safetensors.
        charts: what is drawn.
    """

    name: str
    run: str | None
    state: str
    alarms: tuple[str, ...]
    claim: Claim
    stated: Stated | None
    planned_steps: int | None
    paid_steps: int | None
    recorded_steps: int | None
    plan_text: str | None
    plan_fingerprint: str | None
    last_fingerprint: str | None
    replanned: int
    seed: int | None
    is_seeded: bool
    averaging: str | None
    history: tuple[Point, ...]
    metrics: dict[str, float]
    iterate_metrics: dict[str, float]
    derived_from_private_data: tuple[str, ...] | None
    canaries: tuple[int, int | None] | None
    audits: tuple[dict[str, Any], ...]
    has_all_audits: bool
    ledger: dict[str, Any] | None
    sessions: tuple[dict[str, Any], ...]
    registered: str | None
    ended: str | None
    model_hash: str | None
    charts: tuple[Chart, ...]

    @property
    def leaks(self) -> list[str]:
        """What was read off the private data, or may have been, as the statement takes it."""
        if self.derived_from_private_data is None:
            return ["it is not recorded whether anything was"]
        return [f"{what} was" for what in self.derived_from_private_data]

    @property
    def statement(self) -> list[str]:
        """The privacy statement's paragraphs, as the run itself states them; empty if unknown."""
        return [] if self.stated is None else paragraphs(self.stated, leaks=self.leaks)
