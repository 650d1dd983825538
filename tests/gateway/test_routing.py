"""Which of several verifiers a request goes to, by Serve's own router with replicas that are no actors."""

import asyncio
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from cluster.gateway.routing import Beginnings, PrefixAffineRouter
from cluster.speculation.law import COUPLED
from cluster.speculation.request import GenerationRequest
from cluster.speculation.sampling import Sampling

DEPLOYMENT = DeploymentID("VerifierDeployment", "truedraft")
A, B, C = (ReplicaID(name, DEPLOYMENT) for name in "abc")
REPLICAS = [SimpleNamespace(replica_id=replica) for replica in (A, B, C)]
TURN = tuple(range(200))


def request(ids=TURN, tenant="t"):
    return GenerationRequest("r", ids, Sampling(1.0), COUPLED, COUPLED, 1, 9, tenant=tenant)


def pending(*args):
    context = SimpleNamespace(should_backoff=False)
    return SimpleNamespace(args=list(args), routing_context=context)


@pytest.fixture
def router():
    made = PrefixAffineRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA)
    made.initialize_state(lead=2)
    return made


async def first_choice(router, asked, replicas=REPLICAS):
    """How often each replica is of the first group that has any, in 60 tries."""
    found = Counter()
    for _ in range(60):
        groups = await router.choose_replicas(replicas, pending(asked))
        found.update(each.replica_id for each in next(group for group in groups if group))
    return found


async def test_the_next_turn_goes_where_the_last_one_went(router):
    router.on_request_routed(pending(request()), B, None)
    following = request((*TURN, *range(900, 1000)))
    assert set(await first_choice(router, following)) == {B}
    # Others are there for when it is full.
    assert len((await router.choose_replicas(REPLICAS, pending(following)))[1]) == 2


@pytest.mark.parametrize("other", [request(tuple(range(1, 201))), request(TURN[:63]), request(tenant="u")])
async def test_what_begins_otherwise_or_is_short_or_anothers_goes_anywhere(router, other):
    router.on_request_routed(pending(request()), B, None)
    assert set(await first_choice(router, other)) == {A, B, C}


async def test_the_longest_beginning_wins(router):
    router.on_request_routed(pending(request(TURN[:64])), A, None)
    router.on_request_routed(pending(request(TURN[:128])), B, None)
    assert set(await first_choice(router, request())) == {B}
    router.on_request_routed(pending(request()), C, None)
    assert set(await first_choice(router, request(TURN[:100]))) == {A, B, C}
    assert set(await first_choice(router, request(TURN[:130]))) == {B, C}


async def test_what_was_resumed_counts_as_beginning(router):
    resumed = replace(request(TURN[:100]), resumed_ids=TURN[100:])
    router.on_request_routed(pending(resumed), B, None)
    assert set(await first_choice(router, request((*TURN, 7)))) == {B}


async def test_load_wins_where_it_differs_by_more_than_the_lead(router):
    router.on_request_routed(pending(request()), B, None)
    for _ in range(2):
        router.on_send_request(B)
    assert set(await first_choice(router, request())) == {B}
    router.on_send_request(B)
    assert set(await first_choice(router, request())) == {A, B, C}
    # All are as busy.
    for replica in (A, C):
        router.on_send_request(replica)
    assert set(await first_choice(router, request())) == {B}
    # What others have sent it counts as well.
    router.replica_queue_len_cache.update(B, 9)
    assert set(await first_choice(router, request())) == {A, B, C}
    router.replica_queue_len_cache.update(B, 0)
    router.on_request_completed(B, "")
    for replica in (A, C):
        router.on_request_completed(replica, "")
    assert set(await first_choice(router, request())) == {B}


async def test_a_replica_that_is_gone_is_not_asked_for(router):
    router.on_request_routed(pending(request(TURN[:100])), A, None)
    router.on_request_routed(pending(request()), B, None)
    assert set(await first_choice(router, request(), [REPLICAS[0], REPLICAS[2]])) == {A}


async def test_calls_that_are_no_requests_go_anywhere(router):
    assert await router.choose_replicas([], None) == [[]]
    [group] = await router.choose_replicas(REPLICAS, pending())
    assert len(group) == 2


def test_the_oldest_is_forgotten():
    beginnings = Beginnings(most=2)
    for start, replica in ((0, A), (100, B), (200, C)):
        beginnings.sent(request(tuple(range(start, start + 64))), replica)
    holders = [beginnings.holders(request(tuple(range(s, s + 64))), {A, B, C}) for s in (0, 100, 200)]
    assert holders == [set(), {B}, {C}]


async def test_answers_asked_for_at_once_have_one_id_and_all_find_a_verifier():
    made = PrefixAffineRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    made.initialize_state(lead=2)
    replica = SimpleNamespace(replica_id=A, max_ongoing_requests=100)
    made._replicas, made._replicas_list = {A: replica}, [replica]
    made.replica_queue_len_cache.update(A, 0)
    metadata = RequestMetadata(request_id="r", internal_request_id="the gateway's")
    calls = [PendingRequest([request()], {}, metadata) for _ in range(8)]
    async with asyncio.timeout(5):
        found = await asyncio.gather(*map(made._choose_replica_for_request, calls))
    assert found == [replica] * 8
