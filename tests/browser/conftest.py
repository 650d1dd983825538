"""A page of a real browser that keeps what went wrong on it."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(items):
    for item in items:
        if CHROMIUM is None and item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason="no Chromium is installed"))


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
        opened = Window(page)
        page.on("pageerror", lambda error: opened.errors.append(str(error)))
        page.on("console", lambda line: opened.errors.append(line.text) if line.type == "error" else None)
        yield opened
        browser.close()
