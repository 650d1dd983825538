"""What a request's rounds amounted to: counts, claim, distortion, and the sentences that explain them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto

from cluster.speculation.catalogue import LAWS
from cluster.speculation.claim import round_claim
from cluster.speculation.distortion import Distortion, DistortionTotals
from cluster.speculation.law import Claim, Law
from cluster.speculation.messages import DraftBlock, DrafterIdentity, Verdict
from cluster.speculation.provenance import SoFar
from verifier_service.drafting.port import DraftReply, Fallback


class Origin(Enum):
    """How an emitted token came about."""

    ACCEPTED = auto()
    CORRECTION = auto()
    BONUS = auto()


@dataclass(slots=True)
class Tally:
    """Over a request's rounds. origins: of the tokens that remain after discards; distortion, doubts: of
    every token that was decided, up to the one that ended the answer.

    claim: the weakest of a round so far; blocks: those that had tokens; certain: of these, the ones that
    proposed with certainty under a law that asks for proposals; unproven: rounds whose block was lost or cut
    short, under such a law, for a reason that may depend on what was drawn; meanwhile: rounds without drafts
    because their block was under way and not waited for.
    """

    law: Law
    row_invariant: bool
    rounds: int = 0
    drafted: int = 0
    origins: list[Origin] = field(default_factory=list)
    fallbacks: Counter[Fallback] = field(default_factory=Counter)
    drafters: dict[DrafterIdentity, None] = field(default_factory=dict)
    details: dict[str, None] = field(default_factory=dict)
    distortion: list[Distortion] = field(default_factory=list)
    doubts: list[bool] = field(default_factory=list)
    claim: Claim = Claim.IDENTICAL_TOKENS
    blocks: int = 0
    certain: int = 0
    unproven: int = 0
    meanwhile: int = 0
    # Of the first so many tokens, for `so_far`: an answer may be long.
    _counted: Counter[Origin] = field(default_factory=Counter)
    _doubtful: int = 0
    _upto: int = 0

    @property
    def _sends_rows(self) -> bool:
        return LAWS[self.law.name].sends_rows

    def replied(self, reply: DraftReply) -> None:
        """Counts what came of asking for a block."""
        if reply.block is not None and reply.block.tokens and reply.drafter is not None:
            self.drafters.setdefault(reply.drafter)
        if reply.fallback is not None:
            self.fallbacks[reply.fallback] += 1
            if reply.detail:
                self.details.setdefault(reply.detail)

    def decided(self, block: DraftBlock, verdict: Verdict, doubtful: bool) -> None:
        """Counts a round. block: as it was verified; doubtful: it was lost or cut short in a way that may
        depend on what was drawn."""
        drafted = len(block.tokens)
        self.rounds += 1
        self.drafted += drafted
        if drafted:
            self.blocks += 1
            self.certain += self._sends_rows and block.proposal is None
        unproven = self._sends_rows and doubtful
        self.unproven += unproven
        claim = round_claim(
            self.law,
            row_invariant=self.row_invariant,
            unproven_loss=unproven,
            distorted=any(token.tv > 0.0 for token in verdict.distortion),
        )
        self.claim = min(self.claim, claim)

    def emitted(self, index: int, block: DraftBlock, verdict: Verdict) -> None:
        """Counts the verdict's token at `index` as one of the answer."""
        if index < verdict.accepted:
            self.origins.append(Origin.ACCEPTED)
        else:
            path = range(verdict.accepted) if verdict.path is None else verdict.path
            contradicted = block.children(path[-1] if path else -1)
            self.origins.append(Origin.CORRECTION if contradicted else Origin.BONUS)

    def so_far(self, released: int) -> SoFar:
        """Of an answer that goes on. released: tokens, which are not taken back any more."""
        self._counted.update(self.origins[self._upto : released])
        self._doubtful += sum(self.doubts[self._upto : released])
        self._upto = released
        return SoFar(
            claim=self.claim,
            drafters=tuple(self.drafters),
            rounds=self.rounds,
            draft_tokens=self.drafted,
            accepted_tokens=self._counted[Origin.ACCEPTED],
            correction_tokens=self._counted[Origin.CORRECTION],
            bonus_tokens=self._counted[Origin.BONUS],
            fallbacks=tuple((str(reason), count) for reason, count in self.fallbacks.items()),
            meanwhile_rounds=self.meanwhile,
            uncertain_positions=self._doubtful if self.doubts else None,
        )

    def ledger(self) -> DistortionTotals | None:
        """None under a strict law."""
        return None if LAWS[self.law.name].lossless else DistortionTotals().plus(self.distortion)

    def reasons(self) -> tuple[str, ...]:
        """A sentence for each thing that made the answer other than what was asked."""
        reasons = [
            f"{count} of {self.rounds} rounds were decoded without drafts: {_SENTENCES[fallback]}"
            for fallback, count in self.fallbacks.items()
        ]
        reasons += self.details
        if self.unproven:
            reasons.append(
                f"{self.unproven} of {self.rounds} rounds lost their block, or its end, in a way that may "
                "depend on what was drafted, so that the law of the answer is not proven"
            )
        strict = LAWS[self.law.name].lossless
        if self.certain and strict:
            reasons.append(
                f"{self.certain} of {self.blocks} blocks proposed their tokens with certainty, where "
                f"{self.law} is sample-and-match: a draft is kept as often as the target would draw it"
            )
        if not strict and self.claim > Claim.LOSSY:
            reasons.append(
                f"nothing was relaxed under {self.law}: every token was drawn from the target's law"
            )
        if not self.row_invariant:
            reasons.append("a row's logits are not bitwise the same in every batch on this verifier")
        if self.doubts:
            reasons.append(
                f"{sum(self.doubts)} of {len(self.doubts)} tokens were decided by so little that such a "
                "difference could have changed them"
            )
        return tuple(reasons)


_SENTENCES = {
    Fallback.NO_DRAFTER: "no drafter was available",
    Fallback.DEADLINE: "the block had not come by its deadline",
    Fallback.STREAM_RESET: "the stream to the drafter broke",
    Fallback.STALE_BLOCK: "the block was built on another prefix",
    Fallback.INVALID_BLOCK: "the block was malformed",
    Fallback.DRAFTER_FAULT: "the drafter reported a fault",
}
