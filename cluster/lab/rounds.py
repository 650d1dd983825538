"""One request in a small world: what is drafted, what the shipped `verify` makes of it, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from cluster.lab.coupling import joint
from cluster.lab.enumeration import ChosenDraft, ChosenNoise, Run
from cluster.lab.world import Prefix, World
from cluster.speculation.law import COUPLED, NONE, Law
from cluster.speculation.messages import DraftBlock, SparseRows, Verdict
from cluster.speculation.proposal import SparseRow, pack
from cluster.speculation.race import GumbelField
from verifier_service.verification import verify


@dataclass(frozen=True, slots=True)
class SharedField(GumbelField):
    """Gumbel noise of a request, known by the winners that it has along the target's own path."""

    request: Request

    def winner(self, position: int, probs: Tensor) -> int:
        row = tuple(probs.tolist())
        path = self.request.path
        if row != self.request.world.target(tuple(path[:position])):
            # Off that path nothing is known of it, and no law that is right looks there.
            return self.request.run.choose(row)
        if position == len(path):
            path.append(self.request.run.choose(row))
        return path[position]


@dataclass(frozen=True, slots=True)
class SharedNoise(ChosenNoise):
    request: Request

    @property
    def field(self) -> GumbelField:
        return SharedField(self.seed, self.request)


@dataclass(slots=True)
class Request:
    """Under `coupled`, draft 0 of the first round shares the verifier's noise: each of its tokens is drawn
    jointly with the target's own (`path`). All other drafts have noise of their own.

    length: drafts a round; tokens: emitted so far.
    """

    run: Run
    world: World
    law: Law
    length: int
    tokens: Prefix = ()
    path: list[int] = field(default_factory=list)

    def draft(
        self,
        which: int = 0,
        recorded: Callable[[SparseRow], SparseRow] | None = None,
        key_base: int | None = None,
    ) -> DraftBlock:
        """A block after the committed tokens; which: tells drafters apart; recorded: what is sent of the row
        that was drawn from, if it is not the row; key_base: what the noise is keyed by, if it is not the
        committed length, with the absolute position as its index."""
        committed = len(self.tokens)
        noise = ChosenDraft(which, committed if key_base is None else key_base, self.run)
        tokens: Prefix = ()
        rows: list[SparseRow] = []
        for k in range(self.length):
            row = self.world.proposal((*self.tokens, *tokens))
            if self.law == COUPLED and which == 0 and committed == 0:
                tokens = (*tokens, self._drawn_with_the_target(row))
            else:
                index = k if key_base is None else committed + k
                tokens = (*tokens, noise.draw(index, row))
            rows.append(row if recorded is None else recorded(row))
        return DraftBlock(tokens, tuple(max(row.probs) for row in rows), proposal=pack(rows))

    def verify(self, block: DraftBlock, seed: int = 0) -> Verdict:
        """seed: tells apart independent noises of the verifier."""
        rows = self.world.rows(self.tokens, block.tokens)
        return verify(self.law, rows, block, SharedNoise(seed, len(self.tokens), self.run, self))

    def finish(self, length: int) -> Prefix:
        """The first `length` tokens under `coupled`, whose later tokens come from the same noise; under other
        laws what has been emitted, since what follows is independent of it and has the target's law."""
        while self.law == COUPLED and len(self.tokens) < length:
            rows = self.world.rows(self.tokens, ())
            noise = SharedNoise(0, len(self.tokens), self.run, self)
            self.tokens += verify(NONE, rows, DraftBlock(), noise).tokens
        return self.tokens[:length]

    def _drawn_with_the_target(self, row: SparseRow) -> int:
        p = self.world.target(tuple(self.path))
        q = dense(row, self.world.vocab)
        pairs = [share for winners in joint(p, q) for share in winners]
        target, drafted = divmod(self.run.choose(pairs), self.world.vocab)
        self.path.append(target)
        return drafted


def first(block: DraftBlock, length: int) -> DraftBlock:
    """The block's first `length` drafts."""
    proposal = block.proposal
    if proposal is not None:
        proposal = SparseRows(proposal.ids[:length], proposal.probs[:length])
    return DraftBlock(block.tokens[:length], block.max_q[:length], proposal=proposal)


def dense(row: SparseRow, vocab: int) -> Sequence[float]:
    """A proposal's probabilities, one for each token."""
    held = dict(zip(row.ids, row.probs, strict=True))
    return [held.get(token, 0.0) for token in range(vocab)]
