"""`verify`: its contract, the coupled law against enumeration, and faults that must be caught."""

import itertools

import pytest
import torch

from cluster.speculation.law import COUPLED, NONE, Law
from cluster.speculation.messages import DraftBlock
from cluster.speculation.noise import GumbelField, Noise, Purpose, derive_key
from verifier_service.verification import verify

VOCAB, BLOCK = 3, 2


def chain(prefix):
    """A random but fixed next-token row that depends on the whole prefix."""
    generator = torch.Generator().manual_seed(sum(5**i * (token + 1) for i, token in enumerate(prefix)))
    return torch.softmax(torch.randn(VOCAB, generator=generator) * 1.5, -1).double()


def rows_for(tokens):
    return torch.stack([chain(tokens[:k]) for k in range(len(tokens) + 1)])


def sequence_law(length):
    """The exact law of the first `length` tokens of plain sampling."""
    law = {}
    for tokens in itertools.product(range(VOCAB), repeat=length):
        law[tokens] = float(torch.stack([chain(tokens[:k])[t] for k, t in enumerate(tokens)]).prod())
    return law


def generate(seed, draft, verify_round, length):
    """Rounds of drafting and verifying until `length` tokens are out."""
    out = ()
    while len(out) < length:
        block = draft(seed, out)
        rows = torch.stack([chain(out + block[:k]) for k in range(len(block) + 1)])
        out += verify_round(rows, DraftBlock(block, (1.0,) * len(block)), Noise(seed, len(out)))
    return out[:length]


def coupled(rows, block, noise):
    return verify(COUPLED, rows, block, noise).tokens


def sharing_draft(seed, out):
    """A drafter with another model and the same noise: it agrees often, and depends on the noise."""
    field = GumbelField(derive_key(seed, Purpose.GUMBEL))
    block = ()
    for k in range(BLOCK):
        q = torch.softmax(chain((*out, *block)).log() * 0.5, -1)
        block += (field.winner(len(out) + k, q),)
    return block


def distance(sample, length=BLOCK):
    law = sequence_law(length)
    counts = dict.fromkeys(law, 0)
    for tokens in sample:
        counts[tokens] += 1
    return sum(abs(counts[t] / len(sample) - law[t]) for t in law) / 2


def sample_with(draft, verify_round, length=BLOCK, seeds=3_000):
    return [generate(seed, draft, verify_round, length) for seed in range(seeds)]


def test_coupled_follows_the_targets_law_whatever_drafts():
    sample = sample_with(sharing_draft, coupled)
    # 9 outcomes, 3,000 draws: the expected distance is near 0.02.
    assert distance(sample) < 0.04


def test_fresh_noise_for_the_correction_is_caught_by_the_same_distance():
    def faulty(rows, block, noise):
        verdict = verify(COUPLED, rows, block, noise)
        if verdict.accepted == len(block.tokens):
            return verdict.tokens
        fresh = Noise(noise.seed + 10**6, noise.base).field
        correction = fresh.winner(noise.base + verdict.accepted, rows[verdict.accepted])
        return (*verdict.tokens[:-1], correction)

    assert distance(sample_with(sharing_draft, faulty)) > 0.04


def test_coupled_is_plain_decoding_token_for_token():
    def plain(rows, block, noise):
        return verify(NONE, rows, block, noise).tokens

    drafts = [
        lambda seed, out: (),
        sharing_draft,
        lambda seed, out: (0,) * 5,
        lambda seed, out: tuple((seed + k) % VOCAB for k in range(3)),
    ]
    for seed in range(60):
        expected = generate(seed, drafts[0], plain, 12)
        for draft in drafts:
            assert generate(seed, draft, coupled, 12) == expected


def test_agreement_with_shared_noise_is_as_published():
    """P(match) = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i)."""
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    q = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    expected = sum(float(1 / torch.maximum(p / p[i], q / q[i]).sum()) for i in range(3))
    field = GumbelField(77)
    draws = 20_000
    matches = sum(field.winner(k, p) == field.winner(k, q) for k in range(draws)) / draws
    assert abs(matches - expected) < 4 * 0.5 / draws**0.5
    # Independent noise would agree far less often: the formula has something to tell.
    assert abs(float((p * q).sum()) - expected) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draft_of_probability_zero_is_never_accepted(dtype):
    rows = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=dtype)
    for seed in range(200):
        verdict = verify(COUPLED, rows, DraftBlock((2,), (1.0,)), Noise(seed, 0))
        assert verdict.accepted == 0
        assert verdict.tokens[0] in (0, 1)


def test_every_draft_accepted_gives_the_bonus_token_of_the_next_position():
    rows = rows_for((1, 2, 0))
    noise = Noise(5, 40)
    truth = torch.stack([torch.nn.functional.one_hot(torch.tensor(t), VOCAB).double() for t in (1, 2, 0)])
    verdict = verify(COUPLED, torch.cat([truth, rows[3:]]), DraftBlock((1, 2, 0), (1.0,) * 3), noise)
    expected = noise.field.winner(43, rows[3])
    assert verdict.accepted == 3
    assert verdict.tokens == (1, 2, 0, expected)


def test_rows_that_do_not_fit_and_unknown_laws_are_refused():
    with pytest.raises(ValueError, match="2 drafts need 3 rows, got 2"):
        verify(COUPLED, rows_for((0,)), DraftBlock((0, 1), (1.0, 1.0)), Noise(1, 0))
    with pytest.raises(ValueError, match="unknown verification law 'wishful'"):
        verify(Law("wishful"), rows_for(()), DraftBlock(), Noise(1, 0))
    with pytest.raises(ValueError, match="takes no drafts"):
        verify(NONE, rows_for((0,)), DraftBlock((0,), (1.0,)), Noise(1, 0))
