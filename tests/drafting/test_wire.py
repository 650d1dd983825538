"""Proposals on the wire: bit for bit what was drawn from, in a size that says nothing of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster.drafting.wire import (
    MAX_PROPOSAL_ENTRIES,
    open_message,
    put_proposal,
    session_spec,
    take_proposal,
)
from cluster.speculation.law import BLOCK, COUPLED, REJECTION
from cluster.speculation.messages import SessionSpec, SparseRows
from cluster.speculation.proposal import SparseRow, pack
from tests.drafting.helpers import GREEDY
from truedraft.v1 import drafting_pb2 as pb

ENTRIES = 5
entry_rows = st.dictionaries(
    st.integers(0, 2**32 - 1), st.floats(2.0**-140, 1.0, width=32), min_size=1, max_size=ENTRIES
).map(lambda row: SparseRow(tuple(row), tuple(row.values())))


def sent(rows, entries=ENTRIES):
    block = pb.Block(ids=[row.ids[0] for row in rows], max_q=[0.5] * len(rows))
    put_proposal(block, pack(rows), entries)
    return block.SerializeToString()


@given(st.lists(entry_rows, min_size=1, max_size=4))
def test_a_proposal_survives_bit_for_bit_in_a_size_of_its_positions_alone(rows):
    wire = sent(rows)
    proposal = take_proposal(pb.Block.FromString(wire))
    assert proposal.ids.shape == proposal.probs.shape == (len(rows), ENTRIES)
    assert (proposal.ids.dtype, proposal.probs.dtype) == (torch.int64, torch.float32)
    for k, row in enumerate(rows):
        width = len(row.ids)
        assert tuple(proposal.ids[k, :width].tolist()) == row.ids
        assert tuple(proposal.probs[k, :width].tolist()) == row.weights
        assert not proposal.probs[k, width:].any()
    assert len(wire) == len(sent([SparseRow((0,), (1.0,))] * len(rows)))


def test_the_size_of_several_messages_says_nothing_of_their_tokens():
    def size(*tokens):
        blocks = [pb.Block(ids=[token] * 3, max_q=[0.5] * 3) for token in tokens]
        return pb.DraftResponse(messages=[pb.DrafterMessage(block=block) for block in blocks]).ByteSize()

    assert size(0, 0) == size(2**32 - 1, 1)


def test_a_block_without_a_proposal_is_one_hot():
    assert take_proposal(pb.Block(ids=[1, 2])) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"proposal_entries": 2},
        {"proposal_ids": b"1234"},
        {"proposal_probs": b""},
        {"proposal_entries": 0},
        {"ids": [1, 2]},
    ],
    ids=str,
)
def test_a_proposal_of_another_size_than_it_says_is_refused(changes):
    block = pb.Block(ids=[7])
    put_proposal(block, pack([SparseRow((7,), (1.0,))]), 3)
    for name, value in changes.items():
        block.ClearField(name)
        block.MergeFrom(pb.Block(**{name: value}))
    with pytest.raises(ValueError, match="a proposal of"):
        take_proposal(block)


def test_a_proposal_wider_than_was_asked_for_is_not_sent():
    with pytest.raises(ValueError, match="of 2 entries where 1 were asked for"):
        put_proposal(pb.Block(ids=[1]), SparseRows(torch.tensor([[1, 2]]), torch.tensor([[0.5, 0.5]])), 1)


@pytest.mark.parametrize("law", [REJECTION, BLOCK], ids=str)
def test_entries_are_asked_for_where_the_law_needs_them(law):
    said = SessionSpec(1, (1, 2), GREEDY, law, noise_key=2**64 - 1, proposal_entries=16)
    message = open_message(said, 1, [1, 2])
    assert session_spec(message) == said
    for entries in (0, MAX_PROPOSAL_ENTRIES + 1):
        message.proposal_entries = entries
        with pytest.raises(ValueError, match=f"under {law} a proposal has 1 to {MAX_PROPOSAL_ENTRIES}"):
            session_spec(message)


def test_entries_are_not_asked_for_where_the_law_needs_none():
    message = open_message(SessionSpec(1, (1, 2), GREEDY, COUPLED, 5, proposal_entries=4), 1, [1, 2])
    with pytest.raises(ValueError, match="under coupled a proposal has 0 to 0 entries, 4"):
        session_spec(message)
