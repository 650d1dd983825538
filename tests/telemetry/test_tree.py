from rich.console import Console

from cluster.speculation.messages import DrafterIdentity
from cluster.telemetry import names
from cluster.telemetry.context import inject, trace_id
from cluster.telemetry.sequence import SequenceTrace
from cluster.telemetry.setup import TRACE_DIR, setup, shutdown
from cluster.telemetry.tree import load_spans, render

MS = 1_000_000


def drawn(spans):
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(render(spans))
    return [line.rstrip() for line in capture.get().splitlines()]


def record_request(rounds):
    """A request through two services: each round takes 10 ms, every fourth falls back."""
    gateway, verifier = setup("gateway", replica="g#1"), setup("verifier", replica="v#1")
    root = gateway.start_span("chat m", start_time=0)
    trace = SequenceTrace(verifier, inject(root))
    trace.queued(at=1 * MS)
    trace.admitted(at=2 * MS)
    trace.prefill_began(at=2 * MS)
    trace.prefill_ended(17, at=10 * MS)
    for index in range(rounds):
        start = (10 + 10 * index) * MS
        fallback = "deadline" if index % 4 == 3 else None
        drafted, accepted = (0, 0) if fallback else (4, 2)
        trace.round_began(index, 17, 4, at=start)
        trace.draft_began(at=start)
        who = None if fallback else DrafterIdentity("ngram-3", "ngram", "d#1")
        trace.draft_ended(drafted, who, fallback, "", at=start + 4 * MS)
        trace.verify_began(2, 9, at=start + 4 * MS)
        trace.verify_ended(accepted, accepted + 1, at=start + 9 * MS)
        trace.round_ended("coupled", drafted, accepted, accepted + 1, at=start + 10 * MS)
    trace.ended("finished", at=(10 + 10 * rounds) * MS)
    root.set_attributes(
        {
            names.VERIFICATION_MODE: "coupled",
            names.LOSSLESS: True,
            names.CLAIM: "identical-tokens",
            names.DRAFT_TOKENS: 40,
            names.ACCEPTED_TOKENS: 20,
            names.DRAFTER_MODEL: "ngram-3",
        }
    )
    root.end((12 + 10 * rounds) * MS)
    other = gateway.start_span("chat other")
    other.end()
    shutdown()
    return trace_id(root)


def test_a_trace_is_drawn_and_rounds_are_folded(tmp_path, monkeypatch):
    monkeypatch.setenv(TRACE_DIR, str(tmp_path))
    trace = record_request(rounds=10)
    lines = [f"trace {trace}"]
    lines += [
        (
            "└── chat m  112.0 ms  coupled  lossless  identical-tokens  accepted 20 of 40  drafter ngram-3"
            "  gateway g#1"
        )
    ]
    lines += ["    ├── queue  1.0 ms  verifier v#1"]
    lines += ["    ├── prefill  8.0 ms  tokens 17  verifier v#1"]
    facts = "coupled  accepted 2 of 4  emitted 3  drafter ngram-3"
    for index in range(3):
        lines += [f"    ├── round {index}  10.0 ms  {facts}  verifier v#1"]
        lines += ["    │   ├── draft  4.0 ms  drafted 4  drafter ngram-3"]
        lines += ["    │   └── verify  5.0 ms  accepted 2  emitted 3  rows 9 of 2 sequences"]
    lines += ["    └── … 7 more rounds  70.0 ms  accepted 10 of 20  fallback ×2"]
    assert drawn(load_spans(tmp_path, trace)) == lines


def test_a_fallback_and_a_cancellation_are_seen(tmp_path, monkeypatch):
    monkeypatch.setenv(TRACE_DIR, str(tmp_path))
    verifier = setup("verifier")
    root = verifier.start_span("chat [m]")
    trace = SequenceTrace(verifier, inject(root))
    trace.round_began(0, 1, 4)
    trace.draft_began()
    trace.draft_ended(0, None, "stream-reset", "gone")
    trace.ended("cancelled", "client")
    root.end()
    shutdown()
    lines = drawn(load_spans(tmp_path, trace_id(root)))
    assert "chat [m]" in lines[1]
    assert lines[2].endswith("fallback: stream-reset  cancelled: client")
    assert lines[3].endswith("fallback: stream-reset")


def test_spans_whose_parent_is_not_there_yet_stand_at_the_top(tmp_path, monkeypatch):
    monkeypatch.setenv(TRACE_DIR, str(tmp_path))
    trace = record_request(rounds=1)
    spans = [span for span in load_spans(tmp_path, trace) if span.name != "chat m"]
    assert [line[:9] for line in drawn(spans)[1:4]] == ["├── queue", "├── prefi", "└── round"]


def test_an_unknown_trace(tmp_path):
    assert load_spans(tmp_path, "0" * 32) == []
    assert drawn([]) == ["no spans"]
