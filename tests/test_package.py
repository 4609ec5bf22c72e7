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


def readme_figures() -> Iterator[str]:
    """Yield the rows of README's figures, made anew from the records."""
    times = results("models")["speed"]["ResNet-18-GN"]["times plain"]
    own, peers = times.pop("dither"), {way: each for way, each in times.items() if way != "plain"}
    best = min(peers, key=lambda way: float(peers[way]))
    yield row(
        "time of a private step of a ResNet-18, times a plain one",
        f"**{own:.2f}**",
        f"{peers[best]:.2f} ({best})",
        "`python -m benchmarks.models`",
    )
    own, other, _ = results("accounting")["seconds"].values()
    yield row(
        "seconds to compute ε of 39,200 steps with as many noise levels",
        f"**{own:.2f}**",
        f"{other:.0f} (dp-accounting)",
        "`python -m benchmarks.accounting`",
    )
    methods = results("tables")["tables"]["adult"]["methods"]
    own, other = (ranking_and_loss(methods[method]) for method in ("dither", "private EBM"))
    yield row(
        "AUC and log loss on the Adult table at ε = 1",
        f"**{own}**",
        f"{other} (private EBM)",
        "`python -m benchmarks.tables`",
    )


@pytest.mark.parametrize("line", [*readme_figures()])
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
