"""The step loop at its limits: small steps, full caches, prompts beside sequences that fill every step."""

from dataclasses import replace

import pytest

from cluster.speculation.law import NONE
from cluster.speculation.request import Failed
from tests.verifier_service.helpers import LONG, Scripted, accounted, alone, oracle
from verifier_service.batch import Answer, answer_all
from verifier_service.drafting.local import LocalDrafting
from verifier_service.engine.composing import LEAST_CHUNK
from verifier_service.limits import Load


def watched(monkeypatch, target):
    """Records the rows of every batch that the target computes."""
    batches, forward = [], target.forward

    def recording(batch, ready):
        batches.append([(rows.start, len(rows.tokens), rows.wanted) for rows in batch])
        return forward(batch, ready)

    monkeypatch.setattr(target, "forward", recording)
    return batches


@pytest.mark.parametrize("step_rows", [1, 2, 8, 70])
def test_small_steps_cut_prompts_and_blocks_and_change_no_token(
    engine_with, request_for, loaded, monkeypatch, step_rows
):
    requests = [request_for(LONG, 0.8), request_for(LONG[4:], 0.0), request_for("a", 1.0)]
    truths = [alone(engine_with(), replace(request, law=NONE)) for request in requests]
    lookup = {r.prompt_ids: [*r.prompt_ids, *t.token_ids] for r, t in zip(requests, truths, strict=True)}

    def propose(text, length):
        [truth] = [whole for prompt, whole in lookup.items() if tuple(text[: len(prompt)]) == prompt]
        return truth[len(text) :][:length]

    batches = watched(monkeypatch, loaded.model)
    engine = engine_with(LocalDrafting(Scripted(propose)), step_rows=step_rows, block_length=16)
    answers = answer_all(engine, requests)
    assert [answer.token_ids for answer in answers] == [truth.token_ids for truth in truths]
    for answer in answers:
        provenance = accounted(answer)
        assert provenance.accepted_tokens == provenance.draft_tokens
    # Prompts really came in chunks, and no step is larger than its limit by more than a chunk.
    assert any(start > 0 and count > 20 for batch in batches for start, count, _ in batch)
    assert max(sum(count for _, count, _ in batch) for batch in batches) <= max(step_rows, 3) + LEAST_CHUNK


def test_the_cache_holds_every_block_up_to_the_last_token(engine_with, request_for, loaded, monkeypatch):
    """Rows beyond what a request may still emit would lie beyond its cache."""
    request = request_for(max_tokens=9)
    truth = alone(engine_with(), request).token_ids
    batches = watched(monkeypatch, loaded.model)
    drafter = oracle([*request.prompt_ids, *truth, 1, 2, 3, 4, 5])
    answer = alone(engine_with(LocalDrafting(drafter), block_length=16), request)
    assert answer.token_ids == truth
    ends = [start + count for batch in batches for start, count, _ in batch]
    assert max(ends) == len(request.prompt_ids) + 9 - 1


def test_prompts_make_progress_beside_sequences_that_fill_every_step(engine_with, request_for):
    engine = engine_with(step_rows=2)
    busy, late = [Answer(), Answer()], Answer()
    for number, answer in enumerate(busy):
        engine.submit(request_for("a", 1.0, max_tokens=200, request_id=str(number)), answer.take)
    while not all(answer.token_ids for answer in busy):
        engine.step()
    engine.submit(request_for(LONG, max_tokens=3), late.take)
    for _ in range(20):
        engine.step()
    assert late.finished is not None
    assert all(answer.finished is None for answer in busy)


def test_a_request_that_the_cache_cannot_hold_fails_at_once(engine_with, request_for):
    engine, events = engine_with(kv_tokens=60), []
    prompt = len(request_for(LONG).prompt_ids)
    engine.submit(request_for(LONG), events.append)
    assert events == [
        Failed(f"prompt and max_tokens are {prompt + 40} tokens, and the verifier's cache holds 64")
    ]
    assert engine.load() == Load(active=0, queued=0, kv_tokens=0)
