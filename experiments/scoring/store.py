"""Finished runs on disk: a line for each call with where it comes from, and a line for each run."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.scoring.competitors import Result, Run, Setting


class Store:
    """The runs in a file.

    Args:
        path: the file, one JSON object per line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def headers(self) -> list[dict[str, Any]]:
        """Return where the runs come from, one entry for each call that ran some."""
        return [line["header"] for line in self._lines() if "header" in line]

    def read(self) -> dict[Run, Result]:
        """Return the finished runs; of two lines of the same run the later counts."""
        known = {}
        for line in self._lines():
            if "run" in line:
                setting = line["run"].pop("setting")
                run = Run(**line["run"], setting=None if setting is None else Setting(**setting))
                known[run] = Result(**line["result"])
        return known

    def _lines(self) -> list[dict[str, Any]]:
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        complete, _, _ = text.rpartition("\n")  # the last line of a killed call may be incomplete
        return [json.loads(line) for line in complete.splitlines()]

    def begin(self, header: dict[str, Any]) -> None:
        """Write where the runs that follow come from; an incomplete last line is removed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        self._write({"header": header})

    def add(self, run: Run, result: Result) -> None:
        """Write a finished run."""
        self._write({"run": asdict(run), "result": asdict(result)})

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
