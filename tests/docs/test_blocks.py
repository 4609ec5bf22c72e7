"""Every block of Python on every page runs, and prints what the page says that it prints."""

import ast
import contextlib
import io
import itertools
import re
from pathlib import Path

import pytest
from tests.docs.pages import (
    DOCS,
    OTHERS,
    OUTPUT,
    PAGES,
    PEER_PAGES,
    START,
    blocks_of,
    name_of,
    python_of,
)

RUNNING = [page for page in [*PAGES, *OTHERS] if python_of(page) and page not in START]


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, {"__name__": "__page__"})


def test_the_user_guide_runs_in_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {*START} == {*(DOCS / "start").glob("*.md")}
    namespace: dict[str, object] = {"__name__": "__page__"}
    for page in START:
        run(page, namespace)


def run(page: Path, namespace: dict[str, object]) -> None:
    """Run the blocks of a page in order, and compare what they print with the page."""
    for block, expected in python_of(page):
        # Errors name the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)  # noqa: S102 - the site's own pages
        if expected is not None:
            assert comparable(printed.getvalue()) == comparable(expected), f"line {block.line}"


def comparable(printed: str) -> str:
    """Leave out fingerprints, which know a number to its last bit, and so the processor."""
    return re.sub(r"\b[0-9a-f]{16}\b", "…", printed.strip())


def test_pages_have_python() -> None:
    assert len(RUNNING) >= 15


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_only_the_code_of_peers_is_not_run(page: Path) -> None:
    for block in blocks_of(page):
        if block.is_of_a_peer:
            assert page.relative_to(DOCS).as_posix() in PEER_PAGES
            assert block.language == "python"
            ast.parse(block.text)
        assert block.language in {"python", "console", "text", "json"}, f"line {block.line}"
        assert block.options == "" or block.is_of_a_peer or block.options in ALLOWED[block.language]


ALLOWED = {"python": {'title="dither"'}, "text": {OUTPUT}, "console": set(), "json": set()}


def test_what_is_printed_follows_python() -> None:
    checked = 0
    for page in PAGES:
        blocks = [*blocks_of(page)]
        for before, block in itertools.pairwise(blocks):
            if block.options == OUTPUT:
                assert before.language == "python"
                assert not before.is_of_a_peer
                checked += 1
    assert checked >= 10
