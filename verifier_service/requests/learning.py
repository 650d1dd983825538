"""What a planner may learn of a block, once what it was compared with is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster.scheduling import Round
from cluster.speculation.messages import DraftBlock


def learned(block: DraftBlock, path: Sequence[int], planned: int, width: int, whole: bool) -> Round:
    """path: the drafts that came true, each the parent of the next; planned, width: as it was asked for;
    whole: nothing cut it.

    Of a tree it tells what a chain along the path would have told, how far drafts went on behind the path
    included. max q is that of the first of siblings.
    """
    accepted = len(path)
    if block.parents is None:
        return Round(planned, len(block.tokens), accepted, whole, block.max_q, width)
    depth = block.depth()
    end = path[-1] if path else -1
    drafted = accepted + block.depth(end)
    siblings = [block.children(draft) for draft in (-1, *path)]
    return Round(
        planned,
        drafted,
        accepted,
        whole and drafted == depth,
        tuple(block.max_q[each[0]] for each in siblings if each),
        width,
        tuple(each.index(draft) for each, draft in zip(siblings, path, strict=False)),
        len(siblings[-1]),
        len(block.tokens) / max(depth, 1),
    )


def compared(block: DraftBlock, planned: int, width: int, since: tuple[int, ...]) -> Round:
    """The same of a block of which nothing is left to verify. since: tokens that were decoded while it was
    under way."""
    path = block.along(since)
    drafted = len(path) + bool(block.children(path[-1] if path else -1))
    whole = drafted == block.depth()
    told = learned(block, path, planned, width, whole)
    return replace(told, drafted=drafted, whole=whole, max_q=told.max_q[:drafted])


def after(before: Round | None, rest: Round) -> Round:
    """Of a whole block, from what is known of the drafts that came true before it was there, and the rest."""
    if before is None:
        return rest
    count = before.accepted
    ranks = before.ranks or (0,) * count
    return replace(
        rest,
        planned=count + rest.planned,
        drafted=count + rest.drafted,
        accepted=count + rest.accepted,
        max_q=before.max_q[:count] + rest.max_q,
        ranks=(*ranks, *rest.ranks) if rest.ranks or any(ranks) else (),
        spread=before.spread,
    )
