"""Runs that the tests of reports share."""

import shutil
from pathlib import Path

import pytest
from tests.reports.run_directories import public, reactive, trained

from dither.schedules import AdaGradNorm


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory to read."""
    directory = tmp_path_factory.mktemp("runs") / "finished"
    trained(directory, evaluate=public(), averaging="ema")
    return directory


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A run directory to damage."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture(scope="session")
def adaptive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a plan with reactive step sizes and a filter."""
    directory = tmp_path_factory.mktemp("runs") / "adaptive"
    trained(directory, reactive(AdaGradNorm(b0_squared=4.0, nu=0.01), "filter"))
    return directory
