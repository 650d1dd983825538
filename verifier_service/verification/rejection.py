"""Speculative sampling: Leviathan et al. (arXiv 2211.17192), section 2.3; Chen et al. (2302.01318).

Each draft x is kept with probability min(1, p(x) / q(x)); the first that is not gives way to a draw from
(p - q)+, normalised. Exact if every x was drawn from its recorded q and the number of drafts that are
verified was decided without looking at them. A one-hot q makes it sample-and-match.
"""

from __future__ import annotations

from torch import Tensor

from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from verifier_service.verification.kernel import strict, verify_against


def verify(target_probs: Tensor, block: DraftBlock, noise: Noise) -> Verdict:
    """Raises ProposalError for a tree and for a proposal that cannot have given the block."""
    return verify_against(target_probs, block, noise, strict)
