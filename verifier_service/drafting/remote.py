"""Blocks from a drafter replica over gRPC. Whatever happens to the replica, every ticket is answered
or overtaken: a lost drafter costs rounds without drafts, never a request."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable

from torch import Tensor

from cluster.channel.spec import LOOPBACK, Channel
from cluster.speculation.messages import DraftBlock, SessionSpec
from truedraft.v1 import drafting_pb2
from verifier_service.drafting.connection import Connection, ConnectionLostError, HelloInfo
from verifier_service.drafting.forecasts import Answered, Forecasts, Told
from verifier_service.drafting.link import Link
from verifier_service.drafting.links import Links
from verifier_service.drafting.port import Deliver, DraftReply, DraftTicket, Fallback
from verifier_service.drafting.repetitions import Repetitions
from verifier_service.drafting.replies import foretold, with_block, without_block
from verifier_service.drafting.resolver import Resolver
from verifier_service.drafting.sequences import OutOfOrderError, Sequence, checked, forecast_of, mismatch

__all__ = ["HelloInfo", "RemoteDrafting"]

_log = logging.getLogger(__name__)

# Faults that opening the sequence again can cure, and faults that no repetition can.
_REOPEN = (drafting_pb2.FAULT_CODE_UNKNOWN_SEQUENCE, drafting_pb2.FAULT_CODE_PREFIX_MISMATCH)
_FINAL = (drafting_pb2.FAULT_CODE_UNSUPPORTED_LAW, drafting_pb2.FAULT_CODE_INVALID_MESSAGE)


class RemoteDrafting:
    """A DraftingPort on streams to all drafter replicas, kept up in the background. A sequence stays with the
    replica that it was opened on while that serves it, and while it has not much more to do than others; it
    moves between two rounds, and is opened there anew from what is held here.

    loop: where everything but the port's methods runs, and where replies are delivered from; it
    must run while the engine does; channel: the certificates. Connecting begins with `connect` and
    ends with `aclose`.
    dropped: responses that answered nothing that was asked, by what was wrong with them; traffic: bytes
    of messages, "sent" and "received"; moved: sequences that went on to draft elsewhere while their
    replica was there.
    """

    def __init__(
        self,
        resolver: Resolver,
        hello: HelloInfo,
        loop: asyncio.AbstractEventLoop,
        channel: Channel = LOOPBACK,
    ) -> None:
        self._vocab_size = hello.vocab_size
        self._loop = loop
        self.traffic: Counter[str] = Counter()
        self._links = Links(resolver, hello, channel, self.traffic, self._receive, self._lost, self._looked)
        self._deliver: Deliver | None = None
        self._sequences: dict[int, Sequence] = {}
        self._forecasts = Forecasts()
        # Tokens of tickets that no drafter was told of; texts of open sequences. The engine's thread alone.
        self._untold: dict[int, tuple[int, ...]] = {}
        self._texts: dict[int, Repetitions] = {}
        self._maintenance: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped: Counter[str] = Counter()
        self.moved = 0

    # See DraftingPort.
    apart = True

    @property
    def ahead(self) -> Counter[str]:
        """Tokens that were drafted ahead and "used", or "wasted"."""
        return self._forecasts.counts

    @property
    def foresees(self) -> bool:
        """See DraftingPort."""
        return self._links.foresees

    @property
    def state(self) -> str:
        """Of the streams; see Links."""
        return self._links.state

    def spread(self) -> dict[str, int]:
        """Open sequences by the replica that drafts for them."""
        return self._links.spread()

    # The port: any thread.

    def connect(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._loop.call_soon_threadsafe(self._start)

    def open(self, spec: SessionSpec) -> None:
        self._untold.pop(spec.sequence, None)
        self._texts[spec.sequence] = Repetitions(spec.prompt_ids)
        self._call(self._open, spec)

    def feed(self, sequence: int, rows: Tensor) -> None:
        self._call(self._feed, sequence, rows)

    def request(self, ticket: DraftTicket) -> None:
        if self._deliver is None:
            raise ValueError("connect before the first ticket")
        # What was foreseen is answered at once: a detour over the loop's thread takes longer than an n-gram.
        told, block = self._forecasts.take(ticket) or (None, None)
        before = self._untold.pop(ticket.sequence, ())
        text = self._texts.get(ticket.sequence)
        if text is not None:
            text.extend(ticket.committed)
        if told is not None and text is not None:
            here, later = text.again(told.connection.repeats)
            if block is None and not here:
                block = DraftBlock()
            if block is not None:
                self._deliver(foretold(ticket, block, told))
                if not (block.tokens or here or later):
                    # Nor can anything be drafted after the next token: no forecast has to be there then.
                    self._untold[ticket.sequence] = (*before, *ticket.committed)
                    self._forecasts.keep(ticket.sequence, told)
                    return
        if not self._call(self._request, ticket, told, block, before) and block is None:
            self._deliver(without_block(ticket, Fallback.NO_DRAFTER, "the drafting client is closed"))

    def close(self, sequence: int, reason: str) -> None:
        self._untold.pop(sequence, None)
        self._texts.pop(sequence, None)
        self._call(self._close, sequence, reason)

    async def aclose(self) -> None:
        """Ends the streams; on the loop. Tickets from then on are answered with NO_DRAFTER."""
        self._closed = True
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        await self._links.aclose()

    def _call(self, function: Callable[..., None], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False  # The loop is closed.
        return True

    # From here on: on the loop.

    def _start(self) -> None:
        if self._maintenance is None and not self._closed:
            self._maintenance = self._loop.create_task(self._links.run())

    def _open(self, spec: SessionSpec) -> None:
        held = self._sequences.get(spec.sequence)
        sequence = Sequence(spec)
        if held is not None:
            # Blocks still under way for the last use of the number must not fit.
            sequence.epoch = held.epoch
            self._leave(held)
        self._sequences[spec.sequence] = sequence
        connection = self._connection(sequence)
        if connection is not None:
            self._send_open(connection, sequence)

    def _connection(self, sequence: Sequence) -> Connection | None:
        """The stream that the sequence drafts on from now on; None if there is none."""
        link = sequence.link
        if link is None or not link.usable or sequence.moves:
            best, sequence.moves = self._links.lightest(sequence.moves), False
            if best is not link:
                if link is not None and link.connection is not None:
                    self._send_close(link.connection, sequence, "it drafts elsewhere")
                self._leave(sequence)
                sequence.link = best
                if best is not None:
                    best.sequences += 1
                    self.moved += link is not None
        return sequence.link.connection if sequence.link is not None else None

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
            sequence.moves = link is not None and random.random() < self._links.excess(link)
        for link in self._links.leaving:
            self._end_idle(link)

    def _end_idle(self, link: Link) -> None:
        """Ends the stream to a replica that is leaving once nothing is under way on it."""
        on_it = [each for each in self._sequences.values() if each.link is link]
        if all(each.ticket is None for each in on_it):
            for sequence in on_it:
                self._leave(sequence)
            self._links.end(link)

    def _feed(self, number: int, rows: Tensor) -> None:
        sequence = self._sequences.get(number)
        if sequence is not None:
            # Also without a connection: the next drafter needs all of them.
            sequence.fused.append(rows)
            connection = sequence.link.connection if sequence.link is not None else None
            if connection is not None and sequence.stream == connection.number:
                self._send_features(connection, sequence)

    @staticmethod
    def _send_features(connection: Connection, sequence: Sequence) -> None:
        if connection.fed:
            for start, rows in sequence.unfed():
                connection.send_features(sequence.spec.sequence, sequence.epoch, start, rows)

    def _request(
        self, ticket: DraftTicket, told: Told | None, block: DraftBlock | None, before: tuple[int, ...]
    ) -> None:
        """block: with which it was answered, as a forecast told; before: tokens of tickets before it of which
        the drafter was not told."""
        if told is not None:
            self._forecasts.count(told, block)
        sequence = self._sequences.get(ticket.sequence)
        try:
            if sequence is None:
                raise OutOfOrderError("the sequence is not open")
            sequence.commit(ticket, before)
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
                detail = self.state if self.state.startswith("refused") else ""
                self._hand_over(without_block(ticket, Fallback.NO_DRAFTER, detail))
            return
        sequence.ticket = ticket
        sequence.link.asked(ticket.plan_id)
        if block is not None:
            self._answered(sequence, ticket, block, ahead=True)
        held = told if block is not None and sequence.stream == connection.number else None
        if block is not None and held is None:
            # A drafter that the sequence is new to told nothing: the block that it makes is another.
            sequence.last = Answered(0, 0, ())
        self._send_plan(connection, sequence, ticket, held)
        # A forecast may have come after the ticket was issued.
        self._foretell(sequence)

    def _foretell(self, sequence: Sequence) -> None:
        """Answers the ticket that is waiting, if there is one and a forecast tells its block."""
        ticket = sequence.ticket
        if ticket is not None and (taken := self._forecasts.take(ticket)) is not None:
            told, block = taken
            self._forecasts.count(told, block)
            if block is not None:
                self._answered(sequence, ticket, block, ahead=True)
                self._hand_over(foretold(ticket, block, told))

    def _close(self, number: int, reason: str) -> None:
        sequence = self._sequences.pop(number, None)
        if sequence is not None:
            link = sequence.link
            if link is not None and link.connection is not None:
                self._send_close(link.connection, sequence, reason)
            self._leave(sequence)

    @staticmethod
    def _send_close(connection: Connection, sequence: Sequence, reason: str) -> None:
        if sequence.stream == connection.number:
            message = drafting_pb2.Close(sequence=sequence.spec.sequence, epoch=sequence.epoch, reason=reason)
            connection.send(drafting_pb2.DraftRequest(close=message))

    def _send_open(self, connection: Connection, sequence: Sequence) -> None:
        connection.send(drafting_pb2.DraftRequest(open=sequence.open(connection.number)))
        self._send_features(connection, sequence)

    def _send_plan(
        self, connection: Connection, sequence: Sequence, ticket: DraftTicket, held: Told | None = None
    ) -> None:
        """held: the forecast that it was answered with."""
        if sequence.stream != connection.number:
            self._send_open(connection, sequence)
        if sequence.refused:
            if sequence.ticket is ticket:
                # Long before anything was drafted.
                self._without(sequence, ticket, Fallback.NO_DRAFTER, sequence.refused)
        else:
            asked = connection.asked(ticket) if held is None else held.asked(ticket)
            plan = sequence.plan(ticket, asked, held is not None)
            connection.send(drafting_pb2.DraftRequest(plan=plan))

    def _receive(self, link: Link, response: drafting_pb2.DraftResponse) -> None:
        match response.WhichOneof("message"):
            case "block":
                self._on_block(link, response.block)
            case "forecast":
                self._on_forecast(link, response.forecast)
            case "leaving":
                link.leaving = True
            case "fault" if response.fault.epoch == 0:
                raise ConnectionLostError(f"the drafter faulted the stream: {response.fault.detail}")
            case "fault":
                self._on_fault(link, response.fault)
            case _:
                self.dropped["unknown"] += 1
        if link.leaving:
            self._end_idle(link)

    def _on_block(self, link: Link, block: drafting_pb2.Block) -> None:
        connection, sequence = link.connection, self._sequences.get(block.sequence)
        if connection is None or sequence is None or sequence.link is not link:
            self.dropped["sequence"] += 1
            return
        wrong, ticket = mismatch(block, sequence, connection.incarnation), sequence.ticket
        if wrong == "plan" and block.plan_id == sequence.foretold:
            # Answered already, with what a forecast told.
            return
        if wrong:
            self.dropped[wrong] += 1
            if ticket is not None and wrong in ("incarnation", "prefix"):
                # It was meant for this ticket, so no other will come.
                self._without(sequence, ticket, Fallback.STALE_BLOCK, f"the block has another {wrong}")
            return
        assert ticket is not None  # or `mismatch` had said "plan"
        try:
            content = checked(block, sequence.asked, self._vocab_size, ticket.width)
        except ValueError as error:
            self.dropped["invalid"] += 1
            self._without(sequence, ticket, Fallback.INVALID_BLOCK, str(error))
            return
        self._answered(sequence, ticket, content)
        self._hand_over(with_block(ticket, content, connection, block.draft_time_ns * 1e-9))

    def _on_forecast(self, link: Link, forecast: drafting_pb2.Forecast) -> None:
        connection, sequence = link.connection, self._sequences.get(forecast.sequence)
        if connection is None or sequence is None or sequence.link is not link:
            self.dropped["sequence"] += 1
            return
        grant = sequence.granted(forecast.plan_id)
        other = forecast.epoch != sequence.epoch or forecast.incarnation != connection.incarnation
        if other or grant is None:
            self.dropped["ahead"] += 1
            return
        try:
            told = forecast_of(sequence, forecast, grant, self._vocab_size, connection)
        except ValueError:
            # Nobody waits for it.
            self.dropped["invalid"] += 1
            return
        self._forecasts.put(forecast.sequence, told)
        self._foretell(sequence)

    def _on_fault(self, link: Link, fault: drafting_pb2.Fault) -> None:
        sequence, connection = self._sequences.get(fault.sequence), link.connection
        known = sequence is not None and sequence.link is link and fault.epoch == sequence.epoch
        if sequence is None or connection is None or not known:
            self.dropped["fault"] += 1
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
        sequence.last = Answered(ticket.plan_id, ticket.base, block.tokens)
        if sequence.link is not None:
            sequence.link.answered()

    def _without(self, sequence: Sequence, ticket: DraftTicket, fallback: Fallback, detail: str) -> None:
        """Answers a ticket whose block will not come."""
        sequence.ticket, sequence.foretold = None, 0
        link = sequence.link
        if link is not None and fallback not in (Fallback.NO_DRAFTER, Fallback.STREAM_RESET):
            link.failed(ticket.plan_id)
        connection = link.connection if link is not None else None
        self._hand_over(without_block(ticket, fallback, detail, connection, sequence.asked))

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
