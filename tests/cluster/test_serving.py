"""The whole cluster on emulated nodes, asked as clients ask it."""

import json
import os
import secrets
import signal
import time
from dataclasses import replace

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from cluster.client import Ask, Client, RequestFailedError
from cluster.config import ACCELERATOR_LABEL, ClusterConfig
from cluster.telemetry import names
from tests.cluster import golden
from tests.cluster.waiting import eventually
from truedraft.v1 import inference_pb2 as pb

pytestmark = pytest.mark.cluster

LONG = Ask(prompt="one two three one two three", temperature=1.0, seed=11, max_tokens=400)
# Greedy answers of a random model soon repeat themselves, which is what the n-gram drafter needs.
REPETITIVE = Ask(prompt="one two one two one two", temperature=0, max_tokens=200, seed=1)


def test_every_replica_is_where_its_label_is(cluster):
    drafters, verifiers = cluster.running.replicas("drafter"), cluster.running.replicas("verifier")
    assert drafters
    assert verifiers
    assert {replica.labels[ACCELERATOR_LABEL] for replica in drafters} == {"L4"}
    assert {replica.labels[ACCELERATOR_LABEL] for replica in verifiers} == {"H100"}
    assert cluster.running.info("drafter")["labels"][ACCELERATOR_LABEL] == "L4"
    assert cluster.running.info("verifier")["labels"][ACCELERATOR_LABEL] == "H100"


def test_without_keys_no_other_machine_is_answered(cluster):
    """Serve binds gRPC everywhere: a call to another address of this machine comes as from elsewhere."""
    port = cluster.running.grpc_address.rpartition(":")[2]
    found = [each.address for of_one in psutil.net_if_addrs().values() for each in of_one]
    hosts = [host for host in found if host.count(".") == 3 and not host.startswith("127.")]
    hosts += [f"[{host}]" for host in found if ":" in host and host.startswith(("fd", "2"))]
    if not hosts:
        pytest.skip("this machine has no address but loopback")
    for host in hosts:
        with Client(f"{host}:{port}", timeout=30) as client, pytest.raises(RequestFailedError) as caught:
            client.answer(REPETITIVE)
        assert caught.value.code == "UNAUTHENTICATED"
        with grpc.insecure_channel(f"{host}:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with Client(f"[::1]:{port}", timeout=30) as client:
        assert client.answer(replace(REPETITIVE, max_tokens=2)).token_ids


def test_counts_add_up_and_drafts_are_accepted(cluster):
    answer = cluster.client.answer(REPETITIVE)
    provenance, usage = answer.final.provenance, answer.final.usage
    emitted = provenance.accepted_tokens + provenance.correction_tokens + provenance.bonus_tokens
    assert emitted == usage.output_tokens == len(answer.token_ids)
    assert 0 < provenance.accepted_tokens <= provenance.draft_tokens
    assert provenance.lossless
    assert provenance.requested_law == provenance.effective_law == "coupled"
    assert provenance.seed == 1


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_coupled_is_none_token_for_token(cluster, temperature):
    asks = (
        Ask(prompt="a b c a b c", temperature=temperature, max_tokens=100, seed=3, law=law)
        for law in ("coupled", "none")
    )
    coupled, plain = (cluster.client.answer(ask) for ask in asks)
    assert coupled.final.provenance.numerics.row_invariant
    assert coupled.token_ids == plain.token_ids
    assert coupled.text == plain.text
    assert plain.final.provenance.draft_tokens == 0


def test_unary_and_streamed_answers_are_the_same(cluster):
    ask = Ask(prompt="hello", max_tokens=20, seed=5, temperature=1.0)
    streamed = cluster.client.answer(ask)
    whole, call = cluster.stub.Complete.with_call(ask.to_proto())
    assert (whole.text, list(whole.token_ids)) == (streamed.text, streamed.token_ids)
    assert whole.answer.finish_reason == streamed.final.finish_reason
    trailer = json.loads(dict(call.trailing_metadata())["truedraft-provenance"])
    assert trailer["claim"] == whole.answer.provenance.claim
    assert trailer["seed"] == "5"


def test_every_delta_names_its_law_and_the_stream_ends_with_provenance(cluster):
    call = cluster.stub.Generate(pb.GenerateRequest(prompt="hello", max_tokens=5))
    *deltas, last = call
    assert {message.delta.law for message in deltas} == {"coupled"}
    assert last.answer.provenance.rounds >= 1
    trailer = json.loads(dict(call.trailing_metadata())["truedraft-provenance"])
    assert trailer["trace_id"] == last.answer.provenance.trace_id


def test_the_clients_trace_id_comes_back(cluster):
    trace = "0af7651916cd43dd8448eb211c80319c"
    answer = cluster.client.answer(Ask(prompt="hello", max_tokens=2), f"00-{trace}-b7ad6b7169203331-01")
    assert answer.final.provenance.trace_id == trace


@pytest.mark.parametrize("law", ["rejection", "block"])
def test_the_other_strict_laws_are_served(cluster, law):
    greedy = cluster.client.answer(REPETITIVE).token_ids
    answer = cluster.client.answer(replace(REPETITIVE, law=law))
    provenance = answer.final.provenance
    assert answer.token_ids == greedy
    assert provenance.requested_law == provenance.effective_law == law
    assert (provenance.claim, provenance.lossless) == ("exact-law", True)
    assert provenance.accepted_tokens > 0
    # The drafter looks its drafts up.
    assert any("sample-and-match" in reason for reason in provenance.reasons)
    assert not provenance.HasField("distortion")


def test_a_lossy_answer_says_how_far_it_went(cluster):
    trace = secrets.token_hex(16)
    ask = replace(REPETITIVE, temperature=1.0, law="truncation:min_p", law_params={"min_p": 0.5})
    answer = cluster.client.answer(ask, f"00-{trace}-{secrets.token_hex(8)}-01")
    provenance = answer.final.provenance
    assert (provenance.claim, provenance.lossless) == ("lossy", False)
    assert dict(provenance.law_params) == {"min_p": 0.5}
    spent = provenance.distortion
    assert spent.tokens == len(answer.token_ids)
    assert 0 < spent.tv_mean <= spent.tv_max <= 1
    assert spent.overshoot_max > 1

    def root():
        """the request's root span has arrived"""
        spans = cluster.collector.trace(trace)
        return next((s for s in spans if s.resource["service.name"] == "truedraft-gateway"), None)

    attributes = eventually(root, 20).attributes
    assert attributes[names.DISTORTION_TV_MEAN] == spent.tv_mean
    assert attributes[names.DISTORTION_TV_MAX] == spent.tv_max
    assert attributes[names.OVERSHOOT_MAX] == spent.overshoot_max
    assert attributes[names.VERIFICATION_PARAMS] == "min_p=0.5"


BAD = [
    (Ask(prompt=""), "empty"),
    (Ask(prompt="x", law="rumour"), "served laws: none, coupled, rejection, block, truncation:min_p"),
    (Ask(prompt="x", law_params={"min_p": 0.1}), "coupled has no parameter 'min_p'"),
    (Ask(prompt="x", law="truncation:min_p", law_params={"min_p": -1}), "min_p must be"),
    (Ask(prompt="x", law="truncation:min_p", law_params={"beta": 1}), "no parameter 'beta'"),
    (Ask(prompt="x", law="collaborative:lenience"), "needs lenience"),
    (Ask(prompt="x", law="collaborative:lenience", law_params={"lenience": 0.5}), "strict laws rejection"),
    (Ask(prompt="x", law="truncation:typical"), "eta_cutoff"),
    (Ask(prompt="x", temperature=-1), "temperature must be"),
    (Ask(prompt="x", temperature=float("nan")), "temperature must be"),
    (Ask(prompt="x", top_p=0), "top_p must be"),
    (Ask(prompt="x", top_k=-1), "top_k must be"),
    (Ask(prompt="x", min_p=1.5), "min_p must be"),
    (Ask(prompt="x", max_tokens=0), "max_tokens must be"),
    (Ask(prompt="word " * 600), "does not fit the context of 512"),
    (Ask(prompt="x", max_tokens=512), "leaves"),
    (Ask(prompt="x", model="gpt"), "model 'gpt' is not served here; served: 'tiny'"),
    (Ask(prompt_ids=[512]), "outside the vocabulary"),
    (Ask(prompt="x", stop=[""]), "stop string"),
    (Ask(messages=[("robot", "x")]), "role 'robot'"),
]


@pytest.mark.parametrize(("ask", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_input_is_answered_with_one_sentence(cluster, ask, words):
    with pytest.raises(RequestFailedError) as streamed:
        cluster.client.answer(ask)
    with pytest.raises(grpc.RpcError) as unary:
        cluster.stub.Complete(ask.to_proto())
    for code, details in (
        (streamed.value.code, str(streamed.value)),
        (unary.value.code().name, unary.value.details()),
    ):
        assert code == ("PERMISSION_DENIED" if "is lossy" in details else "INVALID_ARGUMENT")
        assert words in details
        assert details.count("\n") == 0
        assert "Traceback" not in details


def test_reflection_lists_the_service(cluster):
    services = ProtoReflectionDescriptorDatabase(cluster.channel).get_services()
    assert "truedraft.v1.InferenceService" in services


@pytest.mark.parametrize("messages", [1, 2, 5, None])
def test_a_client_that_disconnects_frees_its_sequences(cluster, messages):
    def active():
        return cluster.running.info("verifier")["active"]

    eventually(lambda: active() == 0, 5)
    # So many that none is over by then.
    request = LONG.to_proto()
    request.n = 8
    if messages is None:
        call = cluster.stub.Complete.future(request)
        eventually(lambda: active() == 8, 5)
    else:
        call = cluster.stub.Generate(request)
        for _ in range(messages):
            next(call)
        assert active() > 0
    call.cancel()
    eventually(lambda: active() == 0, 1)


def test_a_killed_drafter_costs_rounds_and_no_token(cluster):
    expected = cluster.client.answer(LONG).token_ids
    [victim] = cluster.running.replicas("drafter")
    tokens = []
    for response in cluster.client.stream(LONG):
        tokens.extend(response.delta.token_ids)
        # With the first message: hundreds of tokens are a fraction of a second's work.
        if victim is not None:
            os.kill(victim.pid, signal.SIGKILL)
            killed, old, victim = time.monotonic(), victim, None
    provenance = response.answer.provenance
    assert tokens == expected
    assert provenance.fallback_rounds == sum(provenance.fallbacks.values()) > 0
    assert provenance.reasons
    assert provenance.lossless

    def replaced():
        """a new drafter is in use"""
        return cluster.running.info("verifier")["drafting"] == "connected"

    # Seconds on a quiet machine; how many is printed and not asserted, since loading shares its cores.
    eventually(replaced, 90)
    print(f"another drafter was in use {time.monotonic() - killed:.1f} s after the first was killed")
    [drafter] = eventually(lambda: [r for r in cluster.running.replicas("drafter") if r.pid != old.pid], 10)
    answer = cluster.client.answer(REPETITIVE)
    assert [each.replica for each in answer.final.provenance.drafters] == [drafter.replica]


def test_a_killed_verifier_costs_no_token_and_is_told(cluster):
    """The answer goes on from what was sent, on the replica that takes the place of the killed one."""
    expected = cluster.client.answer(LONG)
    [victim] = cluster.running.replicas("verifier")
    trace = secrets.token_hex(16)
    tokens, text = [], ""
    for response in cluster.client.stream(LONG, f"00-{trace}-{secrets.token_hex(8)}-01"):
        tokens.extend(response.delta.token_ids)
        text += response.delta.text
        # With the first message: hundreds of tokens are a fraction of a second's work.
        if victim is not None:
            os.kill(victim.pid, signal.SIGKILL)
            sent, old, victim = len(tokens), victim, None
    final = response.answer
    assert (tokens, text) == (expected.token_ids, expected.text)
    assert final.usage.output_tokens == len(tokens) > sent
    counted = final.provenance
    # Of both verifiers: the first one's as it told them with what was sent.
    assert counted.accepted_tokens + counted.correction_tokens + counted.bonus_tokens == len(tokens)
    assert final.provenance.verifiers_lost == 1
    assert (final.provenance.claim, final.provenance.lossless) == ("exact-law", True)
    assert old.replica not in final.provenance.verifier_replica

    def root():
        """the request's root span has arrived"""
        spans = cluster.collector.trace(trace)
        return next((s for s in spans if s.resource["service.name"] == "truedraft-gateway"), None)

    assert names.EVENT_VERIFIER_LOST in {event.name for event in eventually(root, 20).events}
    eventually(lambda: cluster.running.info("verifier")["drafting"] == "connected", 30)


def test_without_the_drafters_node_the_cluster_decodes_plainly_and_says_so(cluster):
    expected = cluster.client.answer(LONG).token_ids
    cluster.running.emulation.remove("L4")
    try:
        eventually(lambda: cluster.running.replicas("drafter") == [], 15)
        trace = secrets.token_hex(16)
        answer = cluster.client.answer(LONG, f"00-{trace}-{secrets.token_hex(8)}-01")
        provenance = answer.final.provenance
        assert answer.token_ids == expected
        assert provenance.draft_tokens == 0
        assert provenance.fallback_rounds > 0
        assert list(provenance.drafters) == []
        assert provenance.reasons

        def root():
            """the request's root span has arrived"""
            spans = cluster.collector.trace(trace)
            return next((s for s in spans if s.resource["service.name"] == "truedraft-gateway"), None)

        span = eventually(root, 20)
        assert span.attributes[names.FALLBACK_ROUNDS] == provenance.fallback_rounds
        assert span.attributes[f"{names.FALLBACK_COUNT_PREFIX}no-drafter"] > 0
        assert span.attributes[names.LOSSLESS] is True
        assert provenance.lossless
        golden.check_soon("fallback", lambda: cluster.collector.trace(trace))
        [verifier] = cluster.running.replicas("verifier")
        assert verifier.labels[ACCELERATOR_LABEL] == "H100"
    finally:
        [l4] = [
            node for node in ClusterConfig().emulation.nodes if node.labels.get(ACCELERATOR_LABEL) == "L4"
        ]
        cluster.running.emulation.add(l4)
    eventually(lambda: cluster.running.replicas("drafter"), 60)
    eventually(lambda: cluster.running.info("verifier")["drafting"] == "connected", 30)
