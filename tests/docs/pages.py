"""The pages of the site, and the blocks of code in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
START = [
    DOCS / f"start/{name}.md"
    for name in (
        "install",
        "first-model",
        "own-loop",
        "table",
        "budget",
        "report",
        "deployment",
        "patients",
    )
]
"""The user guide: one Python session from the first page to the last."""

OTHERS = [ROOT / "experiments/README.md", ROOT / "CONTRIBUTING.md"]

PEERS = ('title="Opacus"', 'title="diffprivlib"')
"""Blocks with these titles show other libraries: they are parsed and not run."""

PEER_PAGES = ("migration/opacus.md", "migration/diffprivlib.md")
"""The only pages on which such blocks may be."""

OUTPUT = 'title="prints"'
"""A block of text with this title is what the block of Python above it prints, to the letter."""

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what stands behind that, and its lines."""

    language: str
    options: str
    text: str
    line: int

    @property
    def is_of_a_peer(self) -> bool:
        return self.options in PEERS


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        yield Block(found["language"], found["options"].strip(), dedent(found["text"]), line)


def python_of(page: Path) -> list[tuple[Block, str | None]]:
    """Return the Python blocks that run, each with what it must print, if the page says so."""
    blocks = [*blocks_of(page)]
    following: list[Block | None] = [*blocks, None][1:]
    return [
        (block, after.text if after is not None and after.options == OUTPUT else None)
        for block, after in zip(blocks, following, strict=True)
        if block.language == "python" and not block.is_of_a_peer
    ]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
