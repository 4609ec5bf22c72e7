"""The acceptance cases of loops and models, which know nothing of the library's insides.

They are a suite of their own, with a conftest.py and imports from their folder, so that each file
runs in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = os.environ.get("DITHER_CASES", "")
LINES = 60


@pytest.mark.skipif(not CASES, reason="DITHER_CASES names no folder")
@pytest.mark.parametrize("name", ["test_loops.py", "test_models.py"])
def test_every_case_ends_as_it_should(name: str) -> None:
    folder = Path(CASES).resolve()
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder / name)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = "\n".join((done.stdout + done.stderr).splitlines()[-LINES:])
    assert done.returncode == pytest.ExitCode.OK, told
