"""What keeps a drafted block from being verified."""

from __future__ import annotations

from cluster.speculation.messages import DraftBlock
from cluster.speculation.proposal import ProposalError, unpack


def fault_of(block: DraftBlock, length: int, vocab_size: int) -> str:
    """In words what is wrong with a block, empty if nothing is: then it fits the target's rows, and its
    proposal, where there is one, can have given its tokens.

    length: tokens that were asked for; vocab_size: ids at or above it are none.
    """
    count = len(block.tokens)
    if count > length:
        return f"a block of {count} tokens where at most {length} were asked for"
    if any(not 0 <= token < vocab_size for token in block.tokens):
        return f"a token outside the vocabulary of {vocab_size}"
    if len(block.max_q) != count:
        return f"{len(block.max_q)} statistics for {count} tokens"
    if block.parents is not None:
        return "a tree where a chain was asked for"
    if block.proposal is not None:
        try:
            unpack(block, vocab_size)
        except ProposalError as error:
            return str(error)
    return ""
