import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import INVALID_SPAN

from cluster.telemetry.context import extract, extract_metadata, inject, trace_id

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def parent_of(context):
    return trace.get_current_span(context).get_span_context()


def test_what_is_injected_is_extracted():
    span = TracerProvider().get_tracer("test").start_span("here", extract(PARENT))
    there = parent_of(extract(inject(span)))
    assert trace_id(span) == TRACE
    assert there.trace_id == span.get_span_context().trace_id
    assert there.span_id == span.get_span_context().span_id
    assert there.is_remote
    assert there.trace_flags.sampled


@pytest.mark.parametrize("value", ["", "nonsense", f"00-{'0' * 32}-b7ad6b7169203331-01", PARENT[:-4], "ü"])
def test_a_malformed_traceparent_is_no_parent(value):
    assert not parent_of(extract(value)).is_valid


def test_the_current_span_of_the_process_is_never_the_parent():
    serve = TracerProvider().get_tracer("serve")
    with serve.start_as_current_span("proxy"):
        assert not parent_of(extract("")).is_valid
        assert not parent_of(extract_metadata([])).is_valid


def test_metadata_and_headers():
    metadata = [("user-agent", "x"), ("TraceParent", PARENT), ("tracestate", "a=1"), ("blob-bin", b"\x00")]
    there = parent_of(extract_metadata(metadata))
    assert trace.format_trace_id(there.trace_id) == TRACE
    assert there.trace_state.get("a") == "1"


def test_a_span_without_ids():
    assert inject(INVALID_SPAN) == ""
    assert trace_id(INVALID_SPAN) == ""
