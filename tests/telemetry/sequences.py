"""A sequence whose spans are recorded, and what they look like."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cluster.speculation.messages import DrafterIdentity
from cluster.telemetry.context import inject
from cluster.telemetry.records import from_line, to_line
from cluster.telemetry.sequence import SequenceTrace

NGRAM = DrafterIdentity("ngram-3", "ngram", "d#1")


class Recorder:
    """A tracer, a root span, and what became of the sequence's spans."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("verifier")
        self.root = self.tracer.start_span("chat m")
        self.trace = SequenceTrace(self.tracer, inject(self.root))

    def spans(self):
        """By start; ends the root span, which must then be the only one that was open."""
        self.root.end()
        return [from_line(to_line(span)) for span in self.exporter.get_finished_spans()]

    def shape(self):
        """(name, parent's name) of every span but the root, in the order in which they ended."""
        spans = self.spans()
        by_id = {span.span_id: span.name for span in spans}
        return [(span.name, by_id.get(span.parent_span_id)) for span in spans if span.name != "chat m"]


def only(spans, name):
    (span,) = [span for span in spans if span.name == name]
    return span


def play_round(trace, fallback=None, detail=""):
    trace.round_began(3, 17, 4)
    traceparent = trace.draft_began()
    if fallback is None:
        trace.draft_ended(4, NGRAM, None, "")
    else:
        trace.draft_ended(0, None, fallback, detail)
    trace.verify_began(sequences=2, rows=9)
    trace.verify_ended(accepted=2, emitted=3)
    trace.round_ended("coupled", 4 if fallback is None else 0, 2, 3)
    return traceparent
