"""The engine's own admission: what of a block takes part does not follow from what was drafted."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cluster.scheduling import Budget, PlannerName, VerifyCost, planner_of
from cluster.speculation.law import BLOCK, COUPLED, REJECTION
from cluster.speculation.messages import DraftBlock
from tests.scheduling.test_admission import Peeking
from verifier_service.cache.kv_cache import KVPool
from verifier_service.engine.composing import compose
from verifier_service.measuring.measurements import Measurements
from verifier_service.requests.sequence import Phase, Sequence

COST = VerifyCost((1, 2, 3, 9, 20), (1.0, 1.2, 1.3, 2.4, 7.0))
STEP_ROWS = 24
# What a step has room for, whoever takes part in it.
RESERVED = 5

drafts = st.lists(st.tuples(st.integers(0, 99), st.floats(0, 1)), max_size=RESERVED)
laws = st.sampled_from([COUPLED, REJECTION, BLOCK])


def ready(law, block):
    """A sequence with this block in hand; of the engine's own class, without an engine."""
    sequence = Sequence.__new__(Sequence)
    sequence.request, sequence.replay, sequence.number = SimpleNamespace(law=law, adapter=""), None, 1
    sequence.phase, sequence.tokens, sequence.prompt = Phase.READY, [1, 2, 3], 3
    sequence.cache = KVPool(1, 1, 16, 20, torch.float32, torch.device("cpu")).open()
    sequence.cache.length = 2
    sequence.block = DraftBlock(tuple(token for token, _ in block), tuple(max_q for _, max_q in block))
    sequence.budget, sequence.whole = Budget(RESERVED, 1, 3.0, COST), True
    return sequence


def admitted(planner, laws_and_blocks):
    measurements = Measurements(COST)
    # Steps before this one, so that admission has figures to go by.
    for _ in range(4):
        measurements.step_begins([DraftBlock((1, 1), (0.9, 0.4)), DraftBlock((1,), (0.7,))])
    sequences = [ready(law, block) for law, block in laws_and_blocks]
    batch = compose(sequences, planner, STEP_ROWS, measurements, lambda sequence: True)
    rows = {id(sequence): len(each.tokens) - 1 for sequence, each in batch}
    assert len(rows) == len(sequences)
    assert sum(rows.values()) + len(rows) <= STEP_ROWS
    return [rows[id(sequence)] for sequence in sequences]


@st.composite
def steps(draw):
    """(blocks of a step, which of them, where it is changed, the blocks after the change)."""
    blocks = draw(st.lists(st.tuples(laws, drafts), min_size=1, max_size=4))
    which = draw(st.integers(0, len(blocks) - 1))
    law, block = blocks[which]
    at = draw(st.integers(0, len(block)))
    # x_at is drawn anew, with the same statistic before it; all that follows is of another kind.
    changed = block[:at]
    if at < len(block):
        changed += [(draw(st.integers(0, 99)), block[at][1]), *draw(drafts)]
    after = [*blocks]
    after[which] = (law, changed[:RESERVED])
    return blocks, which, min(at + 1, len(block)), after


@pytest.mark.parametrize("name", PlannerName)
@given(steps())
def test_a_draft_and_what_follows_it_do_not_change_whether_it_is_verified(name, step):
    blocks, which, decided, changed = step
    planner = planner_of(name, RESERVED)
    before, after = (admitted(planner, each)[which] for each in (blocks, changed))
    assert min(before, decided) == min(after, decided)


@pytest.mark.parametrize("name", PlannerName)
@given(steps(), st.lists(st.tuples(laws, drafts), max_size=3))
def test_who_else_is_in_the_step_changes_nothing_where_blocks_must_not_be_lost_for_what_they_are(
    name, step, others
):
    """Which sequences share a step follows from when their blocks come."""
    blocks, _, _, _ = step
    planner = planner_of(name, RESERVED)
    together = admitted(planner, [*blocks, *others][:4])
    for (law, block), rows in zip(blocks, together, strict=False):
        if law != COUPLED:
            assert admitted(planner, [(law, block)]) == [rows]


def test_a_peeking_planner_is_caught_in_the_engines_admission():
    class Looking(Peeking):
        def admit(self, frontiers, budget):
            for frontier in frontiers:
                # As a planner might that knows the engine's class.
                frontier.__dict__["values"] = frontier._max_q
            return super().admit(frontiers, budget)

    dip = VerifyCost((1, 2, 3), (1.0, 2.0, 2.2))
    rows = []
    for second in (0.9, 0.0):
        sequence = ready(REJECTION, [(5, 0.8), (6, second)])
        sequence.budget = Budget(2, cost=dip)
        [(_, each)] = compose([sequence], Looking(2), STEP_ROWS, Measurements(None), lambda sequence: True)
        rows.append(len(each.tokens) - 1)
    assert rows == [2, 0]
