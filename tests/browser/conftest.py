"""A page of a real browser that keeps what went wrong on it."""

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
NO_CHROMIUM = "no Chromium is installed (apt-get install chromium): nobody looked at the pages"
# A page that fetches from elsewhere must not wait for a network that there may not be.
_HERE = re.compile(r"^(http://127\.0\.0\.1[:/]|data:|blob:)")


def pytest_collection_modifyitems(items):
    if CHROMIUM is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=NO_CHROMIUM))


def pytest_terminal_summary(terminalreporter):
    if any(NO_CHROMIUM in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(f"WARNING: {NO_CHROMIUM}", red=True, bold=True)


@dataclass
class Window:
    """page: playwright's; errors: of the page's scripts and its console."""

    page: object
    errors: list = field(default_factory=list)

    def picture(self, name):
        """Kept as a picture of the documentation if SCREENSHOTS says where."""
        if directory := os.environ.get("SCREENSHOTS"):
            self.page.screenshot(path=str(Path(directory) / f"{name}.png"))


@pytest.fixture
def window(request):
    """Of the size (width, height) that the test's parameter says, or of a desk."""
    from playwright.sync_api import sync_playwright

    width, height = getattr(request, "param", (1280, 900))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.route(lambda url: not _HERE.match(url), lambda route: route.abort())
        opened = Window(page)
        page.on("pageerror", lambda error: opened.errors.append(str(error)))
        page.on("console", lambda line: opened.errors.append(line.text) if line.type == "error" else None)
        yield opened
        browser.close()
