import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest

import dither

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SUBPACKAGES = (
    *(name for name in dither.__all__ if isinstance(getattr(dither, name), ModuleType)),
    "integrations.opacus",
    "integrations.transformers",
)
WAYS = ("dither", "Opacus hooks", "Opacus functorch", "Opacus ghost")
METHODS = ("dither", "private EBM", "diffprivlib", "linear, not private", "base rate")


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_import_is_light() -> None:
    loaded = json.loads(run_python("import dither, sys, json; print(json.dumps([*sys.modules]))"))
    assert not {"torch", "scipy", "matplotlib", "rich"} & set(loaded)


def test_the_torch_free_half_needs_no_torch() -> None:
    code = (
        "import dither, sys;"
        "eta = dither.schedules.InverseSqrt().stepsizes(10);"
        "dither.theory.improvement(eta, dither.noise.Matched().alphas(eta));"
        "print('torch' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


def test_public_names() -> None:
    for name in dither.__all__:
        assert name in dir(dither)
        assert getattr(dither, name) is not None
    with pytest.raises(AttributeError, match="module 'dither' has no attribute 'nothing'"):
        _ = dither.nothing


def public_names() -> Iterator[tuple[str, object]]:
    """Yield what users of the subpackages type, but for constants and errors."""
    for module in ("", *(f".{name}" for name in SUBPACKAGES)):
        package = import_module(f"dither{module}")
        for name in package.__all__:
            value = getattr(package, name)
            is_error = isinstance(value, type) and issubclass(value, BaseException)
            if callable(value) and not is_error:
                yield f"{package.__name__}.{name}", value


@pytest.mark.parametrize(("name", "value"), [*public_names()])
def test_every_public_name_has_an_example(name: str, value: object) -> None:
    assert ">>>" in (inspect.getdoc(value) or "")


def test_one_version() -> None:
    assert f'version = "{dither.__version__}"' in (ROOT / "pyproject.toml").read_text()


def results(name: str) -> dict[str, Any]:
    text = (ROOT / "benchmarks/results" / f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["results"]
    return found


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def ranking_and_loss(by_epsilon: dict[str, Any]) -> str:
    """Return AUC and log loss at ε = 1, or without privacy."""
    cell = by_epsilon["none" if "none" in by_epsilon else "1"]
    return f"{mean(cell['auc']):.3f}, {mean(cell['log_loss']):.3f}"


def readme_tables() -> Iterator[str]:
    """Yield the rows of README's tables, made anew from the records."""
    sizes = {"transformer": 64}
    for model, speed in results("clipping")["speed"].items():
        own, *others = (f"{speed['times plain'][way]:.2f}" for way in WAYS)
        yield row(f"{model}, {sizes.get(model, 256)}", f"**{own}**", *others)
    own, *others = results("accounting")["seconds"].values()
    yield row("seconds", f"**{own:.2f}**", *(f"{each:.0f}" for each in others))
    tables = results("tables")["tables"]
    for table in ("adult", "census income", "breast cancer", "linear, 5 %", "curved"):
        own, *others = (ranking_and_loss(tables[table]["methods"][method]) for method in METHODS)
        yield row(table, f"{tables[table]['records']:,}", f"**{own}**", *others)


@pytest.mark.parametrize("line", [*readme_tables()])
def test_the_readmes_numbers_are_those_of_the_records(line: str) -> None:
    assert line in README.splitlines()


def test_the_readme_says_how_much_less_noise() -> None:
    left = [cell["optimal"] for cell in results("shaping").values()]
    less = f"{100 * (1 - max(left)):.0f} to {100 * (1 - min(left)):.0f} % less noise"
    assert f"{less} in the parameters" in " ".join(README.split())
    assert f"in {len(left)} settings" in README


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_readmes_python_runs(
    block: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.strip()


def test_the_readme_has_python() -> None:
    assert len(BLOCKS) >= 3
