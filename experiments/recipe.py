"""Claim: dither's recipe, given ε and nothing else, is near the best of a grid on unseen tasks.

The protocol: the rule of `dither.recipe` was developed on the development tasks only, its constants
were frozen in a commit, which the records name, and then it was scored once on the held-out tasks
(`experiments.scoring.tasks` has both). ε = 1, 3 and 8 at δ = 1/(10·n), five seeds, intervals of
95 %. All competitors take the same number of record-gradients (batch size × steps), the same
models from the same initial parameters, and the same engine:

- recipe: `dither.recipe` with ``compute=``; with ``--tuned`` also with ``tune=0.1``, which pays for
  its search out of the same ε and takes a quarter more record-gradients; for classes only.
- grid: the best of clip norm × optimizer × learning rate (`experiments.scoring.grid`), chosen on
  5,000 other training records (288 for digits) with one seed; that search is not charged to ε.
- defaults: the fixed numbers of ``dither train`` in version 0.1.
- opacus: the settings of the nearest of Opacus' examples, with uniform noise.

Scores are points: accuracy, for census income (6 % are positive) AUC, for diamonds R². The records
that are drawn from the sets are fixed: intervals are over initial parameters, batches and noise.

Run by ``make recipe`` (or ``python -m experiments.recipe --tasks heldout --jobs 2``) with the sets
in ``$DITHER_DATA``: about an hour of two cores. Every run is saved as it ends, and a second call
goes on where the first was left. Held-out records of another rule are refused. ``--summary`` writes
the tables to records/ and the pictures to docs/images/recipe/.
"""

import argparse
import hashlib
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from itertools import islice, product
from pathlib import Path
from typing import Any

from benchmarks.recording import origin

import dither
from dither.progress import Progress
from dither.reports import save_figure
from dither.validate import InvalidValueError
from experiments.scoring import summary
from experiments.scoring.competitors import (
    FIXED,
    TUNED,
    Result,
    Run,
    describe,
    recipe_of,
    train,
)
from experiments.scoring.grid import PAIRS, Grid
from experiments.scoring.store import Store
from experiments.scoring.tasks import GROUPS, Task

RECORDS = Path(__file__).parent / "records"
PICTURES = Path(__file__).parents[1] / "docs" / "images" / "recipe"
EPSILONS, SEEDS = (1.0, 3.0, 8.0), 5
_ORDER = (3.0, 8.0, 1.0)  # a call that is interrupted has the middle ε of all tasks first
_PACKAGES = ("torch", "numpy", "scikit-learn")
_TRIALS = 4 * len(PAIRS)  # about how many trainings a grid takes


def wanted(
    task: Task, epsilon: float, known: Mapping[Run, Result], *, seeds: int, tuned: bool
) -> list[Run]:
    """Return the runs of a task at an ε that are missing and can be run now."""
    can_be_tuned = task.loss == "cross_entropy"
    names = ("recipe", *FIXED, *((TUNED,) if tuned and can_be_tuned else ()))
    runs = [Run(task.name, epsilon, name, seed) for name in names for seed in range(1, seeds + 1)]
    if runs[0] in known:
        grid = Grid(task.name, epsilon, known)
        runs += grid.missing()
        best = grid.best()
        if best is not None:
            runs += [
                Run(task.name, epsilon, "grid", seed, best.setting) for seed in range(1, seeds + 1)
            ]
    return [run for run in runs if run not in known]


def check_rule(tasks: Sequence[Task], known: dict[Run, Result], *, is_frozen: bool) -> None:
    """Compare the recipes of finished runs with those that the rule gives now.

    Of a rule that is still developed the older runs are dropped; a frozen one must not change.
    """
    names = {task.name for task in tasks}
    for run in [run for run in known if run.competitor == "recipe" and run.task in names]:
        now, then = describe(recipe_of(run)), known[run].settings
        if now == then:
            continue
        if is_frozen:
            raise InvalidValueError(
                f"records must be of one rule, but for {run.task} at ε = {run.epsilon:g} the "
                f"recipe was {then} and is {now} now"
            )
        del known[run]


def run_missing(
    tasks: Sequence[Task], store: Store, header: dict[str, Any], *, is_frozen: bool,
    epsilons: Sequence[float] = _ORDER, seeds: int = SEEDS, jobs: int = 2, tuned: bool = False,
) -> dict[Run, Result]:  # fmt: skip
    """Run what is missing, several at a time, and save each as it ends."""
    known = store.read()
    check_rule(tasks, known, is_frozen=is_frozen)
    store.begin(header)

    def missing(running: Sequence[Run]) -> Iterator[Run]:
        for epsilon, task in product(epsilons, tasks):
            runs = wanted(task, epsilon, known, seeds=seeds, tuned=tuned)
            yield from (run for run in runs if run not in running)

    total = len(epsilons) * len(tasks) * ((4 + tuned) * seeds + _TRIALS) - len(known)
    running: dict[Future[Result], Run] = {}
    with (
        _make_pool(jobs) as pool,
        Progress("scoring", max(total, 1)) as progress,
    ):
        while True:
            free = jobs + 1 - len(running)  # one waits, so that no process does
            for run in list(islice(missing([*running.values()]), free)):
                running[pool.submit(train, run)] = run
            if not running:
                return known
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                run = running.pop(future)
                known[run] = future.result()
                store.add(run, known[run])
                progress.update(None, lambda run=run: _progress_text(run, known[run]))  # type: ignore[misc]


def _make_pool(jobs: int) -> Executor:
    """Return processes, or for a single job a thread of this one."""
    if jobs == 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _progress_text(run: Run, result: Result) -> str:
    return f"{run.task} ε = {run.epsilon:g} {run.competitor}: {result.score:.1f}"


def make_header(command: str, *, is_frozen: bool) -> dict[str, Any]:
    """Return the command, the commit, the versions, the seeds and the rule's file.

    Raises:
        InvalidValueError: if the rule is to be scored and dither differs from the commit.
    """
    header = origin(command, _PACKAGES)
    if is_frozen and any(name.startswith("src/") for name in header.get("changed", [])):
        raise InvalidValueError(
            f"the rule must be committed before it is scored, but {header['changed']} differ"
        )
    training = Path(dither.__file__).parent / "training"
    rule = {
        name: hashlib.sha256((training / name).read_bytes()).hexdigest()
        for name in ("rule.py", "optimizers.py", "synthetic.py")
    }
    return {**header, "seeds": SEEDS, "rule": rule}


def write_summary(group: str, store: Store, *, seeds: int = SEEDS) -> str:
    """Write the tables and draw the pictures; return the tables."""
    found = summary.cells(GROUPS[group], EPSILONS, seeds, store.read())
    if not found:
        raise InvalidValueError(f"{store.path} must have a task whose runs are all finished")
    commits = sorted({header["commit"] for header in store.headers()})
    text = (
        f"`python -m experiments.recipe --tasks {group}`, commit {', '.join(commits)}: "
        f"{len(found)} of {len(GROUPS[group]) * len(EPSILONS)} cells, {seeds} seeds, means with "
        f"95 % intervals.\n\n{summary.goals(found)}\n{summary.table(found)}"
    )
    store.path.with_suffix(".md").write_text(text, encoding="utf-8")
    pictures = PICTURES if store.path.parent == RECORDS else store.path.parent
    pictures.mkdir(exist_ok=True)
    for task in GROUPS[group]:
        of_task = [each for each in found if each.task == task]
        if of_task:
            save_figure(summary.draw(of_task), pictures / f"{task.name}.png")
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(prog="python -m experiments.recipe")
    parser.add_argument("--tasks", choices=tuple(GROUPS), default="heldout")
    parser.add_argument("--only", nargs="*", default=[], metavar="TASK", help="names of tasks")
    parser.add_argument("--epsilons", nargs="*", type=float, default=_ORDER, metavar="ε")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    parser.add_argument("--tuned", action="store_true", help="also the recipe with tune=0.1")
    parser.add_argument("--summary", action="store_true", help="tables and pictures of what is run")
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR")
    given = parser.parse_args(arguments)
    store = Store(given.records / f"recipe_{given.tasks}.jsonl")
    if not given.summary:
        is_frozen = given.tasks == "heldout"
        names = given.only or [task.name for task in GROUPS[given.tasks]]
        tasks = [task for task in GROUPS[given.tasks] if task.name in names]
        tuned = " --tuned" if given.tuned else ""
        command = f"python -m experiments.recipe --tasks {given.tasks}{tuned}"
        run_missing(
            tasks, store, make_header(command, is_frozen=is_frozen), is_frozen=is_frozen,
            epsilons=given.epsilons, jobs=given.jobs, tuned=given.tuned,
        )  # fmt: skip
    print(write_summary(given.tasks, store))


if __name__ == "__main__":
    main()
