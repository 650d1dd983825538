"""The step loop at its limits: small steps, bad blocks, late replies, failures, threads, labels."""

import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer

from cluster.drafting import NgramDrafter
from cluster.speculation.law import COUPLED, NONE, Claim
from cluster.speculation.messages import DraftBlock, DrafterIdentity, PrefixHash
from cluster.speculation.noise import Purpose, derive_key
from cluster.speculation.request import Committed, Failed, Finished, FinishReason
from cluster.speculation.sampling import Sampling
from tests.verifier_service.helpers import Port, Scripted, accounted, alone, oracle
from verifier_service.batch import Answer, answer_all
from verifier_service.build import build_engine
from verifier_service.composing import LEAST_CHUNK
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.port import DraftReply, Fallback
from verifier_service.kernels.attention import PAGE

LONG = "the river rises in the hills " * 12
IDENTITY = DrafterIdentity("model", "kind", "replica")


def answered(ticket, tokens=(), **fields):
    block = DraftBlock(tuple(tokens), (1.0,) * len(tokens))
    return DraftReply(ticket.sequence, ticket.plan_id, block, IDENTITY, **fields)


def watched(monkeypatch, target):
    """Records the rows of every batch that the target computes."""
    batches, forward = [], target.forward

    def recording(batch):
        batches.append([(rows.start, len(rows.tokens), rows.wanted) for rows in batch])
        return forward(batch)

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


BAD_BLOCKS = {
    "longer than asked": lambda length: DraftBlock((1,) * (length + 1), (1.0,) * (length + 1)),
    "much longer": lambda length: DraftBlock((1,) * 500, (1.0,) * 500),
    "beyond the vocabulary": lambda length: DraftBlock((512,), (1.0,)),
    "negative": lambda length: DraftBlock((-1,), (1.0,)),
    "without statistics": lambda length: DraftBlock((1, 2), ()),
}


WORDS = {
    "longer than asked": "at most 3 were asked for",
    "much longer": "at most 3 were asked for",
    "beyond the vocabulary": "outside the vocabulary of 512",
    "negative": "outside the vocabulary of 512",
    "without statistics": "0 statistics for 2 tokens",
}


@pytest.mark.parametrize("kind", BAD_BLOCKS)
def test_a_block_that_cannot_be_verified_is_a_fallback_and_harms_nobody(engine_with, request_for, kind):
    requests = [request_for(max_tokens=6), request_for("a", 1.0, max_tokens=6)]
    plain = [alone(engine_with(), request).token_ids for request in requests]

    def reply(ticket):
        if ticket.sequence == 1:
            return [replace(answered(ticket), block=BAD_BLOCKS[kind](ticket.length))]
        return [answered(ticket)]

    bad, good = answer_all(engine_with(Port(reply)), requests)
    assert [bad.token_ids, good.token_ids] == plain
    assert accounted(bad).fallbacks == {"invalid-block": 4}
    assert any(WORDS[kind] in reason for reason in bad.finished.provenance.reasons)
    assert accounted(good).fallbacks == {}


def test_a_reply_that_comes_after_its_deadline_is_not_used_for_a_later_round(engine_with, request_for):
    request = request_for(max_tokens=6)
    truth = [*request.prompt_ids, *alone(engine_with(), request).token_ids]
    late = []

    def reply(ticket):
        # What was asked for the round before: right where it stood, and wrong here.
        replies = [answered(earlier, truth[earlier.base :][: earlier.length]) for earlier in late]
        late[:] = [ticket]
        return replies

    answer = alone(engine_with(Port(reply), draft_deadline_s=0.01), request)
    assert [*request.prompt_ids, *answer.token_ids] == truth
    provenance = accounted(answer)
    assert provenance.fallbacks == {"deadline": 4}
    assert provenance.draft_tokens == 0
    assert provenance.drafters == ()


def test_replies_from_other_threads_and_after_the_end_are_taken_in_stride(engine_with, request_for):
    request = request_for(temperature=0.7)
    truth = [*request.prompt_ids, *alone(engine_with(), request).token_ids]
    threads = []

    class Delayed(Port):
        def request(self, ticket):
            reply = answered(ticket, truth[ticket.base :][: ticket.length])
            # The second time, it answers what is already over.
            send = [lambda: self._deliver(reply), lambda: self._deliver(reply)]
            threads.extend(threading.Thread(target=each) for each in send)
            for thread in threads[-2:]:
                thread.start()

    engine = engine_with(Delayed(None))
    answer = alone(engine, request)
    for thread in threads:
        thread.join()
    assert [*request.prompt_ids, *answer.token_ids] == truth
    assert accounted(answer).accepted_tokens == answer.finished.provenance.draft_tokens > 0
    assert alone(engine, request).token_ids == answer.token_ids


def test_tickets_tell_a_drafter_every_token_once_and_never_the_seed(engine_with, request_for):
    request = request_for(temperature=0.7, seed=99)
    specs, tickets = [], []

    class Listening(Port):
        def open(self, spec):
            specs.append(spec)
            super().open(spec)

    def reply(ticket):
        tickets.append(ticket)
        return [answered(ticket, [1] if ticket.plan_id % 2 else [])]

    answer = alone(engine_with(Listening(reply), block_length=3), request)
    [spec] = specs
    assert (spec.prompt_ids, spec.sampling, spec.law) == (request.prompt_ids, request.sampling, COUPLED)
    assert spec.noise_key == derive_key(99, Purpose.GUMBEL)
    text = list(request.prompt_ids)
    for ticket in tickets:
        text.extend(ticket.committed)
        assert ticket.base == len(text)
        assert ticket.prefix_hash == PrefixHash(text).digest()
        assert ticket.length == min(3, len(request.prompt_ids) + request.max_tokens - len(text) - 1)
    assert text == [*request.prompt_ids, *answer.token_ids][: len(text)]
    assert len({ticket.plan_id for ticket in tickets}) == len(tickets)


def test_law_none_asks_no_drafter(engine_with, request_for):
    def reply(ticket):
        raise AssertionError("law none has no drafts")

    port = Port(reply)
    provenance = accounted(alone(engine_with(port), request_for(law=NONE)))
    assert (provenance.draft_tokens, provenance.accepted_tokens, provenance.correction_tokens) == (0, 0, 0)
    assert provenance.rounds == provenance.bonus_tokens


def test_provenance_says_what_happened(engine_with, request_for, loaded):
    request = request_for(
        max_tokens=12, seed=31, requested_law=NONE, traceparent=f"00-{'ab' * 16}-{'cd' * 8}-00"
    )
    truth = [*request.prompt_ids, *alone(engine_with(), request).token_ids]
    rounds = iter(["right", "wrong", "fault", "half", "right", "right"])

    def reply(ticket):
        right = truth[ticket.base :][: ticket.length]
        match next(rounds):
            case "right":
                return [answered(ticket, right)]
            case "wrong":
                return [answered(ticket, [(token + 1) % 512 for token in right])]
            case "half":
                return [answered(ticket, [right[0], (right[1] + 1) % 512])]
        fault = DraftReply(ticket.sequence, ticket.plan_id, None, IDENTITY, Fallback.STREAM_RESET, "gone")
        return [fault]

    provenance = accounted(alone(engine_with(Port(reply), block_length=2), request))
    # Prompt 1, right 3, wrong 1, fault 1, half 2, right 3, and one more of the last round's one draft.
    assert (provenance.rounds, provenance.draft_tokens) == (7, 2 + 2 + 0 + 2 + 2 + 0)
    assert (provenance.accepted_tokens, provenance.correction_tokens, provenance.bonus_tokens) == (5, 2, 5)
    assert provenance.fallbacks == {"stream-reset": 1}
    assert provenance.reasons == (
        "1 of 7 rounds were decoded without drafts: the stream to the drafter broke",
        "gone",
    )
    assert provenance.drafters == (IDENTITY,)
    assert (provenance.requested_law, provenance.effective_law) == (NONE, COUPLED)
    assert (provenance.seed, provenance.trace_id) == (31, "ab" * 16)
    assert provenance.numerics == loaded.numerics
    assert (provenance.claim, provenance.verifier_replica) == (Claim.IDENTICAL_TOKENS, "in-process")


def test_where_rows_are_not_invariant_the_claim_is_weaker_and_says_why(loaded, spec, request_for):
    doubtful = replace(loaded, numerics=replace(loaded.numerics, row_invariant=False))
    engine = build_engine(doubtful, spec, None, NoOpTracer())
    provenance = alone(engine, request_for(max_tokens=2)).finished.provenance
    assert provenance.claim is Claim.EXACT_LAW
    assert provenance.claim.lossless
    assert any("not bitwise the same" in reason for reason in provenance.reasons)


@pytest.mark.parametrize("block_length", [1, 4, 16])
def test_an_end_of_sequence_anywhere_in_a_block_ends_the_answer_there(
    loaded, spec, request_for, block_length
):
    request = request_for(temperature=1.0, max_tokens=14)
    truth = alone(build_engine(loaded, spec, None, NoOpTracer()), request).token_ids
    drafter_text = [*request.prompt_ids, *truth]
    firsts = [at for at, token in enumerate(truth) if token not in truth[:at]]
    assert len(firsts) > 6
    for at in firsts:
        ending = replace(loaded, stop_ids=frozenset({truth[at]}))
        engine = build_engine(
            ending,
            replace(spec, block_length=block_length),
            LocalDrafting(oracle(drafter_text)),
            NoOpTracer(),
        )
        answer = alone(engine, request)
        assert answer.token_ids == truth[:at]
        assert answer.text == loaded.tokenizer.decode(truth[:at])
        assert answer.finished.reason is FinishReason.STOP
        assert accounted(answer).accepted_tokens == at - answer.finished.provenance.bonus_tokens
        assert engine.load().kv_tokens == 0


@pytest.mark.parametrize("block_length", [1, 16])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_a_stop_string_anywhere_ends_the_answer_before_it(engine_with, request_for, block_length, size):
    whole = alone(engine_with(), request_for(temperature=1.0, max_tokens=30))
    for start in range(0, len(whole.text) - size, 5):
        stop = whole.text[start : start + size]
        request = request_for(temperature=1.0, max_tokens=30, stop=(stop, "never to be found"))
        drafter = oracle([*request.prompt_ids, *whole.token_ids])
        answer = alone(engine_with(LocalDrafting(drafter), block_length=block_length), request)
        assert answer.text == whole.text[: whole.text.index(stop)]
        assert answer.finished.reason is FinishReason.STOP
        assert whole.token_ids[: len(answer.token_ids)] == answer.token_ids
        accounted(answer)


def test_a_failing_step_fails_its_batch_and_no_waiting_request(engine_with, request_for, loaded, monkeypatch):
    port = Port(lambda ticket: [answered(ticket)])
    engine = engine_with(port, max_active=2)
    requests = [request_for(max_tokens=8), request_for("a", max_tokens=8), request_for(LONG, max_tokens=8)]
    plain = alone(engine_with(), requests[2]).token_ids
    forward, steps = loaded.model.forward, iter(range(100))

    def failing(batch):
        if next(steps) == 3:
            raise torch.OutOfMemoryError("no room")
        return forward(batch)

    monkeypatch.setattr(loaded.model, "forward", failing)
    events = [[], [], []]
    for request, log in zip(requests, events, strict=True):
        engine.submit(request, log.append)
    while not any(isinstance(event, Finished) for event in events[2]):
        engine.step()
    for log in events[:2]:
        assert log[-1] == Failed("the verifier's forward failed: OutOfMemoryError")
        assert len([event for event in log if isinstance(event, Failed | Finished)]) == 1
    assert [t for event in events[2] if isinstance(event, Committed) for t in event.token_ids] == plain
    assert (engine.load().active, engine.load().kv_tokens, port.open_sequences) == (0, 0, set())


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


def test_a_listener_that_fails_ends_its_own_request_alone(engine_with, request_for):
    engine = engine_with(LocalDrafting(NgramDrafter()))
    heard, kept = [], Answer()

    def fail(event):
        heard.append(event)
        raise ConnectionError("nobody is there")

    thread = threading.Thread(target=engine.run)
    thread.start()
    engine.submit(request_for(max_tokens=30), fail)
    over = threading.Event()
    engine.submit(request_for("a", 1.0), lambda event: (kept.take(event), kept.finished and over.set()))
    assert over.wait(60)
    engine.stop()
    thread.join(60)
    assert len(heard) == 1
    assert kept.token_ids == alone(engine_with(), request_for("a", 1.0)).token_ids
    assert engine.load().kv_tokens == 0


def test_a_request_that_waits_is_cancelled_without_a_trace(engine_with, request_for):
    engine = engine_with(max_active=1)
    running, waiting = Answer(), []
    engine.submit(request_for(max_tokens=6), running.take)
    engine.submit(request_for("a"), waiting.append)
    engine.step()
    assert engine.load().queued == 1
    engine.cancel(request_for("a").request_id)
    while running.finished is None:
        engine.step()
    assert waiting == []
    assert (engine.load().queued, engine.load().kv_tokens) == (0, 0)


def test_a_request_beside_a_cancelled_one_keeps_its_tokens(engine_with, request_for):
    plain = alone(engine_with(), request_for("a", 1.0)).token_ids
    engine = engine_with(LocalDrafting(NgramDrafter()))
    kept, dropped = Answer(), []
    engine.submit(request_for("a", 1.0), kept.take)
    engine.submit(request_for(LONG), dropped.append)
    while len(dropped) < 3:
        engine.step()
    engine.cancel(request_for(LONG).request_id)
    engine.cancel("a request that nobody made")
    engine.step()
    seen = len(dropped)
    assert engine.load().active == 1
    assert engine.load().kv_tokens == -(-(len(request_for("a").prompt_ids) + 40) // PAGE) * PAGE
    while kept.finished is None:
        engine.step()
    assert len(dropped) == seen
    assert kept.token_ids == plain


def test_a_cache_without_room_makes_requests_wait_and_never_starves_a_large_one(engine_with, request_for):
    engine = engine_with(kv_tokens=60)
    requests = [request_for("a", max_tokens=30), request_for("b", max_tokens=30), request_for(LONG)]
    answers = [Answer() for _ in requests]
    for request, answer in zip(requests, answers, strict=True):
        engine.submit(request, answer.take)
    held = []
    while any(answer.finished is None for answer in answers):
        engine.step()
        held.append((engine.load().active, engine.load().kv_tokens))
    # The long one alone is larger than the cache: it runs, but beside nobody.
    assert all(kv <= 60 or active == 1 for active, kv in held)
    for request, answer in zip(requests, answers, strict=True):
        assert answer.token_ids == alone(engine_with(), request).token_ids


def test_an_engine_in_its_thread_serves_and_stops_and_leaves_nobody_waiting(engine_with, request_for):
    engine = engine_with(LocalDrafting(NgramDrafter()))
    thread = threading.Thread(target=engine.run)
    thread.start()
    done, began, over = threading.Event(), threading.Event(), threading.Event()
    first, endless = Answer(), []

    def take(event):
        first.take(event)
        if first.finished is not None:
            done.set()

    def listen(event):
        endless.append(event)
        began.set()
        if isinstance(event, Failed):
            over.set()

    engine.submit(request_for(max_tokens=5), take)
    assert done.wait(60)
    assert first.token_ids == alone(engine_with(), request_for(max_tokens=5)).token_ids
    engine.submit(request_for("a", 1.0, max_tokens=400, request_id="endless"), listen)
    assert began.wait(60)
    engine.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert over.is_set() or isinstance(endless[-1], Finished)
    late = []
    engine.submit(request_for(), late.append)
    assert late == [Failed("the verifier is shutting down")]
    assert engine.load().kv_tokens == 0


class Recording:
    """Stands for the trace of a sequence; keeps the counts of its rounds."""

    def __init__(self):
        self.rounds = []

    def round_ended(self, law, drafted, accepted, emitted):
        self.rounds.append((drafted, accepted, emitted))

    def __getattr__(self, name):
        return lambda *args, **kwargs: ""


def test_the_rounds_of_a_trace_add_up_to_the_answer(engine_with, request_for, monkeypatch):
    request = request_for(temperature=1.0, max_tokens=11)
    truth = alone(engine_with(), request).token_ids
    trace = Recording()
    monkeypatch.setattr("verifier_service.engine.SequenceTrace", lambda *args: trace)
    ends = truth.index(next(token for at, token in enumerate(truth) if at >= 4 and token not in truth[:at]))
    engine = engine_with(LocalDrafting(oracle([*request.prompt_ids, *truth])), block_length=16)
    monkeypatch.setattr(engine, "_stop_ids", frozenset({truth[ends]}))
    provenance = accounted(alone(engine, request))
    assert len(trace.rounds) == provenance.rounds
    drafted, accepted, emitted = (sum(column) for column in zip(*trace.rounds, strict=True))
    assert drafted == provenance.draft_tokens
    assert accepted == provenance.accepted_tokens < drafted
    assert emitted == provenance.emitted_tokens


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_mixture_of_right_wrong_missing_and_bad_blocks_changes_no_token(engine_with, request_for, data):
    sampling = Sampling(
        temperature=data.draw(st.sampled_from([0.0, 0.7, 1.5])), top_k=data.draw(st.sampled_from([0, 20]))
    )
    request = request_for(
        sampling=sampling, max_tokens=data.draw(st.integers(1, 14)), seed=data.draw(st.integers(0, 9))
    )
    truth = alone(engine_with(), replace(request, law=NONE))
    text = [*request.prompt_ids, *truth.token_ids]

    def reply(ticket):
        right = text[ticket.base :][: ticket.length]
        kind = data.draw(st.sampled_from(["right", "wrong at", "missing", "too long", "empty"]))
        if kind == "missing":
            return [DraftReply(ticket.sequence, ticket.plan_id, None, fallback=Fallback.NO_DRAFTER)]
        if kind == "too long":
            return [answered(ticket, [1] * (ticket.length + 1))]
        if kind == "wrong at" and right:
            at = data.draw(st.integers(0, len(right) - 1))
            right[at] = (right[at] + 1) % 512
        return [answered(ticket, right if kind != "empty" else [])]

    fields = {"block_length": data.draw(st.integers(1, 8)), "step_rows": data.draw(st.sampled_from([2, 512]))}
    answer = alone(engine_with(Port(reply), **fields), request)
    assert (answer.token_ids, answer.text) == (truth.token_ids, truth.text)
    provenance = accounted(answer)
    assert provenance.fallback_rounds <= provenance.rounds
