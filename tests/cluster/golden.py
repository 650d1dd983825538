"""Traces as they must look: per service and span what kind it is, below what, with which attributes of which
type, which events and which status. GOLDEN=write writes the file anew, to be read before it is committed."""

import json
import os
import time
from pathlib import Path

_FILE = Path(__file__).with_name("golden_traces.json")


def shape(spans):
    """What spans of one trace have in common with those of any other request of the sort."""
    by_id = {span.span_id: span for span in spans}
    shapes = {}
    for span in spans:
        key = f"{span.resource['service.name'].removeprefix('truedraft-')}: {span.name}"
        parent = by_id.get(span.parent_span_id)
        seen = shapes.setdefault(
            key, {"kind": span.kind, "below": set(), "attributes": {}, "events": {}, "status": set()}
        )
        seen["below"].add(parent.name if parent else "the client")
        seen["status"].add(span.status)
        seen["attributes"].update({name: type(value).__name__ for name, value in span.attributes.items()})
        for event in span.events:
            types = {name: type(value).__name__ for name, value in event.attributes.items()}
            seen["events"].setdefault(event.name, {}).update(types)
    return {
        key: {name: sorted(part) if isinstance(part, set) else part for name, part in each.items()}
        for key, each in sorted(shapes.items())
    }


def check(name, spans, only_root=False):
    """Fails where the trace differs from the one of that name. only_root: what else there is may differ from
    run to run, and must be known from other traces."""
    golden = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    found = shape(spans)
    root = {key: each for key, each in found.items() if each["below"] == ["the client"]}
    if os.environ.get("GOLDEN") == "write":
        golden[name] = root if only_root else found
        _FILE.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    assert (root if only_root else found) == golden[name]
    known = {key for each in golden.values() for key in each}
    assert set(found) <= known


def check_soon(name, spans, seconds=20):
    """As `check` of what `spans()` gives once it is all there: services send their spans when they like."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check(name, spans())
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
