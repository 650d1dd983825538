"""Whatever the cache had to do, tokens are those of plain decoding: every family in every batch, chunk and
pool, with pages found and pages lost."""

import os
from dataclasses import replace

import pytest
import torch
from opentelemetry.trace import NoOpTracer

from cluster.checkpoints import load_model, resolve
from cluster.drafting import NgramDrafter
from cluster.kernels.attention import PAGE
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, Claim
from cluster.speculation.sampling import Sampling
from cluster.telemetry.metrics import start_metrics
from tests.verifier_service.families import FAMILIES, random_model, reference, served
from tests.verifier_service.helpers import Mimic, Rows, Scripted, accounted, alone
from verifier_service.batch import Answer, answer_all
from verifier_service.build import build_engine, load_target
from verifier_service.cache.kv_cache import pages_of
from verifier_service.drafting.local import LocalDrafting
from verifier_service.engine import admission, composing

TOKENS = 12
# Prompts around the edges of pages, three of them with a beginning in common.
LENGTHS = (1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 90, 100)
TEXT = [(5 * i * i + 1) % 500 for i in range(200)]


def engine_over(target, spec, drafting=None, **fields):
    """An engine that counts, and decodes no answer again."""
    meter = start_metrics("test").meter
    spec = replace(spec, replay_share=0.0, **fields)
    return build_engine(target, spec, drafting, NoOpTracer(), meter=meter)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, loaded):
    """A target of each family, requests, and what transformers answers to them."""
    stock = random_model(request.param, loaded.model.vocab_size)

    def requests_of(make):
        return [
            make(
                prompt_ids=tuple(TEXT[:length] if length > PAGE else TEXT[length : 2 * length]),
                request_id=f"{length}/{temperature}",
                temperature=temperature,
                sampling=Sampling(temperature=temperature),
                seed=length,
                max_tokens=TOKENS,
            )
            for length in LENGTHS
            for temperature in (0.0, 1.0)
        ]

    known = {}

    def truths(requests):
        for each in requests:
            if each.request_id not in known:
                known[each.request_id] = reference(stock, each)
        return [known[each.request_id] for each in requests]

    return served(loaded, stock), requests_of, truths


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize(
    ("mix", "pages"),
    [({"max_active": 1}, 64), ({}, 64), ({}, 14), ({"step_rows": 3}, 14), ({"step_rows": 40}, 9)],
)
def test_tokens_are_those_of_transformers(family, spec, request_for, monkeypatch, chunk, mix, pages):
    monkeypatch.setattr(composing, "LEAST_CHUNK", chunk)
    monkeypatch.setattr(admission, "LEAST_CHUNK", chunk)
    target, requests_of, truths = family
    requests = requests_of(request_for)
    engine = engine_over(target, spec, LocalDrafting(NgramDrafter()), kv_tokens=pages * PAGE, **mix)
    cold = answer_all(engine, requests)
    warm = answer_all(engine, [replace(each, law=NONE, requested_law=NONE) for each in requests])
    assert [answer.token_ids for answer in cold] == truths(requests)
    assert [answer.token_ids for answer in warm] == truths(requests)
    state = engine.counted()
    if pages == 64:
        # Every prompt is there, but for its last token and what fills no page.
        found = [answer.finished.cached_tokens for answer in warm]
        assert found == [(len(each.prompt_ids) - 1) // PAGE * PAGE for each in requests]
        assert state["preemptions"] == 0
    assert engine.load().kv_tokens == 0


def growing(request_for, count, tenants=True):
    """Requests that begin small and end large."""
    return [
        request_for(
            prompt_ids=tuple(TEXT[i % 8 : i % 8 + 5]),
            request_id=str(i),
            temperature=1.0,
            seed=i % 8,
            max_tokens=PAGE * (9 if i % 4 == 0 else 2),
            tenant=str(i) if tenants else "",
        )
        for i in range(count)
    ]


@pytest.fixture
def large(loaded, spec):
    """The tiny target, or that of `make capacity`."""
    model = os.environ.get("TRUEDRAFT_MODEL")
    if model is None:
        return loaded, spec
    spec = replace(spec, model=model, threads=0)
    return load_target(spec), spec


def test_64_active_and_256_queued_requests_in_a_cache_for_16(large, request_for, monkeypatch):
    """No request shares a page with another, so that there are as many as there seem to be."""
    loaded, spec = large
    requests = growing(request_for, 320)
    truths = [alone(build_engine(loaded, spec, None, NoOpTracer()), each).token_ids for each in requests[:8]]
    engine = engine_over(
        loaded, spec, max_active=64, max_queued=320, kv_tokens=16 * 10 * PAGE, step_rows=1024
    )
    held, forward = [], loaded.model.forward

    def watching(batch, ready):
        ends = {id(rows.cache): rows.start + len(rows.tokens) for rows in batch}
        caches = [each.cache for each in engine._admission.active.values()]
        least = sum(pages_of(ends.get(id(cache), cache.length)) for cache in caches)
        held.append((least, engine.load().kv_tokens // PAGE, len(caches)))
        return forward(batch, ready)

    monkeypatch.setattr(loaded.model, "forward", watching)
    answers = [Answer() for _ in requests]
    for each, answer in zip(requests, answers, strict=True):
        engine.submit(each, answer.take)
    engine.step()
    assert (engine.load().active, engine.load().queued) == (64, 256)
    while engine.load().active or engine.load().queued:
        engine.step()
    assert [answer.token_ids for answer in answers] == [truths[i % 8] for i in range(320)]
    assert engine.counted()["preemptions"] > 20
    # Pages held are those of the tokens held.
    assert all(least <= pages <= 160 for least, pages, _ in held)
    pages, least = sum(pages for _, pages, _ in held), sum(least for least, _, _ in held)
    preemptions = engine.counted()["preemptions"]
    print(f"{len(held)} steps, {preemptions} preemptions, {pages / least - 1:.2%} more pages than least")
    assert pages <= 1.05 * least


@pytest.mark.parametrize("law", [COUPLED, REJECTION, BLOCK], ids=str)
def test_a_block_in_hand_is_not_lost_with_its_pages(loaded, spec, request_for, stock_rows, law):
    """The same blocks come, so the same tokens must; and losing one would be told."""
    requests = [
        request_for(
            prompt_ids=tuple(TEXT[i : i + 20]),
            request_id=str(i),
            law=law,
            temperature=1.0,
            seed=i,
            max_tokens=90,
            ignore_eos=True,
        )
        for i in range(6)
    ]

    def served_in(pages):
        # Under coupled nobody asks for proposals.
        drafter = Scripted(lambda text, length: text[-length:]) if law == COUPLED else Mimic(stock_rows)
        port = LocalDrafting(drafter)
        engine = engine_over(loaded, spec, port, kv_tokens=pages * PAGE, block_length=4)
        return answer_all(engine, requests), engine.counted()["preemptions"]

    ample, none = served_in(64)
    tight, some = served_in(18)
    assert (none, some > 3) == (0, True)
    assert [answer.token_ids for answer in tight] == [answer.token_ids for answer in ample]
    strongest = Claim.IDENTICAL_TOKENS if law == COUPLED else Claim.EXACT_LAW
    for answer, other in zip(tight, ample, strict=True):
        provenance = accounted(answer)
        assert provenance.claim is strongest
        assert provenance.draft_tokens == accounted(other).draft_tokens
        assert provenance.fallbacks == {}


@pytest.fixture(scope="module")
def stock_rows(tiny_path):
    return Rows(load_model(resolve(str(tiny_path)), "float32", "cpu"), Sampling(temperature=1.0))


def test_the_oldest_goes_on_whatever_comes_after_it(loaded, spec, request_for):
    """New requests all the time, each of them small, in a cache that is always full."""
    engine = engine_over(loaded, spec, kv_tokens=12 * PAGE, max_active=8)
    large = Answer()
    engine.submit(request_for(prompt_ids=tuple(TEXT[:100]), max_tokens=60, request_id="large"), large.take)
    for number in range(200):
        small = request_for(prompt_ids=tuple(TEXT[number % 90 :][:20]), max_tokens=30, request_id=str(number))
        engine.submit(replace(small, tenant=str(number)), lambda event: None)
        engine.step()
        if large.finished:
            break
    # Two steps for its prompt, one for each token: it was never sent back.
    assert number < 65
    assert engine.counted()["prompt_tokens"].get("recomputed", 0) > 0 or engine.load().queued > 0


def test_short_prompts_do_not_wait_for_a_long_one(engine_with, request_for):
    engine = engine_with(step_rows=128)
    long, short = Answer(), [Answer() for _ in range(3)]
    engine.submit(request_for(prompt_ids=tuple(TEXT * 2), max_tokens=3, request_id="long"), long.take)
    for number, answer in enumerate(short):
        engine.submit(
            request_for(prompt_ids=tuple(TEXT[number:][:10]), max_tokens=1, request_id=str(number)),
            answer.take,
        )
    engine.step()
    engine.step()
    assert all(answer.finished for answer in short)
    assert not long.token_ids


def test_requests_with_a_beginning_in_common_compute_it_once(loaded, spec, request_for):
    engine = engine_over(loaded, spec)
    requests = [
        request_for(
            prompt_ids=(*TEXT[:100], *TEXT[i:150]), request_id=str(i), seed=i, max_tokens=2, temperature=1.0
        )
        for i in range(100, 104)
    ]
    truths = [alone(build_engine(loaded, spec, None, NoOpTracer()), each).token_ids for each in requests]
    answers = answer_all(engine, requests)
    assert [answer.token_ids for answer in answers] == truths
    shared = 100 // PAGE * PAGE
    assert [answer.finished.cached_tokens for answer in answers] == [0, shared, shared, shared]
    counted = engine.counted()["prompt_tokens"]
    assert counted == {
        "cached": 3 * shared,
        "computed": sum(map(len, (r.prompt_ids for r in requests))) - 3 * shared,
    }


def test_where_pages_are_not_shared_nobody_waits_for_those_of_others(engine_with, request_for):
    engine = engine_with(prefix_caching=False)
    answers = [Answer() for _ in range(3)]
    for number, answer in enumerate(answers):
        request = request_for(prompt_ids=(*TEXT[:100], number), max_tokens=1, request_id=str(number))
        engine.submit(request, answer.take)
    engine.step()
    assert all(answer.finished for answer in answers)


def test_tenants_find_nothing_of_each_other(loaded, spec, request_for):
    engine = engine_over(loaded, spec)
    request = request_for(prompt_ids=tuple(TEXT[:100]), max_tokens=2)
    found = [
        alone(engine, replace(request, tenant=tenant)).finished.cached_tokens
        for tenant in ("a", "b", "a", "")
    ]
    assert found == [0, 0, 96, 0]


def test_without_prefix_caching_everything_is_computed(loaded, spec, request_for):
    engine = engine_over(loaded, replace(spec, prefix_caching=False))
    request = request_for(prompt_ids=tuple(TEXT[:100]), max_tokens=2)
    answers = [alone(engine, request) for _ in range(2)]
    assert [answer.finished.cached_tokens for answer in answers] == [0, 0]
    assert answers[0].token_ids == answers[1].token_ids
    assert engine.kept_tokens() == 0


def test_a_conversation_goes_on_from_its_own_answer(loaded, spec, request_for):
    engine = engine_over(loaded, spec, LocalDrafting(NgramDrafter()))
    first = request_for(prompt_ids=tuple(TEXT[:20]), max_tokens=40, ignore_eos=True)
    answer = alone(engine, first)
    text = (*first.prompt_ids, *answer.token_ids, *TEXT[:10])
    more = request_for(prompt_ids=text, max_tokens=10, request_id="more")
    # All but the last token of an answer have keys and values.
    expected = (len(first.prompt_ids) + 39) // PAGE * PAGE
    again = alone(engine, more)
    assert again.finished.cached_tokens == expected
    assert again.token_ids == alone(build_engine(loaded, spec, None, NoOpTracer()), more).token_ids


def test_what_a_faulty_sequence_computed_is_not_used_again(loaded, spec, request_for, monkeypatch):
    engine, forward = engine_over(loaded, spec), loaded.model.forward

    @torch.inference_mode()
    def poisoned(batch, ready):
        logits = forward(batch, ready)
        for rows in logits:
            rows.fill_(float("nan"))
        return logits

    request = request_for(prompt_ids=tuple(TEXT[:100]), max_tokens=2)
    with monkeypatch.context() as patch:
        patch.setattr(loaded.model, "forward", poisoned)
        with pytest.raises(RuntimeError, match="not finite"):
            answer_all(engine, [request])
    assert engine.kept_tokens() == 0
    assert alone(engine, request).finished.cached_tokens == 0
