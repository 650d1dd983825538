"""The contract of the root span: names as strings, so that renaming a constant breaks here."""

from dataclasses import replace
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from cluster.speculation.distortion import DistortionTotals
from cluster.speculation.law import COUPLED, NONE, Claim, Law
from cluster.speculation.messages import DrafterIdentity
from cluster.speculation.provenance import Numerics, Provenance
from cluster.speculation.request import Finished, FinishReason, GenerationRequest
from cluster.speculation.sampling import Sampling
from cluster.telemetry import names
from cluster.telemetry.request import answer_attributes, provenance_attributes, root_attributes
from cluster.telemetry.setup import setup, shutdown

NUMERICS = Numerics("abc123", "float32", "onednn-packed", 2, True)


def request(**changes):
    fields = {
        "request_id": "gen-1",
        "prompt_ids": (1, 2, 3),
        "sampling": Sampling(0, top_k=40, top_p=0.9, min_p=0.05, typical_p=0.8, eta_cutoff=0.01),
        "law": COUPLED,
        "requested_law": COUPLED,
        "seed": 7,
        "max_tokens": 64,
        "domain": "coding",
    }
    return GenerationRequest(**fields | changes)


def provenance(**changes):
    fields = {
        "requested_law": COUPLED,
        "effective_law": NONE,
        "claim": Claim.EXACT_LAW,
        "numerics": NUMERICS,
        "seed": 2**64 - 1,
        "reasons": ("Rows are not invariant.", "No drafter."),
        "drafters": (
            DrafterIdentity("smol-draft", "causal-lm", "d#1"),
            DrafterIdentity("smol-draft", "causal-lm", "d#2"),
        ),
        "rounds": 5,
        "draft_tokens": 12,
        "accepted_tokens": 6,
        "correction_tokens": 1,
        "bonus_tokens": 4,
        "fallbacks": {"deadline": 2, "stream-reset": 1},
        "meanwhile_rounds": 4,
        "verifier_replica": "v#1",
    }
    return Provenance(**fields | changes)


def typed(attributes):
    """Equal numbers of different types are told apart."""
    return {name: (type(value), value) for name, value in attributes.items()}


def test_the_root_span_begins_with_what_was_asked():
    assert typed(root_attributes(request(), "smollm2", names.OPERATION_CHAT)) == typed(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "truedraft",
            "gen_ai.request.model": "smollm2",
            "gen_ai.request.max_tokens": 64,
            "gen_ai.request.temperature": 0.0,
            "gen_ai.request.top_p": 0.9,
            "gen_ai.request.top_k": 40,
            "gen_ai.request.seed": 7,
            "truedraft.request.min_p": 0.05,
            "truedraft.request.typical_p": 0.8,
            "truedraft.request.eta_cutoff": 0.01,
            "truedraft.verification.requested": "coupled",
            "truedraft.verification.mode": "coupled",
            "truedraft.seed": "7",
            "truedraft.domain": "coding",
        }
    )


def test_a_seed_beyond_the_conventions_integer_is_a_string_alone():
    attributes = root_attributes(request(seed=2**63, domain=""), "m", names.OPERATION_TEXT)
    assert attributes["truedraft.seed"] == str(2**63)
    assert "gen_ai.request.seed" not in attributes
    assert "truedraft.domain" not in attributes


def test_the_root_span_ends_with_provenance():
    assert typed(provenance_attributes(provenance())) == typed(
        {
            "truedraft.verification.requested": "coupled",
            "truedraft.verification.mode": "none",
            "truedraft.lossless": True,
            "truedraft.claim": "exact-law",
            "truedraft.reasons": "Rows are not invariant. No drafter.",
            "truedraft.seed": str(2**64 - 1),
            "truedraft.rounds": 5,
            "truedraft.draft.tokens": 12,
            "truedraft.accepted.tokens": 6,
            "truedraft.correction.tokens": 1,
            "truedraft.bonus.tokens": 4,
            "truedraft.emitted.tokens": 11,
            "truedraft.acceptance_length": 2.2,
            "truedraft.fallback.rounds": 3,
            "truedraft.meanwhile.rounds": 4,
            "truedraft.fallback.reason": "deadline,stream-reset",
            "truedraft.fallback.count.deadline": 2,
            "truedraft.fallback.count.stream-reset": 1,
            "truedraft.drafter.model": "smol-draft",
            "truedraft.drafter.kind": "causal-lm",
            "truedraft.drafter.replica": "d#1,d#2",
            "truedraft.verifier.replica": "v#1",
            "truedraft.numerics.weights_hash": "abc123",
            "truedraft.numerics.dtype": "float32",
            "truedraft.numerics.kernels": "onednn-packed",
            "truedraft.numerics.threads": 2,
            "truedraft.row_invariant": True,
        }
    )


def test_plain_decoding_has_no_drafter_and_no_fallback():
    plain = provenance(drafters=(), fallbacks={}, reasons=(), verifier_replica="")
    names_seen = set(provenance_attributes(plain))
    assert not {"truedraft.fallback.reason", "truedraft.drafter.model", "truedraft.reasons"} & names_seen
    assert provenance_attributes(plain)["truedraft.fallback.rounds"] == 0


def test_a_lossy_answer_says_so():
    assert provenance_attributes(provenance(claim=Claim.UNPROVEN))["truedraft.lossless"] is False


def test_a_lossy_law_tells_its_parameters_and_what_it_did():
    lossy = Law("truncation:typical", (("epsilon", 0.09), ("delta", 0.3)))
    assert root_attributes(request(law=lossy), "m", names.OPERATION_CHAT)[
        "truedraft.verification.params"
    ] == ("epsilon=0.09,delta=0.3")
    spent = DistortionTotals(tokens=4, tv_total=1.0, tv_max=0.5, overshoot_max=3.0, kl_total=0.25)
    attributes = provenance_attributes(provenance(effective_law=lossy, distortion=spent))
    strict = provenance_attributes(provenance())
    assert typed({name: attributes[name] for name in attributes.keys() - strict.keys()}) == typed(
        {
            "truedraft.verification.params": "epsilon=0.09,delta=0.3",
            "truedraft.distortion.tv_mean": 0.25,
            "truedraft.distortion.tv_max": 0.5,
            "truedraft.distortion.tv_total": 1.0,
            "truedraft.distortion.kl_total": 0.25,
            "truedraft.overshoot.max": 3.0,
        }
    )


def test_rows_that_differ_tell_by_how_much_and_what_hangs_on_it():
    numerics = replace(NUMERICS, row_invariant=False, logit_discrepancy=0.01)
    attributes = provenance_attributes(provenance(numerics=numerics, uncertain_positions=0))
    assert typed(
        {name: attributes[name] for name in attributes.keys() - provenance_attributes(provenance())}
    ) == (typed({"truedraft.numerics.logit_discrepancy": 0.01, "truedraft.uncertain_positions": 0}))


def test_finish_reason_and_usage():
    finished = Finished(FinishReason.LENGTH, 3, 11, provenance(), cached_tokens=2)
    attributes = answer_attributes(finished, "gen-1", "smollm2")
    assert typed(attributes).items() >= typed(provenance_attributes(provenance())).items()
    assert attributes["gen_ai.response.id"] == "gen-1"
    assert attributes["gen_ai.response.model"] == "smollm2"
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert attributes["gen_ai.usage.input_tokens"] == 3
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 2
    assert attributes["gen_ai.usage.output_tokens"] == 11
    assert all(type(value) in (str, bool, int, float, tuple) for value in attributes.values())


def test_every_attribute_survives_the_sdk_and_the_wire(otlp_receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.endpoint)
    sent = root_attributes(request(seed=2**64 - 1), "m", names.OPERATION_CHAT) | answer_attributes(
        Finished(FinishReason.STOP, 3, 11, provenance()), "gen-1", "m"
    )
    span = setup("gateway").start_span("chat m")
    span.set_attributes(sent)
    span.end()
    shutdown()
    assert typed(otlp_receiver.spans[0].attributes) == typed(sent)


def test_names_are_unique_and_documented():
    values = {key: value for key, value in vars(names).items() if key.isupper()}
    assert len(set(values.values()) - {names.PROVIDER}) == len(values) - 1
    page = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")
    assert [value for value in values.values() if f"`{value}" not in page] == []


def test_the_span_limit_of_the_sdk_holds_everything():
    span = TracerProvider().get_tracer("test").start_span("chat m")
    span.set_attributes(provenance_attributes(provenance()))
    assert span.dropped_attributes == 0
