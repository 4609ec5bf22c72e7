"""The page in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser import launched

import dither
from dither.explorer import Explorer

SETTINGS = "batch_size=6000&epochs=2&schedule=linear&parameters.start=1&parameters.end=0.1"
PATIENCE = 60_000
NOISE = "#chart-noise polyline.optimal"


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    with Explorer() as serving:
        yield serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as chromium:
        yield chromium


@pytest.fixture
def page(browser: Browser, explorer: Explorer) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    problems: list[str] = []
    opened.on("pageerror", lambda problem: problems.append(str(problem)))
    opened.on(
        "console",
        lambda line: (
            problems.append(line.text)
            if line.type == "error" and not re.search("status of (409|422)", line.text)
            else None
        ),
    )
    opened.goto(f"{explorer.address}#{SETTINGS}")
    opened.wait_for_selector(NOISE, state="attached")
    yield opened
    context.close()
    assert problems == []


def points(page: Page) -> str:
    return page.locator(NOISE).get_attribute("points") or ""


def rests(page: Page) -> None:
    expect(page.locator("#status")).to_have_attribute("data-state", "exact", timeout=PATIENCE)


def test_first_load_shows_curves_with_named_axes(page: Page) -> None:
    assert page.locator("polyline.curve").count() == 9
    for chart, axis in (
        ("noise", "noise multiplier z (clip norms)"),
        ("reaching", "η·z (clip norms)"),
        ("spent", "ε after t steps (nats)"),
    ):
        names = page.locator(f"#chart-{chart} .axis-name").all_text_contents()
        assert names == ["step t (number of steps)", axis]
    rests(page)
    for badge in page.locator(".badge").all():
        expect(badge).to_have_text("exact")
    assert page.locator("#prices tbody tr").count() == 5
    assert "improvement factor" in page.inner_text("#compared")
    assert "utility bound" in page.inner_text("#compared")
    unlabelled = "!e.labels.length && !e.getAttribute('aria-label')"
    inputs = "[...document.querySelectorAll('input, select')]"
    assert page.evaluate(f"{inputs}.filter(e => {unlabelled}).length") == 0


def test_a_slider_moves_the_curves_and_the_exact_plan_follows(page: Page) -> None:
    rests(page)
    before, slider = points(page), page.locator("[data-slider=epsilon]")
    page.evaluate(_WATCH)
    slider.focus()
    for _ in range(5):
        slider.press("PageUp")
    expect(page.locator(NOISE)).not_to_have_attribute("points", before)
    assert float(page.input_value("#field-epsilon")) > 1.5
    rests(page)
    seen = page.evaluate("window.seen")
    assert (seen[0], seen[-1]) == ("preview", "exact")
    assert "epsilon=" in page.url


def test_an_invalid_value_is_told_at_its_field(page: Page) -> None:
    field = page.locator("#field-delta")
    field.fill("2")
    problem = page.locator("#field-delta-problem")
    expect(problem).to_have_text("delta must be strictly between 0 and 1, got 2")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert field.get_attribute("aria-describedby") == "field-delta-problem"
    for button in ("#save", "#copy-python", "#copy-command"):
        expect(page.locator(button)).to_be_disabled()
    field.fill("1e-5")
    expect(problem).to_be_hidden()
    expect(page.locator("#save")).to_be_enabled()
    page.locator("#field-batch_size").fill("60001")
    expect(page.locator("#field-batch_size-problem")).to_contain_text("at most dataset_size")


def test_the_saved_plan_loads_in_python(page: Page, tmp_path: Path) -> None:
    page.select_option("#field-noise", "matched")
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == "plan.json"
    download.value.save_as(tmp_path / "plan.json")
    loaded = dither.Plan.from_json((tmp_path / "plan.json").read_text(encoding="utf-8"))
    page.click("#copy-python")
    expect(page.locator("#said")).to_have_text("Copied.")
    text = page.evaluate("navigator.clipboard.readText()")
    names: dict[str, dither.Plan] = {}
    exec(text, names)  # noqa: S102 (this is what is tested)
    assert names["plan"] == loaded
    page.click("#copy-command")
    expect(page.locator("#code")).to_contain_text("dither plan")
    assert "--noise matched" in page.evaluate("navigator.clipboard.readText()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_or_overlaps(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    rests(page)
    for width in (1280, 760, 400):
        page.set_viewport_size({"width": width, "height": 800})
        expect(page.locator("#chart-noise svg")).to_have_attribute("viewBox", _fits(page))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(_SCROLLED) == 0
        assert page.evaluate(_OUTSIDE) == []
        assert page.evaluate(_OVERLAPPING) == []
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shade = sum(map(int, re.findall(r"\d+", paper)[:3])) / 3
    assert (shade < 60) == (scheme == "dark")


def _fits(page: Page) -> re.Pattern[str]:
    """Return what says that the chart was drawn for its width."""
    drawn = page.evaluate("document.querySelector('#chart-noise svg').clientWidth")
    return re.compile(f"^0 0 {drawn} ")


_SCROLLED = """() => [...document.querySelectorAll('.scroll')].filter(
  node => node.scrollWidth > node.clientWidth + 1).length"""

_WATCH = """() => {
  const badge = document.querySelector('#chart-noise .badge');
  window.seen = [];
  new MutationObserver(() => window.seen.push(badge.textContent)).observe(badge, {childList: true});
}"""

_OUTSIDE = """() => [...document.querySelectorAll('figure')].flatMap(figure => {
  const box = figure.getBoundingClientRect();
  return [...figure.querySelectorAll('text, polyline')].filter(node => {
    const at = node.getBoundingClientRect();
    return at.left < box.left || at.right > box.right || at.top < box.top || at.bottom > box.bottom;
  }).map(node => node.textContent || node.getAttribute('class'));
})"""

_OVERLAPPING = """() => [...document.querySelectorAll('figure svg')].flatMap(image => {
  const texts = [...image.querySelectorAll('text')].map(
    node => [node.textContent, node.getBoundingClientRect()]);
  return texts.flatMap(([name, a], i) => texts.slice(i + 1).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3,
  ).map(([other]) => [name, other]));
})"""
