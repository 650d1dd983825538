"""The messages of a round: what was planned, what was drafted, what was decided."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from cluster.speculation.distortion import Distortion
from cluster.speculation.law import Law
from cluster.speculation.sampling import Sampling


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A block to be drafted: at most `length` tokens one after another behind the committed prefix; 0 is
    plain decoding.

    stop_below: it ends before a position whose max q is less; ahead: drafts that the drafter may send after
    an outcome of this block's round, before it is known; meanwhile: tokens that are decoded without drafts
    while the block is under way, before it is waited for; width: tokens at most that may follow the same
    ones, 1 for a chain. A block has at most length · width tokens. probe: nothing is drafted, though that
    would pay, to see what a round takes without. rows, tokens: expected of each of the round's steps, that
    the sequence puts into it and gets from it; None from a planner that does not expect.
    """

    length: int
    stop_below: float = 0.0
    ahead: int = 0
    meanwhile: int = 0
    width: int = 1
    probe: bool = False
    rows: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """The distributions that a block's tokens were drawn from, truncated and renormalised before the draw.

    ids: int64 [N, K], distinct within a row; probs: float32 [N, K], non-negative, 0 in places that
    are not used. Row k stands for q_k = probs / sum(probs), normalised in float64.
    """

    ids: Tensor
    probs: Tensor

    def first(self, rows: int) -> SparseRows:
        """The first `rows` distributions."""
        return SparseRows(self.ids[:rows], self.probs[:rows])


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Drafted tokens: a chain, or under `coupled` a tree.

    tokens: N ids; max_q: N statistics, each known before its token was drawn (1.0 for one-hot);
    parents: None for a chain, else for each token the index of its parent, -1 for the root, always
    smaller than its own; proposal: None where each token was proposed with certainty (one-hot) or
    where the law does not ask.
    """

    tokens: tuple[int, ...] = ()
    max_q: tuple[float, ...] = ()
    parents: tuple[int, ...] | None = None
    proposal: SparseRows | None = None

    def parent(self, draft: int) -> int:
        """The draft that it follows, -1 for none."""
        return draft - 1 if self.parents is None else self.parents[draft]

    def children(self, draft: int) -> list[int]:
        """The drafts that follow it, in their order; of -1: those that follow none."""
        return [each for each in range(draft + 1, len(self.tokens)) if self.parent(each) == draft]

    def depth(self, draft: int = -1) -> int:
        """How many drafts follow one after another behind a draft, at most; behind none for -1."""
        below = {draft: 0}
        for each in range(draft + 1, len(self.tokens)):
            if (parent := self.parent(each)) in below:
                below[each] = below[parent] + 1
        return max(below.values())

    def along(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The drafts that say these tokens one after another, as far as there are any."""
        return tuple(min(drafts) for drafts in self._standing(tokens))

    def after(self, tokens: Sequence[int]) -> DraftBlock | None:
        """What a block without proposals says after these tokens; None if it says others, or no more."""
        standing = self._standing(tokens)
        if len(standing) < len(tokens):
            return None
        kept = dict.fromkeys(standing[-1] if standing else {-1}, -1)
        rest: list[int] = []
        for draft in range(len(self.tokens)):
            if draft not in kept and self.parent(draft) in kept:
                kept[draft] = len(rest)
                rest.append(draft)
        if not rest:
            return None
        parents = None if self.parents is None else tuple(kept[self.parent(draft)] for draft in rest)
        return DraftBlock(
            tuple(self.tokens[draft] for draft in rest), tuple(self.max_q[draft] for draft in rest), parents
        )

    def _standing(self, tokens: Sequence[int]) -> list[set[int]]:
        """For each of these tokens the drafts that say it after those before; siblings may say the same."""
        here, standing = {-1}, []
        for token in tokens:
            drafts = range(len(self.tokens))
            here = {each for each in drafts if self.tokens[each] == token and self.parent(each) in here}
            if not here:
                break
            standing.append(here)
        return standing

    def first(self, count: int) -> DraftBlock:
        """The block of the first `count` drafts, everything about the others left out."""
        return DraftBlock(
            tokens=self.tokens[:count],
            max_q=self.max_q[:count],
            # A token's parent comes before it.
            parents=self.parents[:count] if self.parents is not None else None,
            proposal=self.proposal.first(count) if self.proposal is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round may come to, and the block that would be drafted after it. kept: drafts of the round's
    block that are accepted; token: the verifier's own that follows them."""

    kept: int
    token: int
    block: DraftBlock


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is drafted next, by outcome of a round that is not over. exhaustive: nothing is drafted after any
    outcome that is not among them."""

    outcomes: tuple[Outcome, ...] = ()
    exhaustive: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one verification emits.

    tokens: the accepted drafts followed by the bonus or correction token; accepted: how many drafts;
    path: for a tree, the accepted drafts' indices in the block, each the parent of the next; None for a
    chain, where they are the first; distortion: under a lossy law, one entry for each of tokens.
    """

    tokens: tuple[int, ...]
    accepted: int
    path: tuple[int, ...] | None = None
    distortion: tuple[Distortion, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a drafter is told of a request when its session is opened.

    noise_key: derived from the request's seed (`noise.derive_key`), never the seed: for Gumbel noise under
    `coupled`, for drafting alone where the law needs proposals; proposal_entries: of each proposal, 0 where
    the law needs none.
    """

    sequence: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    law: Law
    noise_key: int
    proposal_entries: int = 0


@dataclass(frozen=True, slots=True)
class DrafterIdentity:
    """Who drafted: model as configured, kind such as "ngram", and the replica that runs it."""

    model: str
    kind: str
    replica: str


class PrefixHash:
    """Rolling hash of committed tokens: the same on both sides iff the tokens are."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._state = hashlib.blake2b(digest_size=16)
        self.length = 0
        self.extend(tokens)

    def extend(self, tokens: Iterable[int] | Sequence[int]) -> None:
        ids = tuple(tokens)
        self._state.update(_packed(ids))
        self.length += len(ids)

    def digest(self) -> bytes:
        """16 bytes; the hash may be extended further."""
        return self._state.digest()

    def digest_after(self, tokens: Sequence[int]) -> bytes:
        """What `digest` would be after these tokens, which are not added."""
        state = self._state.copy()
        state.update(_packed(tokens))
        return state.digest()


def _packed(tokens: Sequence[int]) -> bytes:
    """Unsigned, 32 bits each, little-endian. Raises struct.error for what does not fit."""
    return struct.pack(f"<{len(tokens)}I", *tokens)
