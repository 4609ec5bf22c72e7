"""Means, gaps and agreement, and the paper's numbers as they are read."""

import math
from pathlib import Path

import pytest
from experiments.reproduction.paper import Cell, read_paper
from experiments.reproduction.summaries import (
    Agreement,
    Gap,
    Summary,
    format_entry,
    gap,
    markdown_table,
)


def summary(*values: float, first: int = 0, wanted: int = 3) -> Summary:
    return Summary(dict(enumerate(values, start=first)), wanted)


def test_means_and_spreads() -> None:
    found = summary(60.0, 61.0, 62.0)
    assert (found.mean, found.sd, str(found)) == (61.0, 1.0, "61.00 ± 1.00")
    assert str(summary(60.0, wanted=1)) == "60.00"
    assert str(summary(60.0, 61.0)) == "60.50 ± 0.71 (2 of 3 seeds)"


def test_gaps_are_paired_by_seed() -> None:
    ahead = gap(summary(60.0, 61.0, 62.0), summary(59.0, 60.0, 61.5))
    assert ahead is not None
    assert math.isclose(ahead.mean, 2.5 / 3.0)
    assert math.isclose(ahead.error, math.sqrt(((1 / 6) ** 2 * 2 + (1 / 3) ** 2) / 2 / 3))
    assert str(ahead) == "+0.83 ± 0.17"
    assert str(gap(summary(60.0), summary(61.0))) == "-1.00"


def test_only_seeds_that_both_have_make_a_gap() -> None:
    found = gap(summary(50.0, 60.0, first=0), summary(58.0, 90.0, first=1))
    assert found is not None
    assert found.mean == 2.0
    assert gap(summary(50.0, first=0), summary(40.0, first=1)) is None
    assert gap(None, summary(50.0)) is None


def test_agreement_counts_signs_and_ranks_of_the_cells_that_both_have() -> None:
    ours = [Gap(1.0, 0.1), Gap(-1.0, 0.6), Gap(3.0, 0.1), None, Gap(2.0, 0.1)]
    found = Agreement.of([*zip(ours, [2.0, 0.5, 9.0, 1.0, None], strict=True)])
    assert (found.same_sign, len(found.ours)) == (2, 3)
    assert (found.clear.same_sign, len(found.clear.ours)) == (2, 2)
    assert math.isclose(found.rank_correlation, 1.0)
    assert "in 2 of 3 cells (2 of the 2 in which" in str(found)
    assert str(found).endswith("rank correlation of the gaps 1.00")
    upside_down = Agreement.of([(Gap(float(i), 0.1), 3.0 - i) for i in range(3)])
    assert math.isclose(upside_down.rank_correlation, -1.0)
    assert math.isnan(Agreement.of([(Gap(1.0, 0.1), float(i)) for i in range(3)]).rank_correlation)
    assert str(Agreement.of([])) == "no cell is in both"


def test_a_markdown_table() -> None:
    assert (format_entry(None), format_entry(1.234, "+.1f")) == ("–", "+1.2")
    assert markdown_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n"


TABLES = "table,metric,schedule,eps_bar,algorithm,clip_norm,epochs,accuracy,std\n"
ADAPTIVE = "clip_norm,algorithm,eps_bar,accuracy,std,highest,beta,C\n"


def test_the_paper_s_slip_is_read_as_it_was_meant(tmp_path: Path) -> None:
    (tmp_path / "cifar10_tables.csv").write_text(
        TABLES + "inverse-sqrt-best,best,inverse_sqrt,0.9,adp,0.5,60,55.59,0.580\n"
    )
    (tmp_path / "cifar10_adaptive.csv").write_text(
        ADAPTIVE + "1.0,dp,0.8,56.24,0.535,57.02,1024,\n"
    )
    found = read_paper(tmp_path)
    assert found[Cell("inverse_sqrt", "best", 0.8, "adp", 0.5, 60)].mean == 55.59
    assert found[Cell("adaptive", "best", 0.8, "dp", 1.0, 60)].sd == 0.535
    with pytest.raises(ValueError, match="paper must be a directory with cifar10_tables.csv"):
        read_paper(tmp_path / "nowhere")


def test_tables_without_their_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar10_tables.csv").write_text("a,b\n1,2\n")
    (tmp_path / "cifar10_adaptive.csv").write_text(ADAPTIVE)
    with pytest.raises(ValueError, match="paper must be .* as they were published, got .*eps_bar"):
        read_paper(tmp_path)
