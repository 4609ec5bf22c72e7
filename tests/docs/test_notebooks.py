"""The notebook runs, and what it shows depends on no machine."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tests.docs.pages import DOCS

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
PATHS = re.compile(r"(?:/home|/Users|/root|/tmp|/work|/usr|/opt|site-packages|[A-Z]:\\)")


def read(path: Path) -> nbformat.NotebookNode:
    found: nbformat.NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return found


def stem_of(path: Path) -> str:
    return path.stem


def test_there_is_one() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["planning"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem_of)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    saved = read(path)
    fresh = read(path)
    client = NotebookClient(
        fresh, kernel_name="python3", timeout=300, coalesce_streams=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )  # fmt: skip
    client.execute()
    assert not [*tmp_path.iterdir()]
    assert printed(fresh) == printed(saved)


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what the cells print, without fingerprints, which know a number to its last bit."""
    texts = [
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    return [re.sub(r"\b[0-9a-f]{16}\b", "…", text) for text in texts]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=stem_of)
def test_a_notebook_was_run_and_has_no_paths(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert sum(bool(cell.outputs) for cell in cells) >= 4
    for text in printed(notebook):
        assert not PATHS.search(text), text
    assert {output.output_type for cell in cells for output in cell.outputs} == {
        "stream",
        "execute_result",
    }
