"""Finished runs on disk: one line each, written at once, read again after any end."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from dither.validate import InvalidValueError
from experiments.reproduction.run import Known, Outcome, Run

_NAME = "runs.jsonl"
_NEEDED = {"kind", "run", "steps", "accuracies", "epsilon", "more", "seconds"}


class Store:
    """The runs in a folder.

    Args:
        folder: where ``runs.jsonl`` is or will be.
        kinds: the classes of runs by their kinds.
    """

    def __init__(self, folder: Path, kinds: dict[str, type[Any]]) -> None:
        self._path, self._kinds = folder / _NAME, kinds

    def read(self) -> Known:
        """Return the runs that were finished; half a last line, of a killed run, is left out."""
        known: Known = {}
        for number, line in enumerate(self.lines(), start=1):
            try:
                run = _made(self._kinds[line["kind"]], line["run"])
            except (TypeError, AttributeError) as problem:
                raise self._damaged(number, str(problem)) from problem
            known[run] = Outcome(
                tuple(line["steps"]), tuple(line["accuracies"]), line["epsilon"], line["more"]
            )
        return known

    def lines(self) -> list[dict[str, Any]]:
        """Return all that was written."""
        if not self._path.exists():
            return []
        whole, _, _ = self._path.read_text(encoding="utf-8").rpartition("\n")
        return [self._line(i, text) for i, text in enumerate(whole.splitlines(), start=1)]

    def _line(self, number: int, text: str) -> dict[str, Any]:
        try:
            line = json.loads(text)
        except json.JSONDecodeError as problem:
            raise self._damaged(number, str(problem)) from problem
        if not isinstance(line, dict) or not line.keys() >= _NEEDED:
            raise self._damaged(number, f"a run has {', '.join(sorted(_NEEDED))}")
        if line["kind"] not in self._kinds:
            raise self._damaged(number, f"its kind is {line['kind']!r}")
        return line

    def _damaged(self, number: int, why: str) -> InvalidValueError:
        return InvalidValueError(
            f"out must be a folder whose {_NAME} has finished runs, got {str(self._path)!r} with "
            f"something else in line {number}: {why}"
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep every other writer out, and take away half a last line; leave no empty file."""
        folder = self._path.parent
        is_new = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            opened = self._path.open("a+b")
        except OSError as problem:
            raise InvalidValueError(
                f"out must be a folder that can be written, got {str(folder)!r}: {problem.strerror}"
            ) from problem
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as taken:
                raise InvalidValueError(
                    f"out must be a folder that no other run is writing to, got {str(folder)!r}"
                ) from taken
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            try:
                yield
            finally:
                if self._path.stat().st_size == 0:
                    self._path.unlink()
                    if is_new:
                        folder.rmdir()

    def add(self, run: Run, outcome: Outcome, origin: dict[str, Any]) -> None:
        """Write a finished run."""
        line = {"kind": run.kind, "run": asdict(run), **asdict(outcome), **origin}  # type: ignore[call-overload]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _made(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return a dataclass from what `asdict` made of it: no field may be missing or new."""
    types: dict[str, Any] = {field.name: field.type for field in fields(kind)}
    if types.keys() != values.keys():
        raise TypeError(f"{kind.__name__} has the fields {', '.join(types)}")
    return kind(
        **{
            name: _made(types[name], value) if is_dataclass(types[name]) else value
            for name, value in values.items()
        }
    )
