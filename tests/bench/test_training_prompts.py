"""Prompts that the shipped drafter was trained on share no run of words with those that it is measured on."""

from __future__ import annotations

import random
import re

from cluster.bench.domains.prompts import DOMAINS
from cluster.bench.training_prompts.build import (
    OVERLAP,
    _written,
    measured_prompts,
    measured_runs,
    runs,
    without_overlap,
)
from cluster.bench.training_prompts.templates import CODE, PASSAGE, SLOTS, TEMPLATES
from cluster.bench.training_prompts.texts import _paragraphs


def test_written_prompts_share_no_run_with_measured_ones():
    forbidden = measured_runs()
    written = _written(random.Random(3), 5000)
    assert len(written) == 5000
    assert not [entry for entry in written if runs(entry["prompt"]) & forbidden]


def test_a_prompt_with_a_shared_run_is_left_out():
    # Whatever this machine's texts say: a measured prompt inside a longer one, and one token less of it.
    long = next(prompt for prompt in measured_prompts() if len(re.findall(r"\w+|[^\w\s]", prompt)) > OVERLAP)
    inside = {"prompt": f"Please note. {long} Thank you.", "domain": "chat"}
    words = re.findall(r"\w+|[^\w\s]", long)[: OVERLAP - 1]
    shorter = {"prompt": " ".join(words), "domain": "chat"}
    assert list(without_overlap([inside, shorter], measured_runs())) == [shorter]


def test_every_slot_of_a_template_is_filled():
    named = {
        name for group in TEMPLATES.values() for text in group for name in re.findall(r"\{(\w+)\}", text)
    }
    assert named == set(SLOTS)
    assert all("{text}" in text for text in (*PASSAGE, *CODE))
    assert not [entry for entry in _written(random.Random(5), 2000) if re.search(r"\{\w+\}", entry["prompt"])]


def test_eight_domains_of_sixteen_prompts_are_measured():
    assert len(DOMAINS) == 8
    assert all(len(set(prompts)) == 16 for prompts in DOMAINS.values())


def test_prose_is_told_from_tables_and_markup():
    prose = "This package reads settings from files and from the environment. " * 4
    table = "| name | type |\n| --- | --- |\n" * 10
    assert list(_paragraphs(f"{prose}\n\n{table}\n\nShort.")) == [prose.strip()]
