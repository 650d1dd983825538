"""Answers whose verifiers are lost: what another goes on from, what is said of it, when it is given up."""

import json
import logging
from dataclasses import replace

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError

from cluster.gateway.errors import RequestError
from cluster.gateway.record import log
from cluster.gateway.service import GatewayService
from cluster.gateway.tenants import Doors
from cluster.gateway.verifiers import decoded
from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, Claim, Law
from cluster.speculation.messages import DrafterIdentity
from cluster.speculation.provenance import SoFar, told_of_resumed
from cluster.speculation.request import (
    Committed,
    Failed,
    Finished,
    GenerationRequest,
    Refused,
    TokenLogprob,
    Unfollowable,
)
from cluster.speculation.sampling import Sampling
from cluster.telemetry.metrics import exposition, start_metrics
from tests.gateway.helpers import FINISHED, SPEC, Characters, FakeEvents
from tests.telemetry.scraping import series, total
from truedraft.v1 import inference_pb2 as pb

TOKENS = [5, 6, 7, 8, 9, 10]
# What a stop string left of the token that it begins in.
REST = Committed("!", ())
# Ways in which a verifier is lost.
DIED, SILENT, LEFT = ActorDiedError(), None, Failed("the verifier is shutting down", leaving=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("cluster.gateway.verifiers._PAUSE_S", 0.0)


FIRST, LAST = DrafterIdentity("d", "ngram", "d#1"), DrafterIdentity("d", "ngram", "d#2")


def so_far(tokens):
    """Of rounds that gave a draft and a bonus each."""
    return SoFar(
        Claim.IDENTICAL_TOKENS,
        (FIRST,),
        tokens // 2,
        tokens,
        tokens // 2,
        0,
        tokens // 2,
        (("deadline", 1),),
        0,
        None,
    )


class Verifiers:
    """Answer TOKENS and REST, two tokens in a message, each from where its request resumes; `script` has what
    each call gives: how many messages before its end, and what that is."""

    def __init__(self, *script, claim=Claim.IDENTICAL_TOKENS):
        self.script, self.claim = list(script), claim
        self.sent, self.events = [], []

    def __call__(self, request):
        self.sent.append(request)
        rest = TOKENS[len(request.resumed_ids) :]
        count = len(rest)
        messages = []
        while rest:
            two, rest = rest[:2], rest[2:]
            logprobs = tuple(TokenLogprob(token, -0.5) for token in two)
            messages.append(
                Committed("".join(map(chr, two)), tuple(two), logprobs, so_far(2 * len(messages) + 2))
            )
        counts = {"rounds": count, "draft_tokens": 3 * count, "accepted_tokens": 0, "bonus_tokens": count}
        told = (told_of_resumed(len(request.resumed_ids)),) if request.resumed_ids else ()
        provenance = replace(FINISHED.provenance, claim=self.claim, reasons=told, drafters=(LAST,), **counts)
        whole = [*messages, REST, replace(FINISHED, output_tokens=count, provenance=provenance)]
        many, end = self.script.pop(0) if self.script else (len(whole), None)
        self.events.append(FakeEvents(*whole[:many], *([end] if end is not None else [])))
        return self.events[-1]


def request(law=COUPLED, resumed=()):
    return GenerationRequest(
        "r", (1, 2), Sampling(1.0), law, law, seed=7, max_tokens=9, logprobs=0, resumed_ids=resumed
    )


async def answered(verifiers, asked=None):
    """Events and how many tokens were sent before each loss."""
    lost = []
    events = [event async for event in decoded(verifiers, asked or request(), 1.0, lost.append)]
    return events, lost


@pytest.mark.parametrize("end", [DIED, SILENT, LEFT])
@pytest.mark.parametrize("messages", [0, 1, 2, 3, 4])
async def test_another_goes_on_from_what_was_sent(messages, end):
    verifiers = Verifiers((messages, end))
    (*commits, finished), lost = await answered(verifiers)
    sent = min(2 * messages, len(TOKENS))
    assert [token for commit in commits for token in commit.token_ids] == TOKENS
    assert "".join(commit.text for commit in commits) == "".join(map(chr, TOKENS)) + REST.text
    assert [each.token for commit in commits for each in commit.logprobs] == TOKENS
    assert lost == [sent]
    first, second = verifiers.sent
    assert second == replace(first, request_id=second.request_id, resumed_ids=tuple(TOKENS[:sent]))
    assert first.request_id != second.request_id
    assert isinstance(finished, Finished)
    assert finished.output_tokens == len(TOKENS)
    assert finished.provenance.verifiers_lost == 1
    assert f"the {sent} tokens that were sent" in finished.provenance.reasons[0]
    # What may be left of it is freed.
    assert verifiers.events[0].cancelled == (end is not LEFT)
    assert not verifiers.events[1].cancelled


async def test_undisturbed_answers_say_nothing_of_it():
    (*_, finished), lost = await answered(Verifiers())
    assert (lost, finished.provenance.verifiers_lost, finished.provenance.reasons) == ([], 0, ())
    assert finished.provenance.claim is Claim.IDENTICAL_TOKENS


async def test_several_losses_and_what_the_client_itself_resumed():
    verifiers = Verifiers((1, DIED), (1, SILENT), (0, DIED))
    (*commits, finished), lost = await answered(verifiers, request(resumed=(5,)))
    assert [token for commit in commits for token in commit.token_ids] == TOKENS[1:]
    assert [each.resumed_ids for each in verifiers.sent] == [
        (5,),
        tuple(TOKENS[:3]),
        tuple(TOKENS[:5]),
        tuple(TOKENS[:5]),
    ]
    assert len({each.request_id for each in verifiers.sent}) == 4
    assert lost == [2, 4, 4]
    assert (finished.output_tokens, finished.provenance.verifiers_lost) == (5, 3)


async def test_provenance_is_summed_over_all_verifiers():
    """The first one told of four tokens, the second of none, the third ends the answer with the last."""
    (*_, finished), _ = await answered(Verifiers((2, DIED), (0, DIED)), request(resumed=(5,)))
    provenance = finished.provenance
    assert (provenance.rounds, provenance.draft_tokens) == (2 + 1, 4 + 3)
    assert (provenance.accepted_tokens, provenance.bonus_tokens) == (2, 2 + 1)
    assert provenance.emitted_tokens == finished.output_tokens == 5
    assert provenance.fallbacks == {"deadline": 1}
    assert provenance.drafters == (FIRST, LAST)
    # The client resumed one token; what was sent on is accounted for.
    resumed = [each for each in provenance.reasons if "were resumed" in each]
    assert resumed == [told_of_resumed(1)]


async def test_a_request_that_kills_every_verifier_is_given_up():
    verifiers = Verifiers(*[(1, DIED)] * 9)
    with pytest.raises(RequestError, match="lost") as caught:
        await answered(verifiers)
    assert caught.value.cause.grpc is grpc.StatusCode.UNAVAILABLE
    assert [len(each.resumed_ids) for each in verifiers.sent] == [0, 2, 4, 6]
    assert all(events.cancelled for events in verifiers.events)


@pytest.mark.parametrize("refusal", [Refused("the queue is full"), BackPressureError(1, 1)])
async def test_where_the_others_are_full_they_are_asked_again_and_then_it_is_unavailable(refusal):
    (*commits, finished), _ = await answered(Verifiers((1, DIED), (0, refusal), (0, refusal)))
    assert [token for commit in commits for token in commit.token_ids] == TOKENS
    assert finished.provenance.verifiers_lost == 1
    verifiers = Verifiers((1, DIED), *[(0, refusal)] * 9)
    with pytest.raises(RequestError) as caught:
        await answered(verifiers)
    assert caught.value.cause.grpc is grpc.StatusCode.UNAVAILABLE
    assert len(verifiers.sent) == 5


@pytest.mark.parametrize("end", [Failed("the step failed"), Unfollowable("", "no"), Refused("full")])
async def test_what_is_no_loss_is_not_tried_again(end):
    verifiers = Verifiers((0, end))
    with pytest.raises(RequestError):
        await answered(verifiers)
    assert len(verifiers.sent) == 1


MIN_P = Law("truncation:min_p", (("min_p", 0.1),))


@pytest.mark.parametrize(
    ("law", "messages", "served", "claim"),
    [
        (COUPLED, 1, Claim.IDENTICAL_TOKENS, Claim.EXACT_LAW),
        (NONE, 1, Claim.IDENTICAL_TOKENS, Claim.EXACT_LAW),
        (COUPLED, 1, Claim.EXACT_LAW, Claim.EXACT_LAW),
        # Every token is the second verifier's.
        (COUPLED, 0, Claim.IDENTICAL_TOKENS, Claim.IDENTICAL_TOKENS),
        (REJECTION, 1, Claim.EXACT_LAW, Claim.UNPROVEN),
        (BLOCK, 0, Claim.IDENTICAL_TOKENS, Claim.UNPROVEN),
        (MIN_P, 1, Claim.EXACT_LAW, Claim.LOSSY),
        (MIN_P, 0, Claim.EXACT_LAW, Claim.UNPROVEN),
        (MIN_P, 0, Claim.LOSSY, Claim.LOSSY),
    ],
)
async def test_no_more_is_claimed_than_holds_of_both_parts(law, messages, served, claim):
    (*_, finished), _ = await answered(Verifiers((messages, DIED), claim=served), request(law))
    assert finished.provenance.claim is claim


def test_under_rejection_a_loss_that_hides_what_is_held_back_is_biased():
    """Why it is unproven: of two tokens the first may begin a stop string, so that it is not sent at once."""
    p = {"may begin a stop string": 0.5, "other": 0.5}
    held = "may begin a stop string"
    # Lost right after the token was drawn, at a time that depends on nothing.
    fresh = {token: (token != held) * p[token] + p[held] * p[token] for token in p}
    same_noise = {token: (token != held) * p[token] + p[held] * (token == held) for token in p}
    assert fresh == {held: 0.25, "other": 0.75}
    assert same_noise == p


async def test_span_metrics_and_log_tell_of_it(caplog):
    caplog.set_level(logging.INFO, log.name)
    exporter, provider, metrics = InMemorySpanExporter(), TracerProvider(), start_metrics("gateway", "g#1")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    service = GatewayService(
        SPEC, Characters(), Verifiers((1, DIED)), provider.get_tracer("test"), Doors(None), metrics.meter
    )
    asked = pb.GenerateRequest(prompt="hi", seed=7)
    *deltas, answer = [message async for message in service.answer(asked, [])]
    assert [token for delta in deltas for token in delta.token_ids] == TOKENS
    assert answer.usage.output_tokens == len(TOKENS)
    assert answer.provenance.verifiers_lost == 1
    [span] = exporter.get_finished_spans()
    assert [(event.name, dict(event.attributes)) for event in span.events] == [
        ("verifier lost", {"truedraft.sent.tokens": 2})
    ]
    assert span.attributes["truedraft.verifiers.lost"] == 1
    assert span.attributes["gen_ai.usage.output_tokens"] == len(TOKENS)
    found = series(exposition([metrics.families()]).decode())
    assert total(found, "truedraft_verifiers_lost_total", law="coupled") == 1
    assert total(found, "truedraft_requests_total", outcome="finished") == 1
    [line] = [json.loads(each.getMessage()) for each in caplog.records if each.name == log.name]
    assert (line["output_tokens"], line["provenance"]["verifiers_lost"]) == (len(TOKENS), 1)
