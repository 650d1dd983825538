"""What live audits know, as it is reported."""

from __future__ import annotations

from dataclasses import dataclass

# An honest deployment passes below this once in a million, for each martingale that it keeps.
ALARM = 1e-6


@dataclass(frozen=True, slots=True)
class AuditState:
    """The evidence for one law, drafter and domain. p-values hold at any time.

    ranks, drawn, kept: tokens, drafts and decisions on drafts that were bet on; replays: answers decoded
    again, replayed_tokens of them compared; near_ties, faults: replays that differed, by so little that the
    measured discrepancy of logits explains it, and by more.
    """

    law: str
    drafter: str
    domain: str
    ranks: int = 0
    ranks_p_value: float = 1.0
    drawn: int = 0
    drawn_p_value: float = 1.0
    kept: int = 0
    kept_p_value: float = 1.0
    replays: int = 0
    replayed_tokens: int = 0
    near_ties: int = 0
    faults: int = 0

    @property
    def p_value(self) -> float:
        """The smallest of the three."""
        return min(self.ranks_p_value, self.drawn_p_value, self.kept_p_value)

    @property
    def alarm(self) -> bool:
        """Whether the served law is not the one that was promised, as far as evidence goes."""
        return self.p_value < ALARM or self.faults > 0
