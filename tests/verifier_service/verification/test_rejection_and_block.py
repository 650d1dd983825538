"""`rejection` and `block` at their edges. Their laws are integrated exactly in test_exact_laws.py."""

import math
from dataclasses import dataclass, field

import pytest
import torch

from cluster.speculation.law import BLOCK, COUPLED, NONE, REJECTION, Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import DraftField, Noise, Purpose, derive_key
from cluster.speculation.proposal import ProposalError, SparseRow, pack, truncate
from verifier_service.verification import verify

LAWS = [REJECTION, BLOCK]
DTYPES = [torch.float32, torch.float64]
SMALLEST, LARGEST = 2.0**-53, 1.0 - 2.0**-53


@dataclass
class Fixed:
    """Stands for Noise: one value for every draw, or one a purpose."""

    default: float
    values: dict = field(default_factory=dict)
    base: int = 0

    def uniform(self, purpose, index):
        return self.values.get(purpose, self.default)


def block_of(tokens, rows):
    return DraftBlock(tuple(tokens), tuple(max(row.probs) for row in rows), proposal=pack(rows))


def one_hot(tokens, vocab, dtype=torch.float32):
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocab).to(dtype)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("u", [0.0, SMALLEST, 0.5, LARGEST])
def test_greedy_rows_leave_nothing_to_chance(law, dtype, u):
    rows = one_hot([2, 0, 1, 3], 4, dtype)
    for tokens, accepted in [((2, 0, 1), 3), ((2, 0, 3), 2), ((2, 1, 1), 1), ((0, 0, 1), 0)]:
        expected = Verdict((2, 0, 1, 3)[: accepted + 1], accepted)
        assert verify(law, rows, DraftBlock(tokens, (1.0,) * 3), Fixed(u)) == expected
        spread = [SparseRow((0, 1, 2, 3), (0.25,) * 4)] * 3
        assert verify(law, rows, block_of(tokens, spread), Fixed(u)) == expected


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_drafts_the_target_is_drawn_from(law, dtype):
    row = torch.tensor([[0.25, 0.0, 0.5, 0.25]], dtype=dtype)
    for u, token in [(0.0, 0), (0.25 - 1e-9, 0), (0.25, 2), (0.75 - 1e-9, 2), (0.75, 3), (LARGEST, 3)]:
        assert verify(law, row, DraftBlock(), Fixed(u)) == Verdict((token,), 0)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("u", [0.0, SMALLEST, 0.3, LARGEST])
def test_a_proposal_equal_to_the_target_is_always_accepted(law, dtype, u):
    generator = torch.Generator().manual_seed(4)
    rows = torch.softmax(torch.randn(5, 9, generator=generator, dtype=dtype) * 2, -1)
    drafter = [SparseRow(tuple(range(9)), tuple(row.float().tolist())) for row in rows[:4]]
    # Targets in the very bits that were sent, so that p and q are equal.
    target = torch.cat([torch.tensor([row.weights for row in drafter], dtype=dtype), rows[4:]])
    for tokens in [(0, 1, 2, 3), (8, 8, 8, 8), (4, 0, 7, 2)]:
        verdict = verify(law, target, block_of(tokens, drafter), Fixed(u))
        assert verdict.accepted == 4
        assert verdict.tokens[:4] == tokens


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("u", [0.0, SMALLEST, 0.5, LARGEST])
def test_a_token_of_probability_zero_is_never_emitted(law, u):
    rows = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    for row in (SparseRow((2,), (1.0,)), SparseRow((0, 2, 3), (0.5, 0.25, 0.25))):
        verdict = verify(law, rows, block_of((2,), [row]), Fixed(u))
        assert verdict.accepted == 0
        assert verdict.tokens[0] in (0, 1)


def test_rejection_accepts_below_the_ratio_and_nowhere_else():
    rows = torch.tensor([[0.3, 0.7], [0.5, 0.5]], dtype=torch.float64)
    block = block_of((0,), [SparseRow((0, 1), (0.5, 0.5))])
    assert verify(REJECTION, rows, block, Fixed(0.6 - 1e-12)).accepted == 1
    assert verify(REJECTION, rows, block, Fixed(0.6 + 1e-12)) == Verdict((1,), 0)


def test_a_fault_in_the_proposal_is_a_typed_error():
    rows = torch.full((2, 4), 0.25)
    for law in LAWS:
        with pytest.raises(ProposalError, match="gives no probability"):
            verify(law, rows, block_of((1,), [SparseRow((0, 2), (0.5, 0.5))]), Noise(1, 0))
        with pytest.raises(ProposalError, match="got a tree"):
            verify(law, torch.full((3, 4), 0.25), DraftBlock((1, 2), (1.0, 1.0), (-1, -1)), Noise(1, 0))
        for bad in (math.nan, 0.0):
            with pytest.raises(ValueError, match="positive, finite sum"):
                verify(law, torch.full((2, 4), bad), DraftBlock((1,), (1.0,)), Noise(1, 0))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_one_hot_proposals_are_the_same_law_said_or_unsaid(law):
    generator = torch.Generator().manual_seed(8)
    for seed in range(40):
        rows = torch.softmax(torch.randn(4, 6, generator=generator) * 2, -1)
        tokens = tuple(torch.randint(6, (3,), generator=generator).tolist())
        said = block_of(tokens, [SparseRow((t,), (1.0,)) for t in tokens])
        noise = Noise(seed, 5)
        assert verify(law, rows, DraftBlock(tokens, (1.0,) * 3), noise) == verify(law, rows, said, noise)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("vocab", [2, 7, 1000])
def test_a_retried_call_gives_the_same_verdict_and_another_round_another(law, vocab):
    generator = torch.Generator().manual_seed(vocab)
    verdicts = set()
    for base in range(40):
        rows = torch.softmax(torch.randn(4, vocab, generator=torch.Generator().manual_seed(1)), -1)
        draft = DraftField(derive_key(5, Purpose.DRAFT), base)
        sent = [truncate(torch.softmax(torch.randn(vocab, generator=generator), -1)) for _ in range(3)]
        block = block_of([draft.draw(k, row) for k, row in enumerate(sent)], sent)
        verdict = verify(law, rows, block, Noise(5, base))
        assert verdict == verify(law, rows, block, Noise(5, base))
        assert verdict == verify(law, rows.double(), block, Noise(5, base))
        assert verdict.tokens[: verdict.accepted] == block.tokens[: verdict.accepted]
        verdicts.add(verdict)
    assert len(verdicts) > 5 or vocab == 2


def test_rows_and_proposals_are_normalised_in_float64():
    """A row scaled by any factor is the same target, and weights scaled by any factor the same proposal."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.softmax(torch.randn(3, 6, generator=generator, dtype=torch.float64), -1)
    sent = [truncate(torch.softmax(torch.randn(6, generator=generator), -1)) for _ in range(2)]
    scaled = [SparseRow(row.ids, tuple(0.5 * weight for weight in row.weights)) for row in sent]
    for law in LAWS:
        for seed in range(40):
            tokens = [DraftField(seed, 0).draw(k, row) for k, row in enumerate(sent)]
            verdict = verify(law, rows, block_of(tokens, sent), Noise(seed, 0))
            assert verdict == verify(law, rows * 0.25, block_of(tokens, scaled), Noise(seed, 0))


@pytest.mark.parametrize("law", [NONE, COUPLED, *LAWS], ids=str)
@pytest.mark.parametrize(
    "row", [(0.5, math.nan, 0.5), (0.0, math.nan, 0.0), (0.0, math.inf, 0.0), (0.0,) * 3]
)
def test_a_row_that_is_no_distribution_is_an_error_without_drafts_too(law, row):
    with pytest.raises(ValueError, match="positive, finite sum"):
        verify(law, torch.tensor([row]), DraftBlock(), Noise(1, 0))


@pytest.mark.parametrize("law", [NONE, COUPLED, *LAWS], ids=str)
def test_a_parameter_that_a_law_does_not_take_is_not_ignored(law):
    with pytest.raises(ValueError, match=f"law {law} takes no parameters, got lenience"):
        verify(Law(law.name, (("lenience", 0.5),)), torch.tensor([[0.5, 0.5]]), DraftBlock(), Noise(1, 0))
