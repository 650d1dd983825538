"""A window for each test, and a word at the end where there was no browser to open one."""

import pytest

from tests.browser.window import CHROMIUM, NO_CHROMIUM, opened


def pytest_collection_modifyitems(items):
    if CHROMIUM is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=NO_CHROMIUM))


def pytest_terminal_summary(terminalreporter):
    if any(NO_CHROMIUM in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(f"WARNING: {NO_CHROMIUM}", red=True, bold=True)


@pytest.fixture
def window(request):
    """Of the size (width, height) that the test's parameter says, or of a desk."""
    with opened(*getattr(request, "param", (1280, 900))) as opened_window:
        yield opened_window
