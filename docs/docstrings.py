"""Docstrings as Markdown: doctests become blocks of code, plain tables become tables."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":[a-z]+:(?=`)")
_RULE = re.compile(r"=+( +=+)+")


class DocstringsAsMarkdown(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the object's docstring, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    r"""Return the docstring with doctests fenced, tables as Markdown has them, and no roles.

    >>> print(as_markdown("Add.\n\n>>> 1 + 1\n2\n\nSee :func:`add`."))
    Add.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    See `add`.
    """
    paragraphs = _ROLE.sub("", text).split("\n\n")
    return "\n\n".join(map(_paragraph, paragraphs))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    bare = [line.strip() for line in lines]
    if bare and _RULE.fullmatch(bare[0]):
        return _table(lines)
    start = next((k for k, line in enumerate(bare) if line.startswith(">>> ")), None)
    if start is None:
        return text
    indent = lines[start][: -len(lines[start].lstrip())]
    fenced = [f"{indent}```pycon", *lines[start:], f"{indent}```"]
    return "\n".join([*lines[:start], *fenced])


def _table(lines: list[str]) -> str:
    """Return a table between rules of = as one of Markdown; a row may take several lines.

    >>> print(_table(["===  ===", "a    b", "===  ===", "1    2", "     3", "===  ==="]))
    | a | b |
    | --- | --- |
    | 1 | 2 3 |
    """
    starts = [match.start() for match in re.finditer(r"=+", lines[0])]
    edges = list(zip(starts, [*starts[1:], None], strict=True))
    rows: list[list[str]] = []
    has_head = sum(bool(_RULE.fullmatch(line)) for line in lines) == 3
    for line in (line for line in lines if not _RULE.fullmatch(line)):
        cells = [line[left:right].strip() for left, right in edges]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    head = rows.pop(0) if has_head else ["in the paper", "here"][: len(edges)]
    written = [head, ["---"] * len(edges), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in written)
