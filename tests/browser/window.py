"""A page of a real browser that keeps what went wrong on it."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
NO_CHROMIUM = "no Chromium is installed (apt-get install chromium): nobody looked at the pages"
# A page that fetches from elsewhere must not wait for a network that there may not be.
_HERE = re.compile(r"^(http://127\.0\.0\.1[:/]|data:|blob:)")


@dataclass
class Window:
    """page: playwright's; errors: of the page's scripts and its console."""

    page: Any
    errors: list[str] = field(default_factory=list)

    def picture(self, name: str) -> None:
        """Kept as a picture of the documentation if SCREENSHOTS says where."""
        if directory := os.environ.get("SCREENSHOTS"):
            self.page.screenshot(path=str(Path(directory) / f"{name}.png"))


@contextmanager
def opened(width: int, height: int) -> Iterator[Window]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": height})
        page.route(lambda url: not _HERE.match(url), lambda route: route.abort())
        window = Window(page)
        page.on("pageerror", lambda error: window.errors.append(str(error)))
        page.on("console", lambda line: window.errors.append(line.text) if line.type == "error" else None)
        yield window
        browser.close()
