"""Finished runs on disk: one line each, written at once, readable after any interruption."""

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
_KEYS = {"kind", "run", "steps", "accuracies", "epsilon", "more", "seconds"}


class Store:
    """The runs in a directory.

    Args:
        directory: where ``runs.jsonl`` is or will be.
        kinds: the classes of runs by their kinds.
    """

    def __init__(self, directory: Path, kinds: dict[str, type[Any]]) -> None:
        self._path, self._kinds = directory / _NAME, kinds

    def read(self) -> Known:
        """Return the finished runs; an incomplete last line, of a killed run, is left out."""
        known: Known = {}
        for number, line in enumerate(self.lines(), start=1):
            try:
                run = _build(self._kinds[line["kind"]], line["run"])
            except (TypeError, AttributeError) as problem:
                raise self._damage_error(number, str(problem)) from problem
            known[run] = Outcome(
                tuple(line["steps"]), tuple(line["accuracies"]), line["epsilon"], line["more"]
            )
        return known

    def lines(self) -> list[dict[str, Any]]:
        """Return all that was written."""
        if not self._path.exists():
            return []
        complete, _, _ = self._path.read_text(encoding="utf-8").rpartition("\n")
        return [self._line(i, text) for i, text in enumerate(complete.splitlines(), start=1)]

    def _line(self, number: int, text: str) -> dict[str, Any]:
        try:
            line = json.loads(text)
        except json.JSONDecodeError as problem:
            raise self._damage_error(number, str(problem)) from problem
        if not isinstance(line, dict) or not line.keys() >= _KEYS:
            raise self._damage_error(number, f"a run has {', '.join(sorted(_KEYS))}")
        if line["kind"] not in self._kinds:
            raise self._damage_error(number, f"its kind is {line['kind']!r}")
        return line

    def _damage_error(self, number: int, why: str) -> InvalidValueError:
        return InvalidValueError(
            f"out must be a directory whose {_NAME} has finished runs, got {str(self._path)!r} "
            f"with something else in line {number}: {why}"
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock out other writers, and remove an incomplete last line; leave no empty file."""
        directory = self._path.parent
        is_new = not directory.exists()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            opened = self._path.open("a+b")
        except OSError as problem:
            raise InvalidValueError(
                f"out must be a directory that can be written, got {str(directory)!r}: "
                f"{problem.strerror}"
            ) from problem
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as taken:
                raise InvalidValueError(
                    f"out must be a directory that no other run is writing to, got "
                    f"{str(directory)!r}"
                ) from taken
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            try:
                yield
            finally:
                if self._path.stat().st_size == 0:
                    self._path.unlink()
                    if is_new:
                        directory.rmdir()

    def add(self, run: Run, outcome: Outcome, origin: dict[str, Any]) -> None:
        """Write a finished run."""
        line = {"kind": run.kind, "run": asdict(run), **asdict(outcome), **origin}  # type: ignore[call-overload]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _build(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return a dataclass from the result of `asdict`: no field may be missing or new."""
    types: dict[str, Any] = {field.name: field.type for field in fields(kind)}
    if types.keys() != values.keys():
        raise TypeError(f"{kind.__name__} has the fields {', '.join(types)}")
    return kind(
        **{
            name: _build(types[name], value) if is_dataclass(types[name]) else value
            for name, value in values.items()
        }
    )
