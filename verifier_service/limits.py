"""What an engine may hold and how long it waits, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """max_active: sequences in the batch; max_queued: sequences waiting for their first place; step_rows:
    rows of one forward; draft_deadline, draft_patience, gather: seconds to wait for a block where its loss
    cannot matter, for a block where it can, and for the blocks of others once one sequence is ready;
    proposal_entries: entries of each proposal that drafters are asked for; block_length, draft_ahead: of the
    planner, by which drafter pools are compared; without the latter no sequence decodes while its block is
    under way.
    """

    max_active: int = 64
    max_queued: int = 256
    step_rows: int = 640
    draft_deadline: float = 2.0
    draft_patience: float = 30.0
    gather: float = 0.005
    proposal_entries: int = 16
    block_length: int = 8
    draft_ahead: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    """A snapshot for status and tests. queued: sequences without a place, those that gave theirs away
    included; kv_tokens: room in the pages that sequences hold, shared ones counted once."""

    active: int
    queued: int
    kv_tokens: int
