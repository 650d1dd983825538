"""From a spec to an engine: loads the target, checks its numerics, and puts the parts together."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer
from transformers import PreTrainedTokenizerBase

from cluster.checkpoints.loading import (
    end_of_sequence_ids,
    load_model,
    load_tokenizer,
    tokenizer_hash,
    weights_hash,
)
from cluster.checkpoints.registry import Checkpoint, resolve
from cluster.drafting.block_diffusion import read_fusing
from cluster.drafting.drafter_checkpoints import resolve_drafter
from cluster.scheduling import Planner, VerifyCost, planner_of
from cluster.speculation.provenance import Numerics
from cluster.telemetry.labels import Domains
from verifier_service.audit.auditor import Auditor
from verifier_service.drafting.pools import Pools
from verifier_service.drafting.port import DraftingPort
from verifier_service.engine import Engine
from verifier_service.invariance import rows_are_invariant
from verifier_service.limits import Limits
from verifier_service.metering import Meters
from verifier_service.packing import quantize
from verifier_service.profiling import profile
from verifier_service.spec import INT8, VerifierSpec
from verifier_service.target import TargetModel
from verifier_service.uncertainty import logit_discrepancy

log = logging.getLogger(__name__)


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


def load_target(spec: VerifierSpec) -> LoadedTarget:
    """Loads the spec's checkpoint, checks whether its rows are bitwise invariant here, and times its steps.

    Raises CheckpointError, also for a drafter that cannot read this target; ValueError for a model whose
    attention is not supported, and for int8 elsewhere than on a CPU.
    """
    checkpoint = resolve(spec.model, Path(spec.cache_dir) if spec.cache_dir else None)
    fusing = None
    if spec.drafter:
        fusing = read_fusing(Path(resolve_drafter(spec.drafter).path), spec.feature_dtype)
    tokenizer = load_tokenizer(checkpoint)
    integers = spec.dtype == INT8
    model = load_model(checkpoint, "float32" if integers else spec.dtype, spec.device)
    if integers:
        quantize(model)
    stop_ids = end_of_sequence_ids(model, tokenizer)
    # Before the target packs the weights away.
    target = TargetModel(model, weights_hash(model), spec.threads, integers, fusing)
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
            spec.planner, spec.block_length, spec.block_length_min, spec.stop_below, spec.draft_ahead
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
