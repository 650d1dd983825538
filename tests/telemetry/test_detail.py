"""Which spans of a sequence are recorded: by its parent, the sampler and the level of detail."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer

from cluster.telemetry.context import inject
from cluster.telemetry.detail import Detail, Level
from cluster.telemetry.sequence import SequenceTrace, step_span
from cluster.telemetry.setup import setup
from tests.telemetry.sequences import play_round


def test_without_a_parent_there_is_no_trace_of_its_own(recorder):
    trace = SequenceTrace(recorder.tracer, "")
    assert play_round(trace) == ""
    trace.ended("finished")
    assert recorder.shape() == []


@pytest.mark.parametrize("tracer", ["unset", "disabled"])
def test_a_tracer_that_records_nothing_still_hands_on_the_trace(tracer):
    tracer = setup("verifier") if tracer == "unset" else NoOpTracer()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    trace = SequenceTrace(tracer, parent)
    trace.queued()
    trace.admitted()
    assert play_round(trace) == parent
    trace.ended("cancelled", "client")


def test_an_unsampled_request_records_nothing(recorder):
    trace = SequenceTrace(recorder.tracer, inject(recorder.root)[:-2] + "00")
    trace.queued()
    assert play_round(trace).endswith("-00")
    trace.ended("finished")
    assert recorder.shape() == []


@pytest.mark.parametrize(
    ("sampler", "sampled", "shown"),
    [
        (ALWAYS_OFF, True, False),
        (ALWAYS_ON, False, True),
        (ParentBased(ALWAYS_OFF), True, True),
        (ParentBased(ALWAYS_ON), False, False),
        (TraceIdRatioBased(0.5), True, True),
        (TraceIdRatioBased(0.4), True, False),
    ],
    ids=["off", "on", "parent's", "parent's not", "by id", "by id not"],
)
def test_the_sampler_decides_once_for_all_spans(sampler, sampled, shown):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_id = "0af7651916cd43dd7448eb211c80319c"
    trace = SequenceTrace(provider.get_tracer("v"), f"00-{trace_id}-b7ad6b7169203331-0{sampled:d}")
    trace.queued()
    trace.admitted()
    parents = [play_round(trace) for _ in range(2)]
    trace.ended("finished")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["queue", *["draft", "verify", "speculation.round"] * 2] * shown
    assert {f"{span.context.trace_id:032x}" for span in spans} <= {trace_id}
    assert len({span.context.span_id for span in spans}) == len(spans)
    # What the drafter is told is what its parent is.
    drafts = [span.context.span_id for span in spans if span.name == "draft"]
    assert [parent.split("-")[2:] for parent in parents if shown] == [
        [f"{each:016x}", "01"] for each in drafts
    ]


def at(recorder, **detail):
    return SequenceTrace(recorder.tracer, inject(recorder.root), Detail(**detail))


def test_at_request_level_there_are_no_rounds_and_the_drafter_records_none(recorder):
    trace = at(recorder, level=Level.REQUEST)
    trace.queued()
    trace.admitted()
    assert play_round(trace) == inject(recorder.root)[:-2] + "00"
    play_round(trace, "deadline")
    trace.ended("finished")
    assert recorder.shape() == [("queue", "chat m")]


def test_rounds_beyond_the_cap_are_not_shown(recorder):
    trace = at(recorder, max_rounds=2)
    parents = [play_round(trace) for _ in range(4)]
    trace.ended("finished")
    assert [name for name, _ in recorder.shape()].count("speculation.round") == 2
    assert [parent.endswith("-00") for parent in parents] == [False, False, True, True]


def test_a_share_of_traces_shows_rounds_and_every_process_agrees_on_which():
    detail = Detail(level=Level.SAMPLED, share=0.25)
    shown = [bool(detail.rounds(trace_id << 20)) for trace_id in range(4096)]
    assert sum(shown) == 1024
    assert shown == [bool(detail.rounds(trace_id << 20)) for trace_id in range(4096)]


def test_a_step_of_requests_that_show_no_rounds_is_not_recorded(recorder):
    with step_span(recorder.tracer, [at(recorder, level=Level.REQUEST)], 1, 1) as step:
        assert not step.is_recording()


def test_detail_is_read_from_the_environment_and_nonsense_is_told_of(monkeypatch, caplog):
    monkeypatch.setenv("TRUEDRAFT_TRACE_DETAIL", "sampled")
    monkeypatch.setenv("TRUEDRAFT_TRACE_ROUNDS", "12")
    monkeypatch.setenv("TRUEDRAFT_TRACE_SHARE", "a lot")
    assert Detail.from_environment() == Detail(Level.SAMPLED, 12, Detail().share)
    assert "TRUEDRAFT_TRACE_SHARE: 'a lot' cannot be used" in caplog.text
