"""What `promtool check rules` looks at, and what it cannot know: our metrics, their types and labels."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import promql_parser as promql

from cluster.telemetry import instruments

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
# Of every series: the replica's own, and those of Prometheus.
EVERYWHERE = {"service_name", "service_instance_id", "job", "instance"}
# Functions that need a counter, or say nothing of one that falls when a replica is replaced.
OF_COUNTERS = {"rate", "increase", "irate"}
DURATION = re.compile(r"(\d+(ms|[smhdwy]))+")
TEMPLATE_LABEL = re.compile(r"\$labels\.(\w+)")


@dataclass(frozen=True)
class Series:
    """counts: whether it only grows."""

    counts: bool
    labels: frozenset = field(default_factory=frozenset)


def catalogue():
    """Every series of docs/metrics.md as Prometheus writes it, by name."""
    found, header, before = {}, set(), set()
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 3 or set(cells[0]) == {"-"}:
            continue
        labels = {label.replace(".", "_") for label in re.findall(r"`([a-z_.]+)`", cells[2])}
        if cells[1] == "Type":
            header, before = labels, set()
            continue
        kind, _, unit = cells[1].partition(", ")
        labels |= header | (before if "the same" in cells[2] else set())
        before = labels
        for dotted in re.findall(r"`([\w.]+)`", cells[0]):
            name = dotted.replace(".", "_") + ("_seconds" if unit == "s" else "")
            for suffix in SUFFIXES[kind]:
                own = labels | EVERYWHERE | ({"le"} if suffix == "_bucket" else set())
                found[name + suffix] = Series(suffix != "", frozenset(own))
    return found


def documented():
    """Names in the document and in the code, with dots: they must be the same."""
    rows = re.findall(r"^\|(.*?)\| (?:counter|gauge|histogram)", DOCUMENT.read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    constants = [value for name, value in vars(instruments).items() if name.isupper()]
    return named, {value for value in constants if isinstance(value, str) and "." in value}


def children(node):
    match node:
        case promql.AggregateExpr():
            return [node.expr, *([node.param] if node.param else [])]
        case promql.BinaryExpr():
            return [node.lhs, node.rhs]
        case promql.Call():
            return list(node.args)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return [node.expr]
        case promql.MatrixSelector():
            return [node.vector_selector]
    return []


def within(node, above=None):
    yield node, above
    for child in children(node):
        yield from within(child, node)


def labels_of(node, known):
    """Labels that the result can have; None of a number."""
    match node:
        case promql.VectorSelector():
            return set(known[node.name].labels)
        case promql.AggregateExpr():
            inner = labels_of(node.expr, known) or set()
            if node.modifier is None:
                return set()
            named = set(node.modifier.labels)
            return named if node.modifier.type == promql.AggModifierType.By else inner - named
        case promql.BinaryExpr():
            left = labels_of(node.lhs, known)
            return labels_of(node.rhs, known) if left is None else left
        case promql.Call():
            return next((each for arg in node.args if (each := labels_of(arg, known)) is not None), None)
    return next((labels_of(child, known) for child in children(node)), None)


def faults(expression, known):
    """What is wrong with an expression, in words. Raises ValueError if it is none."""
    tree = promql.parse(expression)
    for node, above in within(tree):
        if isinstance(node, promql.VectorSelector):
            if node.name not in known:
                yield f"no series {node.name}"
                continue
            series = known[node.name]
            for matcher in node.matchers.matchers:
                if matcher.name not in series.labels:
                    yield f"{node.name} has no label {matcher.name}"
            if series.counts and not isinstance(above, promql.MatrixSelector):
                yield f"{node.name} counts, and is looked at without a rate"
        if isinstance(node, promql.Call) and node.func.name in OF_COUNTERS:
            selector = node.args[0].vector_selector
            if selector.name in known and not known[selector.name].counts:
                yield f"{node.func.name} of {selector.name}, which does not count"
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            named = [each.name for each, _ in within(node.expr) if isinstance(each, promql.VectorSelector)]
            for label in node.modifier.labels:
                if not all(label in known[name].labels for name in named if name in known):
                    yield f"{node.modifier} of {', '.join(named)}, which have no label {label}"


def rule_faults(rule, known):
    """The same of a rule of a PrometheusRule or a rules file."""
    kind = "alert" if "alert" in rule else "record"
    allowed = {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    for name in set(rule) - (allowed if kind == "alert" else {"record", "expr", "labels"}):
        yield f"{name} is no field of such a rule"
    pattern = r"[A-Z]\w+" if kind == "alert" else r"[a-z_]\w*(:\w+)+"
    if not re.fullmatch(pattern, rule.get(kind, "")):
        yield f"{rule.get(kind)!r} is no name"
    if "for" in rule and not DURATION.fullmatch(rule["for"]):
        yield f"{rule['for']!r} is no duration"
    broken = list(faults(rule["expr"], known))
    yield from broken
    if not broken:
        result = labels_of(promql.parse(rule["expr"]), known) or set()
        for text in rule.get("annotations", {}).values():
            for label in set(TEMPLATE_LABEL.findall(text)) - result:
                yield f"an annotation names {label}, which the expression has not"


def recorded(rules, known):
    """The catalogue with what rules record, in their order."""
    known = dict(known)
    for rule in rules:
        if "record" in rule:
            known[rule["record"]] = Series(False, frozenset(labels_of(promql.parse(rule["expr"]), known)))
    return known
