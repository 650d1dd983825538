"""What a ticket can be answered with where it is issued, before any drafter hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.speculation.messages import DraftBlock, SessionSpec
from verifier_service.drafting.forecasts import Forecasts, Told
from verifier_service.drafting.port import DraftTicket
from verifier_service.drafting.repetitions import Repetitions


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Of one ticket. told: the forecast of the round before it, which has to be counted; block: the ticket's,
    as far as that and the text tell, None where it has to be asked for.

    before: tokens of tickets before it of which no drafter was told; enough: nor has one to be told of this
    ticket, since nothing can be drafted after the next token either.
    """

    told: Told | None = None
    block: DraftBlock | None = None
    before: tuple[int, ...] = ()
    enough: bool = False


class Foresight:
    """The engine's thread alone, but for what comes into `forecasts`."""

    def __init__(self, forecasts: Forecasts) -> None:
        self._forecasts = forecasts
        self._texts: dict[int, Repetitions] = {}
        # Tokens of tickets that no drafter was told of.
        self._untold: dict[int, tuple[int, ...]] = {}

    def open(self, spec: SessionSpec) -> None:
        """Begins a sequence, or begins it anew."""
        self._untold.pop(spec.sequence, None)
        self._texts[spec.sequence] = Repetitions(spec.prompt_ids)

    def of(self, ticket: DraftTicket) -> Foreseen:
        """What is foreseen of the next ticket of its sequence; without a block if that is not open."""
        number = ticket.sequence
        told, block = self._forecasts.take(ticket) or (None, None)
        before, text = self._untold.pop(number, ()), self._texts.get(number)
        if text is None:
            return Foreseen(told, None, before)
        text.extend(ticket.committed)
        if told is None:
            return Foreseen(None, None, before)
        here, later = text.again(told.connection.repeats)
        if block is None and not here:
            block = DraftBlock()
        if block is None or block.tokens or here or later:
            return Foreseen(told, block, before)
        # No forecast has to be there for the next ticket: this one goes on.
        self._untold[number] = (*before, *ticket.committed)
        self._forecasts.keep(number, told)
        return Foreseen(told, block, before, enough=True)

    def close(self, sequence: int) -> None:
        """No error if it was never opened."""
        self._untold.pop(sequence, None)
        self._texts.pop(sequence, None)
