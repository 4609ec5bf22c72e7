"""What every benchmark writes beside its figures: where they come from."""

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def origin(command: str, packages: tuple[str, ...]) -> dict[str, Any]:
    """Return the command, the commit and the versions behind a result."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    versions = {package: version(package) for package in ("dither", *packages)}
    return {
        "command": command,
        "commit": commit,
        "versions": {"python": platform.python_version(), **versions},
    }


def record(name: str, command: str, packages: tuple[str, ...], results: dict[str, Any]) -> None:
    """Write benchmarks/results/NAME.json with where the results come from."""
    entry = {**origin(command, packages), "results": results}
    text = json.dumps(entry, indent=2, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
