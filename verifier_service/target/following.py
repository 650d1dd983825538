"""A rank that follows: it runs what rank 0 runs, on its own part of the target."""

from __future__ import annotations

import torch

from verifier_service.spec import VerifierSpec
from verifier_service.target.loading import checkpoint_of, load_weights, target_of
from verifier_service.target.target import TargetModel
from verifier_service.tensor_parallel.orders import NewPool, Step
from verifier_service.tensor_parallel.ranks import RankLostError, Ranks


def run_rank(spec: VerifierSpec, rank: int, port: int) -> None:
    """One rank of the spec's target, 1 or more, until rank 0 leaves. Raises CheckpointError."""
    ranks = Ranks(rank, spec.tensor_parallel_size, port, torch.device(spec.device), spec.rank_timeout_s)
    try:
        model = load_weights(spec, checkpoint_of(spec))
        target = target_of(spec, model, "", ranks=ranks)
        ranks.ready()
        follow(target, ranks)
    finally:
        ranks.close()


def follow(target: TargetModel, ranks: Ranks) -> None:
    """Until rank 0 leaves or another is lost."""
    pools = {0: target.pool}
    while True:
        try:
            order = ranks.hear()
            match order:
                case None:
                    return
                case NewPool(number, tokens):
                    pools[number] = target.new_pool(tokens)
                case Step():
                    for number in order.dropped:
                        del pools[number]
                    pool = order.places.pool = pools[order.pool]
                    for change in order.changes:
                        pool.apply(change)
                    target.run(order.tokens, order.positions, order.places, order.wanted)
        except RankLostError:
            return
