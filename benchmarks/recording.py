"""What every benchmark writes beside its figures: where they come from."""

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def record(name: str, command: str, packages: tuple[str, ...], results: dict[str, Any]) -> None:
    """Write benchmarks/results/NAME.json with the command, the commit and the versions."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    entry = {
        "command": command,
        "commit": commit,
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("dither", *packages)},
        },
        "results": results,
    }
    text = json.dumps(entry, indent=2, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
