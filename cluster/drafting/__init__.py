"""What a drafter is, and the drafters that need no weights: used by both services."""

from cluster.drafting.drafter import Drafter, DraftingError
from cluster.drafting.ngram import NgramDrafter

__all__ = ["Drafter", "DraftingError", "NgramDrafter"]
