"""The drafter-invariant law: Daliri, Musco, Suresh, arXiv 2408.07978, section 3.

Position k emits y_k = argmax_v(log p_k[v] + G_k[v]), G keyed by (request seed, absolute position),
and goes on while y_k is a drafted child of where it stands. The output is a function of seed and target
alone, so how a draft was made, branched, pruned, delayed or lost cannot change it.
"""

from __future__ import annotations

from torch import Tensor

from cluster.speculation.messages import DraftBlock, Verdict
from verifier_service.verification.walk import Walk


def walk(target_probs: Tensor, block: DraftBlock, base: int) -> Walk:
    """Walks the chain or the tree; a position's winner is asked for only if the walk reaches it.

    target_probs: row 0 follows the committed prefix, row i + 1 draft i and its ancestors; base: absolute
    position of row 0. Raises ValueError for parents that are no tree.
    """
    if block.parents is not None:
        return _walk_tree(target_probs, block.tokens, block.parents, base)
    return _walk_chain(target_probs, block.tokens, base)


def _walk_chain(target_probs: Tensor, tokens: tuple[int, ...], base: int) -> Walk:
    emitted: list[int] = []
    for depth, row in enumerate(target_probs):
        emitted.append((yield base + depth, row))
        if depth == len(tokens) or emitted[-1] != tokens[depth]:
            break
    return Verdict(tokens=tuple(emitted), accepted=len(emitted) - 1)


def _walk_tree(target_probs: Tensor, tokens: tuple[int, ...], parents: tuple[int, ...], base: int) -> Walk:
    if len(parents) != len(tokens) or not all(-1 <= parent < i for i, parent in enumerate(parents)):
        raise ValueError(f"each draft's parent must come before it, got parents {list(parents)}")
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    emitted: list[int] = []
    # Siblings with one token are one node: all of them are stood on at once.
    here, last = [-1], -1
    while here:
        last = here[0]
        emitted.append((yield base + len(emitted), target_probs[last + 1]))
        here = [child for node in here for child in children.get(node, ()) if tokens[child] == emitted[-1]]
    path: list[int] = []
    while last >= 0:
        path.append(last)
        last = parents[last]
    return Verdict(tokens=tuple(emitted), accepted=len(path), path=tuple(reversed(path)))
