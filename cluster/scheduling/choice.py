"""With whom to draft: a bandit over drafter pools, on the past alone."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.scheduling.acceptance import outlook
from cluster.scheduling.history import History
from cluster.scheduling.rates import promises

# A request stays where it drafts unless another pool promises this much more.
_LEAVE = 1.1


def choose(histories: Mapping[str, History], most: int, pinned: str, hides: bool) -> str:
    """The pool whose best block gives most tokens a second; histories: of one request, by pool, not empty;
    pinned: where its last block came from, empty before the first.

    What is expected of a pool leans towards the best it may be while little is known of it, and so does that
    of one that this request has not asked for long (`acceptance.outlook`): so each is tried, and tried again.
    Before anything was measured the first one is chosen.
    """
    if len(histories) == 1:
        return next(iter(histories))
    values = {
        name: max(
            each.rate
            for each in promises(history, outlook(history, max(0, min(most, history.remaining - 1))), hides)
        )
        for name, history in histories.items()
        if history.verify is not None
    }
    if not values:
        return pinned or next(iter(histories))
    best = max(values, key=values.__getitem__)
    stays = pinned in values and values[best] < _LEAVE * values[pinned]
    return pinned if stays else best
