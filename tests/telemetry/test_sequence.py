"""The spans of a sequence, its rounds and the steps that it shares."""

from cluster.telemetry.context import extract, inject
from cluster.telemetry.sequence import SequenceTrace, step_span
from tests.telemetry.sequences import NGRAM, only, play_round


def test_an_accepted_round(recorder):
    trace = recorder.trace
    trace.queued()
    trace.admitted()
    trace.prefill_began()
    trace.prefill_ended(17)
    play_round(trace)
    trace.ended("finished")
    assert recorder.shape() == [
        ("queue", "chat m"),
        ("prefill", "chat m"),
        ("draft", "speculation.round"),
        ("verify", "speculation.round"),
        ("speculation.round", "chat m"),
    ]


def test_a_sequence_that_gives_way_waits_again_inside_its_round(recorder):
    trace = recorder.trace
    trace.queued()
    trace.admitted()
    trace.prefill_began()
    trace.prefill_ended(17, cached=32)
    trace.round_began(1, 50, 3)
    trace.preempted()
    trace.admitted()
    trace.prefill_began()
    trace.prefill_ended(49)
    trace.round_ended("coupled", 0, 0, 1)
    trace.ended("finished")
    spans = [span for span in recorder.spans() if span.name != "chat m"]
    assert sorted(span.name for span in spans) == [
        "prefill",
        "prefill",
        "queue",
        "queue",
        "speculation.round",
    ]
    assert [event.name for event in only(spans, "speculation.round").events] == ["preempted"]
    first, second = (span.attributes for span in spans if span.name == "prefill")
    assert first == {"truedraft.prefill.tokens": 17, "truedraft.prefill.cached_tokens": 32}
    assert second == {"truedraft.prefill.tokens": 49, "truedraft.prefill.cached_tokens": 0}


def test_the_attributes_of_a_round(recorder):
    play_round(recorder.trace)
    recorder.trace.ended("finished")
    spans = recorder.spans()
    who = {
        "truedraft.drafter.model": "ngram-3",
        "truedraft.drafter.kind": "ngram",
        "truedraft.drafter.replica": "d#1",
    }
    speculation, draft, verify = (only(spans, name) for name in ("speculation.round", "draft", "verify"))
    assert speculation.attributes == who | {
        "truedraft.round.index": 3,
        "truedraft.round.base": 17,
        "truedraft.plan.length": 4,
        "truedraft.verification.mode": "coupled",
        "truedraft.draft.tokens": 4,
        "truedraft.accepted.tokens": 2,
        "truedraft.emitted.tokens": 3,
    }
    assert draft.attributes == who | {"truedraft.draft.tokens": 4, "truedraft.draft.ahead": False}
    assert verify.attributes == {
        "truedraft.batch.sequences": 2,
        "truedraft.batch.rows": 9,
        "truedraft.accepted.tokens": 2,
        "truedraft.emitted.tokens": 3,
    }
    assert (speculation.kind, draft.kind, verify.kind) == ("INTERNAL", "CLIENT", "INTERNAL")
    assert {span.status for span in spans} == {"UNSET"}
    assert all(span.events == () for span in spans)


def test_the_drafter_continues_the_draft_span(recorder):
    traceparent = play_round(recorder.trace)
    recorder.tracer.start_span("drafter", extract(traceparent)).end()
    spans = recorder.spans()
    assert only(spans, "drafter").parent_span_id == only(spans, "draft").span_id
    assert only(spans, "drafter").trace_id == only(spans, "chat m").trace_id


def test_a_fallback_is_told_by_the_round_and_fails_the_draft_alone(recorder):
    play_round(recorder.trace, "deadline", "no block within 40 ms")
    recorder.trace.ended("finished")
    spans = recorder.spans()
    speculation, draft = only(spans, "speculation.round"), only(spans, "draft")
    assert speculation.attributes["truedraft.fallback.reason"] == "deadline"
    assert "truedraft.drafter.model" not in speculation.attributes
    (event,) = speculation.events
    assert event.name == "fallback"
    assert event.attributes == {
        "truedraft.fallback.reason": "deadline",
        "truedraft.fallback.detail": "no block within 40 ms",
    }
    assert speculation.start_ns <= event.time_ns <= speculation.end_ns
    assert speculation.status == "UNSET"
    assert (draft.status, draft.description) == ("ERROR", "no block within 40 ms")
    assert draft.attributes == {
        "truedraft.draft.tokens": 0,
        "truedraft.draft.ahead": False,
        "truedraft.fallback.reason": "deadline",
        "error.type": "deadline",
    }


def test_a_fallback_of_a_known_drafter_names_it(recorder):
    trace = recorder.trace
    trace.round_began(0, 1, 4)
    trace.draft_began()
    trace.draft_ended(0, NGRAM, "drafter-fault", "")
    trace.round_ended("coupled", 0, 0, 1)
    spans = recorder.spans()
    assert only(spans, "speculation.round").attributes["truedraft.drafter.replica"] == "d#1"
    assert only(spans, "draft").description == "drafter-fault"


def test_cancelled_in_mid_draft_leaves_nothing_open(recorder):
    trace = recorder.trace
    trace.round_began(0, 5, 4)
    trace.draft_began()
    trace.ended("cancelled", "client")
    assert recorder.shape() == [("draft", "speculation.round"), ("speculation.round", "chat m")]
    for span in recorder.spans()[:2]:
        assert [(event.name, event.attributes) for event in span.events] == [
            ("cancelled", {"truedraft.cancel.reason": "client"})
        ]
        assert span.status == "UNSET"


def test_failed_marks_what_was_open(recorder):
    trace = recorder.trace
    play_round(trace)
    trace.round_began(4, 20, 4)
    trace.verify_began(1, 1)
    trace.ended("failed", "the forward pass failed")
    *_, verify, speculation, _ = recorder.spans()
    for span, name in ((verify, "verify"), (speculation, "speculation.round")):
        assert span.name == name
        assert (span.status, span.description) == ("ERROR", "the forward pass failed")
        assert [(event.name, event.attributes) for event in span.events] == [
            ("failed", {"truedraft.error.reason": "the forward pass failed"})
        ]
        assert span.attributes["error.type"] == "INTERNAL"


def test_nothing_happens_after_the_end(recorder):
    trace = recorder.trace
    trace.queued()
    trace.ended("cancelled", "client")
    play_round(trace)
    trace.admitted()
    trace.ended("finished")
    assert recorder.shape() == [("queue", "chat m")]


def test_calls_out_of_turn_are_harmless(recorder):
    trace = recorder.trace
    trace.draft_ended(1, NGRAM, "stale-block", "late")
    trace.verify_ended(0, 1)
    trace.round_ended("none", 0, 0, 1)
    trace.round_began(0, 1, 4)
    trace.draft_began()
    trace.draft_began()
    trace.round_ended("none", 0, 0, 1)
    trace.ended("finished")
    assert [name for name, _ in recorder.shape()] == ["draft", "speculation.round", "draft"]


def test_moments_can_be_given(recorder):
    trace = recorder.trace
    trace.round_began(0, 1, 4, at=1_000)
    trace.draft_began(at=2_000)
    trace.draft_ended(0, None, "deadline", "", at=3_000)
    trace.verify_began(1, 1, at=4_000)
    trace.verify_ended(0, 1, at=5_000)
    trace.round_ended("coupled", 0, 0, 1, at=6_000)
    spans = recorder.spans()
    times = {span.name: (span.start_ns, span.end_ns) for span in spans}
    assert times["draft"] == (2_000, 3_000)
    assert times["verify"] == (4_000, 5_000)
    assert times["speculation.round"] == (1_000, 6_000)
    assert only(spans, "speculation.round").events[0].time_ns == 3_000


def test_verify_is_linked_to_the_step_that_served_many_requests(recorder):
    traces = [SequenceTrace(recorder.tracer, inject(recorder.root)) for _ in range(2)]
    with step_span(recorder.tracer, traces, 2, 9) as step:
        for trace in traces:
            trace.round_began(0, 1, 0)
            trace.verify_began(2, 9, step)
            trace.verify_ended(0, 1)
            trace.round_ended("none", 0, 0, 1)
    spans = recorder.spans()
    step = only(spans, "verification.step")
    assert step.trace_id != recorder.root.get_span_context().trace_id
    assert step.attributes == {"truedraft.batch.sequences": 2, "truedraft.batch.rows": 9}
    links = [span.links for span in spans if span.name == "verify"]
    assert [[link.span_id for link in each] for each in links] == [[step.span_id], [step.span_id]]
