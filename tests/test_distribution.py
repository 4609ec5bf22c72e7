"""The wheel and the sdist: complete, without files that users do not need, and working."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMOKE = """
import dither, pathlib, sys
assert pathlib.Path(dither.__file__).is_relative_to(sys.prefix), dither.__file__
plan = dither.plan(epsilon=3.0, delta=1e-5, dataset_size=1438, batch_size=128, steps=10)
digits = dither.data.load("digits")
model = dither.training.MODELS["linear"]((1, 8, 8), 10)
result = dither.train(model, digits.train, plan, evaluate=dither.Public(digits.test))
print(result.steps, result.bound.epsilon <= 3.0)
"""


def run(*command: str | Path, cwd: Path) -> str:
    # No data directory: dither doctor would load every set that it finds.
    env = {**os.environ, "DITHER_DATA": str(cwd / "no-data"), "PYTHONPATH": ""}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=cwd, env=env, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel, and the sdist that it was made from."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ".", cwd=ROOT)
    return folder


def environment(folder: Path) -> Path:
    """Return the interpreter of a new environment, without anything of this one."""
    venv.create(folder)
    return folder / "bin" / "python"


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {Path(name).parts[0].split("-")[0] for name in names} == {"dither"}
    inside = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.*")}
    wanted = {
        name for name in inside if "__pycache__" not in name and not (ROOT / "src" / name).is_dir()
    }
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert "dither/py.typed" in names


def test_the_page_of_the_package_has_the_readme_without_links_that_lead_nowhere(
    built: Path,
) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        page = archive.read(name).decode("utf-8").partition("\n\n")[2]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = [line for line in readme.splitlines() if line.startswith("#")]
    assert [line for line in page.splitlines() if line.startswith("#")] == headings
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert [link for link in links if not link.startswith(("https://", "http://"))] == []


def test_the_sdist_has_what_its_tests_need(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "ls-files", cwd=ROOT).splitlines() if (ROOT / ".git").exists() else []
    left_out = {name for name in tracked if not name.startswith(".")} - names
    assert not left_out
    assert "README.md" in names
    assert not [name for name in names if name.startswith((".git/", ".venv", "site/"))]


def test_the_wheel_works_by_itself(built: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "new")
    # What dither depends on is borrowed from here: an added folder's own .pth files are not read,
    # so that the package that is under development stays out of sight.
    (site,) = (tmp_path / "new").glob("lib/python*/site-packages")
    here = next(Path(each) for each in sys.path if each.endswith("site-packages"))
    (wheel,) = built.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", python, "install")
    run(*pip, "--no-deps", "--no-index", "--no-compile", wheel, cwd=tmp_path)
    (site / "borrowed.pth").write_text(f"{here}\n", encoding="utf-8")
    assert run(python, "-c", SMOKE, cwd=tmp_path).split() == ["10", "True"]
    command = tmp_path / "new" / "bin" / "dither"
    assert run(command, "--version", cwd=tmp_path).startswith("dither ")


@pytest.mark.evidence
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_a_clean_environment(built: Path, tmp_path: Path, kind: str) -> None:
    python = environment(tmp_path / "new")
    (made,) = built.glob(kind)
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    run(*pip, "-c", ROOT / "constraints.txt", made, cwd=tmp_path)
    assert run(python, "-c", SMOKE, cwd=tmp_path).split() == ["10", "True"]
    run(tmp_path / "new" / "bin" / "dither", "doctor", cwd=tmp_path)
