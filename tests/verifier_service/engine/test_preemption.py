"""Who gives way follows from arrival and counts, never from what was drafted; and no page is lost by it."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer

from cluster.kernels.attention import PAGE
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION
from tests.verifier_service.helpers import Scripted, alone
from verifier_service.audit.replay import Replay
from verifier_service.audit.subject import Subject
from verifier_service.batch import Answer
from verifier_service.build import build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.engine.admission import Admission

PAGES = 8
TEXT = [(5 * i * i + 1) % 500 for i in range(200)]


def conserved(engine):
    """Each page is free, kept, or held as often as sequences have it."""
    pages, active = engine._pool.pages, engine._admission.active.values()
    holders = Counter(page for sequence in active for page in sequence.cache.pages)
    assert pages._holders == [holders[page] for page in range(pages.count)]
    assert sorted([*pages._free, *pages._kept, *holders]) == list(range(pages.count))
    for sequence in active:
        assert len(sequence.cache.pages) * PAGE >= sequence.cache.length
    for sequence in engine._admission._returning:
        assert sequence.cache is None


arrivals = st.lists(
    st.tuples(
        st.integers(0, 3),  # steps since the last
        st.integers(1, 70),  # prompt
        st.integers(1, 50),  # output
        st.sampled_from([NONE, COUPLED, REJECTION, BLOCK]),
        st.sampled_from(["a", "b"]),
        st.none() | st.integers(0, 20),  # steps before it is cancelled
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals=arrivals, max_active=st.integers(1, 8), step_rows=st.sampled_from([1, 20, 512]))
def test_pages_are_conserved_and_everybody_is_served(
    loaded, spec, request_for, arrivals, max_active, step_rows
):
    drafter = Scripted(lambda text, length: text[-length:])
    fields = {
        "kv_tokens": PAGES * PAGE,
        "max_active": max_active,
        "step_rows": step_rows,
        "block_length": 3,
        "replay_share": 0.0,
    }
    engine = build_engine(loaded, replace(spec, **fields), LocalDrafting(drafter), NoOpTracer())
    requests = [
        request_for(
            prompt_ids=tuple(TEXT[:prompt]),
            request_id=str(number),
            law=law,
            temperature=1.0,
            seed=number,
            max_tokens=tokens,
            tenant=tenant,
        )
        for number, (_, prompt, tokens, law, tenant, _) in enumerate(arrivals)
    ]
    answers = [Answer() for _ in requests]
    leaving, step = {}, 0

    def going():
        """Whether a step has something to do; with nothing to do it would wait for the next request."""
        return any(
            not answer.finished and step < leaving.get(number, step + 1)
            for number, answer in enumerate(answers[:asked])
        )

    for asked, (pause, *_, patience) in enumerate([*arrivals, (1000, None)]):
        for _ in range(pause):
            for number in [number for number, due in leaving.items() if due == step]:
                engine.cancel(str(number))
            if not going():
                break
            engine.step()
            conserved(engine)
            step += 1
        if asked < len(requests):
            engine.submit(requests[asked], answers[asked].take)
            if patience is not None:
                leaving[asked] = step + patience
    # What was cancelled last has not been seen yet.
    engine.stop()
    engine.run()
    conserved(engine)
    assert engine._pool.pages.held == 0
    for request, answer in zip(requests, answers, strict=True):
        assert answer.finished or int(request.request_id) in leaving
        if answer.finished and request.law in (NONE, COUPLED):
            plain = alone(build_engine(loaded, spec, None, NoOpTracer()), replace(request, law=NONE))
            assert answer.token_ids == plain.token_ids


def decisions(engine, monkeypatch):
    """What a run decides: the rows of each step, and who gives way."""
    log, forward, preempt = [], engine._target.forward, engine._admission._preempt

    def forwarding(batch, ready):
        log.append([(rows.start, len(rows.tokens), rows.wanted) for rows in batch])
        return forward(batch, ready)

    def preempting(sequence):
        log.append(("gave way", sequence.number))
        preempt(sequence)

    monkeypatch.setattr(engine._target, "forward", forwarding)
    monkeypatch.setattr(engine._admission, "_preempt", preempting)
    return log


def run_with(drafts, loaded, spec, request_for, monkeypatch):
    """The decisions of a run in a cache that is too small; drafts(truth, place): those of each round, all
    of them wrong, whatever they are."""
    requests = [
        request_for(
            prompt_ids=tuple(TEXT[i : i + 20 + i]), request_id=str(i), temperature=1.0, seed=i, max_tokens=40
        )
        for i in range(5)
    ]
    with monkeypatch.context() as patch:
        plain = build_engine(loaded, spec, None, NoOpTracer())
        truths = [[*each.prompt_ids, *alone(plain, each).token_ids] for each in requests]

        def propose(text, length):
            [truth] = [whole for whole in truths if whole[: len(text)] == text]
            return [drafts(truth[len(text) + k], len(text) + k) for k in range(length)]

        port = LocalDrafting(Scripted(propose))
        engine = build_engine(
            loaded, replace(spec, kv_tokens=10 * PAGE, block_length=5, replay_share=0.0), port, NoOpTracer()
        )
        log = decisions(engine, patch)
        answers = [Answer() for _ in requests]
        for each, answer in zip(requests, answers, strict=True):
            engine.submit(each, answer.take)
        while engine.load().active or engine.load().queued:
            engine.step()
        for truth, answer, request in zip(truths, answers, requests, strict=True):
            assert [*request.prompt_ids, *answer.token_ids] == truth
    assert any(each[0] == "gave way" for each in log)
    return log


def next_one(truth, _place):
    return (truth + 1) % 500


def some_other(truth, place):
    return (truth + 1 + random.Random(place).randrange(498)) % 500


def test_decisions_do_not_follow_from_drafts(loaded, spec, request_for, monkeypatch):
    """Drafts that are all rejected, of two sorts: nothing else differs between the runs."""
    logs = [run_with(each, loaded, spec, request_for, monkeypatch) for each in (next_one, some_other)]
    assert logs[0] == logs[1]


def test_an_admission_that_looks_at_drafts_is_caught(loaded, spec, request_for, monkeypatch):
    prepare = Admission.prepare

    def peeking(self, sequence):
        length = sequence.length
        if sequence.block.tokens and sequence.block.tokens[0] % 2:
            sequence.length += PAGE
        try:
            return prepare(self, sequence)
        finally:
            sequence.length = length

    monkeypatch.setattr(Admission, "prepare", peeking)
    logs = [run_with(each, loaded, spec, request_for, monkeypatch) for each in (next_one, some_other)]
    assert logs[0] != logs[1]


def test_a_replay_gives_way_first_and_begins_anew(loaded, spec, request_for, monkeypatch):
    request = request_for(prompt_ids=tuple(TEXT[:40]), max_tokens=60, request_id="replayed", ignore_eos=True)
    fields = {"kv_tokens": 10 * PAGE, "replay_share": 0.0}
    engine = build_engine(loaded, replace(spec, **fields), None, NoOpTracer())
    truth, results, interrupted = alone(engine, request), [], []
    replays = engine._auditor.replays
    put_back = replays.put_back
    monkeypatch.setattr(replays, "put_back", lambda replay: (interrupted.append(replay), put_back(replay)))
    engine.replay(Replay(request, truth.token_ids, Subject("none", "", ""), results.append))
    for _ in range(20):
        engine.step()
    answers = [Answer() for _ in range(3)]
    for number, answer in enumerate(answers):
        other = request_for(prompt_ids=tuple(TEXT[50:70]), max_tokens=50, request_id=str(number), seed=number)
        engine.submit(other, answer.take)
    while not (results and all(answer.finished for answer in answers)):
        engine.step()
        conserved(engine)
    assert interrupted
    assert (results[0].tokens, results[0].difference) == (60, None)


@pytest.mark.parametrize("place", ["waiting", "returning", "active"])
def test_cancelling_frees_a_sequence_wherever_it_is(loaded, spec, request_for, place):
    fields = {"kv_tokens": 8 * PAGE, "max_active": 3, "replay_share": 0.0}
    engine = build_engine(loaded, replace(spec, **fields), None, NoOpTracer())
    answers = [Answer() for _ in range(5)]
    for number, answer in enumerate(answers):
        request = request_for(prompt_ids=tuple(TEXT[number:][:10]), max_tokens=60, request_id=str(number))
        engine.submit(request, answer.take)
    admission = engine._admission
    where = {
        "waiting": lambda: list(admission._new),
        "returning": lambda: admission._returning,
        "active": lambda: list(admission.active.values()),
    }
    while not where[place]():
        engine.step()
    victim = where[place]()[-1]
    engine.cancel(victim.request.request_id)
    while engine.load().active or engine.load().queued:
        engine.step()
        conserved(engine)
        assert victim not in list(admission)
    finished = [answer.finished is not None for answer in answers]
    assert finished.count(False) == 1
    assert not finished[int(victim.request.request_id)]
