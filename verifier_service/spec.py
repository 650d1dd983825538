"""What a verifier replica is configured with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cluster.channel.spec import LOOPBACK, Channel
from cluster.scheduling import PlannerName

# A dtype: float32 with weights rounded to integers.
INT8 = "int8"


class DraftingMode(StrEnum):
    """Where blocks come from: drafter replicas, an n-gram drafter in this process, whichever of both
    promises a request more, or nowhere."""

    REMOTE = "remote"
    LOCAL = "local"
    BOTH = "both"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """model: a checkpoint reference; dtype: as torch names it, or INT8; threads: CPU threads, 0 for all
    cores; tensor_parallel_size: processes that share the target; rank_timeout_s: seconds that one of
    them may be silent when the others wait for it; adapters: names and folders of LoRA
    adapters; max_active: sequences in the batch; max_queued: sequences that wait for their first place;
    kv_tokens: room in the KV cache; prefix_caching: whether a request starts from pages that another of its
    tenant filled with the same tokens;
    step_rows: token rows of one forward; planner: who decides how much is drafted; block_length,
    block_length_min: bounds of the drafts of a round, one after another; block_width: of those at each
    position, above 1 for trees under coupled; stop_below: max q before which a block ends;
    draft_ahead: whether drafters may guess a round's outcome and go on, and sequences decode while their
    blocks are under way; gather_s: seconds to wait for the
    blocks of others once one sequence is ready; draft_deadline_s: seconds after
    which a round goes on without its block under coupled; draft_patience_s: the same under laws that wait
    for a block, whose answer then proves nothing; stream_interval_s: seconds between two messages of an
    answer, which carry what was committed meanwhile; proposal_entries: of each distribution that drafters
    send under these laws; audit: whether strict laws are audited on live traffic; replay_share: of finished
    answers that are decoded again without drafts; domains: labels of requests that are told apart;
    channel: certificates of the stream to drafters; drafter: reference of the drafter's checkpoint where it
    reads the target's hidden states, else empty; feature_dtype: of what it is sent of them.
    """

    model: str
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 0
    tensor_parallel_size: int = 1
    rank_timeout_s: float = 60.0
    adapters: tuple[tuple[str, str], ...] = ()
    cache_dir: str | None = None
    max_active: int = 64
    max_queued: int = 256
    kv_tokens: int = 65536
    prefix_caching: bool = True
    step_rows: int = 640
    planner: PlannerName = PlannerName.GOODPUT
    block_length: int = 8
    block_length_min: int = 0
    block_width: int = 1
    stop_below: float = 0.0
    draft_ahead: bool = True
    gather_s: float = 0.005
    draft_deadline_s: float = 2.0
    draft_patience_s: float = 30.0
    stream_interval_s: float = 0.2
    proposal_entries: int = 16
    drafting: DraftingMode = DraftingMode.REMOTE
    audit: bool = True
    replay_share: float = 0.01
    domains: tuple[str, ...] = ()
    channel: Channel = LOOPBACK
    drafter: str = ""
    feature_dtype: str = "float32"
