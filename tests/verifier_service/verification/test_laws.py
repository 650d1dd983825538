"""`verify`: its contract. The law that it samples from is tested in test_distribution.py."""

import pytest
import torch

from cluster.speculation.law import COUPLED, NONE, REJECTION, Law
from cluster.speculation.messages import DraftBlock, Verdict
from cluster.speculation.noise import Noise, Purpose, derive_key
from cluster.speculation.race import GumbelField
from verifier_service.verification import verify, verify_together

VOCAB, BLOCK = 3, 2


def chain(prefix):
    """A random but fixed next-token row that depends on the whole prefix."""
    generator = torch.Generator().manual_seed(sum(5**i * (token + 1) for i, token in enumerate(prefix)))
    return torch.softmax(torch.randn(VOCAB, generator=generator) * 1.5, -1).double()


def rows_for(tokens):
    return torch.stack([chain(tokens[:k]) for k in range(len(tokens) + 1)])


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


def test_coupled_is_plain_decoding_token_for_token():
    def plain(rows, block, noise):
        return verify(NONE, rows, block, noise).tokens

    drafts = [
        lambda seed, out: (),
        sharing_draft,
        lambda seed, out: (0,) * 5,
        lambda seed, out: tuple((seed + k) % VOCAB for k in range(3)),
    ]
    for seed in range(20):
        expected = generate(seed, drafts[0], plain, 12)
        for draft in drafts:
            assert generate(seed, draft, coupled, 12) == expected


@pytest.mark.parametrize("vocab", [1, 2, 7, 400])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coupled_walks_the_chain_position_by_position(vocab, dtype):
    generator = torch.Generator().manual_seed(vocab)
    lengths = set()
    for seed in range(30):
        rows = torch.softmax(torch.randn(5, vocab, generator=generator, dtype=dtype) * 3, -1)
        noise = Noise(seed, base=10 * seed)
        scores = rows.double().log() + torch.stack([noise.gumbel(noise.base + k, vocab) for k in range(5)])
        winners = scores.argmax(-1).tolist()
        # Right up to a depth that differs from seed to seed.
        drafts = [w if k < seed % 5 else (w + 1) % vocab for k, w in enumerate(winners[:4])]
        verdict = verify(COUPLED, rows, DraftBlock(tuple(drafts), (1.0,) * 4), noise)
        accepted = 4 if vocab == 1 else seed % 5
        assert verdict == Verdict(tuple(winners[: accepted + 1]), accepted)
        lengths.add(verdict.accepted)
    assert lengths == ({4} if vocab == 1 else {0, 1, 2, 3, 4})


def test_without_drafts_coupled_and_none_are_one_law():
    for seed in range(50):
        rows = torch.softmax(torch.randn(1, 40, generator=torch.Generator().manual_seed(seed)), -1)
        noise = Noise(seed, 3 * seed)
        assert verify(COUPLED, rows, DraftBlock(), noise) == verify(NONE, rows, DraftBlock(), noise)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draft_of_probability_zero_is_never_accepted(dtype):
    rows = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=dtype)
    for seed in range(60):
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


def test_verdicts_together_are_the_verdicts_alone():
    """Chains, a tree, plain decoding and a law without a race, in one step."""
    generator = torch.Generator().manual_seed(6)

    def rows(count):
        return torch.softmax(torch.randn(count, 50, generator=generator) * 2, -1)

    cases = []
    for seed in range(30):
        plain, several = rows(1), rows(5)
        drafts = tuple(Noise(seed, 7).field.winner(7 + k, several[k]) for k in range(4))
        wrong = (*drafts[: seed % 4], 49, 49, 49, 49)[:4]
        tree = DraftBlock((drafts[0], 3, drafts[1], 4), (1.0,) * 4, parents=(-1, -1, 0, 0))
        cases += [
            (NONE, plain, DraftBlock(), Noise(seed, 7)),
            (COUPLED, several, DraftBlock(wrong, (1.0,) * 4), Noise(seed, 7)),
            (COUPLED, several, tree, Noise(seed, 7)),
            (REJECTION, several, DraftBlock(wrong, (1.0,) * 4), Noise(seed, 7)),
        ]
    together = verify_together(cases)
    assert together == [verify(*case) for case in cases]
    assert len({verdict.accepted for verdict in together[1::4]}) > 3
    assert verify_together([]) == []


def test_a_block_that_does_not_fit_is_refused_together_as_alone():
    good = (COUPLED, rows_for((0,)), DraftBlock((0,), (1.0,)), Noise(1, 0))
    with pytest.raises(ValueError, match="2 drafts need 3 rows, got 2"):
        verify_together([good, (COUPLED, rows_for((0,)), DraftBlock((0, 1), (1.0, 1.0)), Noise(1, 0))])
