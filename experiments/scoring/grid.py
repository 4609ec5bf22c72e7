"""The grid: clip norm × optimizer × learning rate, searched until its optimum is interior.

Batch size, steps and averaging are the recipe's, noise is uniform and the rate falls linearly to
5 %. Each of the nine pairs of clipping and optimizer is tried once at a start rate. Those at most
`BEHIND` points behind the best go on with rates 3 times lower and higher, until the best of a pair
has a lower score on both sides. Rates √3 times lower and higher than the best of all end the
search. A trial is one training, scored on training records that nobody trains with.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product

from experiments.scoring.competitors import TRIAL_SEED, Result, Run, Setting, start_rate
from experiments.scoring.tasks import TASKS

Known = Mapping[Run, Result]
Pair = tuple[str, float, str]  # clipping, clip norm, optimizer
PAIRS: tuple[Pair, ...] = tuple(
    (clipping, clip_norm, optimizer)
    for (clipping, clip_norm), optimizer in product(
        (("automatic", 1.0), ("flat", 0.1), ("flat", 1.0)), ("momentum", "adam", "sgd")
    )
)
FACTOR, BEHIND, FARTHEST = 3.0, 10.0, 6


def climb(scores: Mapping[int, float]) -> list[int]:
    """Return the places to try next, in steps from the start; none if the best has both sides.

    Example:
        >>> climb({}), climb({0: 5.0}), climb({0: 5.0, -1: 3.0, 1: 6.0})
        ([0], [-1, 1], [2])
        >>> climb({0: 5.0, -1: 3.0, 1: 4.0})
        []
    """
    if not scores:
        return [0]
    best = max(scores, key=lambda place: (scores[place], -abs(place)))
    return [p for p in (best - 1, best + 1) if p not in scores and abs(p) <= FARTHEST]


class Grid:
    """The trials of one task at one ε.

    Args:
        task: its name.
        epsilon: ε.
        known: the finished runs; a run of the recipe must be among them.
    """

    def __init__(self, task: str, epsilon: float, known: Known) -> None:
        self._task, self._epsilon, self._known = task, epsilon, known
        recipe = next(
            result.settings
            for run, result in known.items()
            if (run.task, run.epsilon, run.competitor) == (task, epsilon, "recipe")
        )
        self._base = Setting(
            recipe["batch_size"], recipe["steps"], 1.0, "flat", "sgd", 1.0, 0.05, "uniform",
            recipe["averaging"],
        )  # fmt: skip

    def trial(self, pair: Pair, place: float) -> Run:
        """Return the training of a pair at the start rate times 3 to the power of the place."""
        clipping, clip_norm, optimizer = pair
        start = _start(self._task, self._epsilon, self._base, clip_norm, optimizer)
        setting = replace(
            self._base, clipping=clipping, clip_norm=clip_norm, optimizer=optimizer,
            learning_rate=float(f"{start * FACTOR**place:.3g}"),
        )  # fmt: skip
        return Run(self._task, self._epsilon, "grid", TRIAL_SEED, setting)

    def missing(self) -> list[Run]:
        """Return the trials that can be run now; none if the search has ended."""
        starts = [self.trial(pair, 0) for pair in PAIRS]
        if missing := [run for run in starts if run not in self._known]:
            return missing
        steps = [self.trial(pair, p) for pair in self.followed() for p in climb(self._scores(pair))]
        return steps or [run for run in self._last() if run not in self._known]

    def followed(self) -> list[Pair]:
        """Return the pairs whose start is not far behind the best start."""
        starts = {pair: self._known[self.trial(pair, 0)].score for pair in PAIRS}
        return [pair for pair in PAIRS if starts[pair] >= max(starts.values()) - BEHIND]

    def _scores(self, pair: Pair) -> dict[int, float]:
        tried = {p: self.trial(pair, p) for p in range(-FARTHEST, FARTHEST + 1)}
        return {p: self._known[run].score for p, run in tried.items() if run in self._known}

    def _best_place(self) -> tuple[Pair, int]:
        scores = {
            (pair, place): score
            for pair in self.followed()
            for place, score in self._scores(pair).items()
        }
        return max(scores, key=lambda where: scores[where])

    def _last(self) -> list[Run]:
        pair, place = self._best_place()
        return [self.trial(pair, place + offset) for offset in (-0.5, 0.5)]

    def best(self) -> Run | None:
        """Return the trial with the best score, or None while the search goes on."""
        if self.missing():
            return None
        tried = [self.trial(*self._best_place()), *self._last()]
        return max(tried, key=lambda run: self._known[run].score)

    def is_interior(self) -> bool:
        """Return whether the best rate has a lower one and a higher one beside it."""
        return abs(self._best_place()[1]) < FARTHEST

    def trials(self) -> int:
        """Return the number of trainings that the search has cost."""
        return sum(
            (run.task, run.epsilon, run.competitor, run.seed)
            == (self._task, self._epsilon, "grid", TRIAL_SEED)
            for run in self._known
        )


@cache
def _start(task: str, epsilon: float, base: Setting, clip_norm: float, optimizer: str) -> float:
    return start_rate(base, optimizer, clip_norm, task=TASKS[task], epsilon=epsilon)
