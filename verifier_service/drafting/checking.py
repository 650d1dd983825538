"""What keeps a drafted block from being verified."""

from __future__ import annotations

from collections import Counter

from cluster.speculation.messages import DraftBlock
from cluster.speculation.proposal import ProposalError, unpack


def fault_of(block: DraftBlock, length: int, vocab_size: int, width: int = 1) -> str:
    """In words what is wrong with a block, empty if nothing is: then it fits the target's rows, and its
    proposal, where there is one, can have given its tokens.

    length, width: as they were asked for; vocab_size: ids at or above it are none.
    """
    count = len(block.tokens)
    most = length if block.parents is None else length * width
    if count > most:
        return f"a block of {count} tokens where at most {most} were asked for"
    if count and not (min(block.tokens) >= 0 and max(block.tokens) < vocab_size):
        return f"a token outside the vocabulary of {vocab_size}"
    if len(block.max_q) != count:
        return f"{len(block.max_q)} statistics for {count} tokens"
    if block.parents is not None and (fault := _fault_of_tree(block.parents, count, length, width)):
        return fault
    if block.proposal is not None:
        try:
            unpack(block, vocab_size)
        except ProposalError as error:
            return str(error)
    return ""


def _fault_of_tree(parents: tuple[int, ...], count: int, length: int, width: int) -> str:
    if width == 1:
        return "a tree where a chain was asked for"
    if len(parents) != count:
        return f"{len(parents)} parents for {count} tokens"
    if not all(-1 <= parent < draft for draft, parent in enumerate(parents)):
        return "a token whose parent does not come before it"
    if max(Counter(parents).values(), default=0) > width:
        return f"a token with more than the {width} children that were asked for"
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    if max(depths, default=0) > length:
        return f"a tree of depth {max(depths)} where at most {length} was asked for"
    return ""
