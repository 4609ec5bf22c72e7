"""A real browser for the tests of pages: Debian's chromium, without a window."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield a browser that is closed at the end; skip, and say why, where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(
            f"NOT TESTED in a browser: none of {', '.join(_NAMES)} is installed; on Debian: "
            "apt-get install chromium"
        )
    # A browser does not lock root into a sandbox; who runs the tests as root has no need of one.
    rights = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=[*rights, "--no-proxy-server"]
        )
        try:
            yield browser
        finally:
            browser.close()
