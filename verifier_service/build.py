"""From a spec to an engine: loads the target, checks its numerics, and puts the parts together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer
from transformers import PreTrainedTokenizerBase

from cluster.checkpoints.loading import (
    end_of_sequence_ids,
    load_config,
    load_tokenizer,
    tokenizer_hash,
    weights_hash,
)
from cluster.checkpoints.registry import Checkpoint
from cluster.drafting.block_diffusion import read_fusing
from cluster.drafting.drafter_checkpoints import resolve_drafter
from cluster.scheduling import Planner, VerifyCost, planner_of
from cluster.speculation.provenance import Numerics
from cluster.telemetry.labels import Domains
from verifier_service.audit.auditor import Auditor
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftingPort
from verifier_service.engine.engine import Engine
from verifier_service.limits import Limits
from verifier_service.measuring.metering import Meters
from verifier_service.spec import VerifierSpec
from verifier_service.target.invariance import rows_are_invariant
from verifier_service.target.loading import checkpoint_of, load_weights, target_of
from verifier_service.target.profiling import profile
from verifier_service.target.target import TargetModel
from verifier_service.target.uncertainty import logit_discrepancy
from verifier_service.tensor_parallel.ranks import Ranks, free_port
from verifier_service.tensor_parallel.sharding import check_divisible

log = logging.getLogger(__name__)

# Starts the processes with which rank 0 of a spec shares its target; they meet on a port.
Start = Callable[[VerifierSpec, int], None]


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target ready to decode, and what is known of it."""

    model: TargetModel
    tokenizer: PreTrainedTokenizerBase
    checkpoint: Checkpoint
    tokenizer_hash: str
    stop_ids: frozenset[int]
    numerics: Numerics
    profile: VerifyCost


def load_target(spec: VerifierSpec, start: Start | None = None) -> LoadedTarget:
    """Loads the spec's checkpoint, checks whether its rows are bitwise invariant here, and times its steps.
    start: of the other processes that share the target.

    Raises CheckpointError, also for a drafter that cannot read this target; ValueError for a model whose
    attention is not supported, for one that cannot be shared so, for several processes that nobody starts,
    and for int8 elsewhere than on a CPU; RankLostError when another process ends or
    stands still.
    """
    checkpoint = checkpoint_of(spec)
    ranks = None
    if spec.tensor_parallel_size > 1:
        if start is None:
            raise ValueError("tensor_parallel_size > 1 is for a verifier that is served")
        check_divisible(load_config(checkpoint), spec.tensor_parallel_size)
        port = free_port()
        start(spec, port)
        ranks = Ranks(0, spec.tensor_parallel_size, port, torch.device(spec.device), spec.rank_timeout_s)
    fusing = None
    if spec.drafter:
        fusing = read_fusing(Path(resolve_drafter(spec.drafter).path), spec.feature_dtype)
    tokenizer = load_tokenizer(checkpoint)
    model = load_weights(spec, checkpoint)
    stop_ids = end_of_sequence_ids(model, tokenizer)
    # Before the target packs the weights away.
    target = target_of(spec, model, weights_hash(model), fusing, ranks)
    if ranks is not None:
        ranks.ready()
    invariant = rows_are_invariant(target)
    log.info("%s: rows are %s invariant", spec.model, "bitwise" if invariant else "not bitwise")
    numerics = target.numerics(invariant)
    if not invariant:
        numerics = replace(numerics, logit_discrepancy=logit_discrepancy(target))
    cost = profile(target, spec.step_rows)
    log.info("%s: a verify step takes %s ms", spec.model, _shown(cost))
    return LoadedTarget(target, tokenizer, checkpoint, tokenizer_hash(tokenizer), stop_ids, numerics, cost)


def _shown(cost: VerifyCost) -> str:
    points = zip(cost.rows, cost.seconds, strict=True)
    return ", ".join(f"{1e3 * seconds:.1f} for {rows} rows" for rows, seconds in points)


def build_engine(
    loaded: LoadedTarget,
    spec: VerifierSpec,
    drafting: DraftingPort | Pools | None,
    tracer: Tracer,
    replica: str = "in-process",
    meter: Meter | None = None,
    planner: Planner | None = None,
) -> Engine:
    """An engine over a loaded target; several may share one, in one thread. meter: None counts nothing;
    planner: instead of the spec's."""
    domains = Domains(spec.domains)
    meters = Meters(domains) if meter is not None else None
    limits = Limits(
        max_active=spec.max_active,
        max_queued=spec.max_queued,
        step_rows=spec.step_rows,
        draft_deadline=spec.draft_deadline_s,
        draft_patience=spec.draft_patience_s,
        gather=spec.gather_s,
        proposal_entries=spec.proposal_entries,
        block_length=spec.block_length,
        draft_ahead=spec.draft_ahead,
    )
    engine = Engine(
        target=loaded.model,
        pool=loaded.model.new_pool(spec.kv_tokens, spec.prefix_caching),
        tokenizer=loaded.tokenizer,
        stop_ids=loaded.stop_ids,
        numerics=loaded.numerics,
        planner=planner
        or planner_of(
            spec.planner,
            spec.block_length,
            spec.block_length_min,
            spec.stop_below,
            spec.draft_ahead,
            spec.block_width,
        ),
        drafting=drafting,
        limits=limits,
        tracer=tracer,
        replica=replica,
        auditor=Auditor(tracer, domains, spec.replay_share) if spec.audit else None,
        meters=meters,
        profile=loaded.profile,
    )
    if meter is not None and meters is not None:
        meters.register(meter, engine, spec.kv_tokens)
    return engine
