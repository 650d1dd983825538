"""Answers with block-diffusion drafters are those of plain decoding, whatever becomes of the drafter."""

import contextlib
from collections import Counter

import pytest

from cluster.speculation.law import Claim
from cluster.speculation.sampling import Sampling
from tests.verifier_service.block_diffusion.served import (
    TEXTS,
    WARM,
    connected,
    holds_what_the_stock_model_says,
    serving,
    truths,
    verifying,
)
from tests.verifier_service.helpers import accounted, alone
from verifier_service.batch import Answer, answer_all

WINDOW = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 12, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("selects", "dtype", "width", "ahead"),
    [
        (False, "float32", 1, False),
        (True, "float32", 3, True),
        (False, "bfloat16", 3, False),
        (True, "bfloat16", 1, True),
    ],
)
def test_answers_are_those_of_plain_decoding(made, asked, loop, selects, dtype, width, ahead):
    service = made(selects, dtype)
    fields = {"block_width": width, "draft_ahead": ahead}
    with (
        serving(service.drafter(), loop) as (address, drafter),
        verifying(service, address, loop, **fields) as (engine, remote),
    ):
        for sampling in (Sampling(temperature=0.0), WARM):
            requests = asked(sampling=sampling)
            answers = answer_all(engine, requests)
            assert [answer.token_ids for answer in answers] == truths(service, requests)
            provenances = [accounted(answer) for answer in answers]
            assert {each.claim for each in provenances} == {Claim.IDENTICAL_TOKENS}
            accepted, drafted = (
                sum(getattr(each, name) for each in provenances)
                for name in ("accepted_tokens", "draft_tokens")
            )
            assert accepted < 0.95 * drafted
            # Greedy answers go round in circles that a random drafter does not know; and where nobody waits
            # for a block, how many there are and which depends on the machine.
            if sampling is WARM and not ahead:
                assert accepted > 0.02 / width * drafted
            assert not any(each.fallbacks for each in provenances)
        # A block may be under way when its answer ends.
        assert set(remote.dropped) <= {"sequence"}
        holds_what_the_stock_model_says(service, drafter)


def test_a_drafter_that_is_lost_costs_rounds_and_the_next_one_gets_what_is_kept(made, asked, loop):
    service = made()
    requests = asked(texts=TEXTS[:2], seeds=2, max_tokens=120)
    address = []
    with contextlib.ExitStack() as second:
        with contextlib.ExitStack() as first:
            found, before = first.enter_context(serving(service.drafter(), loop))
            address.append(found)
            engine, remote = second.enter_context(verifying(service, lambda: address[-1], loop))
            answers = [Answer() for _ in requests]
            for each, answer in zip(requests, answers, strict=True):
                engine.submit(each, answer.take)
            while before.drafted < 100:
                engine.step()
        for _ in range(5):
            engine.step()
        found, after = second.enter_context(serving(service.drafter(), loop))
        address.append(found)
        # Answers would be over before it is found.
        connected(remote)
        while not all(answer.finished for answer in answers):
            engine.step()
        assert [answer.token_ids for answer in answers] == truths(service, requests)
        lost = Counter()
        for answer in answers:
            lost.update(accounted(answer).fallbacks)
        assert lost
        assert after.drafted
        holds_what_the_stock_model_says(service, after)


@pytest.mark.parametrize("changes", [{"max_position_embeddings": 40}, WINDOW], ids=["context", "window"])
def test_texts_longer_than_the_drafter_sees(made, request_for, loop, changes):
    service = made(**changes)
    request = request_for("one two three " * 4, sampling=WARM, max_tokens=100)
    with (
        serving(service.drafter(), loop) as (address, drafter),
        verifying(service, address, loop) as (
            engine,
            _,
        ),
    ):
        answer = alone(engine, request)
        assert [answer.token_ids] == truths(service, [request])
        assert drafter.drafted
        furthest = max(map(len, drafter.read))
        end = len(request.prompt_ids) + len(answer.token_ids)
        assert end > 100
        # Beyond its context it is not asked; a window slides.
        assert (furthest > 100) == (changes is WINDOW) or accounted(answer).draft_tokens < end
