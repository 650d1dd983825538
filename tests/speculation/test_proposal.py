"""Sparse proposals: what is sent is what was drawn from, and what cannot have been is refused."""

import math

import pytest
import torch

from cluster.speculation.messages import DraftBlock, SparseRows
from cluster.speculation.proposal import ProposalError, SparseRow, pack, truncate, unpack

SMALLEST, LARGEST = 2.0**-53, 1.0 - 2.0**-53


def test_truncation_keeps_the_largest_and_sends_float32():
    probs = torch.tensor([0.05, 0.3, 0.1, 0.3, 0.25], dtype=torch.float64)
    row = truncate(probs, size=3)
    assert row.ids == (1, 3, 4)
    expected = torch.tensor([0.3, 0.3, 0.25], dtype=torch.float64) / 0.85
    assert row.weights == tuple(expected.float().tolist())
    assert math.fsum(row.probs) == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_truncation_of_one_hot_and_of_short_rows_leaves_zeros_out(dtype):
    assert truncate(torch.tensor([0.0, 1.0, 0.0], dtype=dtype)) == SparseRow((1,), (1.0,))
    assert truncate(torch.tensor([0.5, 0.0, 0.5], dtype=dtype)) == SparseRow((0, 2), (0.5, 0.5))


@pytest.mark.parametrize("bad", [[0.0, 0.0], [math.nan, 0.5], [math.inf, 0.5]])
def test_truncation_refuses_what_is_no_distribution(bad):
    with pytest.raises(ValueError, match="positive, finite sum"):
        truncate(torch.tensor(bad))


def test_a_draw_takes_each_token_over_exactly_its_share():
    row = SparseRow((2, 5, 7), (0.25, 0.5, 0.25))
    edges = {SMALLEST: 2, 0.25 - 1e-15: 2, 0.25: 5, 0.75 - 1e-15: 5, 0.75: 7, LARGEST: 7}
    assert {u: row.draw(u) for u in edges} == edges
    assert SparseRow((4,), (0.1,)).draw(LARGEST) == 4
    # A total that is not 1 in float32 changes nothing.
    assert SparseRow((0, 1), (0.1, 0.3)).draw(0.25 + 1e-9) == 1
    assert SparseRow((0, 1), (0.1, 0.3)).draw(0.25 - 1e-7) == 0


def test_rows_survive_the_way_through_tensors():
    rows = [SparseRow((3,), (1.0,)), truncate(torch.tensor([0.1, 0.2, 0.3, 0.4]), 3)]
    block = DraftBlock((3, 2), (1.0, 0.4), proposal=pack(rows))
    assert block.proposal.ids.shape == block.proposal.probs.shape == (2, 3)
    assert unpack(block, vocab=4) == rows
    assert unpack(DraftBlock((1, 0), (1.0, 1.0)), 2) == [SparseRow((1,), (1.0,)), SparseRow((0,), (1.0,))]
    assert unpack(DraftBlock(), 2) == []
    assert pack([]).ids.shape == (0, 0)


def refused(ids, probs, tokens=(1,), vocab=4):
    proposal = SparseRows(torch.tensor(ids), torch.tensor(probs))
    with pytest.raises(ProposalError) as error:
        unpack(DraftBlock(tokens, (1.0,) * len(tokens), proposal=proposal), vocab)
    return str(error.value)


def test_what_cannot_have_given_the_block_is_refused_by_a_typed_error():
    assert "draft 0 is token 1, which its proposal gives no probability" in refused([[0, 1]], [[1.0, 0.0]])
    assert "no probability" in refused([[0, 2]], [[0.5, 0.5]])
    assert "no positive probability" in refused([[0, 1]], [[0.0, 0.0]])
    assert "negative or not finite" in refused([[0, 1]], [[-0.1, 1.1]])
    assert "negative or not finite" in refused([[0, 1]], [[math.nan, 1.0]])
    assert "negative or not finite" in refused([[0, 1]], [[math.inf, 1.0]])
    assert "names a token twice" in refused([[1, 1]], [[0.5, 0.5]])
    assert "outside a vocabulary of 4" in refused([[1, 4]], [[0.5, 0.5]])
    assert "outside a vocabulary of 4" in refused([[1, -1]], [[0.5, 0.5]])
    assert "2 drafts need as many proposals" in refused([[1]], [[1.0]], tokens=(1, 1))
    with pytest.raises(ProposalError, match="a chain of drafts, got a tree"):
        unpack(DraftBlock((1, 2), (1.0, 1.0), parents=(-1, -1)), 4)
    with pytest.raises(ProposalError, match="outside a vocabulary of 4"):
        unpack(DraftBlock((4,), (1.0,)), 4)
