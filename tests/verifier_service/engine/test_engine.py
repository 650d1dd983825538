"""The step loop with drafters of every character: no token changes, counts add up, nothing is kept."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer

from cluster.checkpoints import load_model, resolve
from cluster.drafting import DraftingError, NgramDrafter
from cluster.scheduling import PlannerName
from cluster.speculation.law import COUPLED, NONE, REJECTION, Claim
from cluster.speculation.messages import DraftBlock, DrafterIdentity
from cluster.speculation.request import Failed, FinishReason, Refused
from cluster.telemetry.metrics import start_metrics
from tests.verifier_service.helpers import Port, Scripted, accounted, alone, oracle
from verifier_service.batch import Answer, answer_all
from verifier_service.build import build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.port import DraftReply, Fallback

TEXTS = ["one two three one two three one two", "The river rises", "def add(left", "a", "x " * 90]


def failing(text, length):
    raise DraftingError("out of memory")


def wrong(text, length):
    return [(text[-1] + 1 + k) % 500 for k in range(length)]


@pytest.mark.parametrize("text", TEXTS)
def test_plain_greedy_decoding_is_that_of_transformers(engine_with, request_for, loaded, tiny_path, text):
    request = request_for(text, law=NONE)
    stock = load_model(resolve(str(tiny_path)), "float32", "cpu")
    ids = torch.tensor([request.prompt_ids])
    out = stock.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
    expected = [token for token in out[0, ids.shape[1] :].tolist() if token not in loaded.stop_ids]
    assert alone(engine_with(), request).token_ids == expected


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("block_length", [1, 4, 16])
@pytest.mark.parametrize("character", ["ngram", "oracle", "wrong", "failing", "none"])
def test_coupled_is_plain_decoding_whoever_drafts(
    engine_with, request_for, character, block_length, temperature
):
    plain = alone(engine_with(), request_for(temperature=temperature, law=NONE))
    request = request_for(temperature=temperature)
    drafters = {
        "ngram": NgramDrafter(),
        "oracle": oracle([*request.prompt_ids, *plain.token_ids]),
        "wrong": Scripted(wrong),
        "failing": Scripted(failing),
    }
    port = LocalDrafting(drafters[character]) if character in drafters else None
    answer = alone(engine_with(port, block_length=block_length), request)
    assert answer.token_ids == plain.token_ids
    assert answer.text == plain.text
    provenance = accounted(answer)
    assert provenance.claim is Claim.IDENTICAL_TOKENS
    if character == "oracle":
        assert provenance.accepted_tokens == provenance.draft_tokens > 0
        assert provenance.rounds < len(plain.token_ids)
    if character == "failing":
        # The first token comes with the prompt, the last needs no drafts.
        assert provenance.fallbacks == {"drafter-fault": provenance.rounds - 2}
        assert any("out of memory" in reason for reason in provenance.reasons)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("character", ["ngram", "oracle", "wrong"])
@pytest.mark.parametrize("planner", [PlannerName.GOODPUT, PlannerName.BUDGETED])
def test_coupled_is_plain_decoding_under_every_planner(
    engine_with, request_for, planner, character, temperature
):
    requests = [request_for(text, temperature, max_tokens=60, request_id=text) for text in TEXTS[:4]]
    plain = [alone(engine_with(), replace(each, law=NONE)) for each in requests]
    lookup = {
        tuple(each.prompt_ids): [*each.prompt_ids, *truth.token_ids]
        for each, truth in zip(requests, plain, strict=True)
    }

    def right(text, length):
        [truth] = [whole for prompt, whole in lookup.items() if tuple(text[: len(prompt)]) == prompt]
        return truth[len(text) :][:length]

    drafters = {"ngram": NgramDrafter(), "oracle": Scripted(right), "wrong": Scripted(wrong)}
    engine = engine_with(LocalDrafting(drafters[character]), planner=planner)
    # Twice: the second time the engine knows what to expect of its drafter.
    for _ in range(2):
        answers = answer_all(engine, requests)
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
        drafted = sum(accounted(answer).draft_tokens for answer in answers)
    # Goodput goes by the times of this machine, and may find that drafts do not pay.
    if character == "oracle" and planner is not PlannerName.GOODPUT:
        assert drafted > 2 * sum(answer.finished.provenance.rounds for answer in answers)


def test_a_batch_of_mixed_requests_gives_what_each_gives_alone(engine_with, request_for):
    requests = [
        request_for(text, temperature, law)
        for text in TEXTS
        for temperature, law in ((0.0, COUPLED), (1.0, COUPLED), (1.5, NONE))
    ]
    single = [alone(engine_with(LocalDrafting(NgramDrafter())), request).token_ids for request in requests]
    for fields in ({"max_active": 16}, {"max_active": 3}, {"step_rows": 70}, {"kv_tokens": 256}):
        together = answer_all(engine_with(LocalDrafting(NgramDrafter()), **fields), requests)
        assert [answer.token_ids for answer in together] == single, fields


def test_an_end_of_sequence_inside_an_accepted_block_ends_the_answer(
    engine_with, request_for, loaded, monkeypatch
):
    truth = alone(engine_with(), request_for()).token_ids
    end = next(token for at, token in enumerate(truth) if at >= 3 and token not in truth[:at])
    at = truth.index(end)
    drafter = oracle([*request_for().prompt_ids, *truth])
    engine = engine_with(LocalDrafting(drafter), block_length=16)
    monkeypatch.setattr(engine._intake._make, "_stop_ids", frozenset({end}))
    answer = alone(engine, request_for())
    assert answer.token_ids == truth[:at]
    assert answer.finished.reason is FinishReason.STOP
    accounted(answer)


def test_a_stop_string_ends_the_answer_and_is_in_neither_text_nor_tokens(engine_with, request_for):
    whole = alone(engine_with(), request_for(temperature=1.0))
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 4]
    drafter = oracle([*request_for().prompt_ids, *whole.token_ids])
    answer = alone(
        engine_with(LocalDrafting(drafter), block_length=16), request_for(temperature=1.0, stop=(stop,))
    )
    assert answer.finished.reason is FinishReason.STOP
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
    accounted(answer)


@pytest.mark.parametrize("max_tokens", [1, 2, 17])
def test_max_tokens_is_exact_under_speculation(engine_with, request_for, max_tokens):
    truth = alone(engine_with(), request_for()).token_ids
    drafter = oracle([*request_for().prompt_ids, *truth])
    answer = alone(engine_with(LocalDrafting(drafter), block_length=16), request_for(max_tokens=max_tokens))
    assert answer.token_ids == truth[:max_tokens]
    assert answer.finished.reason is FinishReason.LENGTH
    accounted(answer)


def test_a_drafter_that_never_answers_costs_its_deadline_and_no_token(engine_with, request_for):
    plain = alone(engine_with(), request_for(max_tokens=5))
    answer = alone(
        engine_with(Port(lambda ticket: []), draft_deadline_s=0.01, draft_ahead=False),
        request_for(max_tokens=5),
    )
    assert answer.token_ids == plain.token_ids
    provenance = accounted(answer)
    # The first token comes with the prompt, the last needs no drafts.
    assert provenance.fallbacks == {"deadline": 3}


def test_replies_to_other_plans_are_ignored(engine_with, request_for):
    identity = DrafterIdentity("late", "late", "r")

    def reply(ticket):
        stale = DraftReply(ticket.sequence, ticket.plan_id - 1, DraftBlock((1, 2), (1.0, 1.0)), identity)
        stranger = DraftReply(ticket.sequence + 7, ticket.plan_id, DraftBlock((3,), (1.0,)), identity)
        return [
            stale,
            stranger,
            DraftReply(ticket.sequence, ticket.plan_id, None, fallback=Fallback.STREAM_RESET),
        ]

    provenance = accounted(alone(engine_with(Port(reply)), request_for()))
    assert provenance.draft_tokens == 0
    assert set(provenance.fallbacks) == {"stream-reset"}


def test_cancelling_frees_the_sequence_and_its_cache(engine_with, request_for):
    port = Port(lambda ticket: [DraftReply(ticket.sequence, ticket.plan_id, DraftBlock())])
    engine = engine_with(port, max_active=1)
    seen, waiting = Answer(), Answer()
    engine.submit(request_for(max_tokens=400), seen.take)
    engine.submit(request_for("a", max_tokens=5), waiting.take)
    while not seen.token_ids:
        engine.step()
    assert (engine.load().active, engine.load().queued) == (1, 1)
    assert port.open_sequences
    engine.cancel(request_for(max_tokens=400).request_id)
    while waiting.finished is None:
        engine.step()
    assert seen.finished is None
    assert engine.load() == type(engine.load())(active=0, queued=0, kv_tokens=0)
    assert port.open_sequences == set()


def test_a_full_queue_refuses_at_once_and_loses_nothing(engine_with, request_for):
    engine = engine_with(max_queued=2)
    events, answers = [], [Answer(), Answer()]
    for answer in answers:
        engine.submit(request_for(max_tokens=3), answer.take)
    engine.submit(request_for(max_tokens=3), events.append)
    assert events == [Refused("the verifier's queue of 2 requests is full")]
    while any(answer.finished is None for answer in answers):
        engine.step()


def test_a_forward_that_fails_fails_its_batch_alone(engine_with, request_for, loaded, monkeypatch):
    engine = engine_with()
    forward = loaded.model.forward
    with monkeypatch.context() as patch:
        patch.setattr(loaded.model, "forward", lambda batch, ready: 1 / 0)
        with pytest.raises(RuntimeError, match="the verifier's forward failed: ZeroDivisionError"):
            answer_all(engine, [request_for()])
    assert loaded.model.forward == forward
    assert engine.load().active == 0
    assert alone(engine, request_for(max_tokens=3)).finished is not None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(st.lists(st.integers(0, 511), max_size=6), max_size=30),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_counts_add_up_whatever_is_drafted(engine_with, request_for, script, temperature):
    lines = iter(script)
    drafter = Scripted(lambda text, length: next(lines, []))
    answer = alone(engine_with(LocalDrafting(drafter)), request_for(temperature=temperature, max_tokens=12))
    plain = alone(engine_with(), request_for(temperature=temperature, max_tokens=12, law=NONE))
    assert answer.token_ids == plain.token_ids
    accounted(answer)


@pytest.mark.parametrize("law", [NONE, COUPLED, REJECTION])
def test_rows_that_are_no_distribution_fail_their_request_alone(
    engine_with, request_for, loaded, monkeypatch, law
):
    requests = [request_for(f"a {i}", law=law, max_tokens=4, request_id=f"r{i}") for i in range(3)]
    expected = [answer.token_ids for answer in answer_all(engine_with(), requests)]
    forward = loaded.model.forward

    @torch.inference_mode()
    def poisoned(batch, ready):
        logits = forward(batch, ready)
        for rows, values in zip(batch, logits, strict=True):
            if rows.cache is victim:
                values[:, 3] = float("nan")
        return logits

    engine = engine_with()
    events = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request, events[request.request_id].append)
    victim = None
    engine.step()
    victim = next(iter(engine._admission.active.values())).cache
    monkeypatch.setattr(loaded.model, "forward", poisoned)
    while engine.load().active:
        engine.step()
    assert events["r0"][-1] == Failed("the model's logits are no distribution: they are not finite")
    for index in (1, 2):
        answer = Answer()
        for event in events[f"r{index}"]:
            answer.take(event)
        assert answer.token_ids == expected[index]
        assert answer.finished is not None


@pytest.mark.parametrize("drafting", [None, LocalDrafting(NgramDrafter())], ids=["alone", "drafts"])
def test_an_engine_that_is_dropped_gives_its_pages_back_at_once(loaded, spec, request_for, drafting):
    """Its cache is most of the memory that a process has, and the collector does not see how large it is."""
    metrics = start_metrics("test")
    engine = build_engine(loaded, spec, drafting, NoOpTracer(), meter=metrics.meter)
    answer_all(engine, [request_for(max_tokens=5)])
    pool = weakref.ref(engine._pool)
    gc.collect()
    gc.disable()
    try:
        del engine
        assert pool() is None
    finally:
        gc.enable()
    # The meter may be read all the same.
    assert metrics.families()
