"""`make trace-ui`: a strict and a lossy request are found in Arize Phoenix by `truedraft.verification.mode`,
and its page says how they were served, in a real browser.

Phoenix runs in an environment of its own, so this is no part of `make test`. Prints what was seen, and how
long it took; what is not as it should be ends it with a sentence and status 1. SCREENSHOTS=docs makes the
pictures of docs/tracing.md anew.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Error as BrowserError

from cluster.app import StartError
from cluster.commands.trace_demo import LOSSY, Shown, TraceUi, ask, phoenix, traced_cluster
from cluster.telemetry import names
from tests.browser.window import CHROMIUM, NO_CHROMIUM, Window, opened

# A machine may be slow, and spans come half a second after their end.
_PATIENCE_S = 120.0
_TOKENS = 24
# Every line of the table is a request's, or says that there is none.
_FILTERED = """() => [...document.querySelectorAll("tbody tr")].every(
    (row) => /\\bllm\\b|No traces found/.test(row.innerText))"""


class NotSeenError(Exception):
    """Something that the pages should say and do not; the text is for people."""


def condition(mode: str) -> str:
    """For the filter, which knows dotted attributes as nested ones, and the root of a request as an LLM's."""
    path = "".join(f"[{part!r}]" for part in names.VERIFICATION_MODE.split("."))
    return f"attributes{path} == '{mode}' and span_kind == 'LLM'"


def found(page: Any, ui: TraceUi, mode: str) -> list[str]:
    """The addresses of the spans that the filter finds, typed into the page of all spans."""
    page.goto(f"{ui.url}/projects")
    page.locator("a[href*='/projects/']", has_text="default").first.wait_for(timeout=1000 * _PATIENCE_S)
    project = page.locator("a[href*='/projects/']", has_text="default").first.get_attribute("href")
    page.goto(f"{ui.url}{project.split('?')[0]}/spans")
    field = page.locator(".cm-content").first
    field.wait_for(timeout=1000 * _PATIENCE_S)
    page.locator("tbody tr").first.wait_for(timeout=1000 * _PATIENCE_S)
    field.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(condition(mode))
    page.keyboard.press("Enter")
    # Until then it shows passes of the verifier, which are roots as well.
    page.wait_for_function(_FILTERED, timeout=1000 * _PATIENCE_S)
    return [link.get_attribute("href") for link in page.locator("tbody tr a").all()]


def look(window: Window, ui: TraceUi, shown: Shown, lossless: bool) -> None:
    """Finds a request by its law and reads on its page how it was served. Raises NotSeenError."""
    page = window.page
    deadline = time.monotonic() + _PATIENCE_S
    while not (links := found(page, ui, shown.law)):
        if time.monotonic() > deadline:
            raise NotSeenError(f"Phoenix finds no request by {condition(shown.law)}.")
    if len(links) != 1 or shown.trace_id not in links[0]:
        raise NotSeenError(f"{condition(shown.law)} finds {links}, not trace {shown.trace_id} alone.")
    page.locator("tbody tr a").first.click()
    page.locator("[role=tab]", has_text="Attributes").click(timeout=1000 * _PATIENCE_S)
    expected = {
        names.VERIFICATION_MODE: shown.law,
        names.CLAIM: shown.claim,
        names.LOSSLESS: str(lossless).lower(),
    }
    for name, value in expected.items():
        row = page.locator("tr", has=page.get_by_text(name, exact=True)).last
        row.wait_for(timeout=1000 * _PATIENCE_S)
        cells = [cell.strip() for cell in row.inner_text().split("\t")]
        if cells[-1].strip('"') != value:
            raise NotSeenError(f"The page of trace {shown.trace_id} says {cells}, not {value!r}.")
    page.get_by_text(names.VERIFICATION_MODE, exact=True).last.scroll_into_view_if_needed()
    window.picture(f"trace-{'strict' if lossless else 'lossy'}")


def follow(window: Window, console: str, ui: TraceUi, shown: Shown) -> None:
    """From the request's line at the console to its trace. Raises NotSeenError."""
    page = window.page
    page.goto(console)
    link = page.locator(f"#requests a[href='{ui.trace(shown.trace_id)}']")
    link.wait_for(timeout=1000 * _PATIENCE_S)
    if window.errors:
        raise NotSeenError(f"The console has errors: {window.errors}")
    page.goto(link.get_attribute("href"))
    page.get_by_text(shown.trace_id).first.wait_for(timeout=1000 * _PATIENCE_S)


def check(command: Path) -> None:
    """Raises NotSeenError, StartError, or playwright's own error for what never came."""
    with phoenix(command) as ui, traced_cluster(ui) as (cluster, client):
        strict, lossy = ask(client, "coding", "coupled", _TOKENS), ask(client, "story", LOSSY, _TOKENS)
        console = f"http://{cluster.http_address}/console"
        for shown, lossless in ((strict, True), (lossy, False)):
            with opened(1280, 800) as window:
                look(window, ui, shown, lossless)
            print(f"found by {condition(shown.law)}, and its page says {shown.law}, {shown.claim}")
        with opened(1280, 800) as window:
            follow(window, console, ui, strict)
            print("the console has no error, and its line of the request leads to the trace")
        with opened(1280, 800) as window:
            if links := found(window.page, ui, "block"):
                raise NotSeenError(f"A law that nobody asked for finds {links}.")
            print("a law that nobody asked for finds nothing")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--phoenix", type=Path, required=True, help="the phoenix command")
    options = parser.parse_args()
    if CHROMIUM is None:
        print(NO_CHROMIUM, file=sys.stderr)
        return 1
    began = time.monotonic()
    try:
        check(options.phoenix)
    except (NotSeenError, StartError) as error:
        print(error, file=sys.stderr)
        return 1
    except BrowserError as error:
        print(f"The page never showed what was waited for: {error}", file=sys.stderr)
        return 1
    finally:
        print(f"({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
