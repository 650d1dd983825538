"""The console's numbers, from what verifiers and gateways say."""

import pytest

from cluster.gateway.console.view import view


def counts(law, drafter, domain, rounds, emitted, drafted=0, accepted=0):
    return {
        "law": law,
        "drafter": drafter,
        "domain": domain,
        "rounds": rounds,
        "emitted": emitted,
        "drafted": drafted,
        "accepted": accepted,
    }


def verifier(*counted, history=(), break_even=None, audits=()):
    return {
        "replica": "v#1",
        "drafting": "connected",
        "active": 1,
        "queued": 0,
        "kv_tokens": 64,
        "audits": list(audits),
        "counted": {"counts": list(counted), "history": list(history), "break_even": break_even},
    }


def test_acceptance_is_pooled_over_replicas():
    one = verifier(counts("coupled", "small", "coding", 10, 40, 80, 30), break_even=1.2)
    other = verifier(
        counts("coupled", "small", "coding", 90, 100, 90, 10), counts("none", "none", "coding", 20, 20)
    )
    shown = view("m", [one, other], [])
    [domain] = shown["domains"]
    assert domain["acceptance_length"] == pytest.approx(160 / 120)
    assert domain["with_block"] == pytest.approx(140 / 100)
    assert [(law["law"], law["emitted"]) for law in shown["laws"]] == [("coupled", 140), ("none", 20)]
    assert shown["break_even"] == 1.2


def test_the_history_of_replicas_is_one():
    steps = [{"time": 60, "domains": {"coding": [2, 6]}}, {"time": 30, "domains": {"chat": [1, 1]}}]
    shown = view("m", [verifier(history=steps[:1]), verifier(history=steps)], [])
    assert shown["history"] == {
        "times": [30, 60],
        "domains": {"chat": [1.0, None], "coding": [None, 3.0]},
    }


def test_tokens_of_domains_without_a_measured_figure_are_a_share():
    said = [verifier(counts("none", "none", "other", 3, 3), counts("none", "small", "chat", 1, 2, 4, 1))]
    shown = view("m", said, [], measured={"chat": 2.5, "coding": 3.0})
    assert shown["unmeasured_share"] == 0.6
    assert [(each["domain"], each["with_block"], each["measured"]) for each in shown["domains"]] == [
        ("other", None, None),
        ("chat", 2.0, 2.5),
    ]
    assert view("m", said, [])["unmeasured_share"] == 1.0
    assert view("m", [], [])["unmeasured_share"] is None


def test_one_alarm_anywhere_is_an_alarm():
    quiet, loud = ({"law": "coupled", "alarm": alarm} for alarm in (False, True))
    assert not view("m", [verifier(audits=[quiet])], [])["alarm"]
    assert view("m", [verifier(audits=[quiet]), verifier(audits=[loud])], [])["alarm"]


def test_a_request_is_shown_as_it_was_answered():
    line = {
        "time": "2026-01-01T00:00:00.000+00:00",
        "outcome": "finished",
        "law": "coupled",
        "trace_id": "ab" * 16,
        "provenance": {"claim": "exact-law", "lossless": True, "acceptance_length": 2.5},
    }
    [shown] = view("m", [], [line], "http://ui/trace/{trace_id}?x=1")["requests"]
    assert (shown["claim"], shown["lossless"], shown["acceptance_length"]) == ("exact-law", True, 2.5)
    assert shown["trace_url"] == f"http://ui/trace/{'ab' * 16}?x=1"
    assert shown["error"] is None
    [refused] = view("m", [], [{"time": "t", "outcome": "invalid", "error": "INVALID_ARGUMENT"}])["requests"]
    assert refused["claim"] is None
    assert "trace_url" not in refused
