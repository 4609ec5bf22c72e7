"""Rows that are clipped together, of gradients that are too large to be formed."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from dither.clipping.contributions.base import Clippable, Contribution, Records, runs_of


class Grouped(Clippable):
    """Neighbouring rows added up, different numbers of them for each record.

    The norms come from runs of records with equal numbers of rows. The sum is taken over all rows
    at once, except where a run keeps its gradients, of which its norms are.

    Args:
        part: the rows.
        counts: how many of them each record has.
        runs: the records with equal numbers of rows, those of neighbours joined.

    Example:
        >>> from dither.clipping import Outer
        >>> part = Outer(torch.ones(5, 1, 2), torch.ones(5, 1, 3)).merge(torch.tensor([1, 2, 2]))
        >>> part.norms()[0].sqrt()
        tensor([2.4495, 4.8990, 4.8990], dtype=torch.float64)
    """

    def __init__(
        self, part: Contribution, counts: Tensor, runs: Sequence[Contribution] | None = None
    ) -> None:
        if runs is None:
            runs = [_joined(part, count, rows) for count, _, rows in runs_of(counts)]
        self.part, self.counts, self.runs = part, counts, runs
        self.records, self.dtype, self.size = len(counts), part.dtype, part.size

    def norms(self) -> tuple[Tensor, Tensor | None]:
        found = [run.norms() for run in self.runs]
        hidden = [torch.zeros_like(norms) if each is None else each for norms, each in found]
        return torch.cat([norms for norms, _ in found]), torch.cat(hidden)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        of_runs = weights.split([run.records for run in self.runs])
        pairs = list(zip(self.runs, of_runs, strict=True))
        sums = [run.weighted_sum(own) for run, own in pairs if run.is_kept]
        if len(sums) < len(pairs):
            rest = [torch.zeros_like(own) if run.is_kept else own for run, own in pairs]
            of_rows = torch.cat(rest).repeat_interleave(self.counts.to(weights.device))
            sums.append(self.part.weighted_sum(of_rows))
        return sum(sums[1:], start=sums[0])

    def select(self, records: Records) -> Self:
        chosen = torch.zeros(self.records, dtype=torch.bool)
        chosen[records if isinstance(records, slice) else records.cpu()] = True
        of_runs = chosen.split([run.records for run in self.runs])
        runs = [
            run.select(own.nonzero().squeeze(1))
            for run, own in zip(self.runs, of_runs, strict=True)
            if own.any()
        ]
        rows = chosen.repeat_interleave(self.counts).nonzero().squeeze(1)
        return type(self)(self.part.select(rows), self.counts[chosen], runs)

    def double(self) -> Self:
        return type(self)(self.part.double(), self.counts, [run.double() for run in self.runs])


def _joined(part: Contribution, count: int, rows: slice) -> Contribution:
    chosen = part if rows == slice(0, part.records) else part.select(rows)
    return chosen if count == 1 else chosen.join(count)
