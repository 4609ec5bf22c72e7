"""Peers that need other versions than dither's: each in an environment of its own, as a server."""

import json
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REQUIREMENTS = {
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn<1.7"),
    "interpret": ("interpret-core==0.7.8",),
}
SERVER = Path(__file__).with_name("peer_server.py")
Array = NDArray[Any]


class PeerError(RuntimeError):
    """What a peer raised when it was fitted."""


class Peer:
    """A library in an environment of its own, which fits and predicts on request."""

    def __init__(self, python: Path, directory: Path) -> None:
        self._python, self._directory = python, directory
        self._process: subprocess.Popen[str] | None = None

    def fit(
        self, model: str, settings: dict[str, Any], X: Array, y: Array, test_X: Array
    ) -> tuple[Array, float]:
        """Return the predictions for the test records, and the seconds of the fit.

        Args:
            model: the class, with its module.
            settings: its parameters, as JSON knows them.
            X: training records.
            y: their targets.
            test_X: test records.

        Raises:
            PeerError: what the peer raised, in one line.
        """
        split, predictions = self._directory / "split.npz", self._directory / "answer.npy"
        np.savez(split, X=X, y=y, test_X=test_X)
        paths = {"split": str(split), "answer": str(predictions)}
        process = self._running()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the server must have been opened with pipes")
        process.stdin.write(json.dumps({"model": model, "settings": settings, **paths}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            process.wait()
            raise PeerError(self._errors.read_text().strip().rpartition("\n")[2][:200])
        return np.load(predictions), json.loads(answer)["seconds"]

    def close(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.terminate()

    @property
    def _errors(self) -> Path:
        return self._directory / "errors.txt"

    def _running(self) -> "subprocess.Popen[str]":
        """Return the server, started again if an error has ended it."""
        if self._process is None or self._process.poll() is not None:
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    [self._python, str(SERVER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        return self._process


@contextmanager
def peer(library: str) -> Iterator[Peer]:
    """Make the environment ``build/LIBRARY`` if it is not there, and keep a server in it."""
    home = Path("build") / library
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS[library]], check=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(Peer(python, Path(directory))) as server,
    ):
        yield server
