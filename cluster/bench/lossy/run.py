"""Puts `truedraft bench lossy` together: loads the model, measures, and reports."""

from __future__ import annotations

import time
from collections.abc import Callable

from cluster.bench.encoding import prompting
from cluster.bench.lossy import answers, exact
from cluster.bench.lossy.drafters import DRAFTINGS, SIGHT, Drafting, proposals
from cluster.bench.lossy.report import Report, Size, as_json, draw, render
from cluster.bench.lossy.rounds import BLOCK, rounds
from cluster.bench.machine import measure
from cluster.bench.prompts import VARIED
from cluster.checkpoints import DEFAULT_REFERENCE
from cluster.speculation.sampling import Sampling, target_probs
from cluster.terminal import Output, progress
from verifier_service.build import LoadedTarget, load_target
from verifier_service.spec import VerifierSpec


def run_lossy(model: str | None, size: Size, output: Output) -> None:
    """`truedraft bench lossy`. Raises CheckpointError; ValueError or OSError for a picture that cannot be
    drawn."""
    reference = model or DEFAULT_REFERENCE
    loaded = load_target(VerifierSpec(model=reference))
    with progress() as say:
        report = measured(loaded, reference, size, say)
    output.give(
        as_json(report), lambda console: render(report, console), lambda path: draw(report.points, path)
    )


def measured(loaded: LoadedTarget, model: str, size: Size, say: Callable[[str], None]) -> Report:
    """Everything; say: told what is being done."""
    machine = measure()
    began = time.monotonic()
    pitfalls: list[exact.Pitfall] = []
    points: list[exact.Point] = []
    for drafting in DRAFTINGS:
        say(f"rows of the drafter that {drafting.name}")
        where = text_places(loaded, drafting, size.positions)
        for law in exact.TRUNCATIONS:
            say(f"{law}, drafter {drafting.name}")
            pitfalls.append(exact.pitfall(law, drafting.name, where, size.checked, size.draws))
        say(f"rounds of drafting and collaborative laws, drafter {drafting.name}")
        blocks = rounds(loaded.model, drafting, _text(loaded), size.rounds)
        points += exact.curve(drafting.name, where, blocks)
    answered: list[answers.Answered] = []
    for contestant in answers.CONTESTANTS:
        say(f"answers under {contestant.name}")
        answered += answers.answer(loaded, contestant, size.samples, size.tokens)
    return Report(
        model=model,
        size=size,
        machine=machine,
        seconds=round(time.monotonic() - began, 1),
        pitfalls=tuple(pitfalls),
        points=tuple(points),
        effects=tuple(answers.effects(answered)),
    )


def text_places(loaded: LoadedTarget, drafting: Drafting, count: int) -> list[exact.Place]:
    """The last `count` positions of the project's own prompts as one text, at temperature 1."""
    text = _text(loaded)
    count = min(count, len(text) - SIGHT)
    [logits] = loaded.model.score([text], count)
    return exact.places(target_probs(logits, Sampling()), proposals(loaded.model, drafting, text, logits))


def _text(loaded: LoadedTarget) -> list[int]:
    """With room for a round of drafts after it."""
    return prompting(loaded).encode("\n\n".join(VARIED))[: loaded.model.context - BLOCK]
