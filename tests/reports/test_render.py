"""The report as a page and as files: self-contained, escaped, readable."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser
from tests.reports.run_directories import describe, public, trained

import dither
from dither.cli import main
from dither.ledger import Ledger
from dither.reports import RunReport, run_report, write_report
from dither.reports.charts import draw_svg
from dither.reports.figures import BLUE, ORANGE
from dither.reports.render import to_html, to_json

EVIL = "<script>alert('x')</script>&\"'"
_VOID = {"meta"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """Return the second of two runs in one ledger, with averaging and an audit."""
    directory = tmp_path_factory.mktemp("page")
    trained(directory / "one", ledger=directory / "all.sqlite")
    trained(
        directory / "two", ledger=directory / "all.sqlite", evaluate=public(), averaging="ema",
        derived_from_private_data=(EVIL,), data=f"{EVIL}.csv", purpose=EVIL,
    )  # fmt: skip
    describe(directory / "two", classes=("no", EVIL))
    assert (
        main(["audit", "--run-dir", str(directory / "two"), "--trials", "500", "--seed", "1"]) == 0
    )
    return run_report(directory / "two")


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


def test_the_page_is_valid_and_loads_nothing(report: RunReport) -> None:
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
        "noise", "spending", "metric", "audit", "calibration"
    }  # fmt: skip
    assert page.tags >= {"svg", "figure", "figcaption", "table", "caption"}


def test_text_from_the_run_directory_is_escaped(report: RunReport) -> None:
    named = replace(report, name="<script>alert(1)<", charts=())
    html = to_html(named)
    assert "<script" not in html
    assert "Privacy report: &lt;script&gt;alert(1)&lt;" in html
    assert "<script" not in to_html(report)
    assert "&lt;script&gt;alert(&#39;x&#39;)" in to_html(report)


def test_charts_use_the_colours_of_the_page(report: RunReport) -> None:
    for chart in report.charts:
        drawn = draw_svg(chart)
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


def test_reports_are_written_by_suffix(report: RunReport, tmp_path: Path) -> None:
    for name, render in (("a.html", to_html), ("a.json", to_json)):
        assert write_report(report, tmp_path / name).read_text(encoding="utf-8") == render(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json"]
    for name, words in (
        ("a.pdf", "must end in one of .html, .json"),
        ("none/a.html", "in an existing directory"),
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


def test_the_first_page_is_one_sheet_of_paper(copy: Path, tmp_path: Path, browser: Browser) -> None:
    """With everything that one run can have: schema, evaluation, and metrics on public data."""
    describe(copy)
    plan = dither.plan(epsilon=0.13, delta=1e-3, dataset_size=99, batch_size=99, steps=1)
    Ledger(copy).register(plan).finish(0, float(plan.charges[0]))
    path = write_report(run_report(copy), tmp_path / "report.html")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    # A4 without the margins of @page, at 96 per inch.
    page.set_viewport_size({"width": 680, "height": 1031})
    assert page.evaluate("document.querySelector('.front').getBoundingClientRect().bottom") < 1031
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.appendix')).breakBefore") == "page"
    )
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_nothing_is_loaded_and_nothing_overflows(
    report: RunReport, tmp_path: Path, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    path = write_report(report, tmp_path / "report.html")
    page = browser.new_page(color_scheme=scheme)
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.goto(path.as_uri())
    for details in page.locator("details").all():
        details.evaluate("each => each.open = true")
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(_WIDE) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert requests == [path.as_uri()]
    assert messages == []
    page.close()
