"""Builds the site: ``python docs/build.py [SITE]``, by default into site/.

Zensical reads one directory. Some pages and pictures are elsewhere in the repository, and notebooks
are not Markdown, so all of it is put into one directory first.
"""

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES_ELSEWHERE = {
    "experiments/README.md": "experiments/findings.md",
    "experiments/records/small/report.md": "experiments/records/small/report.md",
    "CHANGELOG.md": "changelog.md",
}
"""Markdown files outside of docs/, and their paths in the site."""

RECORDS = ("benchmarks/results", "experiments/records")
"""Directories whose pictures and records are at the same path in the site."""

_SUFFIXES = {".png", ".json", ".jsonl"}
_OUTSIDE = re.compile(r"(\]\()((?:\.\./)+)(experiments|benchmarks|examples)/")
_NOTEBOOK = re.compile(r"\bexamples/(\w+)\.ipynb\)")


def main() -> int:
    """Build the site into the directory that is given, and return the exit code."""
    site = Path(sys.argv[1] if sys.argv[1:] else ROOT / "site").resolve()
    with tempfile.TemporaryDirectory() as place:
        project = Path(place)
        write_project(project)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=project, check=False)  # noqa: S603 - our own command
        if done.returncode == 0:
            shutil.rmtree(site, ignore_errors=True)
            shutil.copytree(project / "site", site)
    return done.returncode


def write_project(project: Path) -> None:
    """Write the configuration and every page, picture and record of the site."""
    shutil.copy(ROOT / "zensical.toml", project)
    (project / "src").symlink_to(ROOT / "src")
    docs = project / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("__pycache__"))
    for page in docs.rglob("*.md"):
        path = page.relative_to(docs).as_posix()
        page.write_text(links_in_site(page.read_text(encoding="utf-8"), path), encoding="utf-8")
    for source, path in PAGES_ELSEWHERE.items():
        _write(docs / path, (ROOT / source).read_bytes())
    for directory in RECORDS:
        for file in sorted((ROOT / directory).rglob("*")):
            if file.suffix in _SUFFIXES:
                _write(docs / file.relative_to(ROOT), file.read_bytes())
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        for path, content in notebook_pages(notebook):
            _write(docs / path, content)


def links_in_site(markdown: str, path: str) -> str:
    """Return the page with links that leave docs/ for the repository turned into ones of the site.

    >>> links_in_site("![](../experiments/records/a.png)", "estimators.md")
    '![](experiments/records/a.png)'
    >>> links_in_site("[users](../../examples/users.ipynb)", "guides/users.md")
    '[users](../notebooks/users.md)'
    """
    depth = len(PurePosixPath(path).parent.parts)

    def inside(match: re.Match[str]) -> str:
        opening, climb, directory = match.groups()
        up = climb.count("../")
        return match[0] if up != depth + 1 else f"{opening}{'../' * depth}{directory}/"

    return _NOTEBOOK.sub(r"notebooks/\1.md)", _OUTSIDE.sub(inside, markdown))


def notebook_pages(notebook: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a notebook, its page and the pictures in it, each with its path in the site."""
    content = notebook.read_bytes()
    yield f"notebooks/{notebook.name}", content
    cells = json.loads(content)["cells"]
    parts: list[str] = []
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text.replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            picture = output.get("data", {}).get("image/png")
            if picture:
                name = f"{notebook.stem}-{number}.png"
                yield f"notebooks/{name}", base64.b64decode("".join(picture))
                parts.append(f"![What the cell above draws]({name})")
            else:
                parts.append(f"```text\n{output_text(output).rstrip()}\n```")
    parts.insert(1, f"[Download the notebook]({notebook.name})")
    yield f"notebooks/{notebook.stem}.md", ("\n\n".join(parts) + "\n").encode()


def output_text(output: dict[str, Any]) -> str:
    """Return what a cell has printed or returned."""
    return "".join(output.get("text") or output["data"]["text/plain"])


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
