"""Counters add up over whatever happens: accepted + corrections + bonuses = emitted, and what was emitted is
what the answers have, plus what a stop string took back."""

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer

from cluster.drafting import NgramDrafter
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION
from cluster.speculation.messages import DraftBlock, DrafterIdentity
from cluster.speculation.sampling import Sampling
from cluster.telemetry.metrics import exposition, start_metrics
from tests.telemetry.scraping import series as series_of
from tests.telemetry.scraping import total
from tests.verifier_service.helpers import Port
from verifier_service.batch import Answer
from verifier_service.build import build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.port import DraftReply, Fallback


def scraped(metrics):
    return series_of(exposition([metrics.families()]).decode())


class Erratic:
    """Answers tickets as a script of choices says: with drafts, without, or with a fault."""

    def __init__(self, choices):
        self._choices = iter(choices)

    def __call__(self, ticket):
        choice = next(self._choices, 0)
        who = DrafterIdentity("erratic", "scripted", "here")
        if choice % 4 == 3:
            return [
                DraftReply(ticket.sequence, ticket.plan_id, None, who, Fallback.DRAFTER_FAULT, "as scripted")
            ]
        drafts = tuple((choice * 7 + k) % 50 for k in range(min(choice % 4, ticket.length)))
        block = DraftBlock(drafts, (1.0,) * len(drafts))
        return [DraftReply(ticket.sequence, ticket.plan_id, block, who)]


@given(
    choices=st.lists(st.integers(0, 99), max_size=40),
    laws=st.lists(st.sampled_from([NONE, COUPLED, REJECTION, BLOCK]), min_size=1, max_size=4),
    stop=st.sampled_from([(), ("e",), ("ab", "one"), (" t",)]),
    # Every so-many-th token ends a text, 0 for none.
    ends=st.sampled_from([0, 5, 17]),
    cancel=st.integers(0, 12),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counters_add_up(loaded, spec, request_for, choices, laws, stop, ends, cancel):
    metrics = start_metrics("test")
    stop_ids = frozenset(range(0, loaded.model.vocab_size, ends)) if ends else frozenset()
    loaded = replace(loaded, stop_ids=stop_ids)
    engine = build_engine(
        loaded, replace(spec, domains=("coding",)), Port(Erratic(choices)), NoOpTracer(), meter=metrics.meter
    )
    answers = [Answer() for _ in laws]
    for n, (law, answer) in enumerate(zip(laws, answers, strict=True)):
        request = request_for(
            law=law,
            request_id=str(n),
            seed=n,
            sampling=Sampling(temperature=1.0, top_k=20),
            max_tokens=24,
            stop=stop,
            domain=["", "poetry", "coding"][n % 3],
        )
        engine.submit(request, answer.take)
    step = 0
    while (load := engine.load()).active or load.queued:
        # With nothing else to do, a step would wait for the next request.
        if step == cancel and not all(answer.finished for answer in answers[1:]):
            engine.cancel("0")
        engine.step()
        step += 1
    series = scraped(metrics)
    emitted = total(series, "truedraft_tokens_emitted_total")
    parts = [
        total(series, f"truedraft_tokens_{name}_total") for name in ("accepted", "corrections", "bonuses")
    ]
    assert sum(parts) == emitted
    finished = [answer.finished.provenance for answer in answers if answer.finished]
    assert not any(stop_ids & set(answer.token_ids) for answer in answers)
    withdrawn = total(series, "truedraft_tokens_withdrawn_total")
    if len(finished) == len(answers):
        assert emitted - withdrawn == sum(each.emitted_tokens for each in finished)
        assert total(series, "truedraft_rounds_total") == sum(each.rounds for each in finished)
        assert total(series, "truedraft_tokens_drafted_total") == sum(each.draft_tokens for each in finished)
        fallbacks = sum((Counter(each.fallbacks) for each in finished), Counter())
        for reason, count in fallbacks.items():
            assert total(series, "truedraft_fallbacks_total", reason=reason) == count
    else:
        assert emitted - withdrawn >= sum(each.emitted_tokens for each in finished)
    assert parts[0] <= total(series, "truedraft_tokens_drafted_total")
    domains = {dict(labels).get("domain") for _, labels in series}
    assert domains <= {None, "coding", "other"}


def test_what_a_stop_string_takes_back_from_earlier_rounds_is_counted(loaded, spec, request_for):
    """A stop string that ends in a later round than it begins."""
    metrics = start_metrics("test")
    engine = build_engine(loaded, spec, None, NoOpTracer(), meter=metrics.meter)
    plain, answer = Answer(), Answer()
    engine.submit(request_for(max_tokens=12), plain.take)
    while plain.finished is None:
        engine.step()
    # The end of one token and the beginning of the next.
    words = [loaded.tokenizer.decode([token]) for token in plain.token_ids]
    stop = words[5] + words[6]
    before = total(scraped(metrics), "truedraft_tokens_emitted_total")
    engine.submit(request_for(max_tokens=12, stop=(stop,)), answer.take)
    while answer.finished is None:
        engine.step()
    series = scraped(metrics)
    emitted = total(series, "truedraft_tokens_emitted_total") - before
    withdrawn = total(series, "truedraft_tokens_withdrawn_total")
    assert withdrawn >= 1
    assert emitted - withdrawn == answer.finished.output_tokens


def test_gauges_say_what_the_engine_holds(loaded, spec, request_for):
    metrics = start_metrics("test", "replica-1")
    engine = build_engine(loaded, spec, LocalDrafting(NgramDrafter()), NoOpTracer(), meter=metrics.meter)
    engine.submit(request_for(seed_drawn=True, temperature=1.0), Answer().take)
    for _ in range(3):
        engine.step()
    series = scraped(metrics)
    assert total(series, "truedraft_sequences", state="active") == 1
    assert total(series, "truedraft_kv_tokens") == engine.load().kv_tokens > 0
    assert total(series, "truedraft_kv_limit") == spec.kv_tokens
    assert total(series, "truedraft_plan_length", law="coupled") == spec.block_length
    assert total(series, "truedraft_audit_bets_total", kind="ranks") > 0
    assert 0.0 < total(series, "truedraft_audit_p_value", kind="ranks") <= 1.0
    assert total(series, "truedraft_audit_alarm") == 0
    assert all(dict(labels)["service_instance_id"] == "replica-1" for _, labels in series)
