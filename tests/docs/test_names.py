"""Names on the pages are those of the code."""

import importlib
import re
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, PAGES, ROOT, name_of


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
                         ids=name_of)  # fmt: skip
def test_names_on_a_page_exist(page: Path) -> None:
    for name in NAME.findall(page.read_text(encoding="utf-8")):
        assert resolved(name) is not None


def test_every_statement_of_the_paper_is_on_its_page() -> None:
    theory = importlib.import_module("dither.theory")
    named = {*NAME.findall((DOCS / "paper.md").read_text(encoding="utf-8"))}
    functions = {name for name in theory.__all__ if name[0].islower()}
    assert len(functions) > 10
    assert {f"dither.theory.{name}" for name in functions} <= named


def test_files_that_the_organisation_names_exist() -> None:
    text = (DOCS / "organisation.md").read_text(encoding="utf-8")
    start, end = text.index("To follow one step"), text.index("## Documentation")
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", text[start:end])
    assert len(paths) > 30
    assert not [path for path in paths if not (ROOT / "src/dither" / path).exists()]


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AttributeError):
        resolved("dither.theory.no_such_lemma")
