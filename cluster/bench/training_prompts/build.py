"""Writes training prompts as JSON lines: python -m cluster.bench.training_prompts.build FILE --count 4000."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterable, Iterator
from itertools import count as counting
from pathlib import Path

from cluster.bench.domains.prompts import DOMAINS
from cluster.bench.lossy.tasks import TASKS
from cluster.bench.prompts import VARIED
from cluster.bench.training_prompts.templates import CODE, PASSAGE, SLOTS, TEMPLATES
from cluster.bench.training_prompts.texts import functions, passages

# No run of so many words or signs is shared with a prompt that is measured on.
OVERLAP = 13
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SLOT = re.compile(r"\{(\w+)\}")
# Of all prompts, those about a text and those about a piece of code.
_ABOUT_TEXT, _ABOUT_CODE = 0.2, 0.08


def runs(text: str, length: int = OVERLAP) -> set[tuple[str, ...]]:
    """Every run of so many tokens: words and signs, in lower case."""
    tokens = _TOKEN.findall(text.lower())
    return {tuple(tokens[first : first + length]) for first in range(len(tokens) - length + 1)}


def measured_runs() -> set[tuple[str, ...]]:
    """What no training prompt may contain."""
    return {run for prompt in measured_prompts() for run in runs(prompt)}


def measured_prompts() -> list[str]:
    """Every prompt of demo and benchmarks."""
    prompts = [prompt for domain in DOMAINS.values() for prompt in domain]
    return [*prompts, *VARIED, *(task.prompt for task in TASKS)]


def build(count: int, seed: int) -> list[dict[str, str]]:
    """At most so many prompts, all different, in mixed order; fewer where this machine has little text."""
    rng = random.Random(seed)
    texts, codes = int(count * _ABOUT_TEXT), int(count * _ABOUT_CODE)
    entries = [
        *_around(rng, "editing", PASSAGE, passages(rng, texts)),
        *_around(rng, "coding", CODE, functions(rng, codes)),
        *_written(rng, count - texts - codes),
    ]
    rng.shuffle(entries)
    return list(without_overlap(entries, measured_runs()))


def without_overlap(
    entries: Iterable[dict[str, str]], forbidden: set[tuple[str, ...]]
) -> Iterator[dict[str, str]]:
    """The entries whose prompts contain none of the runs."""
    return (entry for entry in entries if not runs(entry["prompt"]) & forbidden)


def _around(
    rng: random.Random, domain: str, templates: tuple[str, ...], texts: list[str]
) -> list[dict[str, str]]:
    return [{"prompt": rng.choice(templates).replace("{text}", text), "domain": domain} for text in texts]


def _written(rng: random.Random, count: int) -> list[dict[str, str]]:
    """Filled templates, as many of each domain as of another."""
    found: dict[str, str] = {}
    domains = list(TEMPLATES)
    for attempt in counting():
        if len(found) == count or attempt > 20 * count:
            break
        domain = domains[attempt % len(domains)]
        filled = _SLOT.sub(lambda slot: rng.choice(SLOTS[slot[1]]), rng.choice(TEMPLATES[domain]))
        found.setdefault(filled.replace("{{", "{").replace("}}", "}"), domain)
    return [{"prompt": prompt, "domain": domain} for prompt, domain in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    lines = [json.dumps(entry, ensure_ascii=False) for entry in build(given.count, given.seed)]
    given.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
