"""The site builds in strict mode, loads nothing from elsewhere, and has every page."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from inspect import ismodule
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.docs.pages import DOCS, ROOT

import dither

LOADING = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "manifest"}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "docs/build.py"), str(place)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return place


class Loads(HTMLParser):
    """Collects what a browser fetches for a page without being asked, and the links to follow."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag in LOADING and LOADING[tag] in given:
            self.loaded.append(given[LOADING[tag]])
        elif tag == "link" and LOADED_LINKS & {*given.get("rel", "").split()}:
            self.loaded.append(given["href"])
        elif tag == "a" and "href" in given:
            self.linked.append(given["href"])


@cache
def read(page: Path) -> Loads:
    found = Loads()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 40
    for page in pages:
        loaded = read(page).loaded
        assert loaded, page
        assert not [address for address in loaded if is_elsewhere(address)], page


def test_styles_load_nothing_from_elsewhere(site: Path) -> None:
    styles = [*site.rglob("*.css")]
    assert styles
    address = re.compile(r"""(?:url\(|@import\s+)\s*['"]?([^'")\s]+)""")
    for style in styles:
        used = address.findall(style.read_text(encoding="utf-8"))
        assert not [each for each in used if is_elsewhere(each)], style


def test_what_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<link rel="stylesheet" href="https://fonts.example/a.css"><img src="b.png">')
    assert [is_elsewhere(each) for each in read(page).loaded] == [True, False]
    assert is_elsewhere("//cdn.example/a.js")


def test_every_link_inside_the_site_resolves(site: Path) -> None:
    pages = {page.resolve(): read(page) for page in site.rglob("*.html") if page.name != "404.html"}
    followed = 0
    for page, found in pages.items():
        for address in {*found.linked, *found.loaded}:
            parts = urlsplit(address)
            if is_elsewhere(address) or parts.scheme == "data":
                continue
            target = (page.parent / parts.path).resolve() if parts.path else page
            assert target.is_file() or (target / "index.html").is_file(), (page, address)
            if parts.fragment and target in pages and not parts.fragment.startswith("__"):
                assert parts.fragment in pages[target].names, (page, address)
            followed += 1
    assert followed > 1_000


def navigation() -> Iterator[str]:
    settings = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    places: list[object] = [settings["project"]["nav"]]
    while places:
        place = places.pop()
        if isinstance(place, str):
            yield place
        elif isinstance(place, list):
            places.extend(place)
        elif isinstance(place, dict):
            places.extend(place.values())


def test_every_page_is_in_the_navigation(site: Path) -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert pages <= {*navigation()}
    for page in navigation():
        assert (site / page).with_suffix(".html").is_file(), page


def test_every_page_is_searched(site: Path) -> None:
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    assert len(items) > 300
    found = {item["location"].partition("#")[0] for item in items}
    assert {str(Path(page).with_suffix(".html")) for page in navigation()} <= found


def test_examples_in_docstrings_are_code(site: Path) -> None:
    text = (site / "reference/accounting.html").read_text(encoding="utf-8")
    assert "language-pycon" in text


def test_every_picture_is_described() -> None:
    for page in DOCS.rglob("*.md"):
        assert "![](" not in page.read_text(encoding="utf-8"), page


def test_there_is_a_dark_palette_and_a_light_one(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    for scheme in ("(prefers-color-scheme: light)", "(prefers-color-scheme: dark)"):
        assert f'data-md-color-media="{scheme}"' in text


def test_public_names_are_in_the_reference(site: Path) -> None:
    anchors = set().union(*(read(page).names for page in (site / "reference").glob("*.html")))
    packages = [name for name in dither.__all__ if ismodule(getattr(dither, name))]
    checked = 0
    for package in packages:
        text = (DOCS / f"reference/{package}.md").read_text(encoding="utf-8")
        for name in import_module(f"dither.{package}").__all__:
            # A function may be in a file of its own name; constants are described in a sentence.
            places = {f"dither.{package}.{name}", f"dither.{package}.{name}.{name}"}
            assert places & anchors or f"`{name}`" in text, f"dither.{package}.{name}"
            checked += 1
    assert checked > 100
    text = (DOCS / "reference/dither.md").read_text(encoding="utf-8")
    for name in {*dither.__all__} - {*packages}:
        assert f"dither.{name}" in text or f"dither.types.{name}" in text
