"""Draws one trace as a tree, from the span records that TRUEDRAFT_TRACE_DIR collects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.text import Text
from rich.tree import Tree

from cluster.telemetry import names
from cluster.telemetry.records import SpanRecord, Value, read

# Rounds drawn in full; the others become one line.
_ROUNDS_SHOWN = 3


def load_spans(directory: Path, trace_id: str) -> list[SpanRecord]:
    """The finished spans of a trace, by start; empty while there are none."""
    return sorted(read(directory, trace_id), key=lambda span: (span.start_ns, -span.end_ns))


def render(spans: Sequence[SpanRecord]) -> Tree:
    """spans: of one trace, by start. One whose parent is not among them, as a client's never is, stands at
    the top."""
    tree = Tree(Text(f"trace {spans[0].trace_id}" if spans else "no spans", style="bold"))
    known = {span.span_id for span in spans}
    children: dict[str, list[SpanRecord]] = {}
    for span in spans:
        parent = span.parent_span_id if span.parent_span_id in known else ""
        children.setdefault(parent, []).append(span)
    _grow(tree, "", "", children)
    return tree


def _grow(tree: Tree, parent: str, service: str, children: Mapping[str, Sequence[SpanRecord]]) -> None:
    """service: the one that the parent belongs to, not to be named again."""
    spans = children.get(parent, ())
    rounds = [span for span in spans if span.name == names.SPAN_ROUND]
    folded = rounds[_ROUNDS_SHOWN:]
    for span in spans:
        if folded and span is folded[0]:
            tree.add(_folded(folded))
        if span not in folded:
            branch = tree.add(_label(span, service))
            _grow(branch, span.span_id, span.service, children)


def _folded(rounds: Sequence[SpanRecord]) -> Text:
    drafted, accepted = (_total(rounds, name) for name in (names.DRAFT_TOKENS, names.ACCEPTED_TOKENS))
    noun = "round" if len(rounds) == 1 else "rounds"
    took = sum(span.milliseconds for span in rounds)
    text = Text(f"… {len(rounds)} more {noun}", style="dim")
    text.append(f"  {took:.1f} ms  accepted {accepted} of {drafted}")
    if fallbacks := sum(names.FALLBACK_REASON in span.attributes for span in rounds):
        text.append(f"  fallback ×{fallbacks}", style="yellow")
    return text


def _total(rounds: Sequence[SpanRecord], name: str) -> int:
    values = (span.attributes.get(name) for span in rounds)
    return sum(value for value in values if isinstance(value, int))


def _label(span: SpanRecord, service: str) -> Text:
    text = Text(_title(span), style="bold")
    text.append(f"  {span.milliseconds:.1f} ms", style="cyan")
    for fact in _facts(span.attributes):
        text.append(f"  {fact}", style="not bold")
    if reason := span.attributes.get(names.FALLBACK_REASON):
        text.append(f"  fallback: {reason}", style="yellow")
    for event in span.events:
        if event.name in (names.EVENT_CANCELLED, names.EVENT_REFUSED):
            reason = event.attributes.get(names.ERROR_REASON, event.attributes.get(names.CANCEL_REASON))
            text.append(f"  {event.name}: {reason}" if reason else f"  {event.name}", style="yellow")
    if span.status == "ERROR" and names.FALLBACK_REASON not in span.attributes:
        text.append(f"  {span.description or 'error'}", style="red")
    if span.service != service:
        place = f"{span.service} {span.instance}".strip()
        text.append(f"  {place}", style="dim not bold")
    return text


def _title(span: SpanRecord) -> str:
    if span.name == names.SPAN_ROUND and names.ROUND_INDEX in span.attributes:
        return f"round {span.attributes[names.ROUND_INDEX]}"
    return span.name


def _facts(attributes: Mapping[str, Value]) -> Iterator[str]:
    """What matters of a span at a glance, whichever of it there is."""
    if (mode := attributes.get(names.VERIFICATION_MODE)) is not None:
        yield str(mode)
    if (lossless := attributes.get(names.LOSSLESS)) is not None:
        yield "lossless" if lossless else "not lossless"
    if (claim := attributes.get(names.CLAIM)) is not None:
        yield str(claim)
    drafted, accepted = attributes.get(names.DRAFT_TOKENS), attributes.get(names.ACCEPTED_TOKENS)
    if drafted is not None and accepted is not None:
        yield f"accepted {accepted} of {drafted}"
    elif drafted is not None:
        yield f"drafted {drafted}"
    elif accepted is not None:
        yield f"accepted {accepted}"
    if (emitted := attributes.get(names.EMITTED_TOKENS)) is not None:
        yield f"emitted {emitted}"
    if (rounds := attributes.get(names.ROUNDS)) is not None:
        yield f"rounds {rounds}"
    if (tokens := attributes.get(names.PREFILL_TOKENS)) is not None:
        yield f"tokens {tokens}"
    if (rows := attributes.get(names.BATCH_ROWS)) is not None:
        yield f"rows {rows} of {attributes.get(names.BATCH_SEQUENCES)} sequences"
    if drafter := attributes.get(names.DRAFTER_MODEL):
        yield f"drafter {drafter}"
