"""Audits inside the engine: replays find what is not plain decoding, bets what is not the law, and neither
changes an answer or counts where all is well."""

from dataclasses import replace

import pytest
from opentelemetry.trace import NoOpTracer

from cluster.drafting import NgramDrafter
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION
from cluster.speculation.sampling import Sampling
from tests.verifier_service.helpers import Mimic, alone
from verifier_service.audit.replay import Replay
from verifier_service.audit.subject import Subject
from verifier_service.batch import answer_all
from verifier_service.build import build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.engine import deciding

FEW = Sampling(temperature=1.0, top_k=3)


def requests(request_for, law, count, **fields):
    shared = {"law": law, "sampling": FEW, "max_tokens": 12, "seed_drawn": True} | fields
    return [request_for("one two three", request_id=str(n), seed=1000 + n, **shared) for n in range(count)]


def settle(engine, replays):
    """Steps until so many replays are done."""
    while sum(state.replays for state in engine.audits()) < replays:
        engine.step()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("law", [COUPLED, NONE], ids=str)
def test_answers_decoded_again_are_equal(engine_with, request_for, law, temperature):
    engine = engine_with(LocalDrafting(NgramDrafter()), replay_share=1.0)
    asked = [request_for(law=law, temperature=temperature, seed=n, request_id=str(n)) for n in range(4)]
    answers = answer_all(engine, asked)
    settle(engine, 4)
    [state] = [each for each in engine.audits() if each.replays]
    assert (state.near_ties, state.faults, state.alarm) == (0, 0, False)
    # A token that ended an answer is compared as well.
    assert state.replayed_tokens >= sum(len(answer.token_ids) for answer in answers)
    assert engine.load().kv_tokens == 0


def test_a_changed_token_is_a_fault_and_a_margin_within_the_discrepancy_a_near_tie(
    engine_with, request_for, loaded, spec
):
    asked = request_for(temperature=1.0, seed_drawn=True)
    answer = alone(engine_with(), asked)
    changed = [*answer.token_ids]
    changed[5] ^= 1
    for error, near in ((0.0, False), (50.0, True)):
        numerics = replace(loaded.numerics, logit_discrepancy=error)
        engine = build_engine(replace(loaded, numerics=numerics), spec, None, NoOpTracer())
        results = []
        engine.replay(Replay(asked, changed, Subject("coupled", "", ""), results.append))
        while not results:
            engine.step()
        found = results[0].difference
        assert (found.index, found.served, found.decoded) == (5, changed[5], answer.token_ids[5])
        assert found.margin > 0.0
        assert found.near_tie is near
        assert engine.audits()[0].alarm is not near


def test_a_replay_gives_way_to_requests_and_is_done_afterwards(engine_with, request_for):
    engine = engine_with(max_active=1, replay_share=1.0)
    first, second = requests(request_for, COUPLED, 2)
    expected = [alone(engine_with(), each).token_ids for each in (first, second)]
    assert alone(engine, first).token_ids == expected[0]
    engine.step()
    assert engine.load().active == 0
    assert alone(engine, second).token_ids == expected[1]
    settle(engine, 2)
    assert not any(state.alarm for state in engine.audits())


@pytest.mark.parametrize("law", [COUPLED, REJECTION, BLOCK], ids=str)
def test_honest_rounds_raise_no_alarm(engine_with, request_for, rows, law):
    drafter = NgramDrafter() if law == COUPLED else Mimic(rows)
    engine = engine_with(LocalDrafting(drafter), max_queued=400)
    answer_all(engine, requests(request_for, law, 150))
    assert sum(state.ranks for state in engine.audits()) > 500
    assert not any(state.alarm for state in engine.audits())


def test_rejection_that_accepts_everything_is_found(engine_with, request_for, rows, monkeypatch):
    real = deciding.verify_together

    def generous(cases):
        return [
            replace(verdict, tokens=(*case[2].tokens, verdict.tokens[-1]), accepted=len(case[2].tokens))
            for case, verdict in zip(cases, real(cases), strict=True)
        ]

    monkeypatch.setattr(deciding, "verify_together", generous)
    engine = engine_with(LocalDrafting(Mimic(rows)), max_queued=400)
    answer_all(engine, requests(request_for, REJECTION, 150))
    [state] = [each for each in engine.audits() if each.ranks]
    assert state.ranks_p_value < 1e-6
    assert state.kept_p_value < 1e-6
    assert (state.law, state.drafter) == ("rejection", "mimic")


def test_noise_that_a_client_chose_is_replayed_but_not_bet_on(engine_with, request_for):
    engine = engine_with(replay_share=1.0)
    answer_all(engine, requests(request_for, NONE, 2, seed_drawn=False))
    settle(engine, 2)
    [state] = engine.audits()
    assert (state.ranks, state.replays) == (0, 2)


def test_without_audits_there_is_nothing_to_see(engine_with, request_for):
    engine = engine_with(audit=False)
    answer_all(engine, requests(request_for, COUPLED, 1))
    assert engine.audits() == ()
    with pytest.raises(ValueError, match="without audits"):
        engine.replay(Replay(request_for(), [1], Subject("coupled", "", "")))


def test_who_looks_at_the_load_while_a_replay_leaves_sees_nobody(engine_with, request_for, monkeypatch):
    """Any thread may look, at any moment."""
    engine = engine_with(LocalDrafting(NgramDrafter()), replay_share=1.0)
    free, seen = engine._admission._free, []

    def freeing(sequence, sound):
        seen.append(engine.load().active)
        free(sequence, sound)
        seen.append(engine.load().active)

    monkeypatch.setattr(engine._admission, "_free", freeing)
    alone(engine, request_for())
    settle(engine, 1)
    # The answer's own end, and that of its replay.
    assert seen == [0] * 4
