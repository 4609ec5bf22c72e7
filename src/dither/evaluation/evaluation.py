"""The result of a paid evaluation."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dither.evaluation.cells import CalibrationBin, Metrics, OperatingPoint
from dither.evaluation.estimates import Estimate
from dither.ledger.files import write_atomic
from dither.training.run_directory import ABOUT, EVALUATION
from dither.types import PrivacyBound
from dither.validate import InvalidValueError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMAT = "dither-evaluation-1"
_LABELS = {
    "records": "records",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "base_log_loss": "log loss of the base rate",
    "brier_score": "Brier score",
    "mse": "mean squared error",
    "rmse": "its root",
    "mae": "mean absolute error",
    "r2": "R²",
}
_BLUE, _GREY = "#0072B2", "#888888"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Metrics):
    """How good a model is on private records, with noise; made by `evaluate`.

    Every `Estimate` has a 95 % interval for the value in the population that the records are a
    sample of: it covers the variation of the sample and the noise. With users it is for a row that
    is drawn at random from a user who is, and covers at least as often. What a release does not
    tell is None or empty. All of it is post-processing of one release, and nothing else of the
    records.

    Attributes:
        privacy: what the release costs.
        noise: standard deviation of the noise in each sum.
        classes: the classes of a classifier, the positive one last if there are two.
        is_seeded: whether the noise can be repeated by those who know the seed: then nothing is
            private.
        run: the name of the release in its ledger; None without one.

    Example:
        >>> from dither.types import PrivacyBound
        >>> bound = PrivacyBound(1.0, 1e-5, "pld", "full", "add-remove")
        >>> found = Evaluation(
        ...     Estimate(100.0, 90.0, 110.0), accuracy=Estimate(0.8, 0.7, 0.9), privacy=bound,
        ...     noise=4.0, classes=("no", "yes"),
        ... )
        >>> Evaluation.from_json(found.to_json()) == found
        True
    """

    privacy: PrivacyBound
    noise: float
    classes: tuple[Any, ...] = ()
    is_seeded: bool = False
    run: str | None = field(default=None, compare=False)

    @property
    def base_rate(self) -> Estimate | None:
        """The share of the positive class, of two."""
        return self.class_shares[1] if len(self.class_shares) == 2 else None

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, allow_nan=False)

    def save(self, directory: str | Path) -> None:
        """Write evaluation.json to the run directory of the model, whose report then has it."""
        path = Path(directory)
        if not (path / ABOUT).exists():
            raise InvalidValueError(
                f"directory must be the run directory of a saved model, got {str(directory)!r}"
            )
        write_atomic(path / EVALUATION, self.to_json().encode())

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Return an evaluation from what `to_json` gave."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
            raise InvalidValueError(f"text must be an evaluation of format {_FORMAT}")
        values["privacy"] = PrivacyBound(**values["privacy"])
        values["classes"] = tuple(values["classes"])
        for name in _LABELS:
            if values[name] is not None:
                values[name] = Estimate(**values[name])
        values["class_shares"] = tuple(Estimate(**each) for each in values["class_shares"])
        values["confusion_matrix"] = tuple(
            tuple(Estimate(**each) for each in row) for row in values["confusion_matrix"]
        )
        values["calibration"] = tuple(
            CalibrationBin(**{**each, "observed": Estimate(**each["observed"])})
            for each in values["calibration"]
        )
        values["roc"] = tuple(
            OperatingPoint(
                each["threshold"],
                Estimate(**each["true_positive_rate"]),
                Estimate(**each["false_positive_rate"]),
            )
            for each in values["roc"]
        )
        return cls(**values)

    def __str__(self) -> str:
        labels = {**_LABELS, "records": f"{self.privacy.unit}s"}
        rows = [(labels[each.name], getattr(self, each.name)) for each in fields(self)
                if each.name in labels]  # fmt: skip
        if self.base_rate is not None:
            rows.append((f"share of {self.classes[-1]!r}", self.base_rate))
        shown = [(label, value) for label, value in rows if value is not None]
        width = max(len(label) for label, _ in shown)
        lines = [f"{label:<{width}}  {_short(value)}" for label, value in shown]
        seeded = " SEEDED: not private." if self.is_seeded else ""
        return "\n".join([*lines, f"{self.privacy}{seeded}"])

    def plot(self) -> "Figure":
        """Draw the calibration curve and, for two classes, the ROC curve, with 95 % intervals.

        `dither.reports.save_figure` writes the figure to a file.
        """
        if not self.calibration:
            raise InvalidValueError("plot needs an evaluation of a classifier, got a regressor's")
        from matplotlib.figure import Figure

        count = 2 if self.roc else 1
        figure = Figure(figsize=(5.2 * count, 4.6), layout="constrained")
        axes = np.atleast_1d(figure.subplots(1, count))
        self._draw_calibration(axes[0])
        if self.roc:
            self._draw_roc(axes[1])
        for each in axes:
            each.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8)
            each.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        return figure

    def _draw_calibration(self, axes: "Axes") -> None:
        # Where noise hides a bin, its interval is most of the axis, and shows nothing.
        bins = [each for each in self.calibration if each.observed.high - each.observed.low < 0.5]
        for each in bins:
            axes.fill_between(
                [each.low, each.high], each.observed.low, each.observed.high,
                color=_BLUE, alpha=0.25, linewidth=0,
            )  # fmt: skip
        x, y = [each.predicted for each in bins], [each.observed.value for each in bins]
        axes.plot(x, y, color=_BLUE, marker="o", markersize=3)
        of = "positive" if self.roc else "predicted"
        axes.set(
            title="calibration",
            xlabel=f"predicted probability of the {of} class",
            ylabel="observed share",
        )

    def _draw_roc(self, axes: "Axes") -> None:
        ends = (Estimate(1.0, 1.0, 1.0),), (Estimate(0.0, 0.0, 0.0),)
        rates = [
            [*ends[0], *(getattr(point, name) for point in self.roc), *ends[1]]
            for name in ("false_positive_rate", "true_positive_rate")
        ]
        # The corners that are worst and best for both rates at once.
        worst = [[each.high for each in rates[0]], [each.low for each in rates[1]]]
        best = [[each.low for each in rates[0]], [each.high for each in rates[1]]]
        outline = [[*low, *high[::-1]] for low, high in zip(worst, best, strict=True)]
        axes.fill(*outline, color=_BLUE, alpha=0.25, linewidth=0)
        axes.plot(*([each.value for each in rate] for rate in rates), color=_BLUE)
        auc = "" if self.auc is None else f": AUC {self.auc}"
        axes.set(title=f"ROC{auc}", xlabel="false positive rate", ylabel="true positive rate")


def _short(value: Estimate) -> str:
    """Return an estimate with enough digits for its interval."""
    width = max(value.high - value.low, 1e-12)
    digits = int(np.clip(1 - np.floor(np.log10(width)), 0, 6))
    numbers = (f"{each:,.{digits}f}" for each in (value.value, value.low, value.high))
    return "{} [{}, {}]".format(*numbers)
