"""One scrape of the gateway tells of the whole cluster, and its numbers are those of the answers."""

from urllib.request import urlopen

import pytest

from cluster.client import Ask
from tests.telemetry.scraping import series, total

pytestmark = pytest.mark.cluster


def scrape(cluster):
    with urlopen(f"http://{cluster.running.http_address}/metrics", timeout=30) as response:
        assert response.headers["content-type"].startswith("text/plain")
        return series(response.read().decode())


def test_a_scrape_counts_what_answers_say(cluster):
    before = scrape(cluster)
    ask = Ask(prompt="one two three one two three", max_tokens=20, temperature=1.0, domain="coding")
    answers = [cluster.client.answer(ask) for _ in range(3)]
    after = scrape(cluster)

    def grown(name, **labels):
        return total(after, name, **labels) - total(before, name, **labels)

    provenances = [answer.final.provenance for answer in answers]
    mine = {"law": "coupled", "domain": "coding"}
    assert grown("truedraft_rounds_total", **mine) == sum(each.rounds for each in provenances)
    for name, field in (
        ("accepted", "accepted_tokens"),
        ("corrections", "correction_tokens"),
        ("bonuses", "bonus_tokens"),
        ("drafted", "draft_tokens"),
    ):
        expected = sum(getattr(each, field) for each in provenances)
        assert grown(f"truedraft_tokens_{name}_total", **mine) == expected
    tokens = sum(answer.final.usage.output_tokens for answer in answers)
    assert grown("truedraft_tokens_emitted_total", **mine) == tokens
    claim = provenances[0].claim
    assert grown("truedraft_requests_total", outcome="finished", claim=claim, lossless="true", **mine) == 3
    assert grown("gen_ai_server_request_duration_seconds_count", **mine) == 3
    assert grown("gen_ai_server_time_to_first_token_seconds_count", **mine) == 3
    assert grown("truedraft_audit_bets_total", kind="ranks", **mine) > 0
    assert grown("truedraft_drafting_bytes_total", direction="received") > 0
    assert total(after, "truedraft_drafter_connected") == 1
    services = {dict(labels).get("service_name") for _, labels in after}
    assert {"truedraft-gateway", "truedraft-verifier"} <= services


def test_domains_that_are_not_listed_are_one_series(cluster):
    for name in ("a1", "a2", "a3"):
        cluster.client.answer(Ask(prompt="one", max_tokens=2, domain=name))
    domains = {dict(labels).get("domain") for _, labels in scrape(cluster)}
    assert "other" in domains
    assert not {"a1", "a2", "a3"} & domains
