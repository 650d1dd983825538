"""What one round allows an answer to say of itself; a request's claim is the weakest over its rounds."""

from __future__ import annotations

from cluster.speculation.catalogue import LAWS
from cluster.speculation.law import Claim, Law


def round_claim(law: Law, *, row_invariant: bool, unproven_loss: bool, distorted: bool) -> Claim:
    """The strongest claim that a round's facts support.

    row_invariant: a row's logits are the same bits in every batch; unproven_loss: the round's block was
    lost or cut short for a reason that may depend on what was drawn; distorted:
    some token was drawn from another law than the target's.
    """
    if distorted:
        return Claim.LOSSY
    if not LAWS[law.name].sends_rows:
        # The noise alone decides, whatever became of the drafts.
        return Claim.IDENTICAL_TOKENS if row_invariant else Claim.EXACT_LAW
    return Claim.UNPROVEN if unproven_loss else Claim.EXACT_LAW
