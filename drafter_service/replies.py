"""What a verifier's messages are answered with, as it goes over the wire."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.drafting.wire import put_parents, put_proposal
from cluster.speculation.messages import DraftBlock, SessionSpec
from truedraft.v1 import drafting_pb2


def block_reply(
    plan: drafting_pb2.Plan, incarnation: int, spec: SessionSpec, drafted: DraftBlock
) -> drafting_pb2.Block:
    """The plan's answer. Raises ValueError for a proposal of more entries than were asked for."""
    complete = drafted.depth() == plan.block_length
    block = drafting_pb2.Block(
        sequence=plan.sequence,
        epoch=plan.epoch,
        plan_id=plan.plan_id,
        incarnation=incarnation,
        prefix_hash=plan.prefix_hash,
        ids=drafted.tokens,
        max_q=drafted.max_q,
        stop_reason=drafting_pb2.STOP_REASON_LENGTH if complete else drafting_pb2.STOP_REASON_EXHAUSTED,
    )
    put_parents(block, drafted.parents)
    if drafted.proposal is not None:
        put_proposal(block, drafted.proposal, spec.proposal_entries)
    return block


def forecast_reply(
    plan: drafting_pb2.Plan,
    incarnation: int,
    blocks: Mapping[bytes, DraftBlock],
    exhaustive: bool,
    elapsed_ns: int,
) -> drafting_pb2.Forecast:
    """What follows the plan's round. blocks: by the prefix that they continue."""
    forecast = drafting_pb2.Forecast(
        sequence=plan.sequence,
        epoch=plan.epoch,
        plan_id=plan.plan_id,
        incarnation=incarnation,
        exhaustive=exhaustive,
        draft_time_ns=elapsed_ns,
    )
    for prefix, block in blocks.items():
        forecast.outcomes.add(prefix_hash=prefix, ids=block.tokens, max_q=block.max_q)
    return forecast


def fault_reply(
    code: drafting_pb2.FaultCode,
    detail: str,
    message: drafting_pb2.Open | drafting_pb2.Plan | drafting_pb2.Close,
) -> drafting_pb2.Fault:
    """message: the one that cannot be honoured."""
    return drafting_pb2.Fault(
        code=code,
        detail=detail,
        sequence=message.sequence,
        epoch=message.epoch,
        plan_id=message.plan_id if isinstance(message, drafting_pb2.Plan) else 0,
    )
