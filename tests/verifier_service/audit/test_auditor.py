"""Accounts of the live audit: by law, drafter and domain, for requests of fresh seeds, with linked spans."""

from dataclasses import replace

import pytest
import torch
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cluster.speculation.audit import ALARM
from cluster.speculation.law import COUPLED, NONE, REJECTION
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling
from cluster.telemetry import names
from cluster.telemetry.labels import Domains
from verifier_service.audit.auditor import Auditor
from verifier_service.audit.replay import Difference, Replay, Replayed

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ROWS = torch.tensor([[0.1, 0.2, 0.3, 0.4]])


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def auditor(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Auditor(provider.get_tracer("test"), Domains(["coding"]), replay_share=1.0)


def request(law=COUPLED, **fields):
    made = GenerationRequest(
        "id", (1, 2), Sampling(), law, law, 1, 8, traceparent=f"00-{TRACE}-{SPAN}-01", seed_drawn=True
    )
    return replace(made, **fields)


def rounds(auditor, made, token, count=1, drafter="", seeds=range(10**6)):
    subject = auditor.subject(made)
    for seed, _ in zip(seeds, range(count), strict=False):
        verdict = Verdict((token,), 0)
        auditor.round(made, subject, drafter, ROWS, DraftBlock(), verdict, Noise(seed, 2))


def test_evidence_is_kept_by_law_drafter_and_domain(auditor):
    rounds(auditor, request(NONE, domain="coding"), 1, drafter="small")
    rounds(auditor, request(COUPLED, domain="poetry"), 1)
    rounds(auditor, request(COUPLED), 1)
    assert [(each.law, each.drafter, each.domain, each.ranks) for each in auditor.states()] == [
        ("none", "none", "coding", 1),
        ("coupled", "small", "other", 2),
    ]


def test_under_coupled_a_request_keeps_the_drafter_that_it_began_with(auditor):
    rounds(auditor, request(), 1, count=3, drafter="small")
    assert [each.drafter for each in auditor.states()] == ["none"]


def test_a_seed_that_the_client_chose_is_not_bet_on(auditor):
    rounds(auditor, request(seed_drawn=False), 1, count=10)
    assert auditor.states() == ()


def test_tokens_that_are_always_the_same_raise_one_alarm(auditor, spans):
    rounds(auditor, request(), 0, count=100)
    [state] = auditor.states()
    assert state.alarm
    assert state.p_value < ALARM
    [span] = spans.get_finished_spans()
    assert span.name == "truedraft.audit"
    assert span.attributes[names.AUDIT_KIND] == "ranks"
    assert span.attributes[names.AUDIT_OUTCOME] == "alarm"
    assert span.attributes[names.AUDIT_P_VALUE] < ALARM
    [link] = span.links
    assert f"{link.context.trace_id:032x}" == TRACE
    assert f"{link.context.span_id:016x}" == SPAN
    assert span.context.trace_id != link.context.trace_id


def test_tokens_of_the_target_raise_none(auditor, spans):
    generator = torch.Generator().manual_seed(1)
    for seed, token in enumerate(torch.multinomial(ROWS[0], 2000, True, generator=generator).tolist()):
        rounds(auditor, request(), token, seeds=[seed])
    [state] = auditor.states()
    assert state.ranks == 2000
    assert not state.alarm
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize(
    ("difference", "outcome", "alarm"),
    [
        (None, "equal", False),
        (Difference(3, 1, 2, 1e-6, True), "near-tie", False),
        (Difference(3, 1, 2, 0.7, False), "fault", True),
        (Difference(3, 1, 2, float("inf"), False), "fault", True),
    ],
)
def test_every_replay_has_its_span(auditor, spans, difference, outcome, alarm):
    made = request(seed_drawn=False)
    auditor.replayed(Replayed(made, auditor.subject(made), 4, difference))
    [state] = auditor.states()
    assert (state.replays, state.replayed_tokens, state.alarm) == (1, 4, alarm)
    [span] = spans.get_finished_spans()
    assert span.attributes[names.AUDIT_OUTCOME] == outcome
    assert span.attributes[names.AUDIT_TOKENS] == 4
    assert span.attributes.get(names.AUDIT_POSITION) == (3 if difference else None)
    assert len(span.links) == 1


def test_answers_that_other_noise_would_decide_are_not_replayed(auditor):
    for law in (REJECTION, COUPLED, NONE):
        made = request(law)
        auditor.replays.consider(Replay(made, [1, 2], auditor.subject(made)))
    waiting = []
    while auditor.replays.first():
        waiting.append(auditor.replays.take().request.law)
    assert waiting == [COUPLED, NONE]
