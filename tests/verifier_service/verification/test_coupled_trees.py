"""`coupled` on trees: the walk, the path it reports, and that the tree's shape changes no token."""

import pytest
import torch

from cluster.speculation.law import COUPLED, NONE
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise
from verifier_service.verification import verify

VOCAB = 5


def rows_of(*winners):
    return torch.nn.functional.one_hot(torch.tensor(winners), VOCAB).double()


def walk(tokens, parents, rows):
    return verify(COUPLED, rows, DraftBlock(tokens, (1.0,) * len(tokens), parents), Noise(1, 7))


def test_the_walk_goes_to_the_child_that_was_emitted():
    #        root → 1, 2;   2 → 3, 4;   4 → 0
    tokens, parents = (1, 2, 3, 4, 0), (-1, -1, 1, 1, 3)
    rows = rows_of(2, 0, 4, 1, 3, 2)
    assert walk(tokens, parents, rows) == Verdict((2, 4, 3), 2, path=(1, 3))
    rows[4] = rows_of(0)[0]
    assert walk(tokens, parents, rows) == Verdict((2, 4, 0, 2), 3, path=(1, 3, 4))
    rows[0] = rows_of(3)[0]
    assert walk(tokens, parents, rows) == Verdict((3,), 0, path=())


def test_duplicate_children_are_one_node():
    # Both children of the root are token 2; each has a child of its own.
    tokens, parents = (2, 2, 0, 4), (-1, -1, 0, 1)
    rows = rows_of(2, 4, 4, 1, 3)
    assert walk(tokens, parents, rows) == Verdict((2, 4, 3), 2, path=(1, 3))
    rows = rows_of(2, 0, 0, 1, 3)
    assert walk(tokens, parents, rows) == Verdict((2, 0, 1), 2, path=(0, 2))
    rows = rows_of(2, 3, 3, 1, 3)
    assert walk(tokens, parents, rows) == Verdict((2, 3), 1, path=(0,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tree_that_is_a_chain_is_the_chain(dtype):
    generator = torch.Generator().manual_seed(3)
    accepted = set()
    for seed in range(60):
        rows = torch.softmax(torch.randn(4, VOCAB, generator=generator, dtype=dtype) * 4, -1)
        tokens = tuple(rows[:3].argmax(-1).tolist())
        chain = verify(COUPLED, rows, DraftBlock(tokens, (1.0,) * 3), Noise(seed, 7))
        tree = verify(COUPLED, rows, DraftBlock(tokens, (1.0,) * 3, (-1, 0, 1)), Noise(seed, 7))
        assert (tree.tokens, tree.accepted) == (chain.tokens, chain.accepted)
        assert tree.path == tuple(range(chain.accepted))
        accepted.add(chain.accepted)
    assert accepted == {0, 1, 2, 3}


def test_whatever_the_tree_the_tokens_are_those_of_plain_decoding():
    """Rows depend on the whole path; drafts are random trees with many duplicates."""

    def row(path):
        generator = torch.Generator().manual_seed(sum(7**i * (t + 1) for i, t in enumerate(path)))
        return torch.softmax(torch.randn(3, generator=generator, dtype=torch.float64) * 1.5, -1)

    generator = torch.Generator().manual_seed(1)
    depths = set()
    for seed in range(60):
        tokens = tuple(torch.randint(3, (9,), generator=generator).tolist())
        parents = tuple(int(torch.randint(-1, k, (1,), generator=generator)) if k else -1 for k in range(9))
        paths = [()]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*paths[parent + 1], token))
        verdict = walk_with(seed, tokens, parents, torch.stack([row(path) for path in paths]))
        plain = ()
        for position in range(len(verdict.tokens)):
            plain += verify(NONE, row(plain)[None], DraftBlock(), Noise(seed, position)).tokens
        assert verdict.tokens == plain
        assert tuple(tokens[node] for node in verdict.path) == plain[:-1]
        # It stopped because no drafted child goes on, not before.
        assert verdict.tokens not in paths
        depths.add(verdict.accepted)
    assert {0, 1, 2} <= depths


def walk_with(seed, tokens, parents, rows):
    return verify(COUPLED, rows, DraftBlock(tokens, (1.0,) * len(tokens), parents), Noise(seed, 0))


@pytest.mark.parametrize("parents", [(0, -1), (-1, 1), (-2, 0), (-1,), (-1, 5)])
def test_parents_that_are_no_tree_are_refused(parents):
    with pytest.raises(ValueError, match="parent must come before it"):
        walk((1, 2), parents, rows_of(0, 1, 2))
