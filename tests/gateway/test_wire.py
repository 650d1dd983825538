"""Provenance survives the wire, and its JSON survives metadata."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster.gateway import wire
from cluster.speculation.distortion import DistortionTotals
from cluster.speculation.law import COUPLED, Claim, Law
from cluster.speculation.messages import DrafterIdentity
from cluster.speculation.provenance import Numerics, Provenance
from cluster.speculation.request import Committed, Finished, FinishReason, TokenLogprob
from truedraft.v1 import inference_pb2 as pb

counts = st.integers(0, 2**32 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(0, 1e6)
params = st.dictionaries(texts, numbers, max_size=3).map(lambda given: tuple(sorted(given.items())))
provenances = st.builds(
    Provenance,
    requested_law=st.builds(Law, texts),
    effective_law=st.builds(Law, texts, params),
    claim=st.sampled_from(Claim),
    numerics=st.builds(Numerics, texts, texts, texts, counts, st.booleans(), st.floats(0, 1)),
    seed=st.integers(0, 2**64 - 1),
    reasons=st.lists(texts, max_size=3).map(tuple),
    drafters=st.lists(st.builds(DrafterIdentity, texts, texts, texts), max_size=2).map(tuple),
    rounds=counts,
    draft_tokens=counts,
    accepted_tokens=st.integers(0, 10**9),
    correction_tokens=st.integers(0, 10**9),
    bonus_tokens=st.integers(0, 10**9),
    fallbacks=st.dictionaries(texts, st.integers(0, 10**6), max_size=3),
    meanwhile_rounds=counts,
    trace_id=texts,
    verifier_replica=texts,
    uncertain_positions=st.none() | counts,
    verifiers_lost=counts,
    distortion=st.none() | st.builds(DistortionTotals, counts, numbers, numbers, numbers, numbers),
)


@given(provenances)
def test_round_trip(provenance):
    if provenance.requested_law.name == provenance.effective_law.name:
        provenance = replace(provenance, requested_law=provenance.effective_law)
    sent = wire.to_proto(provenance).SerializeToString()
    assert wire.from_proto(pb.Provenance.FromString(sent)) == provenance


def example(**changes):
    fields = {
        "requested_law": COUPLED,
        "effective_law": COUPLED,
        "claim": Claim.EXACT_LAW,
        "numerics": Numerics("abc", "float32", "kernels", 2, False),
        "seed": 2**64 - 1,
        "rounds": 2,
        "draft_tokens": 4,
        "accepted_tokens": 2,
        "correction_tokens": 1,
        "bonus_tokens": 1,
        "fallbacks": {"deadline": 3},
    }
    return Provenance(**(fields | changes))


def test_derived_fields_are_sent():
    message = wire.to_proto(example())
    assert message.lossless
    assert message.claim == "exact-law"
    assert message.fallback_rounds == 3
    assert message.acceptance_length == 2.0
    assert not message.HasField("distortion")
    lossy = wire.to_proto(example(distortion=DistortionTotals(4, 1.0, 0.5, 3.0, 0.25)))
    assert (lossy.distortion.tv_mean, lossy.distortion.tv_max) == (0.25, 0.5)


def test_json_has_every_field_and_a_seed_that_json_readers_keep():
    content = wire.to_dict(wire.to_proto(example(claim=Claim.LOSSY)))
    assert set(content) >= {field.name for field in pb.Provenance.DESCRIPTOR.fields} - {
        "trace_id",
        "distortion",
        "uncertain_positions",
    }
    assert content["lossless"] is False
    assert content["seed"] == str(2**64 - 1)
    assert content["reasons"] == []


def test_trailer_is_ascii_and_short():
    trailer = wire.to_trailer(wire.to_proto(example(reasons=("é",))))
    assert trailer.isascii()
    assert json.loads(trailer)["reasons"] == ["é"]
    long = wire.to_trailer(wire.to_proto(example(reasons=("r" * 9000,))))
    assert len(long) < 4096
    assert json.loads(long)["abridged"] is True
    assert json.loads(long)["effective_law"] == "coupled"


def test_events():
    labels = wire.Labels("id", "toy", 3)
    told = (TokenLogprob(1, -0.5, ((7, -0.25),)), TokenLogprob(2, -1.5))
    delta = wire.to_delta(Committed("hi", (1, 2), told), COUPLED, labels, lambda token: bytes([token]))
    assert [(each.token_id, each.logprob, each.text) for each in delta.logprobs] == [
        (1, -0.5, b"\x01"),
        (2, -1.5, b"\x02"),
    ]
    assert delta.logprobs[0].top[0].text == b"\x07"
    assert delta.index == 3
    assert (delta.id, delta.text, list(delta.token_ids), delta.law) == ("id", "hi", [1, 2], "coupled")
    answer = wire.to_answer(Finished(FinishReason.LENGTH, 5, 4, example(), cached_tokens=3), labels)
    assert (answer.id, answer.model, answer.finish_reason) == ("id", "toy", pb.FINISH_REASON_LENGTH)
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_input_tokens) == (5, 4, 3)
