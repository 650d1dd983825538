"""From prompts to a corpus: the target answers batch after batch, and what it answered stays on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from cluster.drafting.features import LayerTaps
from drafter_service.training import answers
from drafter_service.training.corpus import Corpus
from drafter_service.training.prompts import Prompt, held_out, prompt_ids

# What answers are drawn at: a drafter meets greedy text and sampled text.
TEMPERATURES = (0.0, 0.7, 1.0)


@dataclass(frozen=True, slots=True)
class Answering:
    """batch: prompts at once; most: tokens of an answer; longest: of a prompt, longer ones are left out."""

    batch: int = 96
    most: int = 160
    longest: int = 256
    seed: int = 1


def regenerate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    ends: frozenset[int],
    layer_ids: Sequence[int],
    prompts: Sequence[Prompt],
    how: Answering,
    corpus: Corpus,
    progress: Callable[[int, int], None],
) -> int:
    """Answers what the corpus lacks; returns how many prompts were too long.

    model: the target, which has another attention meanwhile; progress: told batches done and in all.
    """
    encoded = [(prompt_ids(tokenizer, prompt), prompt) for prompt in prompts]
    fitting = [pair for pair in encoded if len(pair[0]) <= how.longest]
    # Of like length, so that little is computed for filling; the order of batches is mixed again.
    fitting.sort(key=lambda pair: len(pair[0]))
    measured = held_out([prompt for _, prompt in fitting])
    batches = [fitting[first : first + how.batch] for first in range(0, len(fitting), how.batch)]
    generator = torch.Generator(model.device)
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(how.seed)).tolist()
    taps, attention = LayerTaps(model, layer_ids), model.config._attn_implementation
    answers.prepare(model)
    try:
        for done, number in enumerate(order):
            progress(done, len(batches))
            if corpus.path(number).exists():
                continue
            batch = batches[number]
            # A batch that is repeated after an interruption comes out the same.
            generator.manual_seed(how.seed * 1_000_003 + number)
            held = [prompt in measured for _, prompt in batch]
            heat = temperatures(held)
            got = answers.answer(model, taps, [ids for ids, _ in batch], heat, how.most, ends, generator)
            corpus.write(number, got, [prompt.domain for _, prompt in batch], held)
        progress(len(batches), len(batches))
    finally:
        taps.close()
        model.set_attn_implementation(attention)
    return len(encoded) - len(fitting)


def temperatures(held_out: Sequence[bool]) -> list[float]:
    """For each answer of a batch, those that are held out in turns of their own: the first is greedy."""
    turns = {held: cycle(TEMPERATURES) for held in (True, False)}
    return [next(turns[held]) for held in held_out]
