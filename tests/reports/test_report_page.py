"""The page: self-contained, escaped, valid, readable at every width, and in other formats."""

import re
import xml.etree.ElementTree as ET
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import ConsoleMessage, Request
from tests.browser import launched
from tests.reports.folders import public, trained

from dither.cli import main
from dither.reports import RunReport, run_report, to_html, to_json, to_markdown, write_report
from dither.reports.figures import BLUE, ORANGE
from dither.reports.run.drawing import svg_of

EVIL = "<script>alert('x')</script>&\"'"
_VOID = {"meta"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """Two runs in one ledger, the second with averaging, canaries or not, and an audit."""
    folder = tmp_path_factory.mktemp("page")
    trained(folder / "one", ledger=folder / "all.sqlite")
    trained(
        folder / "two", ledger=folder / "all.sqlite", evaluate=public(), averaging="ema",
        derived_from_private_data=(EVIL,),
    )  # fmt: skip
    assert main(["audit", "--run-dir", str(folder / "two"), "--trials", "500", "--seed", "1"]) == 0
    return run_report(folder / "two")


class Page(HTMLParser):
    """All tags of a page, checked to be closed in order; ids; what an attribute points to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.named: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "id":
                self.ids.append(value or "")
            if name == "aria-labelledby":
                self.named += (value or "").split()
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.links.append(value or "")


def test_the_page_is_whole_and_loads_nothing(report: RunReport) -> None:
    text = to_html(report)
    page = Page(text)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "form", "base"})
    assert len(page.ids) == len({*page.ids})
    assert {*page.named} <= {*page.ids}
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    outside = re.findall(r"(?:url\(|@import|https?:)[^\s)\"]*", text)
    assert {each for each in outside if not each.startswith("url(#")} <= {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
    }  # fmt: skip
    assert {chart.key for chart in report.charts} == {
        "noise", "reaching", "spending", "quality", "audit", "ledger"
    }  # fmt: skip
    assert page.tags >= {"svg", "figure", "figcaption", "table", "caption"}


def test_what_comes_from_the_folder_is_escaped(report: RunReport, tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    trained(folder, evaluate=public())
    named = run_report(folder)
    html = to_html(named)
    assert "<script" not in html
    assert "Privacy report: &lt;script&gt;alert(1)&lt;" in html
    assert "<script" not in to_markdown(named).replace("\\<", "")
    assert "<script" not in to_html(report)
    assert "&lt;script&gt;alert(&#39;x&#39;)" in to_html(report)


def test_drawings_have_the_pages_colours_and_are_the_same_every_time(report: RunReport) -> None:
    for chart in report.charts:
        drawn = svg_of(chart)
        assert drawn == svg_of(chart)
        root = ET.fromstring(drawn)  # noqa: S314 (our own)
        assert root.get("role") == "img"
        assert root.get("width") is root.get("height") is None
        assert root.get("viewBox")
        assert "currentColor" in drawn
        assert "#000000" not in drawn
        assert f"var(--line-1, {BLUE.lower()})" in drawn
        if len(chart.series) > 1:
            assert f"var(--line-2, {ORANGE.lower()})" in drawn
            assert "stroke-dasharray" in drawn


def test_markdown_is_one_file_with_tables_in_place_of_pictures(report: RunReport) -> None:
    text = to_markdown(report)
    assert text.startswith("# Privacy report: two\n")
    assert "![" not in text
    for chart in report.charts:
        assert f"### {chart.title}" in text
    for block in re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.MULTILINE):
        cells = [line.replace("\\|", "").count("|") for line in block.splitlines()]
        assert len({*cells}) == 1


def test_it_is_written_whole_or_not_at_all(report: RunReport, tmp_path: Path) -> None:
    for name, render in (("a.html", to_html), ("a.json", to_json), ("a.md", to_markdown)):
        assert write_report(report, tmp_path / name).read_text(encoding="utf-8") == render(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json", "a.md"]
    for name, words in (
        ("a.pdf", "must end in one of .html, .json, .md"),
        ("none/a.html", "in a folder that exists"),
        ("", "must end in one of"),
    ):
        with pytest.raises(ValueError, match=words):
            write_report(report, tmp_path / name)
    (tmp_path / "b.html").mkdir()
    with pytest.raises(ValueError, match="a file that can be written"):
        write_report(report, tmp_path / "b.html")


_WIDE = """() => [...document.querySelectorAll('main *, header *')].filter(each => {
    const box = each.getBoundingClientRect();
    return box.width > 0 && box.right > window.innerWidth + 0.5 && !each.closest('.scroll, thead');
}).map(each => each.tagName)"""


def _note_request(asked: list[str], request: Request) -> None:
    asked.append(request.url)


def _note_message(said: list[str], message: ConsoleMessage) -> None:
    said.append(message.text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_nothing_leaves_the_page_and_nothing_is_cut_off(
    report: RunReport, tmp_path: Path, scheme: str
) -> None:
    path = write_report(report, tmp_path / "report.html")
    with launched() as browser:
        for width in (1280, 400):
            page = browser.new_page(
                viewport={"width": width, "height": 900},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            asked: list[str] = []
            said: list[str] = []
            page.on("request", partial(_note_request, asked))
            page.on("console", partial(_note_message, said))
            page.goto(path.as_uri())
            for details in page.locator("details").all():
                details.evaluate("each => each.open = true")
            assert asked == [path.as_uri()]
            assert said == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(_WIDE) == []
            back = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert back == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")
            page.close()
