"""Takes the pictures of what the commands show: ``python docs/screenshots.py``.

It runs them with their defaults, takes a few minutes, and needs chromium.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "images"
DITHER = (sys.executable, "-m", "dither")
PLOTS = {
    "demo.png": ["demo"],
    "plan.png": ["plan"],
    "audit.png": ["audit"],
    "theory.png": ["theory"],
}


def main() -> None:
    """Take every picture."""
    for name, command in PLOTS.items():
        subprocess.run([*DITHER, *command, "--plot", IMAGES / name], check=True)  # noqa: S603 - our own
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as place:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        report(browser, Path(place))
        explorer(browser)
        browser.close()


def report(browser: Browser, place: Path) -> None:
    """Take the pictures of the report of a run with the default settings."""
    train = ["train", "--purpose", "Read handwritten digits", "--run-dir"]
    for command in (train, ["audit", "--run-dir"], ["report"]):
        subprocess.run([*DITHER, *command, "run1"], cwd=place, check=True)  # noqa: S603 - our own
    address = (place / "run1/report.html").as_uri()
    shoot(browser, address, "report-1280-light.png", width=1280)
    shoot(browser, address, "report-400-dark.png", width=400)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    bottom = page.evaluate("document.querySelector('.front').getBoundingClientRect().bottom")
    page.set_viewport_size({"width": 1280, "height": round(bottom) + 16})
    page.screenshot(path=IMAGES / "report.png")


def explorer(browser: Browser) -> None:
    """Take the pictures of the explorer, once its exact plans are ready."""
    command = [*DITHER, "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        assert server.stdout is not None  # noqa: S101 - it is a pipe
        printed = (re.search(r"http://\S+", line) for line in server.stdout)
        address = next(found[0] for found in printed if found)
        shoot(browser, address, "explorer.png", width=1280, wait=60_000)
        shoot(browser, address, "explorer-400-dark.png", width=400, wait=60_000)
        server.terminate()


def shoot(browser: Browser, address: str, name: str, *, width: int, wait: int = 500) -> None:
    """Take a picture of a full page, dark if its name says so."""
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if "dark" in name else "light",
    )
    page.goto(address)
    page.wait_for_timeout(wait)
    page.screenshot(path=IMAGES / name, full_page=True)


if __name__ == "__main__":
    main()
