"""The console in a real browser: no error, numbers that are the API's, readable on a phone."""

import hashlib
import json
import threading
from urllib.request import urlopen

import pytest
import uvicorn
import yaml
from fastapi import FastAPI
from playwright.sync_api import Error

from cluster.client import Ask
from cluster.gateway.console.routes import console_router
from cluster.gateway.errors import RequestError
from cluster.gateway.http import problems
from cluster.gateway.http.guard import operators_in_browsers
from cluster.gateway.tenants import Doors

pytestmark = [pytest.mark.browser, pytest.mark.cluster]

DESK, PHONE = (1280, 1000), (390, 844)


@pytest.fixture
def asked(cluster):
    """Answers under a strict and a lossy law, and a request that is refused."""
    prompt = "one two three one two three one two three"
    strict = Ask(prompt=prompt, max_tokens=24, temperature=1.0, domain="coding")
    lossy = Ask(prompt=prompt, max_tokens=24, law="truncation:min_p", domain="story")
    return [cluster.client.answer(ask).final for ask in (strict, lossy)]


@pytest.mark.parametrize("window", [DESK, PHONE], ids=["desk", "phone"], indirect=True)
def test_the_page_says_what_the_api_says(cluster, asked, window):
    base = f"http://{cluster.running.http_address}"
    page = window.page
    page.goto(f"{base}/console")
    with urlopen(f"{base}/console/data", timeout=30) as response:
        data = json.load(response)
    # One row is the head.
    page.wait_for_selector(f"#requests tr:nth-child({len(data['requests']) + 1})")
    assert window.errors == []
    assert page.inner_text("#model") == data["model"] == "tiny"
    assert page.inner_text("#alarm") == "quiet"
    shown = [row.inner_text().split("\t") for row in page.query_selector_all("#requests tr")][1:]
    assert len(shown) == len(data["requests"])
    for row, request, answer in zip(shown[:2], data["requests"][:2], reversed(asked), strict=True):
        provenance = answer.provenance
        assert request["trace_id"] == provenance.trace_id
        assert row[2] == request["effective_law"] == provenance.effective_law
        assert row[3] == request["claim"] == provenance.claim
        assert int(row[5]) == request["output_tokens"] == answer.usage.output_tokens
        assert float(row[6]) == pytest.approx(provenance.acceptance_length, abs=0.005)
    laws = {row.inner_text().split("\t")[0]: row for row in page.query_selector_all("#laws tr")}
    for law in data["laws"]:
        tokens = laws[law["law"]].inner_text().split("\t")[1]
        assert int(tokens.replace(",", "")) == law["emitted"]
    assert page.query_selector("#chart canvas")
    times = data["history"]["times"]
    assert page.evaluate("[chart.scales.x.min, chart.scales.x.max]") == [
        min(times[0], times[-1] - 600),
        times[-1],
    ]
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], "the page is wider than the screen"
    window.picture(f"console-{page.viewport_size['width']}")


def test_nothing_that_a_client_sends_becomes_part_of_the_page(cluster, window):
    label = "<img src=x onerror=document.title='taken'>"
    cluster.client.answer(Ask(prompt="one", max_tokens=2, domain=label))
    window.page.goto(f"http://{cluster.running.http_address}/console")
    window.page.wait_for_selector("#requests tr:nth-child(2)")
    window.page.get_by_text(label).first.wait_for()
    assert label in window.page.inner_text("#requests")
    assert window.page.title() == "truedraft"
    assert window.errors == []


@pytest.fixture
def guarded(cluster, tmp_path):
    """The console with the cluster's numbers, where keys are asked for: its address."""
    with urlopen(f"http://{cluster.running.http_address}/console/data", timeout=30) as response:
        data = json.load(response)

    async def numbers():
        return data

    tenants = [
        {"name": name, "keys": [hashlib.sha256(name.encode()).hexdigest()], "operator": name == "operations"}
        for name in ("a", "operations")
    ]
    keys = tmp_path / "keys.yaml"
    keys.write_text(yaml.safe_dump({"tenants": tenants}))
    app = FastAPI()
    app.add_exception_handler(RequestError, problems.on_request_error)
    app.include_router(console_router(numbers, operators_in_browsers(Doors(keys))))
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/console"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("key", [None, "a", "operations"])
def test_a_browser_asks_its_user_for_an_operators_key(guarded, window, key):
    given = {"http_credentials": {"username": "", "password": key}} if key else {}
    context = window.page.context.browser.new_context(**given)
    page, statuses, errors = context.new_page(), [], []
    page.on("response", lambda response: statuses.append(response.status))
    page.on("pageerror", lambda error: errors.append(str(error)))
    if key is None:
        # Nobody is there to type.
        with pytest.raises(Error, match="ERR_INVALID_AUTH_CREDENTIALS"):
            page.goto(guarded)
        return
    answer = page.goto(guarded)
    if key == "operations":
        page.get_by_text("as of").wait_for()
        assert page.inner_text("#model") == "tiny"
        # The page, its parts and its numbers, each of them asked for with the key.
        assert statuses.count(200) >= 6
        assert errors == []
    else:
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
        assert set(statuses) == {401}
