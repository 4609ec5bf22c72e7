"""Draws the layers of the import contract in pyproject.toml: ``python docs/package_graph.py``."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs/images/packages.svg"
WIDTH, ROW, BOX, GAP, LEFT = 820, 40, 30, 8, 110


def layers() -> list[list[str]]:
    """Return the packages of each layer, those that import others first."""
    contracts = _contracts()["layers"]
    return [[name.strip() for name in row.split("|")] for row in contracts["layers"]]


def without_torch() -> set[str]:
    """Return the packages that may not import torch."""
    return {name.removeprefix("dither.") for name in _contracts()["forbidden"]["source_modules"]}


def svg() -> str:
    """Return the picture: one row per layer, one box per package."""
    rows, light = layers(), without_torch()
    height = ROW * len(rows) + 2 * GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="14">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        '<g stroke="#5a5f6d" fill="#5a5f6d">',
        f'<line x1="50" y1="{GAP + 8}" x2="50" y2="{height - GAP - 16}" stroke-width="2"/>',
        f'<path d="M44 {height - GAP - 18} h12 l-6 12 z" stroke="none"/>',
        "</g>",
        f'<text x="36" y="{height // 2}" fill="#333740" text-anchor="middle" '
        f'transform="rotate(-90 36 {height // 2})">imports</text>',
    ]
    for number, row in enumerate(rows):
        width = (WIDTH - LEFT - GAP * len(row)) / len(row)
        for column, name in enumerate(row):
            x, y = LEFT + column * (width + GAP), GAP + number * ROW + (ROW - BOX) / 2
            fill, edge = ("#dff0e3", "#2e7d4f") if name in light else ("#e1e6fa", "#3f51b5")
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX}" rx="4" '
                f'fill="{fill}" stroke="{edge}"/>'
                f'<text x="{x + width / 2:.1f}" y="{y + 20:.1f}" fill="#1d1f24" '
                f'text-anchor="middle">{name}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def _contracts() -> dict[str, dict[str, list[str]]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return {contract["type"]: contract for contract in contracts}


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
