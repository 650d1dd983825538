"""Which verifier a request goes to: one that has the pages of its beginning, unless others do much less."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from cluster.speculation.request import GenerationRequest

# Tokens by which beginnings are told apart; what is shorter is sent wherever there is room.
_BLOCK = 64
# Blocks that are remembered: some tens of MB.
_REMEMBERED = 100_000


class Beginnings:
    """Which replicas were sent which beginnings of a tenant's prompts, as far as that is remembered; whether
    their pages are still there is for a verifier to know."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._sent: OrderedDict[int, set[ReplicaID]] = OrderedDict()

    def sent(self, request: GenerationRequest, replica: ReplicaID) -> None:
        """The request went to this replica."""
        for block in _blocks(request):
            self._sent.setdefault(block, set()).add(replica)
            self._sent.move_to_end(block)
        while len(self._sent) > self._most:
            self._sent.popitem(last=False)

    def holders(self, request: GenerationRequest, among: set[ReplicaID]) -> set[ReplicaID]:
        """Of these, the ones that were sent the longest beginning of this request; none if there is none."""
        found: set[ReplicaID] = set()
        for block in _blocks(request):
            holders = self._sent.get(block, set()) & among
            if not holders:
                break
            found = holders
        return found


def _blocks(request: GenerationRequest) -> Iterator[int]:
    """A number for each beginning of whole blocks. Two that collide cost a detour and nothing else."""
    ids = iter((*request.prompt_ids, *request.resumed_ids))
    beginning = hash(request.tenant)
    while len(block := tuple(islice(ids, _BLOCK))) == _BLOCK:
        beginning = hash((beginning, block))
        yield beginning


class PrefixAffineRouter(FIFOMixin, RequestRouter):
    """Serve's router for the gateway's handle of the verifiers.

    A conversation's next turn goes where its last one went, whose pages are there; among several such
    verifiers, or where there is none, to the one of two that has less to do, as Serve does by default. A
    verifier with more than `lead` requests beyond the least busy one is passed over: waiting for a place
    costs more than computing a prompt.

    First in, first out: by itself, Serve hands a verifier that was chosen to the call of the same request id,
    and all answers that a client asks for at once (`n`) have one id.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """kwargs: `lead`, in requests. Called by Serve, with request_router_kwargs."""
        self._lead: int = kwargs["lead"]
        self._beginnings = Beginnings()
        # Calls that this gateway has sent and not seen the end of. What Serve knows of queues it forgets
        # after seconds, in which a stream goes on.
        self._under_way: Counter[ReplicaID] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Called by Serve: those to be tried, the best first; of each group the least busy one is taken."""
        if pending_request is None:
            return [_two(candidate_replicas)]
        # Otherwise Serve would ask again and again without a pause while all are full.
        pending_request.routing_context.should_backoff = True
        request = _request(pending_request)
        if request is None:
            return [_two(candidate_replicas)]
        load = self._load(candidate_replicas)
        free = {replica for replica, requests in load.items() if requests <= min(load.values()) + self._lead}
        holders = self._beginnings.holders(request, free)
        affine = [each for each in candidate_replicas if each.replica_id in holders]
        return [_two(affine), _two(candidate_replicas)]

    def _load(self, replicas: list[RunningReplica]) -> dict[ReplicaID, int]:
        """Requests at each: as it last said itself, or as many as this gateway has there."""
        said = {each.replica_id: self.replica_queue_len_cache.get(each.replica_id) or 0 for each in replicas}
        return {replica: max(requests, self._under_way[replica]) for replica, requests in said.items()}

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        """Called by Serve."""
        request = _request(pending_request)
        if request is not None:
            self._beginnings.sent(request, replica_id)

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Called by Serve, for each that a replica is sent."""
        super().on_send_request(replica_id)
        self._under_way[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Serve, however it ended."""
        if self._under_way[replica_id] > 1:
            self._under_way[replica_id] -= 1
        else:
            del self._under_way[replica_id]


def _request(pending: PendingRequest) -> GenerationRequest | None:
    """None for calls of other kinds, such as for metrics."""
    first = pending.args[0] if pending.args else None
    return first if isinstance(first, GenerationRequest) else None


def _two(replicas: list[RunningReplica]) -> list[RunningReplica]:
    return random.sample(replicas, min(2, len(replicas)))
