"""Numbers on the pages are those of the records, and names on them are those of the code."""

import importlib
import re
from collections.abc import Callable, Iterator

import pytest
from tests.docs.pages import DOCS, PAGES
from tests.docs.tables import TABLES, results, single_numbers

CASES = [(page, table) for page, tables in TABLES.items() for table in tables]


@pytest.mark.parametrize(("page", "table"), CASES, ids=[table.__name__ for _, table in CASES])
def test_a_table_is_what_the_record_says(page: str, table: Callable[[], Iterator[str]]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    rows = [*table()]
    assert len(rows) > 1
    assert "\n".join(rows) in text


@pytest.mark.parametrize("name", single_numbers())
def test_a_sentence_is_what_the_record_says(name: str) -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert single_numbers()[name] in " ".join(text.split())


def test_what_optimal_noise_saves() -> None:
    cells = results("shaping").values()
    assert max(cell["optimal"] for cell in cells) < 1.0
    saved = [100 * cell["epsilon saved"] for cell in cells]
    text = " ".join((DOCS / "why.md").read_text(encoding="utf-8").split())
    assert f"costs {min(saved):.0f} to {max(saved):.0f} % less ε" in text
    assert f"in all {len(saved)} cells" in text


def resolved(name: str) -> object:
    """Return what a dotted name stands for."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


NAME = re.compile(r"`(dither(?:\.\w+)+)(?:\([^`]*\))?`")


@pytest.mark.parametrize("page", [page for page in PAGES if "reference" not in page.parts],
                         ids=lambda page: page.relative_to(DOCS).as_posix())  # fmt: skip
def test_names_on_a_page_exist(page: object) -> None:
    for name in NAME.findall(page.read_text(encoding="utf-8")):  # type: ignore[attr-defined]
        assert resolved(name) is not None


def test_every_statement_of_the_paper_is_on_its_page() -> None:
    theory = importlib.import_module("dither.theory")
    named = {*NAME.findall((DOCS / "paper.md").read_text(encoding="utf-8"))}
    functions = {name for name in theory.__all__ if name[0].islower()}
    assert len(functions) > 10
    assert {f"dither.theory.{name}" for name in functions} <= named


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AttributeError):
        resolved("dither.theory.no_such_lemma")
