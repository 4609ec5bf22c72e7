"""One browser for all tests of pages: Debian's chromium, headless."""

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """Yield a browser; skip the test where none is installed."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip(
            f"NOT TESTED in a browser: none of {', '.join(_NAMES)} is installed; on Debian: "
            "apt-get install chromium"
        )
    # Chromium has no sandbox for root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=path, args=[*options, "--no-proxy-server"]
        )
        yield opened
        opened.close()
