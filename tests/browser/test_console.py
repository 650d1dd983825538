"""The console in a real browser: no error, numbers that are the API's, readable on a phone."""

import json
from urllib.request import urlopen

import pytest

from cluster.client import Ask

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
