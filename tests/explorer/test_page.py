"""The page in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import APIResponse, Browser, Download, Page, Route, expect
from tests.explorer.fields import eventually

import dither
from dither.explorer import Explorer
from dither.planning.planner import NOISES
from dither.types import rounded

# Full batch: such plans take no time.
SETTINGS = "batch_size=60000&epochs=20&schedule=linear&parameters.start=1&parameters.end=0.1"
PATIENCE = 60_000
NOISE = "#chart-noise polyline.optimal"
BUTTONS = ("#save", "#copy-python")


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    with Explorer() as serving:
        yield serving


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page, and the errors on its console."""
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page, errors = context.new_page(), list[str]()
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda problem: errors.append(str(problem)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    yield page, errors
    context.close()


@pytest.fixture
def page(tab: tuple[Page, list[str]], explorer: Explorer) -> Iterator[Page]:
    opened, errors = tab
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.goto("about:blank")
    errors.clear()
    opened.goto(f"{explorer.address}#{SETTINGS}")
    opened.wait_for_selector(NOISE, state="attached")
    yield opened
    opened.unroute_all()
    # The browser itself reports answers that are errors, and requests that fail.
    expected = "status of (409|422|500)|net::ERR_FAILED"
    assert [text for text in errors if not re.search(expected, text)] == []


def points(page: Page) -> str:
    return page.locator(NOISE).get_attribute("points") or ""


def wait_until_exact(page: Page) -> None:
    expect(page.locator("#status")).to_have_attribute("data-state", "exact", timeout=PATIENCE)


def test_first_load_shows_curves_with_named_axes(page: Page) -> None:
    for chart, axis in (
        ("noise", "noise multiplier z (clip norms)"),
        ("iterate-noise", "standard deviation (clip norms)"),
        ("spent", "ε after t steps (nats)"),
    ):
        names = page.locator(f"#chart-{chart} .axis-name").all_text_contents()
        assert names == ["step t (number of steps)", axis]
    wait_until_exact(page)
    for name in NOISES:  # in three charts
        assert page.locator(f"polyline.{name}").count() == 3
    for badge in page.locator(".results .badge").all():
        expect(badge).to_have_text("exact")
    assert page.locator("#costs tbody tr").count() == 5
    assert "improvement factor" in page.inner_text("#comparison")
    assert "improvement factor" in page.inner_text("#comparison")
    unlabelled = "!e.labels.length && !e.getAttribute('aria-label')"
    inputs = "[...document.querySelectorAll('input, select')]"
    assert page.evaluate(f"{inputs}.filter(e => {unlabelled}).length") == 0


def test_a_slider_updates_the_curves_and_then_the_exact_plan(page: Page) -> None:
    before, slider = points(page), page.locator("[data-slider=epsilon]")
    page.evaluate(_WATCH)
    slider.focus()
    for _ in range(5):
        slider.press("PageUp")
    expect(page.locator(NOISE)).not_to_have_attribute("points", before)
    assert float(page.input_value("#field-epsilon")) > 1.5
    wait_until_exact(page)
    seen = page.evaluate("window.seen")
    assert (seen[0], seen[-1]) == ("preview", "exact")
    assert "epsilon=" in page.url


def expect_nothing_to_export(page: Page) -> None:
    for button in BUTTONS:
        expect(page.locator(button)).to_be_disabled()
    expect(page.locator("#code")).to_have_text("")


def test_an_invalid_value_is_shown_at_its_field(page: Page) -> None:
    field = page.locator("#field-delta")
    field.fill("2")
    problem = page.locator("#field-delta-problem")
    expect(problem).to_have_text("delta must be strictly between 0 and 1, got 2")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert field.get_attribute("aria-describedby") == "field-delta-problem"
    expect_nothing_to_export(page)
    field.fill("1e-5")
    expect(problem).to_be_hidden()
    expect(page.locator("#save")).to_be_enabled()
    page.locator("#field-batch_size").fill("60001")
    expect(page.locator("#field-batch_size-problem")).to_contain_text("at most dataset_size")


def test_correlated_noise_comes_with_the_exact_plan(page: Page, tmp_path: Path) -> None:
    wait_until_exact(page)
    note = "correlated: gains nothing over optimal noise here, and is the same."
    expect(page.locator("#note")).to_have_text(note)
    for name, value in (("epochs", "0.02"), ("batch_size", "50"), ("epsilon", "8")):
        page.locator(f"#field-{name}").fill(value)
    page.select_option("#field-noise", "correlated")
    expect(page.locator("#note")).to_contain_text("Correlated noise has no preview")
    wait_until_exact(page)
    expect(page.locator("#note")).to_be_hidden()
    expect(page.locator("#statement")).to_contain_text("cyclic sampling")
    assert page.locator("#chart-noise polyline.correlated.chosen").count() == 1
    assert "correlated" in (page.locator("#chart-iterate-noise title").text_content() or "")
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "plan.json")
    loaded = dither.Plan.from_json((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert loaded.sampling == "cyclic"
    assert f"\n{loaded.bands}\n" in "\n".join(page.inner_text("#comparison").split("\t")) + "\n"
    page.select_option("#field-sampling", "fixed")
    expect(page.locator("#field-sampling-problem")).to_contain_text(
        "sampling must be poisson or cyclic for correlated noise", timeout=PATIENCE
    )


def test_the_saved_plan_loads_in_python(page: Page, tmp_path: Path) -> None:
    page.select_option("#field-noise", "matched")
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == "plan.json"
    download.value.save_as(tmp_path / "plan.json")
    loaded = dither.Plan.from_json((tmp_path / "plan.json").read_text(encoding="utf-8"))
    expect(page.locator("#message")).to_contain_text(
        f"ε = {rounded(loaded.bound.epsilon, 4)}, fingerprint {loaded.fingerprint[:16]}."
    )
    page.click("#copy-python")
    expect(page.locator("#message")).to_have_text("Copied.")
    text = page.evaluate("navigator.clipboard.readText()")
    names: dict[str, dither.Plan] = {}
    exec(text, names)  # noqa: S102 (this is what is tested)
    assert names["plan"] == loaded


def test_settings_that_change_while_saving_are_not_saved(page: Page) -> None:
    held: list[tuple[Route, APIResponse]] = []
    downloads: list[Download] = []
    page.on("download", lambda download: downloads.append(download))

    def hold(route: Route) -> None:
        if '"part":"json"' in (route.request.post_data or ""):
            held.append((route, route.fetch()))
        else:
            route.continue_()

    page.route("**/api/exact", hold)
    page.click("#save")
    eventually(lambda: bool(held), pause=lambda: page.wait_for_timeout(10))
    [(route, answer)] = held
    assert answer.status == 200
    page.locator("#field-epsilon").fill("2")
    expect(page.locator("#code")).to_contain_text("epsilon=2")
    route.fulfill(response=answer)
    expect(page.locator("#message")).to_contain_text("Not saved: a setting has changed")
    wait_until_exact(page)
    assert downloads == []
    expect(page.locator("#save")).to_be_enabled()


def test_only_accepted_settings_can_be_exported(page: Page) -> None:
    expect(page.locator("#code")).to_contain_text("epsilon=1")
    page.route("**/api/preview", lambda route: route.abort())
    page.locator("#field-epsilon").fill("3")
    expect(page.locator("#status")).to_contain_text("The server does not answer")
    expect_nothing_to_export(page)
    page.unroute_all()
    page.locator("#field-epsilon").fill("4")
    expect(page.locator("#code")).to_contain_text("epsilon=4")
    for button in BUTTONS:
        expect(page.locator(button)).to_be_enabled()


def test_an_exact_plan_that_fails_is_shown(page: Page) -> None:
    text = "dither explore: the exact plan was not made: its process ended with code -9"
    page.route("**/api/exact", lambda route: route.fulfill(status=500, body=text))
    page.locator("#field-epsilon").fill("5")
    expect(page.locator("#status")).to_have_text(text)
    page.click("#save")
    expect(page.locator("#message")).to_have_text(f"Not saved: {text}")


def test_a_narrow_page_keeps_a_chart_beside_its_sliders(page: Page) -> None:
    small = page.locator("#chart-small")
    expect(small).to_be_hidden()
    page.set_viewport_size({"width": 400, "height": 800})
    curve = page.locator("#chart-small polyline.optimal")
    before = curve.get_attribute("points") or ""
    slider = page.locator("[data-slider=epochs]")
    slider.evaluate("node => node.scrollIntoView({block: 'start'})")
    slider.press("PageUp")
    expect(curve).not_to_have_attribute("points", before)
    chart, handle = small.bounding_box(), slider.bounding_box()
    assert chart is not None
    assert handle is not None
    assert 0 <= chart["y"] < chart["y"] + chart["height"] <= handle["y"] < 800
    page.locator("#costs").scroll_into_view_if_needed()
    expect(small).not_to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_or_overlaps(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    wait_until_exact(page)
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
    """Return a pattern for the viewBox of a chart that fits its width."""
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
