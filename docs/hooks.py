"""Hooks of the site: pages and pictures that live outside of docs/, and notebooks as pages."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
BORROWED_PAGES = {
    "experiments/README.md": "experiments/findings.md",
    "experiments/records/small/report.md": "experiments/records/small/report.md",
    "CHANGELOG.md": "changelog.md",
}
"""Markdown files of the repository, and where they stand in the site."""

BORROWED_FOLDERS = ("benchmarks/results", "experiments/records")
"""Their pictures and records are at the same path in the site."""

_SUFFIXES = {".png", ".json", ".jsonl"}
_OUTSIDE = re.compile(r"(\]\()((?:\.\./)+)(experiments|benchmarks)/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands elsewhere in the repository, and a page for every notebook."""
    for path, place in BORROWED_PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for folder in BORROWED_FOLDERS:
        for found in sorted((ROOT / folder).rglob("*")):
            if found.suffix in _SUFFIXES:
                place = found.relative_to(ROOT).as_posix()
                files.append(File.generated(config, place, abs_src_path=str(found)))
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        for place, content in pages_of(notebook):
            files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links that leave docs/ for the repository end in the site's copy."""
    path = page.file.src_uri
    borrowed = {place: source for source, place in BORROWED_PAGES.items()}
    return linked_inside(markdown, path) if path not in borrowed else plain_paths(markdown)


def linked_inside(markdown: str, path: str) -> str:
    """Return the page with links that work in the repository turned into ones of the site.

    >>> linked_inside("![](../experiments/records/a.png)", "estimators.md")
    '![](experiments/records/a.png)'
    """
    depth = len(PurePosixPath(path).parent.parts)

    def inside(match: re.Match[str]) -> str:
        opening, climb, folder = match.groups()
        up = climb.count("../")
        return match[0] if up != depth + 1 else f"{opening}{'../' * depth}{folder}/"

    return _OUTSIDE.sub(inside, markdown)


def plain_paths(markdown: str) -> str:
    """Return a borrowed page with paths of the repository that the site has under another name."""
    return markdown.replace("(docs/audit.md shows the leak)", "([the audit](../audit.md) shows it)")


def pages_of(notebook: Path) -> Iterator[tuple[str, str | bytes]]:
    """Yield the page of a notebook, and the pictures in it, each with its place in the site."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            picture = output.get("data", {}).get("image/png")
            if picture:
                name = f"{notebook.stem}-{number}.png"
                yield f"notebooks/{name}", base64.b64decode("".join(picture))
                parts.append(f"![What the cell above draws]({name})")
            else:
                parts.append(f"```text\n{text_of(output).rstrip()}\n```")
    parts.insert(1, f"[Download the notebook]({notebook.name})")
    yield f"notebooks/{notebook.stem}.md", "\n\n".join(parts) + "\n"


def text_of(output: dict[str, Any]) -> str:
    """Return what a cell has printed or returned."""
    return "".join(output.get("text") or output["data"]["text/plain"])
