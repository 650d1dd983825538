"""The console's numbers, from what verifiers say of themselves and the last requests in the log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

_REQUESTS = 50
_NO_DRAFTER = "none"


def view(
    model: str,
    verifiers: Sequence[Mapping[str, Any]],
    requests: Sequence[Mapping[str, Any]],
    trace_url: str = "",
    measured: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """verifiers: their `info`; requests: lines of the request log, newest first; trace_url: of a trace in the
    tracing UI, with {trace_id} in it, empty where there is none; measured: acceptance length of rounds with a
    block by domain, as last measured."""
    counts = [each for verifier in verifiers for each in verifier.get("counted", {}).get("counts", ())]
    emitted = sum(each["emitted"] for each in counts)
    unmeasured = sum(each["emitted"] for each in counts if each["domain"] not in measured)
    return {
        "model": model,
        "laws": _laws(counts),
        "domains": [each | {"measured": measured.get(each["domain"])} for each in _domains(counts)],
        "unmeasured_share": unmeasured / emitted if emitted else None,
        "break_even": _mean(verifier.get("counted", {}).get("break_even") for verifier in verifiers),
        "history": _history(verifiers),
        "audits": [audit | {"replica": each["replica"]} for each in verifiers for audit in each["audits"]],
        "alarm": any(audit["alarm"] for each in verifiers for audit in each["audits"]),
        "verifiers": [_verifier(each) for each in verifiers],
        "requests": [_request(line, trace_url) for line in requests[:_REQUESTS]],
    }


def _laws(counts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tokens and rounds by law, the most used first."""
    laws: dict[str, dict[str, Any]] = {}
    for each in counts:
        law = laws.setdefault(each["law"], {"law": each["law"], "emitted": 0, "rounds": 0})
        law["emitted"] += each["emitted"]
        law["rounds"] += each["rounds"]
    return sorted(laws.values(), key=lambda law: -law["emitted"])


def _domains(counts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Acceptance by domain, of rounds that had a block and of all: pooled, never a mean of ratios."""
    domains: dict[str, dict[str, Any]] = {}
    for each in counts:
        domain = domains.setdefault(
            each["domain"],
            {"domain": each["domain"], "rounds": 0, "emitted": 0, "drafted": 0, "accepted": 0}
            | {"block_rounds": 0, "block_emitted": 0},
        )
        for name in ("rounds", "emitted", "drafted", "accepted"):
            domain[name] += each[name]
        if each["drafter"] != _NO_DRAFTER:
            domain["block_rounds"] += each["rounds"]
            domain["block_emitted"] += each["emitted"]
    for domain in domains.values():
        domain["acceptance_length"] = _ratio(domain["emitted"], domain["rounds"])
        domain["with_block"] = _ratio(domain.pop("block_emitted"), domain.pop("block_rounds"))
    return sorted(domains.values(), key=lambda domain: -domain["emitted"])


def _history(verifiers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """times: seconds since the epoch, ascending; domains: acceptance length at each, None without rounds."""
    sums: dict[int, dict[str, tuple[int, int]]] = {}
    for verifier in verifiers:
        for step in verifier.get("counted", {}).get("history", ()):
            at = sums.setdefault(step["time"], {})
            for domain, (rounds, emitted) in step["domains"].items():
                before = at.get(domain, (0, 0))
                at[domain] = (before[0] + rounds, before[1] + emitted)
    times = sorted(sums)
    names = sorted({domain for at in sums.values() for domain in at})
    return {
        "times": times,
        "domains": {
            name: [_ratio(*reversed(sums[time].get(name, (0, 0)))) for time in times] for name in names
        },
    }


def _verifier(info: Mapping[str, Any]) -> dict[str, Any]:
    counted = info.get("counted", {})
    names = ("replica", "drafting", "active", "queued", "kv_tokens", "row_invariant", "labels")
    return {name: info.get(name) for name in names} | {
        "round_trips": counted.get("round_trips", {}),
        "fallbacks": counted.get("fallbacks", []),
    }


def _request(line: Mapping[str, Any], trace_url: str) -> dict[str, Any]:
    """What of a line is shown; its provenance as it was answered."""
    provenance = line.get("provenance") or {}
    names = ("time", "request_id", "operation", "outcome", "law", "domain", "output_tokens", "seconds")
    shown = {name: line.get(name) for name in (*names, "trace_id", "error", "reason")}
    if trace_url and shown["trace_id"]:
        shown["trace_url"] = trace_url.replace("{trace_id}", str(shown["trace_id"]))
    wanted = ("effective_law", "claim", "lossless", "rounds", "draft_tokens", "accepted_tokens")
    return shown | {name: provenance.get(name) for name in (*wanted, "acceptance_length", "reasons", "seed")}


def _ratio(above: int, below: int) -> float | None:
    return above / below if below else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
