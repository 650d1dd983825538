"""What a ticket is answered with."""

from __future__ import annotations

from cluster.speculation.messages import DraftBlock
from verifier_service.drafting.connection import Connection
from verifier_service.drafting.port import DraftReply, DraftTicket, Fallback


def with_block(
    ticket: DraftTicket, block: DraftBlock, connection: Connection, seconds: float, ahead: bool = False
) -> DraftReply:
    """seconds: the drafter's own time; ahead: it was drafted before the ticket was issued."""
    return DraftReply(
        ticket.sequence,
        ticket.plan_id,
        block,
        connection.drafter,
        draft_seconds=seconds,
        ahead=ahead,
        asked=connection.asked(ticket),
        certain=connection.certain,
    )


def without_block(
    ticket: DraftTicket,
    fallback: Fallback,
    detail: str,
    connection: Connection | None = None,
    asked: int | None = None,
) -> DraftReply:
    """connection, asked: where the ticket had got to a drafter."""
    return DraftReply(
        ticket.sequence,
        ticket.plan_id,
        None,
        connection.drafter if connection is not None else None,
        fallback,
        detail,
        asked=asked,
        certain=connection is not None and connection.certain,
    )
