"""What every benchmark writes beside its figures: where they come from."""

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_NOT_CODE = (":(exclude,top)experiments/records", ":(exclude,top)benchmarks/results")


def origin(command: str, packages: tuple[str, ...]) -> dict[str, Any]:
    """Return the command, the commit and the versions behind a result.

    Code that differs from the commit is reported under "changed".
    """
    code = (":/src", ":/experiments", ":/benchmarks", *_NOT_CODE)
    changed = _git("status", "--porcelain", "--", *code).splitlines()
    versions = {package: version(package) for package in ("dither", *packages)}
    return {
        "command": command,
        "commit": _git("rev-parse", "HEAD").strip(),
        **({"changed": [line[3:] for line in changed]} if changed else {}),
        "versions": {"python": platform.python_version(), **versions},
    }


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout


def record(
    name: str,
    command: str,
    packages: tuple[str, ...],
    results: dict[str, Any],
    **more: dict[str, Any],
) -> None:
    """Write benchmarks/results/NAME.json with where the results come from."""
    entry = {**origin(command, packages), "results": results, **more}
    text = json.dumps(entry, indent=2, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
