"""What a ticket is answered with."""

from __future__ import annotations

from cluster.speculation.messages import DraftBlock
from verifier_service.drafting.connection import Connection
from verifier_service.drafting.forecasts import Told
from verifier_service.drafting.port import DraftReply, DraftTicket, Fallback


def with_block(ticket: DraftTicket, block: DraftBlock, connection: Connection, seconds: float) -> DraftReply:
    """seconds: the drafter's own time."""
    return DraftReply(
        ticket.sequence,
        ticket.plan_id,
        block,
        connection.drafter,
        draft_seconds=seconds,
        asked=connection.asked(ticket),
        certain=connection.certain,
    )


def foretold(ticket: DraftTicket, block: DraftBlock, told: Told) -> DraftReply:
    """block: as the forecast told. A drafter that guesses made another block between plan and forecast, so
    that their distance is no trip."""
    return DraftReply(
        ticket.sequence,
        ticket.plan_id,
        block,
        told.connection.drafter,
        draft_seconds=told.seconds,
        ahead=True,
        asked=told.asked(ticket),
        certain=told.connection.certain,
        trip=told.trip if told.exhaustive else 0.0,
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
