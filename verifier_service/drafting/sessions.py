"""The sequences that drafters draft for, and what goes to and fro about them: on the event loop alone."""

from __future__ import annotations

import logging
import random
from collections import Counter

from torch import Tensor

from cluster.channel.spec import Channel
from cluster.speculation.messages import DraftBlock, SessionSpec
from truedraft.v1 import drafting_pb2
from verifier_service.drafting.connection import Connection, ConnectionLostError, HelloInfo
from verifier_service.drafting.forecasts import Answered, Forecasts, Told
from verifier_service.drafting.foresight import Foreseen
from verifier_service.drafting.link import Link
from verifier_service.drafting.links import Links
from verifier_service.drafting.port import Deliver, DraftReply, DraftTicket, Fallback
from verifier_service.drafting.replies import foretold, with_block, without_block
from verifier_service.drafting.resolver import Resolver
from verifier_service.drafting.sequences import OutOfOrderError, Sequence, checked, forecast_of, mismatch

_log = logging.getLogger(__name__)

# Faults that opening the sequence again can cure, and faults that no repetition can.
_REOPEN = (drafting_pb2.FAULT_CODE_UNKNOWN_SEQUENCE, drafting_pb2.FAULT_CODE_PREFIX_MISMATCH)
_FINAL = (drafting_pb2.FAULT_CODE_UNSUPPORTED_LAW, drafting_pb2.FAULT_CODE_INVALID_MESSAGE)


class Sessions:
    """Lives on one event loop. A sequence stays with the replica that it was opened on while that serves it,
    and while it has not much more to do than others; it moves between two rounds, and is opened there anew
    from what is held here.

    forecasts: those that come are put there; traffic, dropped: see RemoteDrafting; links: to all replicas;
    moved: sequences that went on to draft elsewhere while their replica was there.
    """

    def __init__(
        self,
        resolver: Resolver,
        hello: HelloInfo,
        channel: Channel,
        forecasts: Forecasts,
        traffic: Counter[str],
        dropped: Counter[str],
    ) -> None:
        self._vocab_size = hello.vocab_size
        self._forecasts = forecasts
        self._dropped = dropped
        self.links = Links(resolver, hello, channel, traffic, self._receive, self._lost, self._looked)
        self._sequences: dict[int, Sequence] = {}
        self._deliver: Deliver | None = None
        self.moved = 0

    def start(self, deliver: Deliver) -> None:
        """Connects in the background. deliver: gets replies, on the loop."""
        self._deliver = deliver
        self.links.start()

    def open(self, spec: SessionSpec) -> None:
        held = self._sequences.get(spec.sequence)
        sequence = Sequence(spec)
        if held is not None:
            # Blocks still under way for the last use of the number must not fit.
            sequence.epoch = held.epoch
            self._leave(held)
        self._sequences[spec.sequence] = sequence
        if (connection := self._connection(sequence)) is not None:
            sequence.send_open(connection)

    def _connection(self, sequence: Sequence) -> Connection | None:
        """The stream that the sequence drafts on from now on; None if there is none."""
        link = sequence.link
        if link is None or not link.usable or sequence.moves:
            best, sequence.moves = self.links.lightest(sequence.moves), False
            if best is not link:
                sequence.send_close("it drafts elsewhere")
                self._leave(sequence)
                sequence.link = best
                if best is not None:
                    best.sequences += 1
                    self.moved += link is not None
        return sequence.connection

    def _leave(self, sequence: Sequence) -> None:
        if sequence.link is not None:
            sequence.link.sequences -= 1
            sequence.link = None
        # Who drafts next continues what is committed, and knows nothing of what was foreseen.
        self._forecasts.drop(sequence.spec.sequence)

    def _looked(self) -> None:
        """Sequences of a replica that has too much to do move with their next plans, by lot: as many as are
        too many there, of all verifiers."""
        for sequence in self._sequences.values():
            link = sequence.link
            sequence.moves = link is not None and random.random() < self.links.excess(link)
        for link in self.links.leaving:
            self._end_idle(link)

    def _end_idle(self, link: Link) -> None:
        """Ends the stream to a replica that is leaving once nothing is under way on it."""
        on_it = [each for each in self._sequences.values() if each.link is link]
        if all(each.ticket is None for each in on_it):
            for sequence in on_it:
                self._leave(sequence)
            self.links.end(link)

    def feed(self, number: int, rows: Tensor) -> None:
        sequence = self._sequences.get(number)
        if sequence is not None:
            # Also without a connection: the next drafter needs all of them.
            sequence.fused.append(rows)
            if sequence.connection is not None:
                sequence.send_features(sequence.connection)

    def request(self, ticket: DraftTicket, foreseen: Foreseen) -> None:
        """foreseen: with what the ticket is answered already, if with anything."""
        told, block = foreseen.told, foreseen.block
        if told is not None:
            self._forecasts.count(told, block)
        sequence = self._sequences.get(ticket.sequence)
        try:
            if sequence is None:
                raise OutOfOrderError("the sequence is not open")
            sequence.commit(ticket, foreseen.before)
        except OutOfOrderError as error:
            if block is None:
                self._hand_over(without_block(ticket, Fallback.DRAFTER_FAULT, str(error)))
            return
        if sequence.ticket is not None and sequence.link is not None:
            # The engine went on without the block.
            sequence.link.failed(sequence.ticket.plan_id)
            sequence.ticket = None
        connection = self._connection(sequence)
        if connection is None or sequence.link is None:
            if block is None:
                # The fallback says all there is to say, unless a drafter was found and refused.
                detail = self.links.state if self.links.state.startswith("refused") else ""
                self._hand_over(without_block(ticket, Fallback.NO_DRAFTER, detail))
            return
        sequence.ticket = ticket
        sequence.link.asked(ticket.plan_id)
        if block is not None:
            self._answered(sequence, ticket, block, ahead=True)
        held = told if block is not None and sequence.stream == connection.number else None
        if block is not None and held is None:
            # A drafter that the sequence is new to told nothing: the block that it makes is another.
            sequence.last = Answered()
        self._send_plan(connection, sequence, ticket, held)
        # A forecast may have come after the ticket was issued.
        self._foretell(sequence)

    def grant(self, ticket: DraftTicket) -> None:
        """A ticket without a block: has a forecast made of the round that its next token decides."""
        sequence = self._sequences.get(ticket.sequence)
        if sequence is None or len(sequence.tokens) != ticket.base:
            return
        connection = self._connection(sequence)
        if connection is None:
            return
        sequence.last = Answered(ticket.plan_id, ticket.base)
        if sequence.stream != connection.number:
            sequence.send_open(connection)
        if not sequence.refused:
            connection.send(drafting_pb2.VerifierMessage(plan=sequence.plan(ticket, 0, held=True)))

    def _foretell(self, sequence: Sequence) -> None:
        """Answers the ticket that is waiting, if there is one and a forecast tells its block."""
        ticket = sequence.ticket
        if ticket is not None and (taken := self._forecasts.take(ticket)) is not None:
            told, block = taken
            self._forecasts.count(told, block)
            if block is not None:
                self._answered(sequence, ticket, block, ahead=True)
                self._hand_over(foretold(ticket, block, told))

    def close(self, number: int, reason: str) -> None:
        if (sequence := self._sequences.pop(number, None)) is not None:
            sequence.send_close(reason)
            self._leave(sequence)

    def _send_plan(
        self, connection: Connection, sequence: Sequence, ticket: DraftTicket, held: Told | None = None
    ) -> None:
        """held: the forecast that it was answered with."""
        if sequence.stream != connection.number:
            sequence.send_open(connection)
        if sequence.refused:
            if sequence.ticket is ticket:
                # Long before anything was drafted.
                self._without(sequence, ticket, Fallback.NO_DRAFTER, sequence.refused)
        else:
            asked = connection.asked(ticket) if held is None else held.asked(ticket)
            plan = sequence.plan(ticket, asked, held is not None)
            connection.send(drafting_pb2.VerifierMessage(plan=plan))

    def _receive(self, link: Link, message: drafting_pb2.DrafterMessage) -> None:
        match message.WhichOneof("message"):
            case "block":
                self._on_block(link, message.block)
            case "forecast":
                self._on_forecast(link, message.forecast)
            case "leaving":
                link.leaving = True
            case "fault" if message.fault.epoch == 0:
                raise ConnectionLostError(f"the drafter faulted the stream: {message.fault.detail}")
            case "fault":
                self._on_fault(link, message.fault)
            case _:
                self._dropped["unknown"] += 1
        if link.leaving:
            self._end_idle(link)

    def _on_block(self, link: Link, block: drafting_pb2.Block) -> None:
        connection, sequence = link.connection, self._sequences.get(block.sequence)
        if connection is None or sequence is None or sequence.link is not link:
            self._dropped["sequence"] += 1
            return
        wrong, ticket = mismatch(block, sequence, connection.incarnation), sequence.ticket
        if wrong == "plan" and block.plan_id == sequence.foretold:
            # Answered already, with what a forecast told.
            return
        if wrong:
            self._dropped[wrong] += 1
            if ticket is not None and wrong in ("incarnation", "prefix"):
                # It was meant for this ticket, so no other will come.
                self._without(sequence, ticket, Fallback.STALE_BLOCK, f"the block has another {wrong}")
            return
        assert ticket is not None  # or `mismatch` had said "plan"
        try:
            content = checked(block, sequence.asked, self._vocab_size, ticket.width)
        except ValueError as error:
            self._dropped["invalid"] += 1
            self._without(sequence, ticket, Fallback.INVALID_BLOCK, str(error))
            return
        self._answered(sequence, ticket, content)
        self._hand_over(with_block(ticket, content, connection, block.draft_time_ns * 1e-9))

    def _on_forecast(self, link: Link, forecast: drafting_pb2.Forecast) -> None:
        connection, sequence = link.connection, self._sequences.get(forecast.sequence)
        if connection is None or sequence is None or sequence.link is not link:
            self._dropped["sequence"] += 1
            return
        grant = sequence.granted(forecast.plan_id)
        other = forecast.epoch != sequence.epoch or forecast.incarnation != connection.incarnation
        if other or grant is None:
            self._dropped["ahead"] += 1
            return
        try:
            told = forecast_of(sequence, forecast, grant, self._vocab_size, connection)
        except ValueError:
            # Nobody waits for it.
            self._dropped["invalid"] += 1
            return
        self._forecasts.put(forecast.sequence, told)
        self._foretell(sequence)

    def _on_fault(self, link: Link, fault: drafting_pb2.Fault) -> None:
        sequence, connection = self._sequences.get(fault.sequence), link.connection
        known = sequence is not None and sequence.link is link and fault.epoch == sequence.epoch
        if sequence is None or connection is None or not known:
            self._dropped["fault"] += 1
            return
        ticket = sequence.ticket
        if fault.code in _FINAL:
            sequence.refused = fault.detail
        elif fault.code in _REOPEN:
            # Leaves the stream, as it were, so that the next plan comes with an Open.
            sequence.stream = 0
            if ticket is not None and sequence.reopened != ticket.plan_id:
                sequence.reopened = ticket.plan_id
                self._send_plan(connection, sequence, ticket)
                return
        elif ticket is None or fault.plan_id != ticket.plan_id:
            return
        if ticket is not None:
            unserved = fault.code == drafting_pb2.FAULT_CODE_UNSUPPORTED_LAW
            fallback = Fallback.NO_DRAFTER if unserved else Fallback.DRAFTER_FAULT
            self._without(sequence, ticket, fallback, fault.detail)

    def _answered(
        self, sequence: Sequence, ticket: DraftTicket, block: DraftBlock, ahead: bool = False
    ) -> None:
        """Notes what a ticket was answered with."""
        sequence.ticket, sequence.foretold = None, ticket.plan_id if ahead else 0
        sequence.last = Answered(ticket.plan_id, ticket.base, block)
        if sequence.link is not None:
            sequence.link.answered()

    def _without(self, sequence: Sequence, ticket: DraftTicket, fallback: Fallback, detail: str) -> None:
        """Answers a ticket whose block will not come."""
        sequence.ticket, sequence.foretold = None, 0
        link = sequence.link
        if link is not None and fallback not in (Fallback.NO_DRAFTER, Fallback.STREAM_RESET):
            link.failed(ticket.plan_id)
        self._hand_over(without_block(ticket, fallback, detail, sequence.connection, sequence.asked))

    def _hand_over(self, reply: DraftReply) -> None:
        assert self._deliver is not None  # or there were no tickets
        try:
            self._deliver(reply)
        except Exception:
            _log.exception("a draft reply could not be delivered")

    def _lost(self, link: Link, fallback: Fallback, detail: str) -> None:
        for sequence in self._sequences.values():
            if sequence.link is link:
                if sequence.ticket is not None:
                    self._without(sequence, sequence.ticket, fallback, detail)
                self._leave(sequence)
