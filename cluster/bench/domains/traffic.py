"""A deployment's traffic by domain, and what acceptance it should see of what was measured."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

_TOKENS = "truedraft_tokens_emitted"


def read_traffic(path: Path) -> dict[str, float]:
    """Tokens by domain, of a CSV file with lines `domain,tokens` or of what the gateway's /metrics said.

    Raises ValueError, a sentence, for a file that is neither; OSError.
    """
    text = path.read_text(encoding="utf-8")
    found: defaultdict[str, float] = defaultdict(float)
    if "# TYPE" in text or "{" in text:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in (_TOKENS, f"{_TOKENS}_total"):
                    found[sample.labels.get("domain", "")] += sample.value
    else:
        for number, row in enumerate(csv.reader(text.splitlines()), 1):
            if not row or (number == 1 and [cell.strip() for cell in row] == ["domain", "tokens"]):
                continue
            try:
                domain, tokens = row
                found[domain.strip()] += float(tokens)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not of the form domain,tokens") from error
    if not any(tokens > 0 for tokens in found.values()) or min(found.values()) < 0:
        raise ValueError(f"{path} counts no tokens")
    return dict(found)


@dataclass(frozen=True, slots=True)
class Weighted:
    """measured: the share of tokens in domains that were measured; length: tokens a round that this traffic
    would show there, as pooled counters do, None where nothing was measured."""

    measured: float
    length: float | None


def weighted(traffic: Mapping[str, float], lengths: Mapping[str, float]) -> Weighted:
    """lengths: tokens a round by domain, so that a domain's rounds are its tokens by its length."""
    known = {domain: tokens for domain, tokens in traffic.items() if domain in lengths}
    tokens = sum(known.values())
    rounds = sum(count / lengths[domain] for domain, count in known.items())
    return Weighted(tokens / sum(traffic.values()), tokens / rounds if rounds else None)
