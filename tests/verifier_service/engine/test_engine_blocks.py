"""Blocks of every character: bad, late, from other threads, mixed; what tickets tell."""

import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.speculation.law import COUPLED, NONE
from cluster.speculation.messages import DraftBlock, PrefixHash
from cluster.speculation.noise import Purpose, derive_key
from cluster.speculation.sampling import Sampling
from tests.verifier_service.helpers import Port, accounted, alone, answered
from verifier_service.batch import answer_all
from verifier_service.drafting.port import DraftReply, Fallback

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

    answer = alone(engine_with(Port(reply), draft_deadline_s=0.01, draft_ahead=False), request)
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
            send = [lambda: self.deliver(reply), lambda: self.deliver(reply)]
            threads.extend(threading.Thread(target=each) for each in send)
            for thread in threads[-2:]:
                thread.start()
            return True

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
