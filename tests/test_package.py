import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dither

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run_python(code: str, folder: Path | None = None) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=folder
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


def test_one_version() -> None:
    assert f'version = "{dither.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_the_readmes_improvements_are_what_the_library_computes() -> None:
    rows = re.findall(r"^\| ([\d,]+) \| \d+ \| ([\d.]+) \|$", README, re.MULTILINE)
    assert [int(steps.replace(",", "")) for steps, _ in rows] == [11_760, 23_520, 39_200]
    for steps, factor in rows:
        eta = dither.schedules.InverseSqrt(20).stepsizes(int(steps.replace(",", "")))
        assert f"{dither.theory.improvement(eta):.4f}" == factor


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_readmes_python_runs(block: str, tmp_path: Path) -> None:
    assert run_python(block, tmp_path).strip()


def test_the_readme_has_python() -> None:
    assert len(BLOCKS) >= 8
