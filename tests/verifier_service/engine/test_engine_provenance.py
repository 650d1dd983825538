"""What an answer and its trace say of what happened."""

from dataclasses import replace

from opentelemetry.trace import NoOpTracer

from cluster.speculation.law import COUPLED, NONE, Claim
from tests.verifier_service.helpers import IDENTITY, Port, accounted, alone, answered, oracle
from verifier_service.build import build_engine
from verifier_service.drafting.local import LocalDrafting
from verifier_service.drafting.port import DraftReply, Fallback


class Recording:
    """Stands for the trace of a sequence; keeps the counts of its rounds."""

    def __init__(self):
        self.rounds = []

    def round_ended(self, law, drafted, accepted, emitted):
        self.rounds.append((drafted, accepted, emitted))

    def __getattr__(self, name):
        return lambda *args, **kwargs: ""


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


def test_the_rounds_of_a_trace_add_up_to_the_answer(engine_with, request_for, monkeypatch):
    request = request_for(temperature=1.0, max_tokens=11)
    truth = alone(engine_with(), request).token_ids
    trace = Recording()
    monkeypatch.setattr("verifier_service.requests.making.SequenceTrace", lambda *args: trace)
    ends = truth.index(next(token for at, token in enumerate(truth) if at >= 4 and token not in truth[:at]))
    engine = engine_with(LocalDrafting(oracle([*request.prompt_ids, *truth])), block_length=16)
    monkeypatch.setattr(engine._intake._make, "_stop_ids", frozenset({truth[ends]}))
    provenance = accounted(alone(engine, request))
    assert len(trace.rounds) == provenance.rounds
    drafted, accepted, emitted = (sum(column) for column in zip(*trace.rounds, strict=True))
    assert drafted == provenance.draft_tokens
    assert accepted == provenance.accepted_tokens < drafted
    assert emitted == provenance.emitted_tokens
